"""What the ranks of a pipeline stage do with embedding and head, where tp does not divide the vocabulary.

Idea   The first tp ranks have a row more than the others. Both are recorded, and a size in which they differ
       becomes an array over the members of the stage.
Cost   A second record of the two units.
Limit  On the grid alone; elsewhere the larger part stands for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gpu import Operation
from ndparallel.model.units import Unit
from ndparallel.planner.lesson_runs.record import LessonRank
from ndparallel.planner.step.streams import Item


@dataclass(frozen=True)
class VocabularyParts:
    """The units of a class of ranks; `on_grid` every member has its own part of the vocabulary."""

    rank: LessonRank
    on_grid: bool

    @cached_property
    def has_more(self) -> np.ndarray:
        """Whether a member of a stage has a larger part than others."""
        mesh, more = self.rank.mesh, self.rank.config.vocab % self.rank.mesh.tp
        return np.array([mesh.group("tp", rank).index(rank) < more for rank in range(mesh.world_size)])

    @cached_property
    def ranks(self) -> tuple[LessonRank, LessonRank]:
        """A rank with a larger part, and one with a smaller, which may be the same."""
        last = self.rank.mesh.tp - 1 if self.on_grid and self.has_more.any() else 0
        return self.rank, replace(self.rank, tp_index=last)

    @cached_property
    def units(self) -> tuple[dict[str, Unit], ...]:
        """The units of both ranks by kind, for their parameters."""
        return tuple(
            {kind: rank.unit(kind) for kind in ("embedding", "block", "head")} for rank in self.ranks
        )

    def items(self, kind: str, op: str) -> list[Item]:
        """Return the list of a unit's pass for an op, with the sizes of every member."""
        return list(map(self.item, *(rank.items(kind, op) for rank in self.ranks)))

    def item(self, larger: Item, smaller: Item) -> Item:
        """Return an operation with the sizes of every member; in all else both ranks do the same."""
        if larger == smaller or not (isinstance(larger, Operation) and isinstance(smaller, Operation)):
            return larger
        sizes = zip(
            (*larger.shape, larger.flops, larger.bytes), (*smaller.shape, smaller.flops, smaller.bytes)
        )
        *shape, flops, nbytes = (self.size(*pair) for pair in sizes)
        return larger._replace(shape=tuple(shape), flops=flops, bytes=nbytes)

    def size(self, larger: Any, smaller: Any) -> Any:
        return larger if larger == smaller else np.where(self.has_more, larger, smaller)

    def parts(self, run: Sequence[str]) -> list[tuple[str, Any, int]]:
        """Return the buckets of a run of units, as `buckets_of` does, with the elements of every member."""
        larger, smaller = (buckets_of([units[kind] for kind in run]) for units in self.units)
        return [
            (what, self.size(more, less), owners)
            for (what, more, owners), (_, less, _) in zip(larger, smaller)
        ]


def buckets_of(units: Sequence[Unit]) -> list[tuple[str, int, int]]:
    """Part units as ndparallel/training/buckets.py does: what each bucket is of, its elements, and which of
    the owners share them: 0 all, 1 those of experts."""
    inner = [inner for unit in units for inner in unit.inner]
    tables = [(" of a table", unit.size, 0) for unit in inner if not unit.is_experts]
    experts = sum(unit.size for unit in inner if unit.is_experts)
    parts = [("", sum(unit.size for unit in units), 0), *tables, (" of experts", experts, 1)]
    return [part for part in parts if part[1]]
