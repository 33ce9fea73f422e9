"""Why a pipeline's ranks wait for a slower one though the pipeline is full, and whether another split of the
layers would help.

Idea   The busiest rank sets the pace. Whole layers are spread anew, in the model's order, so that the busiest
       works as little as can be: a pace can be kept if ranks that are filled up to it, one after another,
       hold all layers.
Cost   about a millisecond: once for a plan that is shown, never in a search.
Limit  A layer takes as long wherever it is. Of several chunks on a rank only their sum is looked at, and
       memory is not: earlier ranks keep more microbatches, so the first one gets what is left.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpu import si
from ndparallel.base.sums import sum_of
from ndparallel.base.words import count, listed
from ndparallel.planner.models.kinds import WORDS
from ndparallel.planner.prediction import Prediction, step_of
from ndparallel.planner.stages import KEPT, kinds_of_rank
from ndparallel.planner.step.framework import FrameworkWorkload
from ndparallel.planner.step.pipeline import PipelineTimer
from ndparallel.planner.step.workload import Workload

LARGE = 0.02  # of the step: an imbalance that is worth a sentence
WORTH = 0.005  # of the step: a saving that is worth another split
HALVINGS = 30  # of the range in which the best pace lies
MOST_LISTED = 16  # ranks


def imbalance_sentences(found: Prediction) -> list[str]:
    """Who waits for whom, and what would help; none where the imbalance is small, or every GPU was timed for
    itself."""
    if found.step.pipeline is None or found.step.breakdown["imbalance"] < LARGE * found.seconds:
        return []
    work, rank, busiest = found.work, found.step.rank, found.step.busiest
    timer = found.step.pipeline
    each, (_, pace) = timer.actions.work_by_rank, timer.without_messages
    most = si(found.microbatches * (pace - sum_of(each) / len(each)), "s")
    if pace - each[busiest] > each[busiest] - each[rank]:
        layers = [layers_in(kinds) for kinds in work.kinds]
        alike = work.plan.recipe.splits and min(layers) == max(layers)
        return [in_no_stride(timer, most) if alike else unlike(layers, most)]
    waits = f"pipeline rank {rank} ({held(work, rank)}) waits for rank {busiest} ({held(work, busiest)})"
    longer = (
        f"which works {each[busiest] / each[rank]:.2f} times as long on every microbatch, however many there "
        "are"
    )
    split = another_split(found, work, each) if isinstance(work, FrameworkWorkload) else ""
    return [f"Stage imbalance: {waits}, {longer}. {split}Perfectly even ranks would save at most {most}."]


def unlike(layers: Sequence[int], most: str) -> str:
    return (
        f"Stage imbalance: stages have {min(layers)} to {max(layers)} layers, so that ranks wait for one "
        "another in every microbatch, however many there are. Equal chunks on equal ranks would save at most "
        f"{most}."
    )


def in_no_stride(timer: PipelineTimer, most: str) -> str:
    """What the order of a schedule that parts backward passes was made for, and what there is."""
    plan = timer.plan
    seconds, middle = timer.actions.durations.seconds_by_stage(plan.stages), plan.stages // 2
    each = listed([f"{op} {si(seconds[op][middle], 's')}" for op in "FIW"])
    return (
        f"Stage imbalance: the order of {plan.schedule} is made for F, I and W that take as long as one "
        f"another. On a middle stage they take {each}, so that ranks wait for one another in every "
        f"microbatch, however many there are. Without that a step would save at most {most}."
    )


def another_split(found: Prediction, work: FrameworkWorkload, each: Sequence[float]) -> str:
    """What the most even one would save. Of several chunks on a rank only the pace is known."""
    pace, layers = most_even(work)
    if work.plan.chunks == 1 and len(layers) == work.plan.pp:
        saved, about = found.seconds - step_of(replace(work, layers=tuple(layers))).seconds, ""
        split = f" ({listed([f'{each}' for each in layers])})" if len(layers) <= MOST_LISTED else ""
    else:
        saved, about, split = found.microbatches * (max(each) - pace), "about ", ""
    if saved < WORTH * found.seconds:
        return "No other split of whole layers over these ranks is much better. "
    return f"Another split of the layers{split} would save {about}{si(saved, 's')}, memory aside. "


def held(work: Workload, rank: int) -> str:
    """What a rank holds, in words."""
    counts = Counter(kind.removesuffix(KEPT) for kind in kinds_of_rank(work.plan, work.kinds, rank))
    plain = "dense layer" if work.job.shape.experts else "layer"
    layers = [
        count(counts[kind], plain if kind == "dense" else "layer") + behind
        for kind, behind in ({"block": ""} | WORDS).items()  # a block is a lesson's
        if counts[kind]
    ]
    ahead = work.job.shape.prediction_layers
    head = f"head with {count(ahead, 'prediction layer')}" if ahead else "head"
    return listed(["embedding"] * counts["embedding"] + layers + [head] * counts["head"])


def layers_in(kinds: Sequence[str]) -> int:
    return sum(kind not in ("embedding", "head") for kind in kinds)


# ---------------------------------------------------------------------------------------------- another split


def most_even(work: FrameworkWorkload) -> tuple[float, list[int]]:
    """The least seconds of a microbatch that the busiest rank can have, and the layers of every rank then."""
    units = [kind for stage in work.kinds for kind in stage]
    seconds = [float(work.pricing.unit(kind).total.total) for kind in units]
    if work.plan.layout.rank(work.plan.stages - 1) == 0:  # the head is beside the embedding
        units, seconds = units[:-1], [seconds[0] + seconds[-1], *seconds[1:-1]]
    low, high = max(sum_of(seconds) / work.plan.pp, *seconds), sum_of(seconds)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if len(filled(seconds, middle)) <= work.plan.pp else (middle, high)
    ends = filled(seconds, high)
    return high, [layers_in(units[start:end]) for start, end in ends]


def filled(seconds: Sequence[float], pace: float) -> list[tuple[int, int]]:
    """Pack units greedily into ranks, the last rank first, with at most `pace` seconds each. Return each
    rank's (start, stop)."""
    start, busy = len(seconds), 0.0
    ends: list[tuple[int, int]] = []
    for place in reversed(range(len(seconds))):
        if busy + seconds[place] > pace:
            ends.insert(0, (place + 1, start))
            start, busy = place + 1, 0.0
        busy += seconds[place]
    return [(0, start), *ends]
