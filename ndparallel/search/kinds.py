"""Kinds of plans: the best of each, which of them are equals, and the simplest of these.

Idea   Two plans are of one kind where they use the same dimensions. Of each kind the plan of least estimate
       is timed, so that a table has one line a kind and not ten near-copies of one plan. A kind that adds
       dimensions to a faster one is left out. What is predicted to be faster by less than predictions can
       tell apart is no faster: the simplest of such equals is recommended.
Cost   some timings for each kind.
Limit  At most MOST_TIMED kinds are timed, and none whose estimate is NEAR times as long as the best, or whose
       schedule takes more than the whole effort to search for.

Glossary
    equals    plans whose steps differ from the least by no more than what a comparison is off
    choice    to take the least of several predictions: on the whole the one that is too low by most
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from statistics import NormalDist

import numpy as np

from ndparallel.planner.error_bar import PLANS_OF_ONE_JOB, error_bar
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.prediction import peak_memory
from ndparallel.search.candidates import Candidates
from ndparallel.search.timing_queue import Timed, TimingQueue, estimates_of, time_all

# ---- assumptions: how long a table may be, and what is worth a line of it
NEAR = 2.0  # times the step of the best
MOST_TIMED = 12  # kinds
PER_KIND = 4  # plans that are timed of each
SAME = 0.02  # of a step: less than any error bar, and not worth a more crowded memory
ROOM = 0.05  # of a GPU's memory: what predictions of it may be off by
DIMENSIONS = ("tp", "cp", "pp", "ep")


Kind = frozenset[str]  # the dimensions that a plan uses, and how dp shards the model's weights


def kind_of(plan: Plan) -> Kind:
    used = {name for name in DIMENSIONS if getattr(plan, name) > 1}
    return frozenset(used | sharding(plan.zero, plan.shards))


def sharding(zero: int, shards: int) -> set[str]:
    """HSDP is FSDP, and replicas besides; all that copies whole weights is one kind."""
    return ({"FSDP"} | ({"HSDP"} if shards else set())) if zero == 3 else set()


def adds_to(kind: Kind, other: Kind) -> bool:
    """Whether a kind is another one with more dimensions. Weights are either whole or sharded."""
    return kind > other and ("FSDP" in kind) == ("FSDP" in other)


def time_kinds(
    job: TrainingJob,
    found: Candidates,
    queue: TimingQueue,
    timed: Sequence[Timed],
    executor: Executor | None,
) -> list[Timed]:
    """Time the plans of the least estimates of each kind that may come near the best."""
    estimates = estimates_of(job, found, queue)
    places, every = by_kind(found, estimates, NEAR * min(one.seconds for one in timed)), [*timed]
    for turn in range(PER_KIND):
        best, known = best_of_kinds(every), {one.plan for one in every}
        plans = [
            plan
            for some in places
            if turn < len(some) and (plan := found.plan(int(some[turn]))) not in known
            if estimates[some[turn]] < (best[kind].seconds if (kind := kind_of(plan)) in best else np.inf)
        ]
        every += time_all(job, plans, executor)
    return every


def by_kind(found: Candidates, estimates: np.ndarray, limit: float) -> list[np.ndarray]:
    """The places of the PER_KIND most promising plans of each kind whose estimate is below `limit` seconds
    and than the kinds it adds to."""
    near = np.flatnonzero(estimates < limit)
    codes, places = codes_of(found)[found.rows[near]], []
    for code in sorted({*codes.tolist()}):
        places.append(found.least(near[codes == code], estimates, PER_KIND))
    places.sort(key=lambda some: estimates[some[0]])
    kinds = needed([kind_of(found.plan(int(some[0]))) for some in places])
    return [some for some in places if kind_of(found.plan(int(some[0]))) in kinds][:MOST_TIMED]


def codes_of(found: Candidates) -> np.ndarray:
    """A number for the kind of each row."""
    numbers = []
    for family in found.families:
        bits = [getattr(family, name) > 1 for name in DIMENSIONS]
        used = sum(bit * 2**place for place, bit in enumerate(bits))
        numbers.append(used + 2 ** len(bits) * len(sharding(family.zero, family.shards)))
    return np.concatenate(numbers)


def best_of_kinds(timed: Sequence[Timed]) -> dict[Kind, Timed]:
    """The fastest plan of each kind, the fastest kind first, without those that add to a faster one."""
    best: dict[Kind, Timed] = {}
    for one in sorted(timed, key=lambda one: one.seconds):
        best.setdefault(kind_of(one.plan), one)
    return {kind: best[kind] for kind in needed([*best])}


def needed(kinds: Sequence[Kind]) -> list[Kind]:
    """The kinds that add to none before them, of kinds that are ever slower."""
    return [
        kind for place, kind in enumerate(kinds) if not any(adds_to(kind, faster) for faster in kinds[:place])
    ]


# ------------------------------------------------------------------------------------------------ the choice


def equals_of(job: TrainingJob, timed: Sequence[Timed]) -> list[Timed]:
    """The plans that predictions cannot tell from the fastest, which is the first of them."""
    ranked = sorted(timed, key=lambda one: one.seconds)
    return [one for one in ranked if one.seconds <= ranked[0].seconds * (1 + margin(job, ranked[0].plan))]


def margin(job: TrainingJob, best: Plan) -> float:
    """The share by which a step must be longer than the best to be longer: the error bar of the best, and no
    more than what the errors of two plans of one job differ by."""
    return min(error_bar(job, best).fraction, PLANS_OF_ONE_JOB)


def choice_error(fraction: float, plans: int) -> float:
    """How much longer the least of so many predictions may turn out, each with a relative error of
    `fraction`: where all plans are as fast, 84 of 100 least ones are off by less, as 84 of 100 single ones
    are by `fraction`."""
    normal = NormalDist()
    return fraction * normal.inv_cdf(normal.cdf(1) ** (1 / plans))


def simplest(job: TrainingJob, equals: Sequence[Timed]) -> Timed:
    """The plan of fewest dimensions, as one of which full recomputation counts, then with tp inside a node;
    of what is left and takes the same time, one with even stages, then about the most free memory, then
    fewest chunks, no replicas, nothing recomputed."""
    fewest = min(complexity(job, one.plan) for one in equals)
    alike = [one for one in equals if complexity(job, one.plan) == fewest]
    same = [one for one in alike if one.seconds <= alike[0].seconds * (1 + SAME)]
    even = [one for one in same if not is_uneven(job, one.plan)] or same
    shares = [memory_share(job, one.plan) for one in even]
    roomy = [one for one, share in zip(even, shares) if share <= min(shares) + ROOM]
    return min(roomy, key=lambda one: (*choices(one.plan), one.seconds))


def complexity(job: TrainingJob, plan: Plan) -> tuple[int, bool]:
    dimensions = len(kind_of(plan) & {*DIMENSIONS})
    return dimensions + recomputes_layers(plan), plan.tp > job.hardware.gpus_per_node


def choices(plan: Plan) -> tuple[int, bool, bool]:
    return plan.chunks, plan.shards > 0, recomputes(plan)


def is_uneven(job: TrainingJob, plan: Plan) -> bool:
    return job.shape.layers % plan.stages > 0


def recomputes_layers(plan: Plan) -> bool:
    """Whether whole layers run again, which costs much time."""
    return plan.recompute == "full"


def recomputes(plan: Plan) -> bool:
    return plan.recompute != "none"


def memory_share(job: TrainingJob, plan: Plan) -> float:
    """The share of a GPU's memory that is held."""
    return float(peak_memory(job, plan).total) / job.hardware.memory_bytes
