"""A schedule timed again and again: in which order steps can run is found out once, and then only seconds are
added up.

Idea   The steps of all ranks are put in one order that can run (`ndparallel.pipeline.step_order`); to time
       them is one loop over that list.
Cost   See `ndparallel.pipeline.steps`: a tenth of `ndparallel.pipeline.timing`, whose times it gives (a test
       holds the two together).
Limit  It says when steps end, and no more.

Glossary
    step       what a rank does at once: an action, with at most one message before it and one after it; of a
               fused pair the first message to come, and the last to go, are steps of their own. Steps count
               from 1; 0 is the beginning.
    line       one of the four lines of a rank, as in `ndparallel.pipeline.clock`
    link       from which rank to which, as one number
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from math import inf
from typing import NamedTuple

from ndparallel.base.sums import sum_of
from ndparallel.pipeline.actions import Layout, Schedule
from ndparallel.pipeline.recipe import write
from ndparallel.pipeline.schedules import RECIPES
from ndparallel.pipeline.step_order import Kind, StepOrder, step_order
from ndparallel.pipeline.steps import KIND, Durations, Reduced, ReplayClocks, run
from ndparallel.pipeline.timing import peak_activations
from ndparallel.pipeline.work import Work, checked_seconds

OPS = "FBIW"


class Ends(NamedTuple):
    """Seconds: when each rank starts its first and ends its last step, when each stage's weights have all
    their gradients, and when each rank has reduced them, if that is done after every microbatch."""

    start: list[float]
    end: list[float]
    complete: list[float]
    reduced: list[float]

    @property
    def longest_span(self) -> float:
        """The most seconds of a rank from its own first start to its own last end."""
        return max(end - start for start, end in zip(self.start, self.end))

    def later(self, seconds: float) -> "Ends":
        """The ends with so many seconds more behind each rank's first step, where nothing is reduced."""
        end, complete = ([moment + seconds for moment in moments] for moments in (self.end, self.complete))
        return Ends(self.start, end, complete, self.reduced)


@dataclass(frozen=True, eq=False)
class Replay:
    """One schedule. Raises UserError, with the reason, if its ranks get stuck."""

    schedule: Schedule

    def at_rest(self) -> ReplayClocks:
        """The clocks before the first step."""
        ranks = self.schedule.ranks
        lines, reduced = [0.0] * (4 * ranks + 2), [0.0] * self.schedule.layout.stages
        return ReplayClocks([0.0] * ranks, lines, [-inf], [0.0], [0.0] * ranks, reduced)

    def ends(self, work: Work) -> Ends:
        """Time the schedule on the seconds of `work`."""
        durations = self.durations(work)
        return self.ends_of(self.clocks(durations), durations)

    def clocks(self, durations: Durations) -> ReplayClocks:
        """The clocks behind the last step."""
        clocks = self.at_rest()
        run(self.order.steps, self.order.waits, durations, clocks)
        return clocks

    def ends_of(self, clocks: ReplayClocks, durations: Durations) -> Ends:
        """The ends that the clocks show behind the last step."""
        first, last, complete = ([clocks.ends[step] for step in steps] for steps in self.order.timed_steps)
        kinds = [self.order.steps[step - 1][KIND] for step in self.order.timed_steps[0]]
        start = [end - durations.by_kind[kind] for end, kind in zip(first, kinds)]
        return Ends(start, last, complete, clocks.reducing)

    @cached_property
    def order(self) -> StepOrder:
        """All steps, in an order that can run."""
        return step_order(self.schedule)

    @cached_property
    def peaks(self) -> list[float]:
        """The most activations that each rank keeps."""
        return peak_activations(self.schedule)

    @cached_property
    def places_by_kind(self) -> list[int]:
        """The place of each kind of step, of one action, among the seconds of all ops on all stages."""
        stages = self.schedule.layout.stages
        return [OPS.index(op) * stages + stage for ((op, stage),) in self.order.kinds]

    def durations(self, work: Work) -> Durations:
        seconds = work.seconds_by_stage(self.schedule.layout.stages)
        if self.order.pairs:
            by_kind = [step_seconds(work, seconds, kind) for kind in self.order.kinds]
        else:
            each = [*chain(*(seconds[op] for op in OPS))]
            by_kind = [each[place] for place in self.places_by_kind]
        reductions = [reduced_by(kind, work) for kind in self.order.kinds] if work.reductions else []
        latency, wire = self.messages(work)
        free = work.links_alike and self.lines_free(by_kind, wire[0])
        return Durations(by_kind, latency, wire, free, reductions)

    def lines_free(self, by_kind: list[float], wire: float) -> bool:
        """Whether no step ends later because a message finds its line taken, by `wire` seconds of another.
        Where all that send on a line take as long, none does; where all that receive do, they are busy until
        the next message is there, be it late."""
        if min(by_kind) >= wire:
            return True
        return all(
            any(wire <= min(by_kind[kind] for kind in kinds) for kinds in (line.senders, line.receivers))
            for line in self.order.incoming_lines
        )

    @lru_cache(maxsize=8)  # noqa: B019
    def messages(self, work: Work) -> tuple[list[float], list[float]]:
        """Seconds of a message's first byte, and of the rest of it, by link."""
        ranks, what = self.schedule.ranks, "seconds of a message"
        if work.links_alike:
            (latency, wire) = checked_seconds([work.latency, work.wire], (2,), what)
            return [latency] * ranks**2 + [0.0], [wire] * ranks**2 + [0.0]
        latencies, wires = (
            checked_seconds(given, (ranks, ranks), what) for given in (work.latency, work.wire)
        )
        return [*chain(*latencies), 0.0], [*chain(*wires), 0.0]


def reduced_by(kind: Kind, work: Work) -> Reduced | None:
    """None for forward passes."""
    backward = [(op, stage) for op, stage in kind if op != "F"]
    if not backward:
        return None
    op, stage = backward[0]
    return Reduced(stage, work.reductions[stage] if op in "BW" else None)


def step_seconds(work: Work, seconds: dict[str, list[float]], kind: Kind) -> float:
    """Seconds of an action, of a pair, or of nothing."""
    fused = work.fused_seconds(kind[0][1], kind[1][1]) if len(kind) == 2 else None
    return sum_of((seconds[op][stage] for op, stage in kind), 0.0) if fused is None else fused


@lru_cache(maxsize=32)
def replay_of(name: str, ranks: int, microbatches: int, chunks: int = 1, group: int | None = None) -> Replay:
    """Write a schedule, and put its steps in order, once in a process."""
    recipe = RECIPES[name]
    return Replay(write(name, recipe, Layout(recipe.layout, ranks, chunks), microbatches, group))
