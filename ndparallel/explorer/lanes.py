"""A timeline as the page draws it: lanes of spans, with the words that stand for each."""

from typing import Any

from gpu import si
from ndparallel.drawing.history import Timeline, joined, thinned, ticks

SHORTEST = 1 / 1200  # of the timeline: what is shorter is drawn together with its neighbours


def lanes(drawn: Timeline, who: str = "GPU") -> dict[str, Any]:
    """Return a timeline's lanes, each of a `who` with its numbers. A span is [start, end, activity, what,
    events, seconds in words]."""
    shortest = drawn.seconds * SHORTEST
    return {
        "name": drawn.name,
        "who": who,
        "seconds": drawn.seconds,
        "ticks": [[second, si(second, "s")] for second in ticks(drawn.seconds, 8)],
        "lanes": [
            {
                "ranks": lane.ranks,
                "stream": lane.stream,
                "spans": [
                    [span.start, span.end, span.activity, span.label, span.events, si(span.seconds, "s")]
                    for span in thinned(joined(lane.spans, 2), shortest)
                ],
            }
            for lane in drawn.lanes
        ],
    }
