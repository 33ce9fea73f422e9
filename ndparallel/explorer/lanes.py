"""A timeline as the page draws it: lanes of spans, with the words that stand for each."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from gpu import si
from ndparallel.drawing import palette
from ndparallel.drawing.fewer_spans import joined, thinned
from ndparallel.drawing.spans import Lane, Span, Timeline
from ndparallel.drawing.ticks import ticks

SHORTEST = 1 / 1200  # of the timeline: what is shorter is drawn together with its neighbours
ACTIONS = (palette.FORWARD, palette.BACKWARD, palette.INPUT, palette.WEIGHT)
OF_A_PLAN = re.compile(r"(\w) of microbatch (\d+)")  # a span of a plan is a whole action


def lanes(drawn: Timeline, who: str = "GPU") -> dict[str, Any]:
    """Return a timeline's lanes, each of a `who` with its numbers. A span is [start, end, activity, what,
    seconds in words], an action [start, end, activity, its letter with its microbatch]."""
    shortest = drawn.seconds * SHORTEST
    return {
        "name": drawn.name,
        "who": who,
        "seconds": drawn.seconds,
        "ticks": [[second, si(second, "s")] for second in ticks(drawn.seconds, 8)],
        "lanes": [lane_of(lane, shortest) for lane in drawn.lanes],
    }


def lane_of(lane: Lane, shortest: float) -> dict[str, Any]:
    return {
        "ranks": lane.ranks,
        "stream": lane.stream,
        "spans": [
            [span.start, span.end, span.activity, span.label, si(span.seconds, "s")]
            for span in thinned(joined(lane.spans, 2), shortest)
        ],
        "actions": list(actions(lane.spans)),
    }


def actions(spans: Sequence[Span]) -> Iterator[list[Any]]:
    """Yield what is computed of one microbatch at a time; what is waited for in between belongs to it."""
    computed = (span for span in map(with_microbatch, spans) if span.microbatch is not None)
    for (activity, number), run in groupby(computed, key=lambda span: (span.activity, span.microbatch)):
        first, *others = run
        if activity in ACTIONS:
            yield [
                first.start,
                [first, *others][-1].end,
                activity,
                f"{palette.ACTIVITIES[activity].letter}{number}",
            ]


def with_microbatch(span: Span) -> Span:
    said = OF_A_PLAN.search(span.label)
    return span._replace(microbatch=int(said[2])) if said else span
