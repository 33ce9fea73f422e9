"""The fastest legal plan: all are priced, the most promising are timed by their schedules.

Idea   Enumerate (space.py), prune by memory and price (candidates.py), time the best (timing_queue.py),
       and say what is known of the rest. A price is a bound from below of a plan's step
       (search/bounds/lower_bound.py).
Cost   pricing, some million plans a second; timing, about a second.
Limit  Where a bound is far below its step, as in pipelines with few microbatches, the gap is wide.

Glossary
    gap       share of the best step by which a plan that was not timed could be faster, at the most
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ndparallel.base.errors import UserError, check_whole
from ndparallel.base.words import count
from ndparallel.engines.garbage import rare_garbage_collection
from ndparallel.launch_flags.frameworks import values_of, whose
from ndparallel.planner.job import HEADROOM, Plan, TrainingJob
from ndparallel.planner.legality import below_one, word_violations
from ndparallel.planner.prediction import Prediction, legal_and_fits, prediction_of, workload_of
from ndparallel.search.candidates import Candidates, candidates
from ndparallel.search.fixed import Fixed, check_fixed, fixed_values
from ndparallel.search.kinds import NEAR, SAME, best_of_kinds, equals_of, simplest, time_kinds
from ndparallel.search.no_plan import nothing_left
from ndparallel.search.pruning import LACKING
from ndparallel.search.space import SearchSpace
from ndparallel.search.timing_queue import EFFORT, Timed, gap, time_best, time_tight

MOST_GPUS, MOST_OF_A_BATCH = 2**20, 2**30  # sequences, and tokens of each


class NoPlanFits(UserError):
    """Plans of this space are legal, and none fits."""

    def __init__(self, reason: str, space: SearchSpace) -> None:
        super().__init__(f"{reason} Take more GPUs.")
        self.reason, self.space = reason, space


@dataclass(frozen=True)
class Found:
    """The best plans of a space, best first; how many were legal, fit and were timed; why others were
    rejected."""

    space: SearchSpace
    ranked: list[Timed]
    rejected: Counter[str]
    legal: int
    fit: int
    timed: int
    gap: float
    answers: list[Prediction]
    tight: Timed | None  # a faster plan that fits the memory, and leaves less of it free
    beside: bool = False  # whether plans with whole experts were searched beside those that tp cuts

    @property
    def job(self) -> TrainingJob:
        return self.space.job

    @property
    def gpus(self) -> int:
        return self.space.gpus

    @property
    def best(self) -> Prediction:
        return self.answers[0]

    def counts(self) -> dict[str, Any]:
        """How many plans there were, and how sure it is that the first is the fastest, with stable keys."""
        counted = {"legal": self.legal, "fit": self.fit, "timed": self.timed, "gap_ratio": self.gap}
        return {"rejected": dict(self.rejected)} | counted

    @cached_property
    def kinds(self) -> list[Prediction]:
        """The fastest plan of each kind that was timed."""
        return [predicted(self.job, one) for one in best_of_kinds(self.ranked).values()]

    @cached_property
    def tighter(self) -> Prediction | None:
        """A plan that leaves less memory free and whose step is shorter by more than is the same."""
        shorter = self.tight and self.tight.seconds < self.best.seconds * (1 - SAME)
        return predicted(self.job, self.tight) if self.tight and shorter else None

    @cached_property
    def equals(self) -> list[Timed]:
        """The plans that predictions cannot tell from the fastest."""
        return equals_of(self.job, self.ranked)

    @cached_property
    def recommended(self) -> Prediction:
        """The simplest of the equals."""
        return predicted(self.job, simplest(self.job, self.equals))


@rare_garbage_collection()  # columns and schedules form no circles
def search(
    job: TrainingJob,
    gpus: int,
    fixed: Fixed | None = None,
    *,
    frameworks: Sequence[str] | None = None,
    headroom: float = HEADROOM,
    max_memory: float | None = None,
    top: int = 10,
    effort: int = EFFORT,
    also: Sequence[Plan] = (),
    executor: Executor | None = None,
    kinds: bool = False,
    tight: bool = False,
) -> Found:
    """Find the best plans for `gpus` GPUs.

    fixed: parts of the plan that are given, as {"tp": 8}; frameworks: names of those of which one can launch
    the plan (default: those of the job's software; none: whatever can be priced); headroom: the share of a
    GPU's memory that is left free, or max_memory: bytes that a GPU may hold; also: plans that are timed
    whatever their bounds are; executor: any of concurrent.futures, to price and to time in several processes;
    kinds: time the best plan of every kind, too; tight: and plans that fit the memory and leave less than the
    headroom free. The answer is the same with and without an executor. Raise
    UserError where no plan is legal, or none fits.
    """
    space = space_of(job, gpus, fixed or {}, frameworks, headroom, max_memory)
    most = job.hardware.memory_bytes if tight and max_memory is None else 0.0
    found, others = fitting_candidates(space, executor, most, NEAR if kinds else 1.0)
    given = [plan for plan in also if legal_and_fits(job, plan, space.memory_bytes)]
    timed, queue = time_best(job, found, top, effort, given, executor)
    unsure = gap(found, queue, timed)
    timed = time_kinds(job, found, queue, timed, executor) if kinds else timed
    ranked = sorted(timed, key=lambda one: one.seconds)
    faster = time_tight(job, others, queue, ranked[0].seconds, executor)
    answers = [predicted(job, one) for one in ranked[:top]]
    counts = (found.rejected, found.legal, len(found.seconds), len(timed), unsure)
    return Found(space, ranked, *counts, answers, faster)


def search_whole_too(job: TrainingJob, *given: Any, **limits: Any) -> Found:
    """As `search`; of a job whose tp cuts experts the better of that and of whole experts, which are no part
    of a plan. The job of what is found says which. Raise UserError as `search` does, of the given job."""
    if not (job.shape.experts and job.stack.expert_tp):
        return search(job, *given, **limits)
    whole = replace(job, stack=replace(job.stack, expert_tp=False))
    found, reasons = [], []
    for one in (job, whole):
        try:
            found.append(search(one, *given, **limits))
        except UserError as reason:
            reasons.append(reason)
    if not found:
        raise reasons[0]
    return replace(min(found, key=lambda each: each.best.seconds), beside=True)


def best_of(space: SearchSpace, effort: int = EFFORT) -> Prediction:
    """The best plan of a space. Raises UserError as `search` does."""
    given: dict[str, Any] = {"frameworks": space.frameworks, "max_memory": space.memory_bytes}
    return search(space.job, space.gpus, space.fixed, **given, top=1, effort=effort).best


def space_of(
    job: TrainingJob,
    gpus: int,
    fixed: Fixed,
    frameworks: Sequence[str] | None,
    headroom: float,
    max_memory: float | None,
) -> SearchSpace:
    """What `search` is to search. Raises UserError for a job that no plan can be for, and for what cannot be
    fixed."""
    check_job(job, gpus)
    check_fixed(fixed)
    most = job.usable_bytes(headroom) if max_memory is None else max_memory
    return SearchSpace(job, gpus, fixed, most, launchers(job, fixed) if frameworks is None else [*frameworks])


def fitting_candidates(
    space: SearchSpace, executor: Executor | None, priced_bytes: float, near: float
) -> tuple[Candidates, Candidates]:
    """The legal plans that fit, priced, and those that do not and hold at most `priced_bytes`. Raises
    UserError where none fits."""
    found, others = candidates(space, executor, priced_bytes, near).split(space.memory_bytes)
    if not found.legal:
        raise nothing_left(space, found.rejected)
    if not len(found.seconds):
        raise NoPlanFits(none_fits(space, found), space)
    return found, others


def predicted(job: TrainingJob, one: Timed) -> Prediction:
    return prediction_of(job, workload_of(job, one.plan))


def launchers(job: TrainingJob, fixed: Fixed) -> list[str]:
    """The frameworks whose plans are searched where none is named: those of the job's software; none where a
    schedule is asked for that they do not have."""
    names = whose(job)
    asked = fixed_values(fixed, "schedule") if "schedule" in fixed else ()
    theirs = values_of(names).get("schedule")
    return names if not asked or theirs is None or set(asked) & set(theirs) else []


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
        ("global batch", job.global_batch, MOST_OF_A_BATCH),
        ("sequence", job.sequence, MOST_OF_A_BATCH),
    ):
        check_whole(name, number)
        if number > most:
            raise UserError(f"{name} is {number}; a search takes from 1 to {most:,}.")


def none_fits(space: SearchSpace, found: Candidates) -> str:
    job = space.job
    lacks = [
        (plans, reason.removeprefix(LACKING))
        for reason, plans in found.rejected.items()
        if reason.startswith(LACKING)
    ]
    words = "; ".join(f"{plans:,} lack{'s' * (plans == 1)} {much}" for plans, much in lacks)
    where = f"{count(space.gpus, 'GPU')} ({job.hardware.name})"
    return f"none of {found.legal:,} legal plans of {job.shape.name} fits on {where}: {words}."
