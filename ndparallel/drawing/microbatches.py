"""Which microbatch a span of the compute lane belongs to, and which half of a backward pass it is: events do
not say it; their order does.

Limit  Where units go forward unequally often, one of them takes a microbatch in parts, and no span has a
       number.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from ndparallel.drawing import palette
from ndparallel.drawing.activities import phase_and_unit
from ndparallel.drawing.spans import Span


def numbered(spans: Sequence[Span]) -> Iterable[Span]:
    """Return the spans of one compute lane with their microbatches, where there are several, and the halves
    of a backward pass apart. Where units go forward unequally often, one of them takes a microbatch in parts,
    and no span has a number."""
    first: dict[tuple[str, str], str] = {}
    numbers = list(microbatches_of(spans, first))
    times = Counter(span.what for span in spans)
    forwards = {times[what] for (phase, _), what in first.items() if phase == palette.FORWARD}
    if not any(numbers) or len(forwards) > 1:
        return in_halves(spans, [None] * len(spans))
    return [Span(*span[:-1], number) for span, number in zip(in_halves(spans, numbers), numbers)]


def in_halves(spans: Sequence[Span], numbers: Sequence[int | None]) -> Sequence[Span]:
    """Name a unit's backward pass an input gradient where its weights' gradients come later; without numbers,
    where those of all its passes do."""
    passes = [(phase_and_unit(str(span.what))[1], number) for span, number in zip(spans, numbers)]
    later = {its for its, span in zip(passes, spans) if span.activity == palette.WEIGHT}
    if not later:
        return spans
    later -= {
        its
        for its, span in zip(passes, spans)
        if span.activity == palette.BACKWARD and span.what.endswith(" weight")
    }
    return [
        span._replace(activity=palette.INPUT) if span.activity == palette.BACKWARD and its in later else span
        for its, span in zip(passes, spans)
    ]


def microbatches_of(spans: Iterable[Span], first: dict[tuple[str, str], str]) -> Iterator[int | None]:
    """Yield each span's microbatch. A unit meets them one after another, and its first operation, which
    `first` keeps by phase and unit, comes once for each. A W that was put off is the oldest microbatch's
    whose weights' gradients are not there yet."""
    met: dict[tuple[str, str], int] = {}
    done: dict[str, set[int]] = defaultdict(set)  # by unit, the microbatches with weights' gradients
    for span in spans:
        if span.activity == palette.OPTIMIZER:
            met.clear()
            done.clear()
        if span.activity not in palette.PER_MICROBATCH:
            yield None
            continue
        phase, unit = key = phase_and_unit(span.what)
        if first.setdefault(key, span.what) == span.what:
            met[key] = oldest_without(done[unit]) if phase == palette.WEIGHT else met.get(key, -1) + 1
        if span.what.endswith(" weight"):
            done[unit].add(met[key])
        yield met[key]


def oldest_without(done: set[int]) -> int:
    """Return the first microbatch that is not among these."""
    return next(number for number in count() if number not in done)
