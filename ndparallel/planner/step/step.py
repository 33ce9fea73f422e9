"""TimeBreakdown of one training step, and where they go.

Idea   Units make stages, stages and the schedule's own action list make the pipeline; gradients and weights
       travel before, beside and after it, in the patterns of ndparallel.planner.step.overlap, and the
       optimizer ends the step. A synchronous step is as long as on the slowest of its GPUs. Real models and
       the lessons' own runs take the same way: only their workloads differ.
Cost   A sixth of a microsecond for each action of the schedule that is timed (ndparallel/pipeline/replay.py).
Limit  Data loading, logging and checkpoints are not in a step.

Glossary
    imbalance   what the pipeline rank that is done last waits for slower ones in a full pipeline: it grows
                with the microbatches
    bubble      what it waits besides, while the pipeline fills and drains: as long for any number of
                microbatches
    pace        seconds of a microbatch in a full pipeline
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ndparallel.pipeline.actions import Schedule
from ndparallel.pipeline.replay import Ends, Replay, ends_of_both, replay_of
from ndparallel.pipeline.search import search
from ndparallel.pipeline.work import Work
from ndparallel.planner.layers.breakdown import TimeBreakdown, total
from ndparallel.planner.step.endings import endings
from ndparallel.planner.step.overlap import fully_sharded, replicated, sharded_gradients
from ndparallel.planner.step.paired import Pair, beside, pairs_of_rank, pairs_run, saved
from ndparallel.planner.step.streams import StreamClock, longest
from ndparallel.planner.step.workload import Workload

FULL_ROUNDS = 3  # rounds of microbatches after which a pipeline is in its stride
UNLIKE = 0.01  # by which the stages between the first and the last differ where layers are not spread evenly
KINDS = ("compute", "tp", "cp", "ep", "dp", "pp", "bubble", "imbalance", "optimizer")


@dataclass(frozen=True)
class Step:
    """TimeBreakdown of a step: compute, exposed communication by kind, waiting for other pipeline ranks and
    optimizer add up to `seconds`. They are of the pipeline rank that is done last, `rank`; `busiest` is the
    one that works longest."""

    breakdown: dict[str, Any]
    rank: int = 0
    busiest: int = 0

    @property
    def seconds(self):
        return sum(self.breakdown.values())


def time_workload(work: Workload) -> Step:
    """Time a workload."""
    spent, rank, busiest = (one_stage(work).spent, 0, 0) if work.plan.pp == 1 else pipeline(work)
    means = {kind: mean(spent.get(kind, 0.0)) for kind in KINDS}
    return Step(
        means | {"bubble": means["bubble"] + longest(spent.total) - sum(means.values()) + 0.0}, rank, busiest
    )


def mean(seconds: Any) -> float:
    return float(np.mean(seconds)) if isinstance(seconds, np.ndarray) else float(seconds)


# ------------------------------------------------------------------------------------------- without pipeline


def one_stage(work: Workload, trace: list | None = None) -> StreamClock:
    """All ranks have the whole depth of the model; what happens when is noted in `trace`."""
    plan, stack = work.plan, work.job.stack
    streams, buckets, microbatches = StreamClock(work.machine), work.buckets(0), plan.microbatches(work.job)
    streams.trace = trace
    streams.run(work.states(0))
    if plan.zero == 3:
        streams.repeat(
            microbatches,
            lambda: fully_sharded(streams, buckets, stack.prefetch, stack.dp_overlap, stack.reshards),
        )
    elif plan.zero == 2:
        streams.repeat(microbatches, lambda: sharded_gradients(streams, buckets))
    else:
        replicated(
            streams,
            buckets,
            microbatches,
            stack.dp_overlap,
            gathers_first=plan.zero == 1 and stack.gathers_first,
        )
    streams.run(work.shared(0))
    streams.run(work.optimizer(0), "optimizer")
    if plan.zero == 2 or (plan.zero == 1 and not stack.gathers_first):
        for bucket in buckets:
            streams.run(bucket.gather)
    return streams


# ----------------------------------------------------------------------------------------------- the pipeline


def pipeline(work: Workload) -> tuple[TimeBreakdown, int, int]:
    """The schedule's actions, then every rank's gradients and optimizer; said of the rank that is done last.
    And the busiest rank.

    Of what that rank waits, the imbalance is what it would wait were the pipeline always full: as long as a
    full round takes more than its own work of one. The bubble is the rest, for which the number of
    microbatches does not matter.
    """
    ends = ends_of(work)
    finals = endings(work, ends)
    last = int(np.argmax([end + float(final.total) for end, final in zip(ends.end, finals)]))
    busy, each = busy_of(work, last), work_by_rank(work)
    silent_end, pace = without_messages(work, last, max(each))
    # rounds that are not timed one by one may fall short by some thousandths
    waits = max(0.0, ends.end[last] - float(busy.total))
    for_messages = min(waits, max(0.0, ends.end[last] - silent_end))
    imbalance = min(waits - for_messages, work.plan.microbatches(work.job) * (pace - each[last]))
    bubble = waits - for_messages - imbalance
    return (
        busy + finals[last] + TimeBreakdown(pp=for_messages, bubble=bubble, imbalance=imbalance),
        last,
        each.index(max(each)),
    )


def busy_of(work: Workload, rank: int) -> TimeBreakdown:
    """What a rank computes in a step, with what it says meanwhile."""
    stages = work.plan.layout.stages_of(rank)
    alone = total(column[stage] for column in work.columns for stage in stages).times(
        work.plan.microbatches(work.job)
    )
    if not has_pairs(work):
        return alone
    few, more, rounds = rounds_of(work)
    hidden = [
        saved(*passes_of(work, pair)).times(-times)
        for pair, times in pairs_run(few.schedule, more.schedule, rounds, rank).items()
    ]
    return total((alone, *hidden))


def work_by_rank(work: Workload) -> list[float]:
    """TimeBreakdown that each pipeline rank works on a microbatch of a full pipeline."""
    each, stages, paired = (
        passes_by_stage(work),
        [work.plan.layout.stages_of(rank) for rank in ranks(work)],
        seconds_of_pairs(work),
    )
    if paired:
        return [sum(paired[pair] for pair in pairs_of_rank(mine)) for mine in stages]
    return [sum([each[stage] for stage in mine]) for mine in stages]


def has_pairs(work: Workload) -> bool:
    """Whether microbatches run beside one another and have something to hide; the lessons' own runs hide
    nothing in pairs."""
    return work.plan.recipe.pairs and work.job.shape.experts is not None and not work.job.stack.executed


def passes_of(work: Workload, pair: Pair) -> tuple[TimeBreakdown, TimeBreakdown]:
    """The forward of one stage, and the whole backward of the other."""
    forward, inputs, weights = work.columns
    return forward[pair[0]], inputs[pair[1]] + weights[pair[1]]


def seconds_of_pairs(work: Workload) -> dict[Pair, float]:
    if not has_pairs(work):
        return {}
    pairs = [pair for rank in ranks(work) for pair in pairs_of_rank(work.plan.layout.stages_of(rank))]
    return {pair: float(beside(*passes_of(work, pair)).total) for pair in pairs}


def ends_of(work: Workload) -> Ends:
    """When each rank ends its last action; where steps follow without a stop, at the end of its own span
    (2401.10241, section 4)."""
    if not work.plan.recipe.is_searched:
        return ends_after_rounds(*rounds_of(work), work_of(work))
    ends = Replay(schedule_of(work)).ends(work_of(work))
    longest = max(end - start for start, end in zip(ends.start, ends.end))
    later = [longest - ends.end[work.plan.layout.rank(stage)] for stage in range(work.plan.stages)]
    return Ends(
        ends.start, [longest] * work.plan.pp, [moment + wait for moment, wait in zip(ends.complete, later)]
    )


def rounds_of(work: Workload) -> tuple[Replay, Replay, float]:
    """Two shorter steps, one round of as many microbatches as there are ranks apart, and how many rounds more
    than the first the real one has. Once a pipeline is full every round takes the same, so many microbatches
    are not all timed."""
    ranks, microbatches = work.plan.pp, work.plan.microbatches(work.job)
    few = FULL_ROUNDS * ranks + microbatches % ranks
    if microbatches <= few + ranks:
        return replay_for(work, microbatches), replay_for(work, microbatches), 0.0
    return replay_for(work, few), replay_for(work, few + ranks), (microbatches - few) / ranks


def ends_after_rounds(few: Replay, more: Replay, rounds: float, durations: Work) -> Ends:
    """A rank that may not run ahead of the others goes on, sooner or later, at the pace of the busiest."""
    before, after = ends_of_both(few, more, durations)
    pace = few.busiest_round(durations) if few.peaks == more.peaks else 0.0
    later = [extrapolated(*moments, rounds, pace) for moments in zip(before[1:], after[1:])]
    return Ends(before.start, *later)


def extrapolated(before: list[float], after: list[float], rounds: float, least: float = 0.0) -> list[float]:
    return [start + rounds * max(end - start, least) for start, end in zip(before, after)]


def without_messages(work: Workload, rank: int, busiest: float) -> tuple[float, float]:
    """When a rank would end if messages took no time, and the pipeline's pace then: that of the busiest rank.
    Only where stages of one rank are unlike it may be slower, as ranks that are all as busy wait for one
    another, and is timed."""
    durations, microbatches = work_of(work, messages=False), work.plan.microbatches(work.job)
    if work.plan.recipe.is_searched:
        ends = Replay(schedule_of(work)).ends(durations)
        return max(end - start for start, end in zip(ends.start, ends.end)), busiest
    if not unlike_stages(work):
        first = first_round(work)
        return replay_for(work, first).ends(durations).end[rank] + (microbatches - first) * busiest, busiest
    few, more, rounds = rounds_of(work)
    more = more if rounds else replay_for(work, microbatches + work.plan.pp)
    before, after = (ends.end[rank] for ends in ends_of_both(few, more, durations))
    pace = max(busiest, (after - before) / work.plan.pp)
    return before + rounds * work.plan.pp * pace, pace


def unlike_stages(work: Workload) -> bool:
    """Whether some of a rank's stages have more to do than others; the first and the last stage always
    differ."""
    inner = passes_by_stage(work)[1:-1]
    return work.plan.chunks > 1 and max(inner) > min(inner) * (1 + UNLIKE)


def first_round(work: Workload) -> int:
    """Microbatches of the shortest step that leaves whole rounds of as many as there are ranks."""
    return min(
        work.plan.microbatches(work.job), work.plan.pp + work.plan.microbatches(work.job) % work.plan.pp
    )


def replay_for(work: Workload, microbatches: int) -> Replay:
    plan = work.plan
    return replay_of(plan.schedule, plan.pp, microbatches, plan.chunks if plan.chunks > 1 else None)


def ranks(work: Workload) -> range:
    return range(work.plan.pp)


def schedule_of(work: Workload, microbatches: int | None = None) -> Schedule:
    """The plan's schedule by name; the automatic ones are searched for these very seconds (2401.10241,
    section 3.1)."""
    plan = work.plan
    microbatches = microbatches or plan.microbatches(work.job)
    if plan.recipe.memory_limit:
        given = work_of(work)
        parts = (given.forward, given.backward_input, given.backward_weight, given.latency, given.wire)
        return searched(plan.pp, microbatches, plan.recipe.memory_limit(plan.pp), *map(hashable, parts))
    return replay_for(work, microbatches).schedule


@lru_cache(maxsize=8)
def searched(ranks: int, microbatches: int, memory_limit: int, *parts: Any) -> Schedule:
    """Searched once for the seconds of a step, its memory and its picture."""
    forward, inputs, weights, latency, wire = parts
    return search(
        ranks,
        microbatches,
        Work(forward, inputs, weights, latency=latency, wire=wire),
        memory_limit=memory_limit,
    )


def hashable(seconds: Any) -> Any:
    """Numbers of one or two dimensions as tuples."""
    each = np.asarray(seconds).tolist()
    return tuple(map(hashable, each)) if isinstance(each, list) else each


def work_of(work: Workload, messages: bool = True) -> Work:
    """TimeBreakdown of all actions. Without overlap a rank stands still while its messages pass."""
    (forward, inputs, weights), paired = seconds_by_stage(work), seconds_of_pairs(work)
    if not messages:
        return Work(forward, inputs, weights, fused=paired)
    latency, wire = work.messages()
    if work.job.stack.pp_overlap:
        return Work(forward, inputs, weights, fused=paired, latency=latency, wire=wire)
    stands = float(latency + wire)
    paired = {pair: seconds + 2 * stands for pair, seconds in paired.items()}
    return Work(
        [seconds + stands for seconds in forward],
        [seconds + stands for seconds in inputs],
        weights,
        fused=paired,
    )


@lru_cache(maxsize=2)
def seconds_by_stage(work: Workload) -> list[list[float]]:
    """Of F, I and W."""
    return [[float(part.total) for part in column] for column in work.columns]


@lru_cache(maxsize=2)
def passes_by_stage(work: Workload) -> list[float]:
    """Of all three."""
    return [forward + inputs + weights for forward, inputs, weights in zip(*seconds_by_stage(work))]
