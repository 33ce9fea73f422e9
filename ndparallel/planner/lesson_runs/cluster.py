"""The clocks of an executed run's GPUs: arrays over all ranks, or over those of one pipeline rank.

Idea   The machine on which `ndparallel.planner.step.streams` runs executed lists: operations at the
       hardware's price, collectives step by step on the clocks of all groups at once, with the links that
       each group really has.
Cost   A vector operation for every step of a collective.

Glossary
    members    the ranks that the arrays stand for, in their order
    shift      every rank hands something to its right neighbour in the group, and takes as much from its
               left: no collective
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from collectives import Group
from gpu import Hardware, Operation
from ndparallel.collective.algorithms import usual_algorithm
from ndparallel.collective.clocks import Clocks, Path, Wave, start_clocks
from ndparallel.collective.lockstep import advance, direct_all_to_all
from ndparallel.parallel.mesh import Mesh
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.ports import Piece, Round
from ndparallel.planner.step.streams import OnTheWay

RING = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring", "all_to_all": "direct"}


@dataclass
class RecordedClocks(Clocks):
    """Clocks that know what was sent, by round."""

    rounds: list[list[Piece]] = field(default_factory=lambda: [[]])

    def send(self, path: Path, nbytes: Any) -> Wave:
        wave = super().send(path, nbytes)
        self.rounds[-1].append(slowest(path.inside, path.latency, wave.wire_seconds))
        return wave

    def receive(self, path: Path, wave: Wave) -> None:
        super().receive(path, wave)
        self.rounds.append([])


def slowest(inside: np.ndarray, latency: np.ndarray, wire: np.ndarray) -> Piece:
    """One message for many that leave at the same time."""
    port = "inside" if np.all(inside) else "across"
    return Piece(port, float(np.max(wire)), latency_seconds=float(np.max(latency)))


class Links(NamedTuple):
    """Links from some ranks to as many others: whether both are on one node, seconds, and bytes a second."""

    inside: np.ndarray
    latency: np.ndarray
    bandwidth: np.ndarray

    def piece(self, nbytes: Any) -> Piece:
        return slowest(self.inside, self.latency, nbytes / self.bandwidth)


class Neighbours(NamedTuple):
    """Each member's neighbours in its group, as places among the members, and the links from the left one."""

    left: np.ndarray
    right: np.ndarray
    links: Links


@dataclass
class LockstepMachine:
    """All GPUs of an executed run, or with `stage` those of one pipeline rank."""

    hardware: Hardware
    mesh: Mesh
    itemsize: int
    stage: int | None = None
    alike: bool = field(default=False, init=False)
    slowdown: float = field(default=0.0, init=False)
    known_prices: dict[Operation, float] = field(default_factory=dict)
    # of these members alone: a machine made from another by `replace` has its own
    known_groups: dict[tuple, list] = field(default_factory=dict, init=False)
    known_neighbours: dict[str, Neighbours] = field(default_factory=dict, init=False)

    @cached_property
    def members(self) -> np.ndarray:
        ranks = np.arange(self.mesh.world_size)
        return ranks if self.stage is None else ranks.reshape(self.mesh.pp, -1)[self.stage]

    def seconds(self, operation: Operation) -> Any:
        nbytes: Any = operation.bytes
        if isinstance(nbytes, np.ndarray):  # by member
            return self.hardware.seconds(operation)
        if operation not in self.known_prices:
            self.known_prices[operation] = float(self.hardware.seconds(operation))
        return self.known_prices[operation]

    def arrival(self, exchange: CollectiveOp, start: Any) -> Any:
        """When each member ends a collective that it starts at its time of `start`. Bytes may be an array:
        (members), those of each member's group; an all-to-all's (members, p), what each sends to each."""
        start = np.broadcast_to(start, self.members.shape)
        if exchange.collective == "shift":
            return self.passed_on(exchange, start)
        end = start.astype(float)
        for places, clocks in self.advanced(exchange, start, Clocks):
            end[places] = clocks.now
        return end

    def advanced(
        self, exchange: CollectiveOp, start: np.ndarray, kind: type[Clocks]
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """(places of members, their clocks behind a collective), of groups that lie alike on the nodes."""
        itemsize = exchange.itemsize or self.itemsize
        for algorithm, ranks, nbytes in self.groups_of_one_size(exchange):
            places = ranks - self.members[0]
            clocks = start_clocks(self.hardware, ranks, itemsize, start[places], kind)
            if isinstance(nbytes, np.ndarray):
                direct_all_to_all(clocks, nbytes[places])
            else:
                advance(clocks, exchange.collective, algorithm, round(nbytes))
            yield places, clocks

    def across(self, exchange: CollectiveOp, ranks: Sequence[int], starts: Sequence[Any]) -> list[np.ndarray]:
        """Seconds that each of these pipeline ranks needs for a collective between them, which it starts at
        its own time: of all GPUs, as if all were of that rank."""
        pp = self.mesh.pp
        begun = np.zeros((pp, len(self.members) // pp))
        for rank, start in zip(ranks, starts):
            begun[rank] = np.broadcast_to(start, self.members.shape).reshape(begun.shape)[rank]
        taken = self.arrival(exchange, begun.ravel()).reshape(begun.shape) - begun
        return [np.tile(taken[rank], pp) for rank in ranks]

    def rounds(self, exchange: CollectiveOp) -> list[Round]:
        """The messages of a member in the slowest of the groups."""
        if exchange.collective == "shift":
            return [[self.neighbours(exchange.group).links.piece(exchange.bytes)]]
        start = np.zeros(self.members.shape)
        found = [clocks for _, clocks in self.advanced(exchange, start, RecordedClocks)]
        last = max(found, key=lambda clocks: np.max(clocks.now))
        return [pieces for pieces in last.rounds if pieces]

    def groups_of_one_size(self, exchange: CollectiveOp) -> Iterator[tuple[str, np.ndarray, Any]]:
        """(algorithm, ranks of groups that lie on the nodes in one way and have as many bytes, the bytes)."""
        for algorithm, ranks in self.alike_groups(exchange):
            if np.ndim(exchange.bytes) != 1:
                yield algorithm, ranks, exchange.bytes
                continue
            sizes = exchange.bytes[ranks[:, 0] - self.members[0]]
            yield from ((algorithm, ranks[sizes == size], int(size)) for size in np.unique(sizes))

    def passed_on(self, exchange: CollectiveOp, start: np.ndarray) -> OnTheWay:
        """What every member hands to its right neighbour."""
        left, right, links = self.neighbours(exchange.group)
        wire = exchange.bytes / links.bandwidth
        return OnTheWay(start + wire[right], start[left] + links.latency, wire)

    def neighbours(self, group: str) -> Neighbours:
        if group not in self.known_neighbours:
            groups = self.groups(group) - self.members[0]
            left = np.empty_like(self.members)
            left[groups] = np.roll(groups, 1, axis=1)
            self.known_neighbours[group] = Neighbours(
                left, np.argsort(left), self.links(self.members[left], self.members)
            )
        return self.known_neighbours[group]

    def links(self, source: np.ndarray, target: np.ndarray) -> Links:
        """The links from each of these ranks to the target in the same place."""
        per_node = self.hardware.gpus_per_node
        links = [self.hardware.link(int(a), int(b)) for a, b in zip(source, target)]
        return Links(
            source // per_node == target // per_node,
            np.array([link.latency_seconds for link in links]),
            np.array([link.bandwidth_bytes_per_second for link in links]),
        )

    def alike_groups(self, exchange: CollectiveOp) -> list[tuple[str, np.ndarray]]:
        """(algorithm, ranks of groups that lie on the nodes in one way), (groups, ranks)."""
        key = exchange.group, exchange.collective
        if key not in self.known_groups:
            lying: dict[tuple, list[np.ndarray]] = {}
            for ranks in self.groups(exchange.group):
                how = self.algorithm(exchange, ranks), *self.place_on_nodes(ranks)
                lying.setdefault(how, []).append(ranks)
            self.known_groups[key] = [(name, np.array(ranks)) for (name, *_), ranks in lying.items()]
        return self.known_groups[key]

    def place_on_nodes(self, ranks: np.ndarray) -> np.ndarray:
        return np.unique(ranks // self.hardware.gpus_per_node, return_inverse=True)[1]

    def algorithm(self, exchange: CollectiveOp, ranks: np.ndarray) -> str:
        """What the lessons take: buckets of data parallelism go in two levels where their links allow it, all
        else round a ring."""
        if "dp" not in exchange.group:
            return RING[exchange.collective]
        return usual_algorithm(Group(exchange.group, tuple(map(int, ranks))), self.hardware)

    def groups(self, name: str) -> np.ndarray:
        """The members' groups of that name, (groups, ranks); "tp/2" are the pairs of neighbours in tp."""
        axis, _, parts = name.partition("/")
        axis = "pp" if name == "tied" else axis
        groups = dict.fromkeys(self.mesh.group(axis, int(rank)).ranks for rank in self.members)
        ranks = np.array(list(groups))
        if name == "tied":  # the two ends of each pipeline
            return ranks[:, [0, -1]]
        return ranks.reshape(-1, int(parts)) if parts else ranks
