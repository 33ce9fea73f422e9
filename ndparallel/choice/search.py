"""The fastest legal plan: all are priced, the most promising are timed by their schedules.

Idea   A price is a bound from below of a plan's step (planner/price.py). Time the plan that promises most, learn from it how far the bound
       was off for its schedule, and go on until no plan that is left promises more than what was found, or the effort is spent. The
       bounds of what is left say how much faster the best plan could still be.
Cost   pricing, about a million plans a second, and the effort.
Limit  A bound may lie some thousandths too high where experts and dense layers alternate. Searched schedules take half a second each.

Glossary
    promise   a bound, times what exact timing has added to the bounds of the same schedule
    effort    actions of schedules that may be timed, at some microseconds each
    gap       share of the best step by which a plan that was not timed could be faster, at the most
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ndparallel.choice.candidates import Candidates, candidates
from ndparallel.choice.space import Fixed, checked, nothing_left
from ndparallel.errors import UserError
from ndparallel.planner.answer import Answer
from ndparallel.planner.legality import SCHEDULES, broken, wrong_words
from ndparallel.planner.memory import fits, memory_by_rank
from ndparallel.planner.plan import Job, Plan
from ndparallel.planner.step import AUTOMATIC, FULL_ROUNDS, Step, predict

EFFORT = 200_000
TOGETHER = 8  # plans timed at a time, whether in one process or in several
POOL = 1_000  # plans of every schedule whose promises are compared
PASSES = 8  # times that an action is met: few rounds and one more, with messages and without, F and B
AGAIN = 0.2  # of the effort for a plan whose list of actions was written for another one
ATTEMPTS = 650  # the same of a schedule that is searched for


@dataclass(frozen=True)
class Timed:
    """A plan and its exact step."""

    plan: Plan
    step: Step

    @property
    def seconds(self) -> float:
        return float(self.step.seconds)


@dataclass(frozen=True)
class Found:
    """The best plans of a job on so many GPUs, best first; how many were legal, fit and were timed; why others were rejected."""

    job: Job
    gpus: int
    ranked: list[Timed]
    rejected: Counter[str]
    legal: int
    fit: int
    timed: int
    gap: float
    answers: list[Answer] = field(default_factory=list)

    @property
    def best(self) -> Answer:
        return self.answers[0]


def search(
    job: Job,
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

    fixed: parts of the plan that are given, as {"tp": 8}; max_memory: bytes that a GPU may hold (default: what it has); also: plans that
    are timed whatever they promise; executor: any of concurrent.futures, to price and to time in several processes. The answer is the
    same with and without one. Raise UserError where no plan is legal, or none fits.
    """
    if job.stack.executed:
        raise UserError(f"software {job.stack.name} is the lessons' own; to choose a plan, name a real framework with --software.")
    for reason in wrong_words(job, Plan()):
        raise UserError(reason.sentence)
    fixed, memory_bytes = checked(fixed or {}), max_memory or job.hardware.memory_bytes
    found = candidates(job, gpus, fixed, memory_bytes, executor)
    if not found.legal:
        raise nothing_left(job, gpus, fixed, found.rejected)
    if not len(found.seconds):
        raise UserError(none_fits(job, gpus, found))
    timed, gap = time_best(job, found, top, effort, also, executor)
    ranked = sorted(timed, key=lambda one: one.seconds)  # timed in the order of memory where bounds are equal, and so sorted
    answers = [Answer(job, one.plan, one.step, memory_by_rank(job, one.plan)) for one in ranked[:top]]
    return Found(job, gpus, ranked, found.rejected, found.legal, len(found.seconds), len(timed), gap, answers)


def none_fits(job: Job, gpus: int, found: Candidates) -> str:
    lacks = [(count, reason.removeprefix("does not fit: ")) for reason, count in found.rejected.items() if "GiB" in reason]
    words = "; ".join(f"{count:,} {reason}" for count, reason in lacks)
    return f"none of {found.legal:,} legal plans of {job.shape.name} fits on {gpus} GPUs ({job.hardware.name}): {words}. Take more GPUs."


# ---------------------------------------------------------------------------------------------- which plans to time next


class Promises:
    """The most promising plans of every schedule, and what was learnt of the bounds."""

    def __init__(self, job: Job, found: Candidates, effort: int):
        self.cost = costs(job, found)
        self.names = [name for name, _, _ in found.groups]
        number = np.array([SCHEDULES.index(name) for name in self.names], dtype=np.int8)[found.group]
        affordable = self.cost <= effort
        self.places = np.concatenate([cheapest(found, affordable & (number == one)) for one in range(len(SCHEDULES))])
        self.bound, self.group, self.cost = found.seconds[self.places], found.group[self.places], self.cost[self.places]
        self.searched = np.isin(self.names, [*AUTOMATIC])[self.group]
        self.microbatches = found.microbatches(job)[self.places]
        self.listed: set[tuple[int, int]] = set()  # groups and microbatches whose lists are written already
        self.factors: dict[int, float] = {}
        self.open = np.ones(len(self.places), dtype=bool)
        self.effort = float(effort)
        self.searches = effort / 2  # of it for schedules that are searched for
        self.small = effort / TOGETHER  # the dearest plan that is timed when the effort is spent, and too few plans are timed

    def promised(self, hungry: bool) -> np.ndarray:
        """Seconds that each plan promises; a schedule whose depth was never timed promises what it did elsewhere at its best."""
        by_name: dict[str, float] = {}
        for group, factor in self.factors.items():
            by_name[self.names[group]] = min(factor, by_name.get(self.names[group], factor))
        factors = np.array([self.factors.get(group, by_name.get(name, 1.0)) for group, name in enumerate(self.names)])
        left = max(self.effort, self.small) if hungry else self.effort
        affordable = self.cost <= np.where(self.searched, min(self.searches, self.effort), left)
        return np.where(self.open & affordable, self.bound * factors[self.group], np.inf)

    def batch(self, enough: float, hungry: bool) -> np.ndarray:
        """The next plans to time, of those that promise less than `enough` seconds. Dear ones go one by one; the `hungry` overspend."""
        promised = self.promised(hungry)
        best = np.argsort(promised, kind="stable")[:TOGETHER]
        best = best[promised[best] < enough]
        spent = np.cumsum(self.cost[best])
        return best[spent <= max(self.effort / TOGETHER, *spent[:1], 0)]

    def learn(self, place: int, seconds: float) -> None:
        self.open[place] = False
        self.spend(place)
        self.factors[int(self.group[place])] = seconds / self.bound[place]

    def spend(self, place: int) -> None:
        """A list of actions is written once, which costs most of its timing; schedules that are searched for are so each time."""
        self.effort -= self.cost[place]
        if self.searched[place]:
            self.searches -= self.cost[place]
            return
        key = int(self.group[place]), int(self.microbatches[place])
        if key not in self.listed:
            self.listed.add(key)
            self.cost[(self.group == key[0]) & (self.microbatches == key[1])] *= AGAIN


def cheapest(found: Candidates, mask: np.ndarray) -> np.ndarray:
    """Places of the POOL plans with the least bounds; among equals that which needs least memory."""
    places = np.flatnonzero(mask)
    if len(places) > POOL:
        places = places[np.argpartition(found.seconds[places], POOL)[:POOL]]
    return places[np.lexsort((found.memory_bytes[places], found.seconds[places]))]


def costs(job: Job, found: Candidates) -> np.ndarray:
    """Actions that exact timing goes through: some rounds of the pipeline, or a searched schedule's many attempts."""
    searched, chunks, lengths = (
        np.array(column) for column in zip(*((name in AUTOMATIC, chunks, pp) for name, chunks, pp in found.groups))
    )
    most = np.where(searched, np.inf, (FULL_ROUNDS + 1) * lengths)  # microbatches that are timed one by one
    each = lengths * np.where(searched, ATTEMPTS, chunks * PASSES)
    return np.minimum(found.microbatches(job), most[found.group]) * each[found.group]


def time_best(
    job: Job, found: Candidates, top: int, effort: int, also: Sequence[Plan], executor: Executor | None
) -> tuple[list[Timed], float]:
    """Time plans by promise, and say how much faster what is left could be."""
    promises, steps = Promises(job, found, effort), Steps(job, executor)
    timed = steps.of([plan for plan in also if fits_and_runs(job, plan)])
    while len(batch := promises.batch(enough(timed, top), hungry=len(timed) < top)):
        for place, one in zip(batch, steps.of([found.plan(int(promises.places[place])) for place in batch])):
            timed.append(one)
            promises.learn(place, one.seconds)
    return timed, gap(found, promises, timed)


class Steps:
    """Exact steps, each timed once; in pipelines ZeRO-2 takes the time of ZeRO-1."""

    def __init__(self, job: Job, executor: Executor | None):
        self.work, self.map, self.known = partial(predict, job), executor.map if executor else map, dict[Plan, Step]()

    def of(self, plans: Sequence[Plan]) -> list[Timed]:
        twins = [replace(plan, zero=1) if plan.zero == 2 and plan.pp > 1 else plan for plan in plans]
        new = [plan for plan in dict.fromkeys(twins) if plan not in self.known]
        self.known.update(zip(new, self.map(self.work, new)))
        return [Timed(plan, self.known[twin]) for plan, twin in zip(plans, twins)]


def fits_and_runs(job: Job, plan: Plan) -> bool:
    return not any(broken(job, plan)) and fits(job, plan)


def enough(timed: list[Timed], top: int) -> float:
    """What a plan must promise to be worth timing: to be among the best."""
    return sorted(one.seconds for one in timed)[top - 1] if len(timed) >= top else np.inf


def gap(found: Candidates, promises: Promises, timed: list[Timed]) -> float:
    bounds = found.seconds.copy()
    bounds[promises.places[~promises.open]] = np.inf
    return max(0.0, 1 - float(bounds.min()) / min(one.seconds for one in timed))
