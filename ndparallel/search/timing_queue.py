"""Which plans are timed exactly, in which order, and how sure their best is the best of all.

Idea   Time the plan of the least estimate, learn from it how far the bound was off for its schedule, and go
       on until no estimate that is left is below what was found, or the effort is spent. The bounds of
       what is left say how much faster the best could still be; where that is too much, plans are timed in
       the order of their bounds.
Cost   the effort; a schedule that is searched for takes some hundredths of a second.
Limit  Which plans are timed follows from their bounds and steps alone, not from how long anything takes here.

Glossary
    estimate  a bound, times what exact timing has added to the bounds of the same schedule
    effort    actions of written schedules that may be timed, at a quarter of a microsecond each; those that
              are searched for have one of their own
    gap       share of the best step by which a plan that was not timed could be faster, at the most
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np

from ndparallel.pipeline.catalog import RECIPES
from ndparallel.pipeline.schedule_timer import FULL_ROUNDS
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.prediction import time_step
from ndparallel.search.candidates import Candidates

EFFORT = 200_000
TOGETHER = 8  # plans timed at a time, whether in one process or in several
PER_SCHEDULE = 1_000  # plans of every schedule whose estimates are compared
TIMES_MET = 8  # times that an action is met: few rounds and one more, with messages and without, F and B
# of a schedule that is searched for:
ATTEMPTS = 100  # the cost of an action of the few rounds that all attempts are made with
FINALS = 40  # the cost of an action of all rounds, with which the best attempts are made again
SEARCHES = 10  # times the effort, for schedules that are searched for
SHARE = 4  # one of them takes this part of that at the most
CERTIFY = 2.0  # times the effort, once more, for plans whose bounds keep the gap wide
SURE = 0.01  # gap below which no more plans are timed for it
TIGHT = 4  # plans that are timed of those that leave too little memory free
AGAIN = 0.2  # of the effort for a plan whose list of actions was written for another one


@dataclass(frozen=True)
class Timed:
    """A plan, and the exact seconds of its step."""

    plan: Plan
    seconds: float


class TimingQueue:
    """The most promising plans of every schedule, and what was learnt of the bounds."""

    def __init__(self, job: TrainingJob, found: Candidates, effort: float):
        self.cost = costs(job, found).astype(float)
        self.names = [group.schedule for group in found.groups]
        number = np.array([[*RECIPES].index(name) for name in self.names], dtype=np.int8)[found.group]
        effort = max(effort, float(self.cost.min()))  # for one plan at least
        affordable = self.cost <= dearest(found, effort)
        of_each = [np.flatnonzero(affordable & (number == one)) for one in range(len(RECIPES))]
        self.places = np.concatenate([found.least(some, found.seconds, PER_SCHEDULE) for some in of_each])
        self.bound = found.seconds[self.places]
        self.group = found.group[self.places]
        self.cost = self.cost[self.places]
        self.searched = found.searched[self.places]
        self.microbatches = found.microbatches(job)[self.places]
        self.listed: set[tuple[int, int]] = set()  # groups and microbatches whose lists are written already
        self.factors: dict[int, float] = {}
        self.open = np.ones(len(self.places), dtype=bool)
        self.effort = float(effort)
        self.searches = SEARCHES * effort
        # the dearest plan that is timed when the effort is spent, and too few plans are timed
        self.beyond_effort = effort / TOGETHER

    def factors_of_groups(self) -> np.ndarray:
        """What exact timing adds to the bounds of each group; a schedule whose depth was never timed is off
        as it was elsewhere at its best."""
        by_name: dict[str, float] = {}
        for group, factor in self.factors.items():
            by_name[self.names[group]] = min(factor, by_name.get(self.names[group], factor))
        return np.array(
            [self.factors.get(group, by_name.get(name, 1.0)) for group, name in enumerate(self.names)]
        )

    def estimates(self, below_top_k: bool) -> np.ndarray:
        """The estimate of each plan, in seconds."""
        factors = self.factors_of_groups()
        left = max(self.effort, self.beyond_effort) if below_top_k else self.effort
        affordable = self.cost <= np.where(self.searched, self.searches, left)
        return np.where(self.open & affordable, self.bound * factors[self.group], np.inf)

    def batch(self, limit: float, below_top_k: bool) -> np.ndarray:
        """Return up to TOGETHER untimed plans of estimates below `limit` seconds; expensive plans come
        alone. While fewer plans are timed than are to be shown (`below_top_k`), the effort may be
        exceeded."""
        estimates = self.estimates(below_top_k)
        best = np.argsort(estimates, kind="stable")[:TOGETHER]
        best = best[estimates[best] < limit]
        spent = np.cumsum(self.cost[best])
        return best[spent <= max([self.effort / TOGETHER, *spent[:1]])]

    def least_bounds(self, limit: float) -> np.ndarray:
        """Return the untimed plans of the least bounds, up to TOGETHER, where these are below `limit`
        seconds."""
        bounds = np.where(self.open, self.bound, np.inf)
        least = np.argsort(bounds, kind="stable")[:TOGETHER]
        least = least[bounds[least] < limit]
        cost, searched = self.cost[least], self.searched[least]
        spent = np.where(searched, np.cumsum(cost * searched), np.cumsum(cost * ~searched))
        return least[spent <= np.where(searched, self.searches, self.effort)]

    def learn(self, place: int, seconds: float) -> None:
        self.open[place] = False
        self.spend(place)
        self.factors[int(self.group[place])] = seconds / self.bound[place]

    def spend(self, place: int) -> None:
        """A list of actions is written once, which costs most of its timing; schedules that are searched for
        are so each time."""
        if self.searched[place]:
            self.searches -= self.cost[place]
            return
        self.effort -= self.cost[place]
        key = int(self.group[place]), int(self.microbatches[place])
        if key not in self.listed:
            self.listed.add(key)
            self.cost[(self.group == key[0]) & (self.microbatches == key[1])] *= AGAIN


def costs(job: TrainingJob, found: Candidates) -> np.ndarray:
    """Actions that exact timing goes through: some rounds of the pipeline, or a searched schedule's many
    attempts."""
    searched, chunks, lengths = (
        np.array(column)
        for column in zip(
            *((RECIPES[group.schedule].is_searched, group.chunks, group.pp) for group in found.groups)
        )
    )
    group, microbatches = found.group, found.microbatches(job)
    few = ((FULL_ROUNDS + 1) * lengths)[group]  # which a search makes all its attempts with, too
    timed = np.minimum(microbatches, few)
    each = np.where(searched, ATTEMPTS, chunks * TIMES_MET)[group] * timed
    return lengths[group] * (each + FINALS * microbatches * searched[group])


def dearest(found: Candidates, effort: float) -> np.ndarray:
    """The most that each plan may cost."""
    return np.where(found.searched, SEARCHES * effort / SHARE, effort)


def time_best(
    job: TrainingJob,
    found: Candidates,
    top: int,
    effort: int,
    also: Sequence[Plan],
    executor: Executor | None,
) -> tuple[list[Timed], TimingQueue]:
    """Time plans by their estimates; the queue has what was learnt, and what is left."""
    queue = TimingQueue(job, found, effort)
    timed = time_all(job, also, executor)
    while len(batch := queue.batch(kth_best_seconds(timed, top), below_top_k=len(timed) < top)):
        timed += time_batch(job, found, queue, batch, also, executor)
    queue.effort = max(0.0, queue.effort) + CERTIFY * effort
    while len(batch := queue.least_bounds(kth_best_seconds(timed, 1) * (1 - SURE))):
        timed += time_batch(job, found, queue, batch, also, executor)
    return timed, queue


def estimates_of(job: TrainingJob, found: Candidates, queue: TimingQueue) -> np.ndarray:
    """The estimates of all plans; infinite where a schedule takes too long to search for."""
    estimates = found.seconds * queue.factors_of_groups()[found.group]
    return np.where(found.searched & (costs(job, found) > dearest(found, EFFORT)), np.inf, estimates)


def time_tight(
    job: TrainingJob, found: Candidates, queue: TimingQueue, limit: float, executor: Executor | None
) -> Timed | None:
    """The fastest of these plans, of which TIGHT are timed: those of the least estimates below `limit`
    seconds. None where none of them takes less."""
    estimates = estimates_of(job, found, queue)
    least = found.least(np.flatnonzero(estimates < limit), estimates, TIGHT)
    timed = time_all(job, [found.plan(int(place)) for place in least], executor)
    best = min(timed, key=lambda one: one.seconds, default=None)
    return best if best and best.seconds < limit else None


def time_batch(
    job: TrainingJob,
    found: Candidates,
    queue: TimingQueue,
    batch: np.ndarray,
    known: Sequence[Plan],
    executor: Executor | None,
) -> list[Timed]:
    """Time these plans of the queue, and learn from each; return those that were not known."""
    timed = time_all(job, [found.plan(int(queue.places[place])) for place in batch], executor)
    for place, one in zip(batch, timed):
        queue.learn(place, one.seconds)
    return [one for one in timed if one.plan not in known]


def time_all(job: TrainingJob, plans: Sequence[Plan], executor: Executor | None) -> list[Timed]:
    in_turn = executor.map if executor else map
    return [Timed(*each) for each in zip(plans, in_turn(partial(seconds_of, job), plans))]


def seconds_of(job: TrainingJob, plan: Plan) -> float:
    """Seconds of a plan's step: a number, which other processes can send."""
    return time_step(job, plan).seconds


def kth_best_seconds(timed: list[Timed], top: int) -> float:
    """The seconds that a plan must stay below to be worth timing: those of the last of the `top` best."""
    return sorted(one.seconds for one in timed)[top - 1] if len(timed) >= top else np.inf


def gap(found: Candidates, queue: TimingQueue, timed: list[Timed]) -> float:
    """The share of the best step by which what was not timed could be faster."""
    bounds = found.seconds.copy()
    bounds[queue.places[~queue.open]] = np.inf
    return max(0.0, 1 - float(bounds.min()) / min(one.seconds for one in timed))
