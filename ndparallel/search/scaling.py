"""The best plan on ever more GPUs: weak scaling, whose batch grows with them, and strong scaling, whose batch
stays.

Idea   Each size is searched by itself, as `ndparallel plan` does it, and has the plan that is to be taken.
       Efficiency is the throughput of a GPU, in that of the smallest size that fits. Beside it stand the
       ranges of a table that circulates, with its degrees on this job.
Cost   A search for every size and way. The cores of the machine share them.
Limit  The table says neither model nor hardware, and its efficiencies are of weak scaling.

Glossary
    usual     a row of the table that circulates: degrees, efficiency, MFU
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.words import count
from ndparallel.engines.forking import map_in_forks
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.prediction import Prediction, legal_and_fits, predict
from ndparallel.search.search import check_job, search

SIZES = (8, 64, 512, 2048, 16384)


@dataclass(frozen=True)
class Usual:
    """What the circulating table says of so many GPUs."""

    tp: int
    pp: int
    dp: int
    efficiency: tuple[float, float]
    mfu: tuple[float, float]


USUAL = {
    8: Usual(2, 1, 4, (0.85, 0.95), (0.45, 0.50)),
    64: Usual(4, 4, 4, (0.75, 0.85), (0.48, 0.55)),
    512: Usual(8, 8, 8, (0.70, 0.80), (0.50, 0.58)),
    2048: Usual(8, 16, 16, (0.65, 0.75), (0.52, 0.60)),
}


@dataclass(frozen=True)
class Point:
    """One size: the plan to take, or why there is none; the table's degrees on the same job, where they can
    be; and the fastest plan, from which predictions may not tell the one to take."""

    gpus: int
    global_batch: int
    best: Prediction | None
    why_not: str
    usual: Prediction | None
    fastest: Prediction | None = None

    def efficiency(self, base: "Point | None") -> float | None:
        """Throughput of a GPU, against one of the smallest size."""
        if not (self.best and base and base.best):
            return None
        return self.best.tokens_per_second_per_gpu / base.best.tokens_per_second_per_gpu


Curves = dict[str, list[Point]]


def scale(
    job: TrainingJob,
    gpus: int,
    sizes: Sequence[int] = SIZES,
    announce: Callable[[str], None] = lambda words: None,
) -> Curves:
    """Search on every size. The job's batch is that of `gpus` GPUs: strong scaling keeps it, weak scaling
    keeps its share of a GPU. Every search is announced. Raises UserError for a job that no size can have."""
    for number in (gpus, *sizes):
        check_job(job, number)
    weak = [(size, max(1, round(job.global_batch * size / gpus))) for size in sizes]
    strong = [(size, job.global_batch) for size in sizes]
    asked = list(dict.fromkeys([*weak, *strong]))

    def point(one: tuple[int, int]) -> Point:
        size, batch = one
        announce(f"a search on {count(size, 'GPU')}, {asked.index(one) + 1} of {len(asked)}")
        return point_of(replace(job, global_batch=batch), size)

    points = dict(zip(asked, map_in_forks(point, asked)))
    return {"weak": [points[one] for one in weak], "strong": [points[one] for one in strong]}


def point_of(job: TrainingJob, gpus: int) -> Point:
    try:
        found = search(job, gpus, kinds=True)
        usual = usual_plan(job, gpus)
        return Point(gpus, job.global_batch, found.recommended, "", usual, found.best)
    except UserError as reason:
        return Point(gpus, job.global_batch, None, str(reason), None)


def usual_plan(job: TrainingJob, gpus: int) -> Prediction | None:
    """The table's degrees with the distributed optimizer, and as little recomputation as fits; None where
    they cannot be."""
    if gpus not in USUAL:
        return None
    row = USUAL[gpus]
    sequence_parallel = job.stack.sequence_parallel and row.tp > 1
    for recompute in ("none", "selective", "full"):
        plan = Plan(
            tp=row.tp, pp=row.pp, dp=row.dp, zero=1, sequence_parallel=sequence_parallel, recompute=recompute
        )
        if legal_and_fits(job, plan):
            return predict(job, plan)
    return None


def base_of(points: Sequence[Point]) -> Point | None:
    """The smallest size that has a plan."""
    return next((point for point in points if point.best), None)


def scaling_rows(curves: Curves) -> list[dict[str, Any]]:
    """One row a way and size, in JSON's types."""
    return [row_of(way, point, base_of(points)) for way, points in curves.items() for point in points]


def row_of(way: str, point: Point, base: Point | None) -> dict[str, Any]:
    """What JSON says of a size; None where there is nothing to tell."""
    best, usual = point.best, USUAL.get(point.gpus)
    return {
        "scaling": way,
        "gpus": point.gpus,
        "global_batch": point.global_batch,
        "step_seconds": best and best.seconds,
        "efficiency": point.efficiency(base),
        "mfu": best and best.mfu,
        "plan": best and best.as_dict()["plan"],
        "name": best and best.name,
        "why_not": point.why_not or None,
        "usual": usual and usual_row(usual, point.usual),
    }


def usual_row(row: Usual, on_this_job: Prediction | None) -> dict[str, Any]:
    return {
        "plan": {"tp": row.tp, "pp": row.pp, "dp": row.dp},
        "efficiency_range": list(row.efficiency),
        "mfu_range": list(row.mfu),
        "step_seconds": on_this_job and on_this_job.seconds,
        "mfu": on_this_job and on_this_job.mfu,
    }
