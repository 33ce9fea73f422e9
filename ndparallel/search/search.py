"""The fastest legal plan: all are priced, the most promising are timed by their schedules.

Idea   Enumerate (space.py), prune by memory and price (candidates.py), time what promises most (promises.py),
       and say what is known of the rest. A price is a bound from below of a plan's step
       (search/bounds/lower_bound.py).
Cost   pricing, some million plans a second; timing, a second or two.
Limit  Where a bound is far below its step, as in pipelines with few microbatches, the gap is wide.

Glossary
    gap       share of the best step by which a plan that was not timed could be faster, at the most
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from ndparallel.base.errors import UserError
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import below_one, violations, word_violations
from ndparallel.planner.prediction import Prediction, peak_memory, prediction_of, workload_of
from ndparallel.search.candidates import Candidates, candidates
from ndparallel.search.promises import EFFORT, Timed, time_best
from ndparallel.search.space import Fixed, checked, nothing_left

MOST_GPUS, MOST = 2**20, 2**30


class NoPlanFits(UserError):
    """Plans are legal, and none fits: for `remedies.py`, what was searched."""

    def __init__(self, reason: str, job: TrainingJob, gpus: int, fixed: Fixed, memory_bytes: float) -> None:
        super().__init__(f"{reason} Take more GPUs.")
        self.reason, self.searched = reason, (job, gpus, fixed, memory_bytes)


@dataclass(frozen=True)
class Found:
    """The best plans of a job on so many GPUs, best first; how many were legal, fit and were timed; why
    others were rejected."""

    job: TrainingJob
    gpus: int
    ranked: list[Timed]
    rejected: Counter[str]
    legal: int
    fit: int
    timed: int
    gap: float
    answers: list[Prediction] = field(default_factory=list)

    @property
    def best(self) -> Prediction:
        return self.answers[0]


def search(
    job: TrainingJob,
    gpus: int,
    fixed: Fixed | None = None,
    *,
    max_memory: float | None = None,
    top: int = 10,
    effort: int = EFFORT,
    also: Sequence[Plan] = (),
    executor: Executor | None = None,
) -> Found:
    """Find the best plans for `gpus` GPUs.

    fixed: parts of the plan that are given, as {"tp": 8}; max_memory: bytes that a GPU may hold (default:
    what it has); also: plans that are timed whatever they promise; executor: any of concurrent.futures, to
    price and to time in several processes. The answer is the same with and without one. Raise UserError where
    no plan is legal, or none fits.
    """
    check_job(job, gpus)
    fixed, memory_bytes = (
        checked(fixed or {}),
        job.hardware.memory_bytes if max_memory is None else max_memory,
    )
    found = candidates(job, gpus, fixed, memory_bytes, executor)
    if not found.legal:
        raise nothing_left(job, gpus, fixed, found.rejected)
    if not len(found.seconds):
        raise NoPlanFits(none_fits(job, gpus, found), job, gpus, fixed, memory_bytes)
    given = [
        plan
        for plan in also
        if not any(violations(job, plan)) and peak_memory(job, plan).total <= memory_bytes
    ]
    timed, gap = time_best(job, found, top, effort, given, executor)
    # timed in the order of memory where bounds are equal, and so sorted
    ranked = sorted(timed, key=lambda one: one.seconds)
    answers = [prediction_of(job, workload_of(job, one.plan), one.step) for one in ranked[:top]]
    return Found(job, gpus, ranked, found.rejected, found.legal, len(found.seconds), len(timed), gap, answers)


def check_job(job: TrainingJob, gpus: int) -> None:
    """Raise UserError for a job that no plan can be for."""
    if job.stack.executed:
        raise UserError(
            f"software {job.stack.name} is the lessons' own; to choose a plan, name a real framework with "
            "--software."
        )
    for reason in (*below_one(job, Plan()), *word_violations(job, Plan())):
        raise UserError(reason.sentence)
    for name, number, most in (
        ("gpus", gpus, MOST_GPUS),
        ("global_batch", job.global_batch, MOST),
        ("sequence", job.sequence, MOST),
    ):
        if not 1 <= number <= most:
            raise UserError(f"{name} is {number}; a search takes from 1 to {most:,}.")


def none_fits(job: TrainingJob, gpus: int, found: Candidates) -> str:
    lacks = [
        (count, reason.removeprefix("does not fit: lacks "))
        for reason, count in found.rejected.items()
        if "GiB" in reason
    ]
    words = "; ".join(f"{count:,} lack{'s' * (count == 1)} {much}" for count, much in lacks)
    return (
        f"none of {found.legal:,} legal plans of {job.shape.name} fits on {gpus} GPUs ({job.hardware.name}): "
        f"{words}."
    )
