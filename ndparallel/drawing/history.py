"""What a run's events say over time: who did what from when to when, and how much memory it held.

Idea   A picture has, for every GPU, one lane for compute and one for every axis that it talks along, and a
       lane is a row of spans. The terminal, the SVG and the notebook draw the same lanes, so that no picture
       can tell another story than its neighbour.
Cost   One pass over the events.
Limit  Messages inside a collective are not spans of their own (the trace has them). Memory is counted in the
       program's order, at the time of the compute stream, as an allocator on the host counts it.

Glossary
    span    from `start` to `end`, in seconds, one activity of ndparallel.drawing.palette; `events` of them
            were joined to make it
    lane    the spans of one GPU on the streams whose names begin with the same word, in order and without
            overlap: "pp" is all that it sends and receives along the pipeline, on four streams
    phase   the first word of an operation's name, as forward; the second is its unit, as layers.3
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count, groupby
from typing import Any, NamedTuple, Protocol

from gpu import COLLECTIVE, COMPUTE, MEMORY, MEMORY_KINDS, WAIT, Event, say
from ndparallel.drawing import palette


class RankRun(Protocol):
    """The results of one rank that pictures and tables need."""

    @property
    def rank(self) -> int: ...
    @property
    def events(self) -> Sequence[tuple]: ...
    @property
    def end_seconds(self) -> float: ...
    @property
    def peak_bytes(self) -> Mapping[str, float]: ...


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


# -------------------------------------------------------------------------------------------- events to lanes


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


@lru_cache(maxsize=4096)
def phase_and_unit(operation: str) -> tuple[str, str]:
    """Return ("forward", "layers.3") of an operation of layer 3, of its experts too."""
    phase, _, rest = operation.partition(" ")
    return phase, ".".join(rest.partition(" ")[0].split(".")[:2])


def _spans(events: Iterable[tuple]) -> Iterator[Span]:
    """Return one lane's outermost events that take time. A collective stands for its messages; an
    overlapping event is drawn from where it shows."""
    covered = 0.0
    for _, stream, kind, what, start, end, _, _, _ in sorted(events, key=lambda event: (event[4], -event[5])):
        if end > start and end > covered:
            window = (start, end) if start < covered else None
            yield Span(max(start, covered), end, activity_of(stream, kind, what), what, 1, window)
            covered = end


def activity(event: Event) -> str:
    """Return an event's activity, one of the palette's."""
    return activity_of(event.stream, event.kind, event.what)


def activity_of(stream: str, kind: str, what: Any) -> str:
    if kind == COMPUTE:
        return phase_of(str(what))
    exposed = kind == WAIT or stream == COMPUTE
    return palette.WAITING if exposed and kind != COLLECTIVE else palette.COMMUNICATION


@lru_cache(maxsize=4096)
def phase_of(operation: str) -> str:
    phase = operation.partition(" ")[0]
    return phase if phase in palette.PHASES else palette.OTHER


def label(what: Any) -> str:
    """Name an event in words."""
    match what:
        case str():
            return what
        case (str(group), int(number), str(operation), str(algorithm)):
            return f"{algorithm} {operation.replace('_', '-')} {number} of group {group!r}"
        case ((str(group), int(number)), (str(phase), int(hop))):
            return f"{phase} hop {hop} of collective {number} of group {group!r}"
        case (str(what_is_passed_on), int(hop)):
            return f"{what_is_passed_on}, hop {hop}"
    return say(what)


# ----------------------------------------------------------------------------------- fewer lanes, fewer spans


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


# ------------------------------------------------------------------------------------------- memory over time


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


# -------------------------------------------------------------------------------------------------- time axes


def ticks(seconds: float, most: int = 6) -> list[float]:
    """Return round times from 0 to `seconds`: at most `most` steps of 1, 2 or 5 times a power of ten."""
    if not seconds > 0:
        return [0.0]
    steps = (float(f"{digit}e{power}") for power in range(-15, 16) for digit in (1, 2, 5))
    step = next((step for step in steps if step * most >= seconds), seconds)
    return [step * number for number in range(int(seconds / step * (1 + 1e-12)) + 1)]
