"""How a pipeline rank's step ends: gradients that still travel, the optimizer, and weights for the next step.

Idea   A bucket's gradients start when the action that completes its stage has passed it, which may be long before the rank's last action;
       what they still need then, and what comes behind them, is the ending. Stepped weights hide behind the next forward pass. What hides
       slows the pass that it hides behind. That makes the step longer on the first rank alone, which ends last: Megatron lets the others
       sum their gradients in the bubble that they have then (megatron/core/pipeline_parallel/schedules.py, cooldown).
Cost   a few microseconds for every bucket.
Limit  All that a rank does behind a stage's last action is slowed as compute is.

Glossary
    left       by stage, the seconds between the end of the action that completes its gradients and the end of the rank's last action
"""

from collections.abc import Callable, Mapping
from itertools import accumulate

import numpy as np

from ndparallel.pipeline.replay import Ends
from ndparallel.planner.executed_workload import ExecutedWorkload
from ndparallel.planner.overlap import Bucket, begin, finish
from ndparallel.planner.streams import Seconds, Streams
from ndparallel.planner.workload import Workload

AnyWorkload = Workload | ExecutedWorkload


def endings(work: AnyWorkload, ends: Ends) -> list[Seconds]:
    """Of every rank; those whose stages have the same units, and as much time after each, end alike."""
    known: dict[tuple, Seconds] = {}
    finals = []
    for rank in range(work.plan.pp):
        stages = work.plan.layout.stages_of(rank)
        left = [ends.end[rank] - ends.complete[stage] for stage in stages]
        key = *(tuple(work.kinds[stage]) for stage in stages), *(round(seconds, 9) for seconds in left)
        if key not in known:
            known[key] = ending(work, rank, dict(zip(stages, left)))
        finals.append(known[key])
    return finals


def ending(work: AnyWorkload, rank: int, left: Mapping[int, float]) -> Seconds:
    """What a pipeline rank still waits for, and does, when its last action is done; its stages were complete `left` seconds before."""
    stack, plan, streams = work.job.stack, work.plan, Streams(work.machine)
    if plan.zero < 3:
        reduce_meanwhile(work, streams, left)
    streams.run(work.shared(rank))
    streams.run(work.optimizer(rank), "optimizer")
    buckets = [bucket for stage in sorted(left, reverse=True) for bucket in work.buckets(stage)]
    if plan.zero in (1, 2) and stack.gathers_first:
        gather_meanwhile(work, streams, buckets)
    elif plan.zero in (1, 2):
        streams.run(exchange for bucket in buckets for exchange in bucket.gather)
    return Seconds({kind: float(np.max(seconds)) for kind, seconds in streams.spent.items()})


def reduce_meanwhile(work: AnyWorkload, streams: Streams, left: Mapping[int, float]) -> None:
    """Each bucket starts when the action that completes its stage has passed it, `before` the rank's last one ends."""
    passed = [moment for stage in sorted(left, key=lambda stage: -left[stage]) for moment in passed_buckets(work, stage, left[stage])]
    overlap, ahead = work.job.stack.dp_overlap, max((before for _, before in passed), default=0.0)
    for bucket, before in passed:
        streams.pass_by(ahead - before)
        begin(streams, bucket.reduce if overlap else ())
        ahead = before
    streams.pass_by(ahead)
    for bucket, _ in passed:
        if overlap:
            finish(streams, bucket.reduce)
        else:
            streams.run(bucket.reduce)


def passed_buckets(work: AnyWorkload, stage: int, left: float) -> list[tuple[Bucket, float]]:
    """The buckets of a stage, and how long before the rank's end its last backward pass has passed each."""
    buckets = work.buckets(stage)
    if not any(bucket.reduce for bucket in buckets):
        return []
    moments = list(accumulate(seconds_of_passes(work, buckets, Bucket.backward)))
    return [(bucket, left + moments[-1] - moment) for bucket, moment in zip(buckets, moments)]


def gather_meanwhile(work: AnyWorkload, streams: Streams, buckets: list[Bucket]) -> None:
    """Weights that come beside a forward pass, which the schedule has counted already."""
    if not any(bucket.gather for bucket in buckets):
        return
    begin(streams, [exchange for bucket in reversed(buckets) for exchange in bucket.gather])
    passes = seconds_of_passes(work, buckets, Bucket.forward)
    for bucket, seconds in zip(reversed(buckets), reversed(passes)):
        finish(streams, bucket.gather)
        streams.pass_by(seconds)


def seconds_of_passes(work: AnyWorkload, buckets: list[Bucket], one_pass: Callable[[Bucket, Streams], None]) -> list[float]:
    """Seconds of one microbatch through each bucket."""
    known: dict[int, float] = {}
    for bucket in buckets:
        if id(bucket.units) not in known:
            counted = Streams(work.machine)
            one_pass(bucket, counted)
            known[id(bucket.units)] = float(np.max(counted.now))
    return [known[id(bucket.units)] for bucket in buckets]
