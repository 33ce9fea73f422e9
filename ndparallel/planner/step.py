"""Seconds of one training step, and where they go.

Idea   Units make stages, stages and the schedule's own action list make the pipeline; gradients and weights travel before, beside and after
       it, in the patterns of ndparallel.planner.overlap, and the optimizer ends the step. A synchronous step is as long as on the slowest
       of its GPUs. Real models and the lessons' own runs take the same way: only their workloads differ.
Cost   About 2 us for each action of the schedule.
Limit  Data loading, logging and checkpoints are not in a step.

Glossary
    bubble      time that the pipeline rank which is done last spends waiting for others
    spread      standard deviation of the GPUs' speeds, as a share
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from gpu import Hardware
from ndparallel.hardware import Accelerator
from ndparallel.pipeline.actions import Schedule
from ndparallel.pipeline.catalog import build
from ndparallel.pipeline.search import search
from ndparallel.pipeline.timing import time_schedule
from ndparallel.pipeline.work import Work
from ndparallel.planner.executed_workload import ExecutedWorkload
from ndparallel.planner.grid import run_grid, slowest_gpu
from ndparallel.planner.layer_time import Pricing
from ndparallel.planner.overlap import Bucket, arriving_forward, fully_sharded, reduce_behind, replicated, sharded_gradients
from ndparallel.planner.plan import Job, Plan
from ndparallel.planner.streams import Seconds, Streams
from ndparallel.planner.workload import Workload, total

AUTOMATIC = {"zb-1p": 1, "zb-2p": 2}  # schedules searched within so many times 1F1B's memory
SPREAD = 0.02  # Sinha et al., "Not All GPUs Are Created Equal" (2208.11035): GPUs of one model differ by 8 % on average
AnyWorkload = Workload | ExecutedWorkload
FULL_ROUNDS = 8  # rounds of microbatches after which a pipeline is in its stride
KINDS = ("compute", "tp", "cp", "ep", "dp", "pp", "bubble", "optimizer")


@dataclass(frozen=True)
class Step:
    """Seconds of a step: compute, exposed communication by kind, bubble and optimizer add up to `seconds`."""

    breakdown: dict[str, Any]

    @property
    def seconds(self):
        return sum(self.breakdown.values())


def slowest(hardware: Hardware, gpus: int) -> Hardware:
    """The slowest of so many GPUs: the median of the minimum of normally distributed speeds. Idealized hardware has no spread."""
    if not isinstance(hardware, Accelerator):
        return hardware
    behind = -SPREAD * NormalDist().inv_cdf(1 - 0.5 ** (1 / gpus)) if gpus > 1 else 0.0
    return replace(hardware, matmul_fraction=hardware.matmul_fraction / (1 + behind))


def predict(job: Job, plan: Plan) -> Step:
    """Time one plan."""
    return step_of(workload_of(job, plan))


def workload_of(job: Job, plan: Plan) -> AnyWorkload:
    if job.stack.executed:
        return ExecutedWorkload(job, plan)
    return Workload(Pricing(replace(job, hardware=slowest(job.hardware, plan.gpus)), plan))


def step_of(work: AnyWorkload) -> Step:
    if isinstance(work, ExecutedWorkload) and work.job.stack.grid:
        spent = slowest_gpu(run_grid(work, schedule_of(work)))
        return Step({kind: spent.get(kind, 0.0) for kind in KINDS})
    spent = one_stage(work).spent if work.plan.pp == 1 else pipeline(work)
    means = {kind: np.mean(spent.get(kind, 0.0)) for kind in KINDS}
    return Step(means | {"bubble": means["bubble"] + np.max(spent.total) - sum(means.values()) + 0.0})


# ------------------------------------------------------------------------------------------------------- without pipeline


def one_stage(work: AnyWorkload, trace: list | None = None) -> Streams:
    """All ranks have the whole depth of the model; what happens when is noted in `trace`."""
    plan, stack = work.plan, work.job.stack
    streams, buckets, microbatches = Streams(work.machine), work.buckets(0), plan.microbatches(work.job)
    streams.trace = trace
    streams.run(work.states(0))
    if plan.zero == 3:
        streams.repeat(microbatches, lambda: fully_sharded(streams, buckets, stack.prefetch, stack.dp_overlap, stack.reshards))
    elif plan.zero == 2:
        streams.repeat(microbatches, lambda: sharded_gradients(streams, buckets))
    else:
        replicated(streams, buckets, microbatches, stack.dp_overlap, gathers_first=plan.zero == 1 and stack.gathers_first)
    streams.run(work.shared(0))
    streams.run(work.optimizer(0), "optimizer")
    if plan.zero == 2 or (plan.zero == 1 and not stack.gathers_first):
        for bucket in buckets:
            streams.run(bucket.gather)
    return streams


# -------------------------------------------------------------------------------------------------------- the pipeline


def pipeline(work: AnyWorkload) -> Seconds:
    """The schedule's actions, then every rank's gradients and optimizer; said of the rank that is done last."""
    whole, silent = ends_of(work, work_of(work)), ends_of(work, work_of(work, messages=False))
    ends = endings(work)
    last = int(np.argmax([end + float(ending.total) for end, ending in zip(whole, ends)]))
    stages = work.plan.layout.stages_of(last)
    busy = total(column[stage] for column in work.columns for stage in stages).times(work.plan.microbatches(work.job))
    waits = max(0.0, whole[last] - float(busy.total))  # rounds that are not timed one by one may fall some thousandths short
    for_messages = min(waits, max(0.0, whole[last] - silent[last]))
    return busy + ends[last] + Seconds(pp=for_messages, bubble=waits - for_messages)


def ends_of(work: AnyWorkload, durations: Work) -> list[float]:
    """Seconds until each rank ends its last action; where steps follow without a stop, those of its own span (2401.10241, section 4).

    Many microbatches are not all timed: once the pipeline is full, every round of as many as it has ranks takes the same, to some
    thousandths where stages are very uneven.
    """
    if work.plan.schedule in AUTOMATIC:
        return [max(time_schedule(schedule_of(work), durations).spans)] * work.plan.pp
    return over_rounds(work, lambda schedule: [end[-1] for end in time_schedule(schedule, durations).end])


def over_rounds(work: AnyWorkload, of: Callable[[Schedule], list[float]]) -> list[float]:
    """What `of` says of the schedule, from two that are one round apart."""
    ranks, microbatches = work.plan.pp, work.plan.microbatches(work.job)
    few = FULL_ROUNDS * ranks + microbatches % ranks
    if microbatches <= few + ranks:
        return of(schedule_of(work))
    rounds, before = (microbatches - few) / ranks, of(schedule_of(work, few))
    return [start + rounds * (end - start) for start, end in zip(before, of(schedule_of(work, few + ranks)))]


def endings(work: AnyWorkload) -> list[Seconds]:
    """Of every rank; those whose stages have the same units end alike."""
    known: dict[tuple, Seconds] = {}
    units = [tuple(tuple(work.kinds[stage]) for stage in work.plan.layout.stages_of(rank)) for rank in ranks(work)]
    for rank, held in enumerate(units):
        if held not in known:
            known[held] = ending(work, rank)
    return [known[held] for held in units]


def ranks(work: AnyWorkload) -> range:
    return range(work.plan.pp)


def ending(work: AnyWorkload, rank: int) -> Seconds:
    """What a pipeline rank still waits for, and does, when its last action is done."""
    stack, plan, buckets = work.job.stack, work.plan, buckets_of(work, rank)
    streams = Streams(work.machine)
    if plan.zero < 3:
        hidden_behind(streams, buckets, Bucket.backward, lambda: reduce_behind(streams, buckets, stack.dp_overlap))
    streams.run(work.shared(rank))
    streams.run(work.optimizer(rank), "optimizer")
    if plan.zero in (1, 2) and stack.gathers_first:
        hidden_behind(streams, buckets, Bucket.forward, lambda: arriving_forward(streams, buckets))
    elif plan.zero in (1, 2):
        streams.run(exchange for bucket in buckets for exchange in bucket.gather)
    return Seconds({kind: float(np.max(seconds)) for kind, seconds in streams.spent.items()})


def hidden_behind(streams: Streams, buckets: list[Bucket], one_pass: Callable[[Bucket, Streams], None], body: Callable[[], None]) -> None:
    """Do `body`, whose last or first pass through the buckets the schedule has counted already."""
    if not any(bucket.reduce or bucket.gather for bucket in buckets):
        return
    counted = Streams(streams.machine)
    for bucket in buckets:
        one_pass(bucket, counted)
    body()
    streams.spent = streams.spent + counted.spent.times(-1)


def buckets_of(work: AnyWorkload, rank: int) -> list[Bucket]:
    """Those of all a rank's stages, in the order in which the last backward passes fill them."""
    return [bucket for stage in reversed(work.plan.layout.stages_of(rank)) for bucket in work.buckets(stage)]


def schedule_of(work: AnyWorkload, microbatches: int | None = None) -> Schedule:
    """The plan's schedule by name; the automatic ones are searched for these very seconds (2401.10241, section 3.1)."""
    plan = work.plan
    microbatches = microbatches or plan.microbatches(work.job)
    if plan.schedule in AUTOMATIC:
        return search(plan.pp, microbatches, work_of(work), memory_limit=AUTOMATIC[plan.schedule] * plan.pp)
    return build(plan.schedule, plan.pp, microbatches, plan.chunks if plan.chunks > 1 else None)


def work_of(work: AnyWorkload, messages: bool = True) -> Work:
    """Seconds of all actions. Without overlap a rank stands still while its messages pass."""
    forward, inputs, weights = ([float(part.total) for part in column] for column in work.columns)
    if not messages:
        return Work(forward, inputs, weights)
    latency, wire = work.messages()
    if work.job.stack.pp_overlap:
        return Work(forward, inputs, weights, latency=latency, wire=wire)
    stands = float(latency + wire)
    return Work([seconds + stands for seconds in forward], [seconds + stands for seconds in inputs], weights)
