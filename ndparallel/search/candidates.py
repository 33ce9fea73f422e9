"""Every legal plan with its bytes and its least seconds, in arrays.

Idea   Layouts and words make rows; schedule and chunks make groups. Bytes are counted for all rows, and a
       group is pruned by memory; seconds are priced for the rows of which something is left.
Cost   some million plans a second.
Limit  Of a schedule that is searched for, memory is what the search may use.

Glossary
    row      a layout with its three words
    group    a schedule, its chunks, and the length of the pipeline
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from ndparallel.launch_flags.frameworks import one_has, with_own_jobs
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.software import Stack
from ndparallel.search.bounds.columns import DEGREES, PlanTable, bytes_of, joined, seconds_of, take
from ndparallel.search.bounds.depth import StagePartition, depth_of
from ndparallel.search.bounds.lower_bound import least_seconds, peak_bytes
from ndparallel.search.space import Fixed, at, families, layouts, runs, schedules

ROW = (*DEGREES, "zero", "shards", "sequence_parallel", "recompute")  # what a row says of a plan
Fitting = dict[
    str, tuple[np.ndarray, np.ndarray]
]  # by schedule, places of the plans that fit, and their bytes
LACKS = (1, 4, 16, 64, 256)  # GB: the groups in which plans that do not fit are counted


@dataclass
class Candidates:
    """Plans that fit: `families` of rows, and for every plan its row, its group and the least seconds of its
    step."""

    families: list[Plan]
    starts: np.ndarray  # of each family's rows
    groups: list[tuple[str, int, int]] = field(default_factory=list)
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    group: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    seconds: np.ndarray = field(default_factory=lambda: np.empty(0))
    memory_bytes: np.ndarray = field(default_factory=lambda: np.empty(0))
    legal: int = 0  # plans, whether or not they fit
    rejected: Counter[str] = field(default_factory=Counter)

    def plan(self, place: int) -> Plan:
        family = int(np.searchsorted(self.starts, self.rows[place], side="right")) - 1
        name, chunks, _ = self.groups[self.group[place]]
        return at(self.families[family], int(self.rows[place] - self.starts[family]), name, chunks)

    def microbatches(self, job: TrainingJob) -> np.ndarray:
        """Microbatches of every plan."""
        return np.concatenate([family.microbatches(job) for family in self.families])[self.rows]


@dataclass
class Part:
    """What one pipeline length gives, so that lengths can be priced in several processes."""

    groups: list[tuple[str, int, int]] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)
    seconds: list[np.ndarray] = field(default_factory=list)
    memory_bytes: list[np.ndarray] = field(default_factory=list)
    legal: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


def candidates(
    job: TrainingJob,
    gpus: int,
    fixed: Fixed,
    memory_bytes: float,
    executor: Executor | None = None,
    frameworks: Sequence[str] = (),
) -> Candidates:
    """Enumerate, prune and price: plans that one of these frameworks can launch, or all. An executor prices
    pipelines of different lengths beside one another."""
    rejected: Counter[str] = Counter()
    table = layouts(job, gpus, fixed, rejected)
    every = list(families(table, job, fixed))
    found = Candidates(every, np.array(starts_of(every)), rejected=rejected)
    lengths = np.unique(np.concatenate([family.pp for family in every])).tolist() if every else []
    work: Callable = partial(priced, job, every, fixed, memory_bytes, frameworks)
    # columns are computed once for a share
    shares = [[length] for length in lengths] if executor else [lengths] * bool(lengths)
    for part in executor.map(work, shares) if executor else map(work, shares):
        add(found, part)
    found.rejected = +found.rejected  # without what was counted as 0
    return found


def add(found: Candidates, part: Part) -> None:
    first = len(found.groups)
    found.groups += part.groups
    found.legal += part.legal
    found.rejected.update(part.rejected)
    sizes = [len(rows) for rows in part.rows]
    found.group = np.concatenate([found.group, np.repeat(np.arange(first, first + len(sizes)), sizes)])
    found.rows, found.seconds, found.memory_bytes = (
        np.concatenate([before, *more])
        for before, more in (
            (found.rows, part.rows),
            (found.seconds, part.seconds),
            (found.memory_bytes, part.memory_bytes),
        )
    )


def priced(
    job: TrainingJob,
    every: list[Plan],
    fixed: Fixed,
    memory_bytes: float,
    frameworks: Sequence[str],
    lengths: list[int],
) -> Part:
    """All plans whose pipelines have one of these lengths: pruned by memory, and what is left priced."""
    rows, part = np.flatnonzero(np.isin(np.concatenate([family.pp for family in every]), lengths)), Part()
    some, launchers = narrowed(every, rows), with_own_jobs(frameworks, job)
    held, plans = joined([bytes_of(job, family) for family in some]), in_one(some)
    fitting: list[tuple[StagePartition, Fitting]] = []
    for pp in lengths:
        long = np.flatnonzero(plans.pp == pp)
        these, alike = take(held, long), taken(plans, long)
        for (chunks, kind), names in by_depth(job, pp, fixed).items():
            depth = depth_of(job.shape, pp, chunks, kind)
            able = {
                name: runs(name, pp, these["microbatches"])
                & one_has(launchers, replace(alike, schedule=name, chunks=chunks))
                for name in names
            }
            fits = prune(part, depth, these, job.stack, able, memory_bytes)
            fitting.append((depth, {name: (long[fit], memory) for name, (fit, memory) in fits.items()}))
    alive = places_of(fits for _, fits in fitting)
    if len(alive):
        table = take(held, alive) | joined(seconds_of(job, narrowed(every, rows[alive])))
        for pp, depths in groupby(fitting, key=lambda pair: pair[0].pp):
            long = np.flatnonzero(plans.pp[alive] == pp)
            these = take(table, long)
            for depth, fits in depths:
                price(part, job.stack, depth, these, alive[long], fits)
        part.rows = [rows[places] for places in part.rows]
    return part


def by_depth(job: TrainingJob, pp: int, fixed: Fixed) -> dict[tuple[int, str], list[str]]:
    """Schedules by the chunks and the layout in which they cut a model."""
    found: dict[tuple[int, str], list[str]] = {}
    for name, chunks in schedules(job.shape.layers, pp, fixed):
        found.setdefault((chunks, RECIPES[name].layout), []).append(name)
    return found


def prune(
    part: Part,
    depth: StagePartition,
    table: PlanTable,
    stack: Stack,
    able: Mapping[str, np.ndarray],
    memory_bytes: float,
) -> Fitting:
    """Plans that fit, of every schedule that cuts the model alike, and which of them it can do."""
    fits = {}
    every = peak_bytes(table, depth, stack, [RECIPES[name] for name in able])
    for (name, legal), memory in zip(able.items(), every):
        fit = np.flatnonzero(legal & (memory <= memory_bytes))
        part.legal += int(legal.sum())
        part.rejected.update(too_much((memory - memory_bytes)[legal & (memory > memory_bytes)]))
        if len(fit):
            fits[name] = fit, memory[fit]
    return fits


def places_of(fitting: Iterable[Fitting]) -> np.ndarray:
    """Where plans are that fit with any schedule, in order."""
    places = [places for fits in fitting for places, _ in fits.values()]
    return np.unique(np.concatenate(places)) if places else np.empty(0, dtype=np.int64)


def price(
    part: Part, stack: Stack, depth: StagePartition, table: PlanTable, places: np.ndarray, fits: Fitting
) -> None:
    """Price what fits. The table has the plans at these places: all with pipelines of this length."""
    bounds = least_seconds(table, depth, stack, [RECIPES[name] for name in fits])
    for (name, (fit, memory)), seconds in zip(fits.items(), bounds):
        part.groups.append((name, depth.chunks, depth.pp))
        part.rows.append(fit)
        part.memory_bytes.append(memory)
        part.seconds.append(seconds[np.searchsorted(places, fit)])


def starts_of(every: list[Plan]) -> list[int]:
    """The first row of each family."""
    return np.cumsum([0, *(len(family.tp) for family in every)]).tolist()


def narrowed(every: list[Plan], rows: np.ndarray) -> list[Plan]:
    """The families, with some of their rows."""
    places = np.split(rows, np.searchsorted(rows, starts_of(every)[1:-1]))
    some = [mine - start for mine, start in zip(places, starts_of(every))]
    return [taken(family, mine, DEGREES) for family, mine in zip(every, some) if len(mine)]


def in_one(every: Sequence[Plan]) -> Plan:
    """Plans of several families as one, whose words are arrays as well."""
    rows: dict[str, Any] = {name: np.concatenate([spread(family, name) for family in every]) for name in ROW}
    return Plan(**rows)


def spread(family: Plan, name: str) -> np.ndarray:
    return np.broadcast_to(np.asarray(getattr(family, name)), np.shape(family.tp))


def taken(plans: Plan, rows: np.ndarray, names: Sequence[str] = ROW) -> Plan:
    some: dict[str, Any] = {name: getattr(plans, name)[rows] for name in names}
    return replace(plans, **some)


def too_much(lacking: np.ndarray) -> dict[str, int]:
    """How many plans lack how many bytes."""
    counts = np.bincount(np.searchsorted(LACKS, lacking / 1e9, side="right"), minlength=len(LACKS) + 1)
    return {reason(low, high): int(count) for low, high, count in zip((0, *LACKS), (*LACKS, None), counts)}


def reason(low: int, high: int | None) -> str:
    return f"does not fit: lacks {low} to {high} GB" if high else f"does not fit: lacks more than {low} GB"
