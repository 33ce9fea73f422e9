"""Seconds of every action of a pipeline's schedule, and of its messages: what the schedule is timed on.

Idea   Of one workload three of them, each from the one before: with messages that take no time, with
       messages, and with the gradients that ZeRO-2 reduces after every microbatch.
Limit  All microbatches are alike.

Glossary
    columns   seconds of F, I and W of every stage
    pair      two microbatches at once on one rank: see ndparallel.planner.step.paired
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from ndparallel.base.sums import sum_of
from ndparallel.pipeline.catalog import default_schedule
from ndparallel.pipeline.work import Reduction, Work
from ndparallel.planner.job import Plan
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.stages import keeps_weights
from ndparallel.planner.step.overlap import begin, begin_reduce, finish_reduces
from ndparallel.planner.step.paired import Pair, beside, pairs_of_rank
from ndparallel.planner.step.streams import StreamClock, longest
from ndparallel.planner.step.tail import passes_of_gradients
from ndparallel.planner.step.workload import Workload


class ActionSeconds:
    """The seconds of one workload's actions."""

    def __init__(self, work: Workload) -> None:
        self.work, self.plan = work, work.plan
        self.stages = [self.plan.layout.stages_of(rank) for rank in range(self.plan.pp)]

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
            fused=self.unreduced_pairs,
        )

    @property
    def unreduced_pairs(self) -> dict[Pair, float]:
        """Seconds of each pair and of its two messages, where these are not beside compute."""
        return {pair: seconds + 2 * self.standing for pair, seconds in self.by_pair.items()}

    @cached_property
    def durations(self) -> Work:
        """The seconds of actions, with the gradients that ZeRO-2 reduces after every microbatch
        (Megatron-FSDP's grad_reduce_every_bprop). FSDP's are in a pass's own seconds."""
        if self.plan.zero != 2:
            return self.unreduced
        slower, reductions = zip(*(stage_reduction(self.work, stage) for stage in range(self.plan.stages)))
        whole, (_, _, weights) = self.whole_backward, self.by_stage
        return replace(
            self.unreduced,
            backward=whole and [seconds + lost for seconds, lost in zip(whole, slower)],
            backward_weight=[seconds + lost for seconds, lost in zip(weights, slower)],
            fused={pair: seconds + slower[pair[1]] for pair, seconds in self.unreduced_pairs.items()},
            reductions=reductions,
        )

    @cached_property
    def work_by_stage(self) -> list[float]:
        return [f + i + w for f, i, w in zip(*self.by_stage)]

    @cached_property
    def work_by_rank(self) -> list[float]:
        """Seconds that each pipeline rank works on a microbatch of a full pipeline."""
        if self.pairs:
            return [sum_of(self.by_pair[pair] for pair in pairs_of_rank(stages)) for stages in self.stages]
        return [sum_of([self.work_by_stage[stage] for stage in stages]) for stages in self.stages]


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
    lost = made - sum_of(passes[id(bucket.units)] for bucket in buckets)
    return longest(lost), Reduction(line, longest(streams.now - made), work.machine.slowdown)


def seconds_of_column(column: Sequence[TimeBreakdown]) -> list[float]:
    """Seconds of an op by stage; of equal stages they are added up once."""
    known = {id(part): float(part.total) for part in {id(part): part for part in column}.values()}
    return [known[id(part)] for part in column]
