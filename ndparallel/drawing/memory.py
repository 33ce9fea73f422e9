"""The memory that a GPU held over time.

Limit  Memory is counted in the program's order, at the time of the compute stream, as an allocator on the
       host counts it.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpu import COMPUTE, MEMORY, MEMORY_KINDS, Event
from ndparallel.base.events import RankRun


class MemoryHistory(NamedTuple):
    """The memory of one GPU over time: from each of `seconds` on, `held` bytes by kind."""

    name: str
    rank: int
    end_seconds: float
    limit_bytes: float
    seconds: tuple[float, ...]
    held: tuple[dict[str, float], ...]

    @property
    def peak_bytes(self) -> float:
        return max((sum(held.values()) for held in self.held), default=0)


def memory_history(name: str, run: RankRun, limit_bytes: float) -> MemoryHistory:
    """Read the memory of one GPU over time out of its events; the highest point is the peak that the GPU
    counted."""
    points = list(memory_points(run.events))
    return MemoryHistory(
        name,
        run.rank,
        run.end_seconds,
        limit_bytes,
        tuple(t for t, _ in points),
        tuple(held for _, held in points),
    )


def memory_points(events: Iterable[tuple]) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield (seconds, bytes held by kind) after every change."""
    now, held = 0.0, dict.fromkeys(MEMORY_KINDS, 0.0)
    for event in map(Event._make, events):
        if event.kind == MEMORY:
            held = held | {event.what: event.bytes}
            yield now, held
        elif event.stream == COMPUTE:
            now = max(now, event.end)
