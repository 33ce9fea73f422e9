"""Fewer lanes and spans, where a picture has no room for all: GPUs that did the same share theirs, operations
that follow one another are joined, and so are neighbours within a short time. No time is lost."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from ndparallel.drawing import palette
from ndparallel.drawing.spans import Lane, Span, Timeline


def alike(run: Timeline) -> Timeline:
    """Draw GPUs with identical lanes once: as the first of them, with the numbers of the others. What is
    drawn so already stays as it is."""
    lanes_of: dict[int, list[Lane]] = {}
    for lane in run.lanes:
        lanes_of.setdefault(lane.rank, []).append(lane)
    same: dict[tuple, list[int]] = {}
    for lanes in lanes_of.values():
        same.setdefault(tuple((lane.stream, lane.spans) for lane in lanes), []).extend(lanes[0].ranks)
    kept = [
        lane._replace(others=tuple(others)) for first, *others in same.values() for lane in lanes_of[first]
    ]
    return run._replace(lanes=tuple(kept))


def joined(spans: Iterable[Span], words: int) -> list[Span]:
    """Join operations that follow one another without a gap and share the first words of their names (1:
    the phase, 2: phase and unit)."""
    result: list[Span] = []
    for span in spans:
        if span.activity in palette.PHASES:
            span = span._replace(what=" ".join(span.label.split()[:words]))
        last = result[-1] if result else None
        if last and span.activity in palette.PHASES and follows(last, span):
            result[-1] = last._replace(end=span.end, events=last.events + span.events)
        else:
            result.append(span)
    return result


def follows(last: Span, span: Span) -> bool:
    """Whether a span goes on where the last one ended, with the same name and microbatch."""
    return (last.end, last.label, last.microbatch) == (span.start, span.label, span.microbatch)


def thinned(spans: Sequence[Span], seconds: float) -> list[Span]:
    """Merge neighbouring spans within `seconds` into one span for each activity, as long as its spans
    were. No time is lost."""
    result: list[Span] = []
    cluster: list[Span] = []
    for span in spans:
        if cluster and span.end - cluster[0].start > seconds:
            result += _gathered(cluster)
            cluster = []
        cluster.append(span)
    return result + _gathered(cluster)


def _gathered(cluster: list[Span]) -> list[Span]:
    if len(cluster) < 2:
        return cluster
    window, start, result = (cluster[0].start, cluster[-1].end), cluster[0].start, []
    for name, group in groupby(
        sorted(cluster, key=lambda span: span.activity), key=lambda span: span.activity
    ):
        spans = list(group)
        end = start + sum(span.seconds for span in spans)
        microbatches = {span.microbatch for span in spans}
        shared = microbatches.pop() if len(microbatches) == 1 else None
        words = palette.TERMS.get(name, name)
        result.append(Span(start, end, name, words, sum(span.events for span in spans), window, shared))
        start = end
    return result
