"""Seconds of one training step, and where they go.

Idea   Units make stages, and stages a pipeline (ndparallel.planner.step.pipeline); gradients and weights
       travel before, beside and after it, in the patterns of ndparallel.planner.step.overlap, and the
       optimizer ends the step. Real models and the lessons' own runs take the same way: only their workloads
       differ.
Limit  Data loading, logging and checkpoints are not in a step; nor, on a real framework, is the global norm:
       one number along every axis, and a wait for the last rank (`Stack.clips` has it for the lessons' runs).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ndparallel.base.sums import sum_of
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.stages import gathers_again, gathers_every_microbatch
from ndparallel.planner.step.overlap import (
    BucketCost,
    fully_sharded,
    gather_in_turn,
    replicated,
    sharded_gradients,
    without,
    without_replicas,
)
from ndparallel.planner.step.pipeline import PipelineTimer
from ndparallel.planner.step.streams import StreamClock, longest
from ndparallel.planner.step.workload import Workload

TIME_KINDS = ("compute", "tp", "cp", "ep", "dp", "pp", "bubble", "imbalance", "optimizer")
HOST = "host"  # waiting for activations on their way to or from the host, or for gradients that it adds up


@dataclass(frozen=True)
class Step:
    """Seconds of a step: of the pipeline rank that is done last, `rank`; `busiest` is the one that works
    longest. Where they go is found out when it is asked for."""

    seconds: float
    find_breakdown: Callable[[], TimeBreakdown] = field(repr=False, compare=False)
    rank: int = 0
    busiest: int = 0
    pipeline: PipelineTimer | None = field(default=None, repr=False, compare=False)

    @cached_property
    def spent(self) -> TimeBreakdown:
        return self.find_breakdown()

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """Seconds by kind: compute, exposed communication by kind, waiting for other pipeline ranks and
        optimizer add up to `seconds`."""
        counted = self.spent | {"compute": self.spent["compute"] + self.spent["launch"]}
        means = {kind: mean(counted.get(kind, 0.0)) for kind in (*TIME_KINDS, *[HOST] * (HOST in counted))}
        return means | {"bubble": means["bubble"] + max(0.0, self.seconds - sum_of(means.values()))}

    @property
    def launch_seconds(self) -> float:
        """Seconds of compute in which the GPU waits for the CPU to launch kernels."""
        return mean(self.spent["launch"])


def time_workload(work: Workload) -> Step:
    """Time a workload, through its pipeline where it has one."""
    if work.plan.pp == 1:
        return step_from(one_stage(work).spent)
    timer = PipelineTimer(work)
    return Step(timer.seconds, timer.breakdown, timer.last, timer.busiest, timer)


def step_from(spent: TimeBreakdown, rank: int = 0, busiest: int = 0) -> Step:
    """The means of GPUs that differ; what they wait for the slowest of them is bubble."""
    return Step(longest(spent.total), lambda: spent, rank, busiest)


def mean(seconds: Any) -> float:
    return float(np.mean(seconds)) if isinstance(seconds, np.ndarray) else float(seconds)


# ------------------------------------------------------------------------------------------- without pipeline


def one_stage(
    work: Workload, trace: list | None = None, microbatches: int = 0, clock: StreamClock | None = None
) -> StreamClock:
    """A step of ranks that have the whole depth of the model, or of its first `microbatches` alone; what
    happens when is noted in `trace`."""
    plan, stack, buckets = work.plan, work.job.stack, work.buckets(0)
    streams = clock or StreamClock(work.machine)
    streams.trace = trace
    streams.run(work.states(0))
    run_microbatches(streams, work, buckets, microbatches or plan.microbatches(work.job))
    streams.run(work.optimizer(0), "optimizer")
    gathers_behind = plan.zero == 2 or (plan.zero == 1 and not stack.gathers_first)
    if gathers_behind and not gathers_every_microbatch(work.job, plan):
        gather_in_turn(streams, buckets)
    return streams


def run_microbatches(
    streams: StreamClock, work: Workload, buckets: Sequence[BucketCost], microbatches: int
) -> None:
    """The passes of all microbatches, and their gradients, in the pattern of the plan's ZeRO."""
    plan, stack = work.plan, work.job.stack
    if gathers_every_microbatch(work.job, plan):
        run_fully_sharded(streams, work, buckets, microbatches)
    elif plan.zero == 2:
        for _ in streams.repeats(microbatches):
            sharded_gradients(streams, buckets, stack.dp_overlap)
    else:
        gathers_first = plan.zero == 1 and stack.gathers_first
        replicated(streams, buckets, microbatches, stack.dp_overlap, gathers_first)


def run_fully_sharded(
    streams: StreamClock, work: Workload, buckets: Sequence[BucketCost], microbatches: int
) -> None:
    """FSDP's microbatches; some software reduces the gradients of the last one alone, or those of replicas.
    What the host adds to those of the first one waits for the reduction, and the next layer for it: copies
    that are added at once block (foreach_reduce in torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py,
    to_accumulate_grad)."""
    stack, reshard = work.job.stack, gathers_again(work.job, work.plan)
    replicas_last = stack.replicas_last and work.plan.shards > 0
    before = microbatches - 1 if stack.whole_between or replicas_last else 0
    partly = without(buckets, "reduce") if stack.whole_between else without_replicas(buckets)
    first = 1 if work.job.states_away else microbatches - before
    for times, each, overlap in (
        (before, without(partly, "added"), stack.dp_overlap),
        (first, without(buckets, "added"), stack.dp_overlap),
        (microbatches - before - first, buckets, False),
    ):
        for _ in streams.repeats(times):
            fully_sharded(streams, each, stack.prefetch, overlap, reshard)
