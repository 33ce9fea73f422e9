"""Two microbatches at once: a forward of one beside a backward of the other, as DualPipe and DualPipeV run
them, and Megatron-Core with --overlap-moe-expert-parallel-comm.

Idea   A layer's rows on their way to experts wait for nothing that the other microbatch does, and so go
       beside its compute (DeepSeek-V3,
       2412.19437, section 3.2.1). Of both only what is longer than the other's compute shows, and what it
       slows that by.
Cost   A few microseconds for every pipeline rank.
Limit  Only all-to-alls hide: tp, cp and dp are as without pairs. One CPU launches the kernels of both. What
       shows of FSDP's collectives is that of two passes apart, or what the pair's own time cannot hide of
       all together: where launches bound the passes, a few hundredths of DualPipeV's step are left out.

Glossary
    pair    stage of the forward, stage of the backward; both are of one pipeline rank
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ndparallel.pipeline.actions import Schedule
from ndparallel.pipeline.recipe import Recipe
from ndparallel.planner.layers.breakdown import TimeBreakdown, total
from ndparallel.planner.layers.collective_time import lost_to
from ndparallel.planner.layers.pricing import UnitSeconds
from ndparallel.planner.numbers import either, larger

TINY = 1e-12  # seconds
Pair = tuple[int, int]


def pairs_of_rank(stages: Sequence[int]) -> list[Pair]:
    first, second = stages
    return [(first, second), (second, first)]


def beside(
    forward: TimeBreakdown, backward: TimeBreakdown, slowdown: float, line: float = 0.0
) -> TimeBreakdown:
    """Both passes of a pair at once; nothing hides behind what the GPU waits for launches. What they save
    hides no longer what travels on the `line` of FSDP, which is so many seconds."""
    both = total((forward, backward))
    shown = sum(shown_beside(*passes, slowdown) for passes in ((forward, backward), (backward, forward)))
    busy = both.total - both["ep"] - both["launch"]
    launch = larger(0.0, both.launch_seconds - busy - shown)
    left = both["dp"] + larger(0.0, line - busy - shown - launch)
    return both.launched(TimeBreakdown(both | {"ep": shown, "launch": launch, "dp": left}))


def shown_beside(passing: TimeBreakdown, other: TimeBreakdown, slowdown: float) -> Any:
    """Seconds of a pass's all-to-alls that show beside the other's compute."""
    way, compute = passing["ep"], other.total - other["ep"] - other["launch"]
    return larger(way - compute, lost_to(way, compute, slowdown))


def in_pairs(unit: UnitSeconds, share: Any, slowdown: float) -> UnitSeconds:
    """The passes of a unit of which a share runs beside those of another microbatch. What a pair still waits
    for launches counts in its two passes as the CPU launches them."""
    forward, backward, inputs, alone = unit.forward, unit.backward, unit.backward_input, 1 - share
    shown = [shown_beside(*passes, slowdown) for passes in ((forward, backward), (backward, forward))]
    ways = [alone * each["ep"] + share * left for each, left in zip((forward, backward), shown)]
    launches = larger(TINY, forward.launch_seconds + backward.launch_seconds)
    waits = share * beside(forward, backward, slowdown)["launch"] / launches

    def part(of: TimeBreakdown, **seconds: Any) -> TimeBreakdown:
        launch = alone * of["launch"] + waits * of.launch_seconds
        return of.launched(TimeBreakdown(of | {"launch": launch} | seconds))

    return UnitSeconds(
        part(forward, ep=ways[0]),
        part(unit.recompute, ep=0.0),
        part(inputs, ep=ways[1]),
        part(unit.backward_weight),
    )


def share_in_pairs(recipe: Recipe, microbatches: Any, pp: Any, chunks: Any) -> Any:
    """The share of passes that Megatron-Core runs in pairs: all behind the forwards that fill the pipeline,
    of its interleaved schedule (megatron/core/pipeline_parallel/schedules.py: one more than without)."""
    filling = pp - 1 + (chunks - 1) * pp + 1  # the mean of the ranks
    runs = either((pp == 1) | (chunks > 1) & bool(recipe.group), 1.0, 0.0)
    return runs * larger(0.0, 1 - filling / (microbatches * chunks))


def saved(
    forward: TimeBreakdown, backward: TimeBreakdown, slowdown: float, line: float = 0.0
) -> TimeBreakdown:
    """Return what a pair takes less than its two passes, each for itself."""
    alone, together = total((forward, backward)), beside(forward, backward, slowdown, line)
    return TimeBreakdown({kind: alone[kind] - together[kind] for kind in ("ep", "launch", "dp")})


def pairs_run(few: Schedule, more: Schedule, rounds: float, rank: int) -> Counter[Pair]:
    """Count the pairs of each kind that a rank runs: as in the shorter of two steps, and so many rounds
    of what the longer has above it."""
    before, after = count_pairs(few, rank), count_pairs(more, rank)
    return Counter({pair: before[pair] + round(rounds * (after[pair] - before[pair])) for pair in after})


def count_pairs(schedule: Schedule, rank: int) -> Counter[Pair]:
    actions = schedule.actions[rank]
    return Counter((actions[place].stage, actions[place + 1].stage) for place in schedule.fused[rank])
