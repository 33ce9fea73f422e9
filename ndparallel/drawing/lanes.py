"""The events of a run as lanes: who did what from when to when.

Cost   One pass over the events.
Limit  Messages inside a collective are not spans of their own (the trace has them).
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from gpu import COMPUTE, MEMORY
from ndparallel.base.events import RankRun
from ndparallel.drawing.activities import activity_of
from ndparallel.drawing.microbatches import numbered
from ndparallel.drawing.spans import Lane, Span, Timeline


def timeline(name: str, runs: Iterable[RankRun]) -> Timeline:
    """Turn the events of all ranks of one run into lanes: rank by rank, the compute stream first. Ranks that
    did the same at the same time share their spans."""
    runs = sorted(runs, key=lambda run: run.rank)
    names = dict.fromkeys(lane_name(stream) for stream in stream_names(runs))
    lanes: list[Lane] = []
    drawn: list[tuple[list[tuple], list[Lane]]] = []
    for run in runs:
        its = did(run)
        same = next((others for done, others in drawn if done == its), None)
        if same is None:
            same = [*_lanes(run, names)]
            drawn.append((its, same))
        lanes += [lane._replace(rank=run.rank) for lane in same]
    return Timeline(name, max((run.end_seconds for run in runs), default=0.0), tuple(lanes))


def did(run: RankRun) -> list[tuple]:
    """Return a rank's events without ranks: stream, kind, what, start, end."""
    return [event[1:6] for event in run.events]


def stream_names(runs: Iterable[RankRun]) -> list[str]:
    """Return all streams with events: compute, then the others in the order of their first event."""
    seen = dict.fromkeys(event[1] for run in runs for event in run.events if event[2] != MEMORY)
    return [COMPUTE, *(name for name in seen if name != COMPUTE)]


@lru_cache
def lane_name(stream: str) -> str:
    """Return the name of the lane in which a stream is drawn."""
    return stream.partition(" ")[0]


def _lanes(run: RankRun, names: Iterable[str]) -> Iterator[Lane]:
    events: dict[str, list[tuple]] = {}
    for event in run.events:
        if event[2] != MEMORY:
            events.setdefault(lane_name(event[1]), []).append(event)
    for name in names:
        spans = tuple(_spans(events.get(name, ())))
        if name == COMPUTE:
            yield Lane(run.rank, name, tuple(numbered(spans)))
        elif spans:
            yield Lane(run.rank, name, spans)


def _spans(events: Iterable[tuple]) -> Iterator[Span]:
    """Return one lane's outermost events that take time. A collective stands for its messages; an
    overlapping event is drawn from where it shows."""
    covered = 0.0
    for _, stream, kind, what, start, end, _, _, _ in sorted(events, key=lambda event: (event[4], -event[5])):
        if end > start and end > covered:
            window = (start, end) if start < covered else None
            yield Span(max(start, covered), end, activity_of(stream, kind, what), what, 1, window)
            covered = end
