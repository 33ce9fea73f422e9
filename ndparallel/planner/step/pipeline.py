"""The step of a pipeline: the schedule's own actions, and then each rank's gradients and optimizer.

Idea   The schedule is timed on the seconds of its actions (ndparallel.planner.step.schedule_timer), and a
       second time with messages that take no time: what that saves is waiting for messages, and the rest of
       the waiting is bubble and imbalance.
Limit  All microbatches are alike.

Glossary
    imbalance   what the pipeline rank that is done last waits for slower ones in a full pipeline: it grows
                with the microbatches
    bubble      what it waits besides, while the pipeline fills and drains: as long for any number of
                microbatches
    pace        seconds of a microbatch in a full pipeline
    tail        what a rank still does when its last action is done: see ndparallel.planner.step.tail
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ndparallel.pipeline.actions import Schedule
from ndparallel.pipeline.catalog import default_schedule
from ndparallel.pipeline.replay import Ends, Replay
from ndparallel.pipeline.rounds import ends_by_rounds
from ndparallel.pipeline.search import check_size, search
from ndparallel.pipeline.work import Reduction, Work
from ndparallel.planner.job import Plan
from ndparallel.planner.layers.breakdown import TimeBreakdown, total
from ndparallel.planner.stages import keeps_weights
from ndparallel.planner.step.overlap import begin, begin_reduce, finish_reduces
from ndparallel.planner.step.paired import Pair, beside, pairs_of_rank, pairs_run, saved
from ndparallel.planner.step.schedule_timer import ScheduleTimer, replay_for
from ndparallel.planner.step.streams import StreamClock, longest
from ndparallel.planner.step.tail import Tails, passes_of_gradients
from ndparallel.planner.step.workload import Workload

UNLIKE = 0.01  # by which the stages between the first and the last differ where layers are not spread evenly


@dataclass(frozen=True)
class PipelineTimes:
    """What timing a pipeline finds: seconds of its actions, and by pipeline rank when they end, the tail
    behind them, and the work on a microbatch of a full pipeline."""

    durations: Work
    ends: Ends
    tails: Tails
    work_by_rank: list[float]
    pace: float


class PipelineTimer(ScheduleTimer):
    """Times one workload in five stages, each once, from those above it."""

    def __init__(self, work: Workload) -> None:
        super().__init__(work.plan, work.plan.microbatches(work.job))
        self.work = work
        self.stages = [self.plan.layout.stages_of(rank) for rank in range(self.plan.pp)]

    # ---- 1. seconds of every action

    @cached_property
    def pairs(self) -> list[Pair]:
        """Pairs of microbatches that run beside one another and have something to hide; the lessons' own runs
        hide nothing in pairs."""
        job = self.work.job
        if not self.plan.recipe.pairs or job.shape.experts is None or job.stack.executed:
            return []
        return [pair for stages in self.stages for pair in pairs_of_rank(stages)]

    def passes_of(self, pair: Pair) -> tuple[TimeBreakdown, TimeBreakdown, float, float]:
        """The forward of one stage, and the whole backward of the other; what communication slows compute
        by, and the seconds of what FSDP gathers and reduces in both."""
        forward, inputs, weights = self.work.columns
        slowdown, line = self.work.machine.slowdown, sharded_line(self.work, *pair)
        return forward[pair[0]], inputs[pair[1]] + weights[pair[1]], slowdown, line

    @cached_property
    def by_stage(self) -> tuple[list[float], list[float], list[float]]:
        """Seconds of F, I and W by stage."""
        forward, inputs, weights = map(seconds_of_column, self.work.columns)
        return forward, inputs, weights

    @cached_property
    def by_pair(self) -> dict[Pair, float]:
        """Seconds of each pair."""
        return {pair: float(beside(*self.passes_of(pair)).total) for pair in self.pairs}

    @cached_property
    def silent(self) -> Work:
        """Seconds of all actions, with messages that take no time."""
        return Work(*self.by_stage, self.whole_backward, fused=self.by_pair)

    @property
    def whole_backward(self) -> list[float] | None:
        whole = self.work.whole_backward
        return None if whole is None else seconds_of_column(whole)

    @cached_property
    def standing(self) -> float:
        """Seconds that a rank stands still while a message passes."""
        return 0.0 if overlaps_messages(self.work) else float(sum(self.work.messages()))

    @cached_property
    def unreduced(self) -> Work:
        """Seconds of all actions and messages, while gradients stay."""
        if overlaps_messages(self.work):
            latency, wire = self.work.messages()
            return replace(self.silent, latency=latency, wire=wire)
        forward, inputs, weights = self.by_stage
        return Work(
            [seconds + self.standing for seconds in forward],
            [seconds + self.standing for seconds in inputs],
            weights,
            fused={pair: seconds + 2 * self.standing for pair, seconds in self.by_pair.items()},
        )

    @cached_property
    def durations(self) -> Work:
        """The same, with the gradients that ZeRO-2 reduces after every microbatch (Megatron-FSDP's
        grad_reduce_every_bprop). FSDP's are in a pass's own seconds."""
        if self.plan.zero != 2:
            return self.unreduced
        slower, reductions = zip(*(stage_reduction(self.work, stage) for stage in range(self.plan.stages)))
        whole, (_, _, weights) = self.whole_backward, self.by_stage
        return replace(
            self.unreduced,
            backward=whole and [seconds + lost for seconds, lost in zip(whole, slower)],
            backward_weight=[seconds + lost for seconds, lost in zip(weights, slower)],
            fused={
                pair: seconds + 2 * self.standing + slower[pair[1]] for pair, seconds in self.by_pair.items()
            },
            reductions=reductions,
        )

    # ---- 2. when each rank ends its last action

    @cached_property
    def whole(self) -> Replay:
        """All of a step's microbatches."""
        durations = self.durations if self.plan.recipe.is_searched else None
        return replay_of_step(self.plan, self.microbatches, durations)

    @cached_property
    def ends(self) -> Ends:
        return self.ends_of(self.durations)

    def ends_of(self, durations: Work) -> Ends:
        """When each rank ends its last action. Where a searched schedule's steps follow without a stop, that
        is the end of its own span (2401.10241, section 4)."""
        if not self.plan.recipe.is_searched:
            return self.ends_after_rounds(durations)
        ends = ends_by_rounds(self.whole, durations)
        span = ends.longest_span
        later = [span - end for end in ends.end]
        complete = [
            moment + later[self.plan.layout.rank(stage)] for stage, moment in enumerate(ends.complete)
        ]
        reduced = [moment + wait for moment, wait in zip(ends.reduced, later)]
        return Ends(ends.start, [span] * self.plan.pp, complete, reduced)

    # ---- 3. the rank that is done last

    @cached_property
    def tails(self) -> Tails:
        return Tails(self.work, self.ends)

    @cached_property
    def last(self) -> int:
        return self.tails.last

    @cached_property
    def busy(self) -> TimeBreakdown:
        """What the last rank computes in a step, and says meanwhile; what a pair hides is not there."""
        forward, *backward = self.work.columns
        passes = (forward, self.work.whole_backward) if self.work.whole_backward else (forward, *backward)
        alone = total(column[stage] for column in passes for stage in self.stages[self.last])
        alone = alone.times(self.microbatches)
        if not self.pairs:
            return alone
        few, more, rounds = self.rounds
        hidden = [
            saved(*self.passes_of(pair)).times(-times)
            for pair, times in pairs_run(few.schedule, more.schedule, rounds, self.last).items()
        ]
        return total((alone, *hidden))

    # ---- 4. the pace of a full pipeline, and the same step without messages

    @cached_property
    def work_by_stage(self) -> list[float]:
        return [f + i + w for f, i, w in zip(*self.by_stage)]

    @cached_property
    def work_by_rank(self) -> list[float]:
        """Seconds that each pipeline rank works on a microbatch of a full pipeline."""
        if self.pairs:
            return [sum(self.by_pair[pair] for pair in pairs_of_rank(stages)) for stages in self.stages]
        return [sum([self.work_by_stage[stage] for stage in stages]) for stages in self.stages]

    @property
    def busiest_sets_pace(self) -> bool:
        """Whether a full pipeline without messages goes at the busiest rank's pace. It may be slower where a
        schedule parts backward passes, as its order is made for F, I and W that take as long as one another;
        and where some of a rank's stages have more to do than others, as ranks that are all as busy wait for
        one another. The first and the last stage always differ."""
        inner = self.work_by_stage[1:-1]
        unlike = self.plan.chunks > 1 and max(inner) > min(inner) * (1 + UNLIKE)
        return not (self.plan.recipe.splits or unlike)

    @property
    def last_never_waits(self) -> bool:
        """Whether 1F1B's last rank, without messages, works without a stop from its first microbatch on. As
        the busiest it sends gradients up at its own pace, which leaves every rank time for the next forward
        pass; and the first gradient comes behind the forward passes before it, if none is long."""
        longest_forward, work = max(self.by_stage[0]), self.work_by_rank
        return is_plain(self.plan) and work[-1] == max(work) and longest_forward <= min(work)

    @cached_property
    def without_messages(self) -> tuple[float, float]:
        """When the last rank would end if messages took no time, and the pipeline's pace then: timed where it
        is not the busiest rank's."""
        busiest = max(self.work_by_rank)
        if self.plan.recipe.is_searched:
            return ends_by_rounds(self.whole, self.silent).longest_span, busiest
        if self.busiest_sets_pace:
            # of as few microbatches as leave whole rounds
            few = min(self.microbatches, self.per_round + self.microbatches % self.per_round)
            timed = 1 if self.last_never_waits else few
            end = self.replay(timed).ends(self.silent).end[self.last]
            return end + (self.microbatches - timed) * busiest, busiest
        if paced := self.paced(self.silent):
            return paced[0].end[self.last], paced[1]
        shorter, longer, rounds = self.rounds
        longer = longer if rounds else self.replay(self.microbatches + self.per_round)
        before, after = (replay.ends(self.silent).end[self.last] for replay in (shorter, longer))
        pace = max(busiest, (after - before) / self.per_round)
        return before + rounds * self.per_round * pace, pace

    # ---- 5. where the time goes

    @cached_property
    def breakdown(self) -> TimeBreakdown:
        """Seconds of the rank that is done last. Of what it waits, the imbalance is what it would wait were
        the pipeline always full: as long as a full round takes more than its own work of one."""
        reduces = self.plan.zero == 2
        ends = self.ends_of(self.unreduced) if reduces else self.ends
        end, (silent_end, pace) = ends.end[self.last], self.without_messages
        # rounds that are not timed one by one may fall short by some thousandths
        waits = max(0.0, end - float(self.busy.total))
        for_messages = min(waits, max(0.0, end - silent_end))
        imbalance = min(waits - for_messages, self.microbatches * (pace - self.work_by_rank[self.last]))
        bubble = waits - for_messages - imbalance
        waiting = TimeBreakdown(pp=for_messages, bubble=bubble, imbalance=imbalance)
        if reduces:
            waiting["dp"] = self.ends.end[self.last] - end
        return self.busy + self.tails[self.last] + waiting

    @property
    def busiest(self) -> int:
        return self.work_by_rank.index(max(self.work_by_rank))

    @property
    def times(self) -> PipelineTimes:
        return PipelineTimes(
            self.durations, self.ends, self.tails, self.work_by_rank, self.without_messages[1]
        )


def overlaps_messages(work: Workload) -> bool:
    """Whether messages between stages travel beside compute."""
    stack = work.job.stack
    return stack.pp_overlap and not (stack.pp_overlaps_chunks and is_plain(work.plan))


def is_plain(plan: Plan) -> bool:
    """Whether it is 1F1B with one stage on each rank."""
    return plan.schedule == default_schedule(1) and plan.chunks == 1


def sharded_line(work: Workload, ahead: int, back: int) -> float:
    """Seconds of what FSDP gathers in a forward pass of one stage, and gathers and reduces in a backward pass
    of another, where weights do not stay whole: of the line that carries most."""
    if work.plan.zero != 3 or keeps_weights(work.job, work.plan):
        return 0.0
    streams = StreamClock(work.machine)
    for bucket in work.buckets(ahead):
        begin(streams, bucket.gather)
    for bucket in work.buckets(back):
        begin(streams, [*bucket.gather, *bucket.reduce])
    streams.wait_for_all()
    return longest(streams.now)


def stage_reduction(work: Workload, stage: int) -> tuple[float, Reduction]:
    """By how much one microbatch's reduction of a stage's gradients slows the pass that makes them, and what
    of it is left behind that pass. Where a schedule parts B, gradients are made in W alone."""
    buckets, streams, alone = work.buckets(stage), StreamClock(work.machine), StreamClock(work.machine)
    overlap = work.job.stack.dp_overlap
    for bucket in buckets:
        begin(alone, bucket.reduce if overlap else ())
    finish_reduces(alone, buckets, overlap)
    line = longest(alone.now)
    if not overlap:
        return line, Reduction(0.0, 0.0, 0.0)
    passes = passes_of_gradients(work, buckets)
    for bucket in buckets:
        streams.advance(passes[id(bucket.units)])
        begin_reduce(streams, bucket)
    made = streams.now
    streams.wait_for_all()
    lost = made - sum(passes[id(bucket.units)] for bucket in buckets)
    return longest(lost), Reduction(line, longest(streams.now - made), work.machine.slowdown)


def seconds_of_column(column: Sequence[TimeBreakdown]) -> list[float]:
    """Seconds of an op by stage; of equal stages they are added up once."""
    known = {id(part): float(part.total) for part in {id(part): part for part in column}.values()}
    return [known[id(part)] for part in column]


# ---------------------------------------------------------------------------------------------- the schedule


def schedule_of(work: Workload) -> Schedule:
    """The schedule of all of a step's microbatches."""
    return PipelineTimer(work).whole.schedule


def replay_of_step(plan: Plan, microbatches: int, durations: Work | None = None) -> Replay:
    """The plan's schedule by name; one that is searched for is made for these very seconds (2401.10241,
    section 3.1)."""
    if not plan.recipe.memory_limit:
        return replay_for(plan, microbatches)
    assert durations
    check_size(plan.pp, microbatches, plan.schedule)
    passes = (durations.forward, durations.backward_input, durations.backward_weight)
    seconds = map(hashable, (*passes, durations.latency, durations.wire))
    return searched(plan.pp, microbatches, plan.recipe.memory_limit(plan.pp), *seconds)


@lru_cache(maxsize=8)
def searched(ranks: int, microbatches: int, memory_limit: int, *parts: Any) -> Replay:
    """A schedule, searched once for the seconds of a step, its memory and its picture."""
    forward, inputs, weights, latency, wire = parts
    actions = Work(forward, inputs, weights, latency=latency, wire=wire)
    return Replay(search(ranks, microbatches, actions, memory_limit=memory_limit))


def hashable(seconds: Any) -> Any:
    """Numbers of one or two dimensions as tuples."""
    each = np.asarray(seconds).tolist()
    return tuple(map(hashable, each)) if isinstance(each, list) else each
