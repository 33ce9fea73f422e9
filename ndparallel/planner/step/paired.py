"""Two microbatches at once: a forward of one beside a backward of the other, as DualPipe and DualPipeV run
them.

Idea   A layer's rows on their way to experts wait for nothing that the other microbatch does, and so go
       beside its compute (DeepSeek-V3,
       2412.19437, section 3.2.1). Of both only what is longer than the other's compute shows, and what it
       slows that by.
Cost   A few microseconds for every pipeline rank.
Limit  Only all-to-alls hide: tp, cp and dp are as without pairs. One CPU launches the kernels of both.

Glossary
    pair    stage of the forward, stage of the backward; both are of one pipeline rank
"""

from collections import Counter
from collections.abc import Sequence

from ndparallel.pipeline.actions import Schedule
from ndparallel.planner.layers.breakdown import TimeBreakdown, total
from ndparallel.planner.layers.collective_time import lost_to

Pair = tuple[int, int]


def pairs_of_rank(stages: Sequence[int]) -> list[Pair]:
    first, second = stages
    return [(first, second), (second, first)]


def beside(forward: TimeBreakdown, backward: TimeBreakdown) -> TimeBreakdown:
    """Both passes of a pair at once; nothing hides behind what the GPU waits for launches."""
    both, ways = total((forward, backward)), [forward.get("ep", 0.0), backward.get("ep", 0.0)]
    computes = [each.total - each.get("ep", 0.0) - each.get("launch", 0.0) for each in (backward, forward)]
    shown = sum(max(way - compute, lost_to(way, compute)) for way, compute in zip(ways, computes))
    launch = max(0.0, both.launch_seconds - sum(computes) - shown)
    return both.launched(TimeBreakdown(both | {"ep": shown, "launch": launch}))


def saved(forward: TimeBreakdown, backward: TimeBreakdown) -> TimeBreakdown:
    """Return what a pair takes less than its two passes, each for itself."""
    alone, together = total((forward, backward)), beside(forward, backward)
    return TimeBreakdown({kind: alone.get(kind, 0.0) - together[kind] for kind in ("ep", "launch")})


def pairs_run(few: Schedule, more: Schedule, rounds: float, rank: int) -> Counter[Pair]:
    """Count the pairs of each kind that a rank runs: as in the shorter of two steps, and so many rounds
    of what the longer has above it."""
    before, after = count_pairs(few, rank), count_pairs(more, rank)
    return Counter({pair: before[pair] + round(rounds * (after[pair] - before[pair])) for pair in after})


def count_pairs(schedule: Schedule, rank: int) -> Counter[Pair]:
    actions = schedule.actions[rank]
    return Counter((actions[place].stage, actions[place + 1].stage) for place in schedule.fused[rank])
