"""From a run's events to its numbers: where the time of every GPU went, what it sent, what it held.

Idea   On each GPU every second of a step is compute, or communication that compute waits for, or bubble:
       nothing else, nothing twice.
Cost   One pass over the events and a sort of the intervals.
Limit  Streams of one GPU do not slow one another on a link that they share; `overload` says where they would,
       and --contention by how much.

Glossary
    exposed   communication that the compute stream waits for: a message under way, or a collective from when
              this GPU begins it, late members included
    hidden    communication under way while the compute stream does something else
    bubble    a GPU's compute stream waits for a message that has not been sent yet; the tail until the step's
              end is in it
    demand    bytes a second that one GPU's simultaneous sends ask of a link, each as if it had the link for
              itself
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import fsum
from typing import Any, NamedTuple

from gpu import COMPUTE, MEMORY, SEND, Event, Hardware, Link, si
from ndparallel.base.events import KIND, RankRun
from ndparallel.engines.task import RankResult
from ndparallel.results.event_sums import Breakdown, EventSums

Interval = tuple[float, float]
START, END, BYTES, PEER = map(Event._fields.index, ("start", "end", "bytes", "peer"))


@dataclass(frozen=True)
class Measurement:
    """One strategy in numbers. Times are seconds of one step; all but `step_seconds` and the maxima are means
    over the GPUs."""

    name: str
    gpus: int
    step_seconds: float | None = None
    compute_seconds: float | None = None
    exposed_communication_seconds: float | None = None
    hidden_communication_seconds: float | None = None
    bubble_seconds: float | None = None
    bytes_sent_per_gpu: float | None = None
    bytes_sent_max: float | None = None
    # "total" and by kind, on the fullest GPU when it was fullest
    peak_memory_bytes: dict[str, float] | None = None
    losses: Sequence[float] = ()  # of every step
    # max |g - g0| / max |g0| of a tensor, the largest over tensors and ranks
    max_gradient_difference: float | None = None
    max_weight_difference: float | None = None  # the same of the weights after the last step
    # the root mean square of w - w0 of a tensor, in learning rates a step; the largest
    weight_step_difference: float | None = None
    gradient_norm: float | None = None  # of all gradients of the last step, before they were clipped to it
    model: dict[str, Any] = field(default_factory=dict)  # what of its work is another than the report's
    error: str | None = None  # why there are no numbers
    overload: "LinkDemand | None" = None  # where sends ask more of a link than it has
    not_finite: str | None = None  # where the first NaN or infinity is
    forgotten_wait: str = ""  # which collective's result never came, as nobody waited for it
    undisturbed_step_seconds: float | None = None  # where the hardware was disturbed
    contention: "Contention | None" = None  # where it was asked for
    baseline: "Measurement | None" = None  # the single GPU that did the same work

    @property
    def loss(self) -> float | None:
        """The last step's."""
        return self.losses[-1] if self.losses else None


class Contention(NamedTuple):
    """Seconds that a step takes where messages are taken in as they arrive and ports are shared, and what
    each of the two adds to it."""

    contended_step_seconds: float
    arrival_order_seconds: float
    sharing_seconds: float


class LinkDemand(NamedTuple):
    """The most that one GPU's simultaneous sends ask of a link: `streams` at once, first at `seconds`."""

    rank: int
    streams: int
    seconds: float
    bandwidth_bytes_per_second: float

    @property
    def asked_bytes_per_second(self) -> float:
        return self.streams * self.bandwidth_bytes_per_second

    def __str__(self) -> str:
        asked, has = si(self.asked_bytes_per_second, "B/s"), si(self.bandwidth_bytes_per_second, "B/s")
        return (
            f"GPU {self.rank} asks {asked} of a link of {has} ({self.streams} sends at once, first at "
            f"{si(self.seconds, 's')})"
        )


def measure(
    name: str, runs: Sequence[RankRun], hardware: Hardware, steps: int = 1, **computed: Any
) -> Measurement:
    """Turn the runs of all ranks through `steps` steps into one row of numbers. Events do not have what was
    `computed`: the fields of losses, of the gradients' norm, and of the single GPU's numbers beside them."""
    seconds = max(run.end_seconds for run in runs)
    parts = [breakdown(run.events, seconds) for run in runs]
    sent = [bytes_sent(run.events) / steps for run in runs]
    return Measurement(
        name=name,
        gpus=len(runs),
        step_seconds=seconds / steps,
        compute_seconds=mean(part.compute for part in parts) / steps,
        exposed_communication_seconds=mean(part.exposed for part in parts) / steps,
        hidden_communication_seconds=mean(part.hidden for part in parts) / steps,
        bubble_seconds=mean(part.bubble for part in parts) / steps,
        bytes_sent_per_gpu=mean(sent),
        bytes_sent_max=max(sent),
        peak_memory_bytes=peak_memory(runs),
        overload=overload(runs, hardware),
        **computed,
    )


def forgotten_wait(runs: Sequence[RankResult]) -> str:
    """Say which collective of async_op=True a rank began first of those that it did not wait for; nothing
    where it waited for all."""
    for run in runs:
        for group, number, collective, algorithm in sorted(run.unwaited)[:1]:
            which = f"its {collective} ({algorithm}), collective {number} of group {group!r}"
            others = f", nor for {len(run.unwaited) - 1} more" if len(run.unwaited) > 1 else ""
            return f"GPU {run.rank} never waited for {which}{others}: no result appears without wait()."
    return ""


def failed(name: str, gpus: int, error: Any) -> Measurement:
    """The row of a strategy that could not run, as one that does not fit into memory."""
    return Measurement(name, gpus, error=str(error))


# ---------------------------------------------------------------------------------------- where the time went


def breakdown(events: Iterable[tuple], step_seconds: float) -> Breakdown:
    """Say where one GPU's step went, from its events of any stream."""
    if isinstance(events, EventSums):
        return events.breakdown(step_seconds)
    computing: list[Interval] = []
    waiting: list[Interval] = []
    elsewhere: list[Interval] = []
    for _, stream, kind, _, start, end, _, _, _ in events:
        if kind == MEMORY:
            continue
        if stream == COMPUTE:
            (computing if kind == COMPUTE else waiting).append((start, end))
        elif kind != COMPUTE:
            elsewhere.append((start, end))
    exposed = union(waiting)
    return Breakdown(
        compute=length(computing),
        exposed=length(exposed),
        hidden=length(minus(union(waiting + elsewhere), exposed)),
        bubble=length(minus([(0.0, step_seconds)], union(computing + waiting))),
    )


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the points in time of all intervals as disjoint ones, in order."""
    ordered = sorted(intervals)
    if not ordered:
        return []
    merged, (first, last) = [], ordered[0]
    for start, end in ordered:
        if start > last:
            merged.append((first, last))
            first, last = start, end
        elif end > last:
            last = end
    return [*merged, (first, last)]


def minus(these: Sequence[Interval], those: Sequence[Interval]) -> list[Interval]:
    """The points in time of `these` that are not in `those`; both as `union` gives them."""
    edges = [(float("-inf"), float("-inf")), *those, (float("inf"), float("inf"))]
    gaps = [(before[1], after[0]) for before, after in pairwise(edges)]
    result, first = [], 0
    for start, end in these:
        while gaps[first][1] < start:
            first += 1
        for gap_start, gap_end in gaps[first:]:
            if gap_start >= end:
                break
            result.append((max(start, gap_start), min(end, gap_end)))
    return result


def length(intervals: Iterable[Interval]) -> float:
    return fsum(end - start for start, end in intervals)


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return fsum(values) / len(values)


# ------------------------------------------------------------------------------------------- bytes and memory


def bytes_sent(events: Iterable[tuple]) -> float:
    return (
        events.bytes_sent if isinstance(events, EventSums) else sum(event[BYTES] for event in sends(events))
    )


def sends(events: Iterable[tuple]) -> list[tuple]:
    return [event for event in events if event[KIND] == SEND]


def peak_memory(runs: Sequence[RankRun]) -> dict[str, float]:
    """The breakdown of the fullest GPU at the instant of its peak: its kinds add up to its total."""
    fullest = max((run.peak_bytes for run in runs), key=lambda peak: sum(peak.values()))
    return {"total": sum(fullest.values()), **fullest}


# ------------------------------------------------------------------------------------------- the stated limit


def overload(runs: Sequence[RankRun], hardware: Hardware) -> LinkDemand | None:
    """The greatest demand that exceeds its link, or None: what the clock's stated limit hides in this run."""
    demands = (demand for run in runs for demand in link_demands(run, hardware))
    return max(
        (demand for demand in demands if demand.streams > 1), key=lambda demand: demand.streams, default=None
    )


def link_demands(run: RankRun, hardware: Hardware) -> list[LinkDemand]:
    """The most that this GPU's simultaneous sends ask of each kind of link that it sends on."""
    to_peer: dict[int, list[Interval]] = defaultdict(list)
    for event in sends(run.events):
        if event[END] > event[START]:
            to_peer[event[PEER]].append((event[START], event[END]))
    on_link: dict[Link, list[Interval]] = defaultdict(list)
    for peer, intervals in to_peer.items():
        on_link[hardware.link(run.rank, peer)] += intervals
    return [
        LinkDemand(run.rank, *most_at_once(intervals), link.bandwidth_bytes_per_second)
        for link, intervals in on_link.items()
    ]


def most_at_once(intervals: Iterable[Interval]) -> tuple[int, float]:
    """How many intervals overlap at most, and from when on; of at least one interval."""
    ordered = sorted(intervals)
    if all(before[1] <= after[0] for before, after in pairwise(ordered)):
        return 1, ordered[0][0]
    edges = []
    for start, end in ordered:
        # clocks of different streams round differently: touching is not overlapping
        moment = 1e-9 * (end - start)
        edges += [(start + moment, 1), (end - moment, -1)]
    now, most = 0, (0, 0.0)
    for seconds, change in sorted(edges):
        now += change
        if now > most[0]:
            most = now, seconds
    return most
