"""How long a schedule takes, how much of that its ranks stand idle, and how many activations they keep.

Three bubble figures are in use, and people mix them up
    bubble_ratio        the idle share of all ranks' time until the last one ends: 1 - busy / (P * makespan)
    bubble_over_ideal   what waiting adds to the time of a pipeline that never waits: makespan / (busy / P) -
                        1
    span_bubble_ratio   1 - busy / span of the rank whose own span is longest: what is lost when steps follow
                        one another without a stop

Two memory figures, in activations of one microbatch in one chunk, the most that a rank keeps at any time
    held   kept from F until B or W, because W still needs them
    live   kept from F until B or I, as if I freed everything

Glossary: see `ndparallel.pipeline.actions`; busy is the seconds that ranks compute, all ranks together unless
said otherwise.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ndparallel.base.errors import UserError
from ndparallel.base.sums import sum_of
from ndparallel.pipeline.actions import Action, Schedule
from ndparallel.pipeline.checker import explain, run_ranks
from ndparallel.pipeline.clock import Clock
from ndparallel.pipeline.work import Work


@dataclass(frozen=True)
class Timing:
    """Seconds of one run of `schedule`: `start[rank][position]` and `end`, by action; `busy[rank]`, in which
    a fused pair counts once."""

    schedule: Schedule
    start: list[list[float]]
    end: list[list[float]]
    busy: list[float]

    @property
    def makespan(self) -> float:
        """Seconds from the start of the first action, at 0, to the end of the last."""
        return max(end[-1] for end in self.end)

    @property
    def spans(self) -> list[float]:
        """Seconds of each rank from the start of its own first action to the end of its own last."""
        return [end[-1] - start[0] for start, end in zip(self.start, self.end)]

    @property
    def bubble_ratio(self) -> float:
        return 1 - sum_of(self.busy) / (len(self.busy) * self.makespan)

    @property
    def bubble_over_ideal(self) -> float:
        return self.makespan * len(self.busy) / sum_of(self.busy) - 1

    @property
    def span_bubble_ratio(self) -> float:
        span, busy = max(zip(self.spans, self.busy))
        return 1 - busy / span

    @cached_property
    def lengths(self) -> frozenset[float]:
        """Seconds that single actions take, where they take any: each of a fused pair has half of it."""
        return frozenset(
            (end - start) / len(step)
            for rank, times in enumerate(zip(self.start, self.end))
            for step, start, end in steps_with_times(self.schedule.steps(rank), *times)
            if end > start
        )

    @property
    def peak_held(self) -> list[int]:
        return [round(peak) for peak in peak_activations(self.schedule)]

    @property
    def peak_live(self) -> list[int]:
        return [round(peak) for peak in peak_activations(self.schedule, released_by_input=1.0)]


def steps_with_times(
    steps: Iterable[list[Action]], start: list[float], end: list[float]
) -> Iterator[tuple[list[Action], float, float]]:
    position = 0
    for step in steps:
        yield step, start[position], end[position]
        position += len(step)


def time_schedule(schedule: Schedule, work: Work) -> Timing:
    """Run the lists of `schedule` with the seconds of `work`. Raise UserError, with the reason, if ranks get
    stuck.

    Lists that run are timed as they are; whether they also do everything once, `checker.explain` says.
    """
    clock = Clock(schedule.layout, work)
    waits = run_ranks(
        [clock.program(rank, schedule.steps(rank)) for rank in range(schedule.ranks)], clock.done
    )
    if any(waits):
        raise UserError(f"{schedule.name} cannot run: {explain(schedule)}")
    if not sum_of(clock.busy):
        raise UserError("no action takes any time: give at least one op more than 0.")
    return Timing(schedule, clock.start, clock.end, clock.busy)


def peak_activations(schedule: Schedule, released_by_input: float = 0.0) -> list[float]:
    """The most activations that each rank keeps, in those of one microbatch in one chunk, when I frees the
    share `released_by_input`."""
    change = kept_by(released_by_input)
    return [max(accumulate(change[action.op] for action in actions)) for actions in schedule.actions]


def kept_by(released_by_input: float) -> dict[str, float]:
    """Return by how many activations each op changes what is kept: I frees the share `released_by_input`,
    W the rest."""
    return {"F": 1.0, "I": -released_by_input, "W": released_by_input - 1, "B": -1.0}
