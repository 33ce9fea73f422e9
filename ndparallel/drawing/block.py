"""What tensor parallelism does to one transformer block, read from an executed run: who holds which slices,
where they talk.

Idea   A rank's events stand in the order of its program, so that the operations before and after a collective
       say where it belongs. The slices are those of the parameters whose gradients the ranks left behind.
Limit  Dense blocks, whose operations are those of ndparallel/model/layers.py.

Glossary
    place   where ranks may talk: f1 and f2 before the matmuls that are cut by columns, g1 and g2 after those
            cut by rows
    talk    one collective of the block
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu import COLLECTIVE, COMPUTE, SEND, Event
from ndparallel.base.events import RankRun, of_kinds
from ndparallel.engines.launch import RankResult
from ndparallel.parallel.slices import Parameter

AFTER = {
    ("forward", "norm1"): "f1",
    ("forward", "out"): "g1",
    ("forward", "norm2"): "f2",
    ("forward", "down"): "g2",
    ("backward", "qkv"): "f1",
    ("backward", "gate_up"): "f2",
}
BEFORE = {("backward", "out"): "g1", ("backward", "down"): "g2"}


class BlockCollective(NamedTuple):
    direction: str
    place: str
    operation: str
    bytes_sent: float
    seconds: float


@dataclass(frozen=True)
class BlockRun:
    """One strategy's run of one transformer block: `talks` are the collectives of its first rank in order,
    `slices[name][rank]` the slices of the block's parameters."""

    name: str
    talks: tuple[BlockCollective, ...]
    slices: dict[str, list[Parameter]]

    @property
    def ranks(self) -> int:
        return len(self.slices["q"])

    def operations(self, direction: str, place: str) -> list[str]:
        return [talk.operation for talk in self.talks if (talk.direction, talk.place) == (direction, place)]


def block_run(name: str, results: Sequence[RankResult], unit: str) -> BlockRun:
    """Read one block (`unit`, as "layers.3") out of a run. Raises ValueError for a collective at an
    unexpected place."""
    return BlockRun(name, tuple(talks(results[0], unit)), slices(results, unit))


def slices(results: Sequence[RankResult], unit: str) -> dict[str, list[Parameter]]:
    held: dict[str, list[Parameter]] = {}
    for result in results:
        for parameter in (
            parameter for holding in result.value.gradients for parameter in holding.parameters
        ):
            if parameter.name.startswith(f"{unit}."):
                held.setdefault(parameter.name.removeprefix(f"{unit}."), []).append(parameter)
    return held


def talks(run: RankRun, unit: str) -> Iterator[BlockCollective]:
    """Yield the collectives of one block, in order."""
    events = of_kinds(run.events, COMPUTE, COLLECTIVE, SEND)
    sent: defaultdict[tuple, float] = defaultdict(float)
    for event in events:
        if event.kind == SEND:
            sent[event.what[0]] += event.bytes
    for before, event, after in in_order(events):
        found = place_of(before, after, unit)
        if found:
            yield BlockCollective(
                *found, event.what[2].replace("_", "-"), sent[event.what[:2]], event.end - event.start
            )
        elif unit in before.split() and unit in after.split():
            raise ValueError(f"{event.what[2]} between {before!r} and {after!r}: a block has no such place")


def in_order(events: Sequence[Event]) -> Iterator[tuple[str, Event, str]]:
    """Yield every collective with the names of the operations before and after it."""
    before, waiting = "", list[Event]()
    for event in events:
        if event.kind == COLLECTIVE:
            waiting.append(event)
        elif event.kind == COMPUTE:
            yield from ((before, talk, event.what) for talk in waiting)
            before, waiting = event.what, []


def place_of(before: str, after: str, unit: str) -> tuple[str, str] | None:
    """Return (direction, place) of a collective between two operations; None for another unit's
    collective."""
    for operation, places in ((before, AFTER), (after, BEFORE)):
        direction, _, rest = operation.partition(" ")
        name, _, short = rest.partition(" ")
        if name == unit and (direction, short) in places:
            return direction, places[direction, short]
    return None
