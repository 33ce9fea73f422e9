"""What every picture over time is made of: spans, lanes and timelines.

Idea   A picture has, for every GPU, one lane for compute and one for every axis that it talks along, and a
       lane is a row of spans. The terminal, the SVG and the notebook draw the same lanes, so that no picture
       can tell another story than its neighbour.

Glossary
    span    from `start` to `end`, in seconds, one activity of ndparallel.drawing.palette; `events` of them
            were joined to make it
    lane    the spans of one GPU on the streams whose names begin with the same word, in order and without
            overlap: "pp" is all that it sends and receives along the pipeline, on four streams
"""

from typing import Any, NamedTuple

from ndparallel.drawing.activities import label


class Span(NamedTuple):
    start: float
    end: float
    activity: str
    what: Any  # its name, as `label` says it in words
    events: int = 1
    # where it stands for short spans, put together: the time in which they lie
    window: tuple[float, float] | None = None
    microbatch: int | None = None  # where a step has several; the last field, as `numbered` knows

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def label(self) -> str:
        return label(self.what)


class Lane(NamedTuple):
    rank: int
    stream: str
    spans: tuple[Span, ...]
    others: tuple[int, ...] = ()  # GPUs that did just the same, where they are not drawn themselves
    of: str = "GPU"  # or a "rank" of a pipeline, which may be many GPUs

    @property
    def ranks(self) -> tuple[int, ...]:
        return (self.rank, *self.others)


class Timeline(NamedTuple):
    """One strategy's run as lanes, from 0 to `seconds`, the end of the latest stream of any GPU."""

    name: str
    seconds: float
    lanes: tuple[Lane, ...]
