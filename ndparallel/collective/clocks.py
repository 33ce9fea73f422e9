"""The clock rules of gpu.send and gpu.receive, for all ranks of a group at once.

Idea   In a collective all ranks do the same thing at the same step. What a GPU does with the clock of its
       stream, `Clocks` does with a vector of them, one operation for all: the same numbers to the last digit,
       without messages and without payload.
Cost   About 20 us a step of 1,024 ranks: 40 million messages a second and more.
Limit  One stream a rank.

Glossary
    clocks     the times of p members, or of many groups of p at once: arrays of shape (..., p), in the order
               of the members
    path       one message each from some members to others, none of whom gets two
    wave       what is on its way over a path: when the first bytes arrive, and how long the wire is taken
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gpu import Hardware
from ndparallel.base.errors import UserError

Index = Any  # what picks members from the last axis: a slice, or an array of integers
ALL = slice(None)
MOVING = ("now", "line_free", "bytes_sent", "messages")


class Path(NamedTuple):
    source: Index
    target: Index
    delivered: Callable[[np.ndarray], np.ndarray]  # from the order of the senders to that of the receivers
    latency: np.ndarray
    bandwidth: np.ndarray
    inside: np.ndarray  # whether both are in one node


class Wave(NamedTuple):
    first_byte: np.ndarray
    wire_seconds: np.ndarray


@dataclass
class Clocks:
    """The members' times, when their incoming lines are free, and what they have sent so far. Arrays have
    elements of `itemsize` bytes."""

    hardware: Hardware
    itemsize: int
    ranks: np.ndarray
    now: np.ndarray
    line_free: np.ndarray
    bytes_sent: np.ndarray
    messages: np.ndarray

    @property
    def p(self) -> int:
        return self.ranks.shape[-1]

    @property
    def place(self) -> np.ndarray:
        return np.arange(self.p)

    # ---- who talks to whom

    def some(self, source: Sequence[int] | np.ndarray, target: Sequence[int] | np.ndarray) -> Path:
        """Return the path from each member of `source` to the one at its place in `target`."""
        return Path(source, target, lambda wave: wave, *self._links(source, target))

    def around(self, distance: int) -> Path:
        """Return the path from everybody to the member `distance` further on, round the ring."""
        turn = distance % self.p
        links = self._links(self.place, (self.place + turn) % self.p)
        return Path(
            ALL,
            ALL,
            lambda wave: np.concatenate([wave[..., self.p - turn :], wave[..., : self.p - turn]], axis=-1),
            *links,
        )

    def partners(self, distance: int) -> Path:
        """Return the path from everybody to the member whose number differs in the bit `distance`, a power of
        two."""
        partner = self.place ^ distance
        return Path(ALL, ALL, lambda wave: wave[..., partner], *self._links(self.place, partner))

    def _links(self, source: Index, target: Index) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Latency and bandwidth of the links between them, and whether they are inside nodes."""
        inside, across = self.hardware.inside, self.hardware.across
        node = self.ranks // self.hardware.gpus_per_node
        near = node[..., source] == node[..., target]
        bandwidth = np.where(near, inside.bandwidth_bytes_per_second, across.bandwidth_bytes_per_second)
        if self.hardware.disturbances:
            bandwidth = bandwidth / self.hardware.disturbances.link_factor(
                self.ranks[..., source], self.ranks[..., target]
            )
        return np.where(near, inside.latency_seconds, across.latency_seconds), bandwidth, near

    # ---- the clock rules of gpu.send and gpu.receive

    def send(self, path: Path, nbytes) -> Wave:
        wire_seconds = nbytes / path.bandwidth
        start = self.now[..., path.source]
        wave = Wave(start + path.latency, wire_seconds)
        self.now[..., path.source] = start + wire_seconds
        self.bytes_sent[..., path.source] += nbytes
        self.messages[..., path.source] += 1
        return wave

    def take_in(self, path: Path, wave: Wave) -> None:
        """Let the messages come in while their targets do something else."""
        begin = np.maximum(self.line_free[..., path.target], path.delivered(wave.first_byte))
        self.line_free[..., path.target] = begin + path.delivered(wave.wire_seconds)

    def receive(self, path: Path, wave: Wave) -> None:
        self.take_in(path, wave)
        self.now[..., path.target] = np.maximum(self.now[..., path.target], self.line_free[..., path.target])

    def move(self, path: Path, nbytes) -> None:
        """Send, then receive."""
        self.receive(path, self.send(path, nbytes))

    def fan_out(self, root: int, nbytes: np.ndarray) -> None:
        """The root sends to one member after another; `nbytes` is (..., p) or (..., 1)."""
        others = self.others(root)
        latency, bandwidth, _ = self._links(np.full_like(others, root), others)
        wire_seconds = self._of(others, nbytes) / bandwidth
        times = np.cumsum(np.concatenate([self.now[..., [root]], wire_seconds], axis=-1), axis=-1)
        self.now[..., root] = times[..., -1]
        self.bytes_sent[..., root] += self._of(others, nbytes).sum(-1)
        self.messages[..., root] += len(others)
        self.receive(self.some(others, others), Wave(times[..., :-1] + latency, wire_seconds))

    def fan_in(self, root: int, nbytes: np.ndarray) -> None:
        """All send to the root, which takes one message in after another: each waits for its first byte, and
        for those before it."""
        others = self.others(root)
        first_byte, wire_seconds = self.send(
            self.some(others, np.full_like(others, root)), self._of(others, nbytes)
        )
        before = np.cumsum(wire_seconds, axis=-1) - wire_seconds
        begin = np.max(first_byte - before, axis=-1, initial=-np.inf)
        self.line_free[..., root] = np.maximum(self.line_free[..., root], begin) + wire_seconds.sum(-1)
        self.now[..., root] = np.maximum(self.now[..., root], self.line_free[..., root])

    def others(self, root: int) -> np.ndarray:
        """All members but the root, from the one after it on."""
        return (root + 1 + np.arange(self.p - 1)) % self.p

    def _of(self, members: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        return np.broadcast_to(nbytes, self.now.shape)[..., members]

    # ---- sizes

    def split(self, nbytes, parts: int) -> np.ndarray:
        """The bytes of the parts that np.array_split cuts an array of `nbytes` into: (..., parts)."""
        size = column(nbytes) // self.itemsize
        return (size // parts + (np.arange(parts) < size % parts)) * self.itemsize

    # ---- groups within the group

    @contextmanager
    def part(self, members: np.ndarray) -> Iterator["Clocks"]:
        """These members as a group of their own, or as several: `members` is (q,) or (groups, q)."""
        inner = replace(self, **{name: getattr(self, name)[..., members] for name in ("ranks", *MOVING)})
        yield inner
        for name in MOVING:
            getattr(self, name)[..., members] = getattr(inner, name)

    def nodes(self) -> np.ndarray:
        """The members in each node, (nodes, members of each). Raises UserError where nodes have different
        numbers of them."""
        node = self.ranks.reshape(-1, self.p)[0] // self.hardware.gpus_per_node
        _, first, counts = np.unique(node, return_index=True, return_counts=True)
        if len(set(counts)) > 1:
            raise UserError("a hierarchy needs as many members in every node: choose another algorithm.")
        return np.stack([np.flatnonzero(node == node[member]) for member in np.sort(first)])


def start_clocks(
    hardware: Hardware,
    ranks: Sequence[int] | np.ndarray,
    itemsize: int = 1,
    now=0.0,
    kind: type[Clocks] = Clocks,
) -> Clocks:
    """Clocks of a group's ranks that start at `now` (seconds; a number, or one for each rank)."""
    nothing = np.zeros(np.shape(ranks))
    return kind(
        hardware,
        itemsize,
        np.asarray(ranks),
        nothing + now,
        nothing.copy(),
        nothing.copy(),
        nothing.astype(int),
    )


def column(nbytes) -> np.ndarray:
    """Give what is alike for all members an axis of its own: (...) to (..., 1)."""
    return np.asarray(nbytes)[..., None]
