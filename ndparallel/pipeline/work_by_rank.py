"""What one microbatch asks of the ranks of a pipeline, in whatever order they do it.

Idea   No rank of a full pipeline is quicker than its own work, and no step than the way of its last gradients
       up to the first rank.
Limit  Waiting is not in it: `ndparallel.pipeline.replay` times a schedule.
"""

from functools import lru_cache
from itertools import accumulate, pairwise

from ndparallel.base.sums import sum_of
from ndparallel.pipeline.replay import Replay, step_seconds
from ndparallel.pipeline.work import Work


def busiest(replay: Replay, work: Work) -> float:
    """Seconds that a microbatch takes on the rank that has most to do, beside its reductions."""
    layout, each = replay.schedule.layout, work_by_rank(replay, work)
    if not work.reductions:
        return max(each)
    return max(own + work.lost_to_reductions(layout.stages_of(rank), own) for rank, own in enumerate(each))


@lru_cache(maxsize=8)
def work_by_rank(replay: Replay, work: Work) -> list[float]:
    """Seconds that one microbatch takes on each rank, all that can be in pairs."""
    layout, seconds = replay.schedule.layout, work.seconds_by_stage(replay.schedule.layout.stages)
    each = [
        sum_of(seconds[op][stage] for op in "FB" for stage in layout.stages_of(rank))
        for rank in range(layout.ranks)
    ]
    for kind in replay.order.pairs:
        alone = sum_of(seconds[op][stage] for op, stage in kind)
        each[layout.rank(kind[0][1])] -= alone - step_seconds(work, seconds, kind)
    return each


def way_up(replay: Replay, work: Work, op: str) -> list[float]:
    """Seconds from the end of a microbatch's `op`, B or I, on each stage until it has ended on the
    first."""
    ranks, (latency, wire) = replay.schedule.ranks, replay.messages(work)
    stages = replay.schedule.layout.stages
    below = [replay.schedule.layout.rank(stage) for stage in range(stages)]
    hops = [
        0.0 if here == there else latency[there * ranks + here] + wire[there * ranks + here]
        for here, there in pairwise(below)
    ]
    seconds = work.seconds_by_stage(stages)[op]
    return [0.0, *accumulate(each + hop for each, hop in zip(seconds, hops))]


def longest_reducing(replay: Replay, work: Work) -> float:
    """Seconds that a microbatch's reductions take on the rank that has most."""
    if not work.reductions:
        return 0.0
    layout = replay.schedule.layout
    return max(
        sum_of(work.reductions[stage].line for stage in layout.stages_of(rank))
        for rank in range(layout.ranks)
    )
