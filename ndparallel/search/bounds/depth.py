"""How a model is cut in depth: what the ranks of a pipeline consist of.

Idea   A rank is a count of parts (see plan_table.py): bare stages, embedding, head, every kind of layers; and
       of the places that these units have in a stage (see sharded.py). Many ranks
       consist of the same; of those only the first, which keeps most activations, and the last, which begins
       latest, can be the ones that matter.
Cost   some microseconds for every stage, once for every (pp, chunks, layout).

Glossary
    before    what a microbatch has passed when it comes to a rank for the first time
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ndparallel.pipeline.actions import Layout
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.stages import kinds_by_stage
from ndparallel.search.bounds.plan_table import EMBEDDING, HEAD, OF_UNITS, units_in
from ndparallel.search.bounds.sharded import Place, places_in, places_of


@dataclass(frozen=True)
class StagePartition:
    """How a model is split over a pipeline. Arrays are (rank, parts and then places): `counts` is what each
    rank that can matter (`ranks`) holds, `before` what precedes it, `model` the sum."""

    pp: int
    chunks: int
    kinds: tuple[str, ...]  # of units
    ranks: np.ndarray
    counts: np.ndarray
    before: np.ndarray
    beside: np.ndarray  # the counts of the neighbour in the pipeline
    model: np.ndarray
    last_units: np.ndarray  # (rank, unit) of the stage that each rank completes last

    @property
    def parts(self) -> np.ndarray:
        return self.counts[:, : 1 + len(self.kinds)]

    @property
    def units(self) -> np.ndarray:
        return self.parts[:, OF_UNITS]

    @property
    def has_one_end(self) -> np.ndarray:
        """Whether a rank holds embedding or head, and not both."""
        return (self.units[:, EMBEDDING] > 0) != (self.units[:, HEAD] > 0)


@lru_cache(maxsize=4096)
def depth_of(shape: ModelShape, pp: int, chunks: int, layout: str, recomputed: int = 0) -> StagePartition:
    some_kept = recomputed > 0
    units, places = units_in(shape, some_kept), places_of(shape, some_kept)
    every = kinds_by_stage(shape, pp * chunks, recomputed)
    counted = {kinds: counts_of(kinds, units, places) for kinds in {*every}}
    stages = np.array([counted[kinds] for kinds in every])
    whole = Layout(layout, pp, chunks)
    held = [whole.stages_of(rank) for rank in range(pp)]
    ranks = np.array([stages[mine].sum(axis=0) for mine in held])
    passed = np.vstack([np.zeros_like(stages[:1]), np.cumsum(stages, axis=0)])
    some = ends_of_runs(ranks)
    beside = ranks[[rank - 1 if rank else min(1, pp - 1) for rank in some]]
    return StagePartition(
        pp,
        chunks,
        units,
        np.array(some),
        ranks[some],
        passed[[min(held[rank]) for rank in some]],
        beside,
        passed[-1],
        stages[[min(held[rank]) for rank in some], 1 : 1 + len(units)],
    )


def counts_of(kinds: Sequence[str], units: Sequence[str], places: Sequence[Place]) -> list[int]:
    has = places_in(kinds)
    return [1, *map(kinds.count, units), *map(has.count, places)]


def ends_of_runs(ranks: np.ndarray) -> list[int]:
    """The first and the last of the ranks that consist of the same."""
    first: dict[tuple, int] = {}
    last: dict[tuple, int] = {}
    for rank, counts in enumerate(map(tuple, ranks)):
        first.setdefault(counts, rank)
        last[counts] = rank
    return sorted({*first.values(), *last.values()})
