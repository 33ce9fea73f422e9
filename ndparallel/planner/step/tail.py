"""The tail of a pipeline rank's step: gradients that still travel, the optimizer, and weights for the next
step.

Idea   A bucket's gradients start when the action that completes its stage has passed it, which may be long
       before the rank's last action; what they still need then, and what comes behind them, is the tail.
       Stepped weights hide behind the next forward pass. What hides slows the pass that it hides behind. That
       makes the step longer on the first rank alone, which ends last: Megatron lets the others sum their
       gradients in the bubble that they have then (megatron/core/pipeline_parallel/schedules.py, cooldown).
       A table at both ends of the pipeline, and the norm of all gradients, are summed when the last of their
       ranks has come.
Cost   A few microseconds for every bucket.
Limit  All that a rank does behind a stage's last action is slowed as compute is.

Glossary
    slack      by stage, the seconds between the end of the action that completes its gradients and the end of
               the rank's last action
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import accumulate, chain
from typing import Any

import numpy as np

from ndparallel.base.sums import sum_of
from ndparallel.pipeline.replay import Ends
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.stages import keeps_weights
from ndparallel.planner.step.overlap import (
    BucketCost,
    begin_gathers,
    begin_reduce,
    finish,
    finish_reduces,
    gather_in_turn,
    gathered_forward,
)
from ndparallel.planner.step.streams import StreamClock, longest
from ndparallel.planner.step.workload import StageCollective, Workload, buckets_by_stage

ROUNDING = 1 + 1e-9  # keeps what is as long but for rounding


@dataclass(frozen=True, eq=False)
class Tails:
    """Seconds by kind after each pipeline rank's last action: gradients, optimizer, weights. A rank's are
    timed when they are asked for; ranks with equal units and slack, which wait for no other, share one
    result."""

    work: Workload
    ends: Ends
    known: dict[Any, TimeBreakdown] = field(default_factory=dict)

    def __getitem__(self, rank: int) -> TimeBreakdown:
        key = rank if rank in self.synced else key_of_tail(self.work, self.ends, rank)
        if key not in self.known:
            clock = self.synced[rank] if rank in self.synced else self.gradients(rank)
            self.known[key] = step_tail(self.work, rank, clock) + self.first
        return self.known[key]

    @cached_property
    def synced(self) -> dict[int, StreamClock]:
        """Clocks of the ranks that wait for others, behind that."""
        clocks = {rank: self.gradients(rank) for each in self.work.stage_collectives for rank in each.ranks}
        for each in self.work.stage_collectives:
            synchronise(clocks, self.ends.end, each)
        return clocks

    def gradients(self, rank: int) -> StreamClock:
        return gradients_tail(self.work, slack_of(self.work, self.ends, rank), reducing_of(self.ends, rank))

    @cached_property
    def first(self) -> TimeBreakdown:
        return first_gathers(self.work)

    @cached_property
    def last(self) -> int:
        """The rank that is done last. One that would be done before another if nothing of its tail were
        hidden is not timed."""
        latest = [end + ROUNDING * self.at_most(rank) for rank, end in enumerate(self.ends.end)]
        done: dict[int, float] = {}
        for rank in sorted(range(len(latest)), key=lambda rank: -latest[rank]):
            if done and latest[rank] < max(done.values()):
                break
            done[rank] = self.ends.end[rank] + float(self[rank].total)
        return max(sorted(done), key=done.__getitem__)

    def at_most(self, rank: int) -> float:
        """Seconds that a rank's tail takes if nothing of it is hidden."""
        before = self.synced[rank].spent.total if rank in self.synced else reducing_of(self.ends, rank)
        return longest(before + self.work.longest_tail(rank) + self.first.total)


def slack_of(work: Workload, ends: Ends, rank: int) -> dict[int, float]:
    return {stage: ends.end[rank] - ends.complete[stage] for stage in work.plan.layout.stages_of(rank)}


def reducing_of(ends: Ends, rank: int) -> float:
    """Seconds behind a rank's last action in which gradients that every microbatch reduces still travel."""
    return max(0.0, ends.reduced[rank] - ends.end[rank])


def key_of_tail(work: Workload, ends: Ends, rank: int) -> tuple:
    """What ranks with the same tail have in common: units, and slack to the nanosecond."""
    slack, left = slack_of(work, ends, rank), reducing_of(ends, rank)
    return (*[work.kinds[stage] for stage in slack], *[round(1e9 * each) for each in (*slack.values(), left)])


def first_gathers(work: Workload) -> TimeBreakdown:
    """What FSDP adds to the first microbatch's way through the stages, where each gathers its weights once a
    step; all that comes later, on every rank, is so much later."""
    if not keeps_weights(work.job, work.plan):
        return TimeBreakdown()
    forward = work.columns[0]
    firsts = {id(passed): stage for stage, passed in enumerate(forward)}  # of stages that are alike
    added = {key: first_gather(work, stage) for key, stage in firsts.items()}
    return TimeBreakdown(dp=sum_of(added[id(passed)] for passed in forward))


def first_gather(work: Workload, stage: int) -> float:
    """Seconds that a stage's forward pass takes longer because it gathers its weights."""
    streams = StreamClock(work.machine)
    gathered_forward(streams, work.buckets(stage), work.job.stack.prefetch, False)
    return longest(streams.now) - float(work.columns[0][stage].total)


def gradients_tail(work: Workload, slack: Mapping[int, float], reducing: float = 0.0) -> StreamClock:
    """What a pipeline rank waits for behind its last action until it has its gradients; its stages were
    complete `slack` seconds before. Gradients that are reduced after every microbatch take `reducing` seconds
    more."""
    stack, plan, streams = work.job.stack, work.plan, StreamClock(work.machine)
    by_stage = {stage: work.buckets(stage) for stage in sorted(slack, reverse=True)}
    buckets = [bucket for stage in by_stage for bucket in by_stage[stage]]
    if plan.zero == 2:
        streams.spend("dp", reducing)
    elif keeps_weights(work.job, plan):
        finish_reduces(streams, buckets, False)
    elif plan.zero != 3 and any(bucket.reduce or bucket.shared for bucket in buckets):
        passed = passed_buckets(by_stage, slack, passes_of_gradients(work, buckets))
        reduce_in_slack(streams, passed, stack.dp_overlap)
    return streams


def synchronise(
    streams: Mapping[int, StreamClock], ended: Sequence[float], collective: StageCollective
) -> None:
    """Let pipeline ranks, which `ended` their last actions at different times, go through a collective."""
    for rank in collective.ranks:
        streams[rank].run(collective.before(rank), "optimizer")
    starts = [ended[rank] + streams[rank].spent.total for rank in collective.ranks]
    last = reduce(np.maximum, starts)
    for rank, start, seconds in zip(collective.ranks, starts, collective.seconds(starts)):
        waits = np.minimum(last - start, seconds)
        streams[rank].spend(collective.late, waits)
        streams[rank].spend("pp", seconds - waits)


def step_tail(work: Workload, rank: int, streams: StreamClock) -> TimeBreakdown:
    """The optimizer behind a pipeline rank's gradients, and the weights for the next step: with what has been
    spent before, seconds by kind."""
    stack, plan = work.job.stack, work.plan
    streams.run(work.optimizer(rank), "optimizer")
    if plan.zero in (1, 2):
        buckets = [*chain(*buckets_by_stage(work, rank).values())]
        if stack.gathers_first:
            gather_beside_forward(work, streams, buckets)
        else:
            gather_in_turn(streams, buckets)
    return TimeBreakdown({kind: longest(seconds) for kind, seconds in streams.spent.items()})


def reduce_in_slack(streams: StreamClock, passed: Sequence[tuple[BucketCost, float]], overlap: bool) -> None:
    """Each bucket starts when the action that completes its stage has passed it, `before` the rank's last one
    ends."""
    ahead = max(before for _, before in passed)
    for bucket, before in passed:
        streams.advance(ahead - before)
        begin_reduce(streams, bucket, overlap)
        ahead = before
    streams.advance(ahead)
    finish_reduces(streams, [bucket for bucket, _ in passed], overlap)


def passed_buckets(
    by_stage: Mapping[int, Sequence[BucketCost]], slack: Mapping[int, float], seconds: Mapping[int, float]
) -> list[tuple[BucketCost, float]]:
    """The buckets in order, each with the seconds before the rank's end at which the last backward pass of
    its stage has passed it."""
    passed = []
    for stage in sorted(slack, key=lambda stage: -slack[stage]):
        moments = list(accumulate(seconds[id(bucket.units)] for bucket in by_stage[stage]))
        passed += [
            (bucket, slack[stage] + moments[-1] - moment) for bucket, moment in zip(by_stage[stage], moments)
        ]
    # a stage's last pass may begin before another's has ended
    return sorted(passed, key=lambda pair: -pair[1])


def gather_beside_forward(work: Workload, streams: StreamClock, buckets: Sequence[BucketCost]) -> None:
    """Weights that come beside a forward pass, which the schedule has counted already."""
    if not any(bucket.gather for bucket in buckets):
        return
    begin_gathers(streams, buckets)
    passes = passes_through(work, buckets, BucketCost.forward)
    for bucket in reversed(buckets):
        finish(streams, bucket.gather)
        streams.advance(passes[id(bucket.units)])


def passes_of_gradients(work: Workload, buckets: Sequence[BucketCost]) -> dict[int, float]:
    """The action which completes their gradients: W where the schedule parts backward passes."""
    return passes_through(
        work, buckets, BucketCost.weights if work.plan.recipe.splits else BucketCost.backward
    )


def passes_through(
    work: Workload, buckets: Sequence[BucketCost], one_pass: Callable[[BucketCost, StreamClock], None]
) -> dict[int, float]:
    """Seconds of one microbatch through each bucket, by its units."""
    seconds: dict[int, float] = {}
    for bucket in buckets:
        if id(bucket.units) not in seconds:
            counted = StreamClock(work.machine)
            one_pass(bucket, counted)
            seconds[id(bucket.units)] = longest(counted.now)
    return seconds
