"""Every legal plan with its bytes and its least seconds, in arrays.

Idea   Layouts and words make rows; schedule and chunks make groups. What of them fits is priced
       (ndparallel.search.pruning).
Cost   some million plans a second.
Limit  Of a schedule that is searched for, memory is what the search may use.

Glossary
    row      a layout with its three words
    group    rows with one schedule, its chunks, and one length of the pipeline
"""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ndparallel.engines.forking import forks_at_once, map_in_forks
from ndparallel.launch_flags.frameworks import values_of
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import is_folded
from ndparallel.planner.prediction import time_step
from ndparallel.search.bounds.lower_bound import least_work
from ndparallel.search.bounds.plan_table import DEGREES
from ndparallel.search.fixed import allowed
from ndparallel.search.pruning import Part, RowGroup, one_part, part_of_lengths
from ndparallel.search.rows import starts_of, taken
from ndparallel.search.some_layers import with_some_layers
from ndparallel.search.space import SearchSpace, at, chooses_layers, families, layouts, schedules

FEW_PLANS = 500_000  # that are priced before a fork has started and sent its own
# plans that are priced in the time that the columns of a row take, and a group besides its plans
PER_ROW, PER_GROUP = 25, 5_000
MOST_SHARES = 8
SLOWER = "folded experts, and slower whatever the schedule"


@dataclass
class Candidates:
    """Plans that fit: `families` of rows, and for every plan its row, its group and the least seconds of its
    step."""

    families: list[Plan] = field(default_factory=list)
    # of each family's rows, and behind the last one's
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    groups: list[RowGroup] = field(default_factory=list)
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    group: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    seconds: np.ndarray = field(default_factory=lambda: np.empty(0))
    memory_bytes: np.ndarray = field(default_factory=lambda: np.empty(0))
    # plans, whether or not they fit; with other modules than the software's those that these may make fit
    legal: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def plan(self, place: int) -> Plan:
        family = int(np.searchsorted(self.starts, self.rows[place], side="right")) - 1
        group = self.groups[self.group[place]]
        row = int(self.rows[place] - self.starts[family])
        return at(self.families[family], row, group.schedule, group.chunks, group.recompute_layers)

    def split(self, memory_bytes: float) -> tuple["Candidates", "Candidates"]:
        """Those that hold at most so many bytes, and the others."""
        low = self.memory_bytes <= memory_bytes
        return self.where(low), self.where(~low)

    def where(self, mask: np.ndarray) -> "Candidates":
        columns = (self.rows, self.group, self.seconds, self.memory_bytes)
        rows, group, seconds, memory_bytes = (column[mask] for column in columns)
        return replace(self, rows=rows, group=group, seconds=seconds, memory_bytes=memory_bytes)

    def least(self, places: np.ndarray, seconds: np.ndarray, count: int) -> np.ndarray:
        """Return the `count` places of least seconds, the least first; of equals the one that needs least
        memory, so that no processor's way of sorting decides."""
        if len(places) > count:
            places = places[seconds[places] <= np.partition(seconds[places], count)[:count].max()]
        return places[np.lexsort((self.memory_bytes[places], seconds[places]))][:count]

    def by_schedule(self, places: np.ndarray) -> list[Plan]:
        """The plans at these places, those of one family and schedule as an array."""
        rows, group = self.rows[places], self.group[places]
        family = np.searchsorted(self.starts, rows, side="right") - 1
        names = np.array([one.schedule for one in self.groups])[group]
        chunks, found = np.array([one.chunks for one in self.groups])[group], []
        for number, name in sorted({*zip(family.tolist(), names.tolist())}):
            mine = (family == number) & (names == name)
            plans = taken(self.families[number], rows[mine] - self.starts[number], DEGREES)
            found.append(replace(plans, schedule=name, chunks=chunks[mine]))
        return found

    @property
    def nothing_again(self) -> np.ndarray:
        """Which plans recompute nothing."""
        none = [np.full(len(family.tp), family.recompute == "none") for family in self.families]
        return np.concatenate(none)[self.rows]

    @property
    def searched(self) -> np.ndarray:
        """Which plans have a schedule that is searched for."""
        names = [RECIPES[group.schedule].is_searched for group in self.groups]
        return np.array(names, dtype=bool)[self.group]

    def microbatches(self, job: TrainingJob) -> np.ndarray:
        """Microbatches of every plan."""
        return np.concatenate([family.microbatches(job) for family in self.families])[self.rows]


def candidates(
    space: SearchSpace, executor: Executor | None = None, priced_bytes: float = 0.0, near: float = 1.0
) -> Candidates:
    """Enumerate, prune and price: pipelines of different lengths beside one another, by an executor or else
    in forks. Plans up to `priced_bytes` are priced though they do not fit, and count as rejected. Layouts
    with folded experts come behind all others, and only those that may be as fast; then plans that recompute
    some layers, those that may take `near` times as long or less."""
    rejected: Counter[str] = Counter()
    space = replace(space, fixed=values_of(space.frameworks) | dict(space.fixed))
    found = Candidates(rejected=rejected)
    table = layouts(space.job, space.gpus, space.fixed, rejected)
    folded = np.asarray(is_folded(Plan(**dict(zip(DEGREES, table.T)))))
    add_layouts(found, space, table[~folded], priced_bytes, executor)
    if folded.any():
        quick = may_take_less(space, table[folded], seconds_of_one(space, found))
        rejected[SLOWER] += int((~quick).sum())
        add_layouts(found, space, table[folded][quick], priced_bytes, executor)
    if len(found.rows) and chooses_layers(space):
        add_some_layers(found, space, priced_bytes, near)
        found = found.where(found.memory_bytes <= max(space.memory_bytes, priced_bytes))
    found.rejected = +found.rejected  # without what was counted as 0
    return found


def seconds_of_one(space: SearchSpace, found: Candidates) -> float:
    """The step of the plan that fits and is expected to be the fastest; infinite where none fits."""
    able = np.flatnonzero((found.memory_bytes <= space.memory_bytes) & ~found.searched)
    if not len(able):
        return np.inf
    return time_step(space.job, found.plan(able[np.argmin(found.seconds[able])])).seconds


def may_take_less(space: SearchSpace, table: np.ndarray, seconds: float) -> np.ndarray:
    """Which layouts may take at most so long, whatever else their plans say."""
    names = allowed(RECIPES, space.fixed, "schedule")
    pairs = space.job.stack.hides_dispatch or any(RECIPES[name].pairs for name in names)
    plans = Plan(**dict(zip(DEGREES, table.T)))
    least = least_work(space.job, [plans, replace(plans, sequence_parallel=True)], pairs)
    return least.reshape(2, -1).min(axis=0) <= seconds


def add_layouts(
    found: Candidates, space: SearchSpace, table: np.ndarray, priced_bytes: float, executor: Executor | None
) -> None:
    every = list(families(table, space.job, space.fixed, space.frameworks))
    work: Callable = partial(part_of_lengths, space, every, priced_bytes)
    plans = loads_by_length(space, every)
    if executor:
        add(found, every, one_part(executor.map(work, [[length] for length in plans])))
    else:
        add(found, every, one_part(map_in_forks(work, shares_of(plans, forks_at_once()))))


def loads_by_length(space: SearchSpace, every: list[Plan]) -> dict[int, int]:
    """How long it takes to price the pipelines of each length, in plans: rows, with every schedule and its
    chunks."""
    rows = np.bincount(np.concatenate([family.pp for family in every] or [np.empty(0, dtype=int)]))
    lengths = np.flatnonzero(rows)
    groups = np.array([len(schedules(space.job.shape.layers, pp, space.fixed)) for pp in lengths.tolist()])
    loads = rows[lengths] * (PER_ROW + groups) + PER_GROUP * groups
    return dict(zip(lengths.tolist(), loads.tolist()))


def shares_of(plans: dict[int, int], most: int) -> list[list[int]]:
    """Share the lengths out, with about as many plans to price in each share. Columns are computed once for a
    share, so few plans are one share, and many at most MOST_SHARES."""
    number = min(most, MOST_SHARES, 1 + sum(plans.values()) // FEW_PLANS)
    shares: list[list[int]] = [[] for _ in range(number)]
    for length in sorted(plans, key=plans.__getitem__, reverse=True):
        min(shares, key=lambda share: sum(map(plans.__getitem__, share))).append(length)
    return [sorted(share) for share in shares if share]


def add_some_layers(found: Candidates, space: SearchSpace, priced_bytes: float, near: float) -> None:
    """Add plans that recompute as few layers as fit; and those with as few as hold up to `priced_bytes`."""
    seconds, most = seconds_of_one(space, found), space.memory_bytes
    found.legal += add_fewest(found, space, most, near * seconds)
    if priced_bytes > most:
        add_fewest(found, space, priced_bytes, seconds)


def add_fewest(found: Candidates, space: SearchSpace, memory_bytes: float, seconds: float) -> int:
    """Add plans that recompute as few layers as fit `memory_bytes`, in place of those that recompute nothing
    and do not, and whose bound is at most so many seconds. Return how many."""
    wanted = found.nothing_again & (found.memory_bytes > memory_bytes) & (found.seconds <= seconds)
    number = len(found.rows)
    for nothing in found.by_schedule(np.flatnonzero(wanted)):
        plans, part = with_some_layers(space, nothing, memory_bytes)
        add(found, [plans], part)
    return len(found.rows) - number


def add(found: Candidates, every: list[Plan], part: Part) -> None:
    """Put the plans of some more families behind those that were found."""
    before, groups, sizes = found.starts[-1], len(found.groups), [len(rows) for rows in part.rows]
    found.starts = np.append(found.starts, before + np.array(starts_of(every)[1:], dtype=np.int64))
    found.families, found.groups = found.families + every, found.groups + part.groups
    found.legal += part.legal
    found.rejected.update(part.rejected)
    found.group = np.append(found.group, groups + np.repeat(np.arange(len(sizes)), sizes))
    found.rows = np.concatenate([found.rows, *(before + rows for rows in part.rows)])
    for name in ("seconds", "memory_bytes"):
        setattr(found, name, np.concatenate([getattr(found, name), *getattr(part, name)]))
