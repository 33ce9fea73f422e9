"""The rows of a search pruned by memory, and what is left of them priced.

Idea   Bytes are counted for all rows, and a group is pruned by memory; seconds are priced for the rows of
       which something is left.

Glossary
    row      a layout with its three words; base: see ndparallel.search.rows
    group    rows with one schedule, its chunks, and one length of the pipeline
    retried  bases for which other modules are worth a try
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ndparallel.launch_flags.frameworks import Framework, one_has, with_own_jobs
from ndparallel.model.costs import RECOMPUTE
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.stack import Stack
from ndparallel.search.bounds.depth import StagePartition, depth_of
from ndparallel.search.bounds.fullest import peak_bytes
from ndparallel.search.bounds.lower_bound import least_seconds
from ndparallel.search.bounds.memory_columns import memory_table
from ndparallel.search.bounds.plan_table import PlanTable, joined, take
from ndparallel.search.bounds.time_columns import time_tables
from ndparallel.search.fixed import Fixed
from ndparallel.search.rows import among, bases_of, in_one, narrowed, taken, union
from ndparallel.search.space import SearchSpace, chooses_layers, runs, schedules

LACKING = "does not fit: lacks "  # how reasons of too much memory begin
LACKS = (1, 4, 16, 64, 256)  # GB: the groups in which plans that do not fit are counted


class RowGroup(NamedTuple):
    """What the rows of a group share: a schedule, its chunks, the length of the pipeline, and with full
    recomputation how many layers of a stage run again, 0 for all."""

    schedule: str
    chunks: int
    pp: int
    recompute_layers: int = 0


COLUMNS = ("groups", "rows", "seconds", "memory_bytes")  # of a part
BasesByGroup = dict[RowGroup, np.ndarray]


@dataclass
class Part:
    """What some pipeline lengths give, so that lengths can be priced in several processes."""

    groups: list[RowGroup] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)
    seconds: list[np.ndarray] = field(default_factory=list)
    memory_bytes: list[np.ndarray] = field(default_factory=list)
    legal: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


def part_of_lengths(
    space: SearchSpace, families: list[Plan], priced_bytes: float, lengths: list[int]
) -> Part:
    """All plans whose pipelines have one of these lengths: pruned by memory, and what is left priced. Other
    modules run again only where a plan lacks memory that runs nothing again: it is never slower, unless its
    activations go to the host; and some of them only where all of them make it fit."""
    own, *others = rows_by_modules(families, lengths)
    selection = PlanSelection(space, families, priced_bytes, bool(others))
    lacking = selection.select(own)
    if space.job.activations_away:
        for rows in others:
            selection.select(rows)
        others = []
    if others:
        largest, *smaller = others
        helped = selection.select(largest, lacking)
        for rows in smaller:
            selection.select(rows, helped)
    return selection.part


def rows_by_modules(families: list[Plan], lengths: list[int]) -> list[np.ndarray]:
    """The rows of such pipelines by the modules that run again: the software's own, then the largest set."""
    long = np.isin(np.concatenate([family.pp for family in families]), lengths)
    modules = [family.recompute_modules for family in families]
    sets = sorted(dict.fromkeys(modules), key=lambda names: (names != (), -len(names)))
    number = np.repeat([sets.index(names) for names in modules], [len(family.tp) for family in families])
    return [np.flatnonzero(long & (number == place)) for place in range(len(sets))]


def one_part(parts: Iterable[Part]) -> Part:
    """Put the parts together, as if all lengths had been priced one by one."""
    one = Part()
    for part in parts:
        one.legal += part.legal
        one.rejected.update(part.rejected)
        for name in COLUMNS:
            setattr(one, name, getattr(one, name) + getattr(part, name))
    order = sorted(range(len(one.groups)), key=lambda place: one.groups[place].pp)
    for name in COLUMNS:
        column = getattr(one, name)
        setattr(one, name, [column[place] for place in order])
    return one


@dataclass(frozen=True)
class RowTable:
    """Rows with pipelines of one length: their numbers and bases, what they say, their columns of bytes, and
    which of them are legal in each group."""

    numbers: np.ndarray
    bases: np.ndarray
    plans: Plan
    held: PlanTable
    legal: dict[RowGroup, np.ndarray]

    @cached_property
    def by_recompute(self) -> dict[str, np.ndarray]:
        """The places of the rows, by the word of what runs again."""
        return {word: np.flatnonzero(self.plans.recompute == word) for word in RECOMPUTE}


class PrunedGroup(NamedTuple):
    """The rows of a group that pruning leaves, with the bytes of their plans; and the bases to be retried."""

    group: RowGroup
    rows: np.ndarray
    memory_bytes: np.ndarray
    retried: np.ndarray


@dataclass
class PlanSelection:
    """Prunes and prices rows of these families, and adds what fits to a part."""

    space: SearchSpace
    families: list[Plan]
    priced_bytes: float  # plans that hold more than fits are priced up to these
    others: bool  # whether other modules than the software's own are searched
    part: Part = field(default_factory=Part)

    @property
    def job(self) -> TrainingJob:
        return self.space.job

    @cached_property
    def launchers(self) -> list[tuple[Framework, TrainingJob]]:
        return with_own_jobs(self.space.frameworks, self.job)

    @cached_property
    def chooses_layers(self) -> bool:
        return chooses_layers(self.space)

    @cached_property
    def bases(self) -> np.ndarray:
        """The base of every row."""
        return bases_of(self.families)

    def select(self, rows: np.ndarray, only: BasesByGroup | None = None) -> BasesByGroup:
        """Prune rows that share the modules that run again, and price what is left: of all, or only of these
        bases. Return the bases to be retried: those that lack memory, or of only some those that fit."""
        if only is not None:
            rows = rows[among(self.bases[rows], self.bases[:0], *only.values())]
        if not len(rows):
            return {}
        families, pruned = narrowed(self.families, rows), []
        held, plans = joined([memory_table(self.job, family) for family in families]), in_one(families)
        for pp in sorted({*plans.pp.tolist()}):
            long = np.flatnonzero(plans.pp == pp)
            some, mine = taken(plans, long), rows[long]
            these = RowTable(mine, self.bases[mine], some, take(held, long), self.legal(some, pp))
            for (chunks, layout), names in by_depth(self.job, pp, self.space.fixed).items():
                depth = depth_of(self.job.shape, pp, chunks, layout)
                pruned.append((depth, self.prune(these, depth, names, only)))
        self.price(rows, held, pruned)
        return {one.group: one.retried for _, groups in pruned for one in groups}

    def prune(
        self, rows: RowTable, depth: StagePartition, names: list[str], only: BasesByGroup | None
    ) -> list[PrunedGroup]:
        """Prune the groups of these schedules, which cut the model alike."""
        groups = [RowGroup(name, depth.chunks, depth.pp) for name in names]
        every = peak_bytes(rows.held, depth, [RECIPES[name] for name in names])
        return [self.prune_group(rows, group, memory, only) for group, memory in zip(groups, every)]

    def prune_group(
        self, rows: RowTable, group: RowGroup, memory: np.ndarray, only: BasesByGroup | None
    ) -> PrunedGroup:
        """Leave the rows whose plans are legal and not too large, and count the others."""
        legal, most = rows.legal[group], self.space.memory_bytes
        if only is not None:
            legal = legal & among(rows.bases, only[group])
        self.part.legal += int(legal.sum())
        self.part.rejected.update(too_much((memory - most)[legal & (memory > most)]))
        fitting, wanted = np.flatnonzero(legal & (memory <= most)), memory <= max(most, self.priced_bytes)
        if only is None and self.chooses_layers:
            wanted |= self.fit_recomputed(rows, memory)
        left = np.flatnonzero(legal & wanted)
        retried = (self.lacking(rows, memory) if only is None else fitting) if self.others else fitting[:0]
        return PrunedGroup(group, rows.numbers[left], memory[left], rows.bases[retried])

    def legal(self, plans: Plan, pp: int) -> dict[RowGroup, np.ndarray]:
        """Which of these plans each group's schedule can do, and a framework can launch: asked once for all
        chunks of a schedule, since most rules do not ask for them."""
        found: dict[RowGroup, np.ndarray] = {}
        microbatches = plans.microbatches(self.job)
        every = schedules(self.job.shape.layers, pp, self.space.fixed)
        for name, pairs in groupby(every, key=itemgetter(0)):
            chunks = [number for _, number in pairs]
            scheduled = replace(plans, schedule=name, chunks=np.array(chunks)[:, None])
            able = runs(self.job, name, pp, microbatches) & one_has(self.launchers, scheduled)
            masks = np.broadcast_to(able, (len(chunks), len(plans.tp)))
            found |= {RowGroup(name, number, pp): mask for number, mask in zip(chunks, masks)}
        return found

    def fit_recomputed(self, rows: RowTable, memory: np.ndarray) -> np.ndarray:
        """Which plans run nothing again and lack memory that they have with full recomputation. They are
        priced for those that run some layers again (some_layers.py)."""
        found, fits = np.zeros(len(memory), dtype=bool), np.zeros(int(rows.bases.max()) + 1, dtype=bool)
        nothing, full = rows.by_recompute["none"], rows.by_recompute["full"]
        fits[rows.bases[full]] = memory[full] <= max(self.space.memory_bytes, self.priced_bytes)
        found[nothing] = (memory[nothing] > self.space.memory_bytes) & fits[rows.bases[nothing]]
        return found

    def lacking(self, rows: RowTable, memory: np.ndarray) -> np.ndarray:
        """Which plans lack memory with nothing run again, and may have it with some modules: those keep at
        least what full recomputation does, which holds one layer whole besides."""
        bases, nothing, full = rows.bases, rows.by_recompute["none"], rows.by_recompute["full"]
        least = np.full(int(bases.max()) + 1, np.inf)  # bytes with full recomputation, by base
        whole = np.inf if self.job.activations_away else rows.held["kept"].max(axis=0)[nothing]
        least[bases[full]] = memory[full]
        may_fit = least[bases[nothing]] - whole <= self.space.memory_bytes
        return nothing[(memory[nothing] > self.space.memory_bytes) & may_fit]

    def price(
        self, rows: np.ndarray, held: PlanTable, pruned: list[tuple[StagePartition, list[PrunedGroup]]]
    ) -> None:
        """Price the plans that are left; `held` are the columns of bytes of all these rows."""
        left = union((one.rows for _, groups in pruned for one in groups), len(self.bases))
        if not len(left):
            return
        families = narrowed(self.families, left)
        table = take(held, np.searchsorted(rows, left)) | joined(time_tables(self.job, families))
        lengths = np.concatenate([family.pp for family in families])
        for pp, cuts in groupby(pruned, key=lambda pair: pair[0].pp):
            long = np.flatnonzero(lengths == pp)
            these = take(table, long)
            for depth, groups in cuts:
                if some := [one for one in groups if len(one.rows)]:
                    add_priced(self.part, self.job.stack, depth, these, left[long], some)


def by_depth(job: TrainingJob, pp: int, fixed: Fixed) -> dict[tuple[int, str], list[str]]:
    """Schedules by the chunks and the layout in which they cut a model."""
    found: dict[tuple[int, str], list[str]] = {}
    for name, chunks in schedules(job.shape.layers, pp, fixed):
        found.setdefault((chunks, RECIPES[name].layout), []).append(name)
    return found


def add_priced(
    part: Part,
    stack: Stack,
    depth: StagePartition,
    table: PlanTable,
    numbers: np.ndarray,
    groups: list[PrunedGroup],
) -> None:
    """Price what is left of groups, and add it to the part. The table has the rows of these numbers: all with
    pipelines of this length."""
    bounds = least_seconds(table, depth, stack, [RECIPES[one.group.schedule] for one in groups])
    for one, seconds in zip(groups, bounds):
        part.groups.append(one.group)
        part.rows.append(one.rows)
        part.memory_bytes.append(one.memory_bytes)
        part.seconds.append(seconds[np.searchsorted(numbers, one.rows)])


def too_much(lacking: np.ndarray) -> dict[str, int]:
    """How many plans lack how many bytes."""
    counts = np.bincount(np.searchsorted(LACKS, lacking / 1e9, side="right"))
    return {reason(low, high): int(count) for low, high, count in zip((0, *LACKS), (*LACKS, None), counts)}


def reason(low: int, high: int | None) -> str:
    return f"{LACKING}{low} to {high} GB" if high else f"{LACKING}more than {low} GB"
