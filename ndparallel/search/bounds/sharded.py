"""FSDP in the passes of a stage: what waiting for weights, and for gradients to leave, adds to each unit.

Idea   The loops of overlap.py, summed up. While a unit computes, the next one's weights come and the last
       one's gradients go; the rest of them is waited for. So a unit's wait depends on its neighbours alone,
       and a pass is a sum over the places of its units.
Limit  Of several lines beside one another a backward pass is bounded by the one that carries most.

Glossary
    place    (before, unit, after): a kind of unit between two others of its stage, in the model's order; None
             at the stage's ends
    gather   seconds of the collective that makes a unit's weights whole; reduce: that sums its gradients
    alone    of a unit's seconds those of compute, which a collective under way makes longer
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ndparallel.planner.layers.collective_time import lost_to
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.stack import Stack
from ndparallel.planner.stages import ENDS, KEPT, kinds_by_stage

Place = tuple[str | None, str, str | None]
ByUnit = Mapping[str | None, Any]  # seconds; of None, which is no unit, there are none


@lru_cache(maxsize=256)
def places_of(shape: ModelShape, some_kept: bool = False) -> tuple[Place, ...]:
    """Every place that a unit of this model can have, wherever its stages begin and end; and wherever layers
    that are kept do, where `some_kept` are behind others that are recomputed."""
    (kinds,) = kinds_by_stage(shape, 1)
    return tuple(
        dict.fromkeys(
            place
            for all_again in places_in(kinds)
            for before, unit, after in (kept_from(all_again) if some_kept else [all_again])
            for place in product(dict.fromkeys((None, before)), (unit,), dict.fromkeys((None, after)))
        )
    )


def kept_from(place: Place) -> list[Place]:
    """The place with no layer kept, with the last one, and so on."""
    before, unit, after = place
    last = after and kept(after)
    return [
        place,
        (before, unit, last),
        (before, kept(unit), last),
        (before and kept(before), kept(unit), last),
    ]


def kept(unit: str) -> str:
    """The kind of a layer that is not recomputed where others are; embedding and head as they are."""
    return unit if unit in ENDS else unit + KEPT


def places_in(kinds: Sequence[str]) -> list[Place]:
    """The places of a stage's units."""
    return list(zip([None, *kinds], kinds, [*kinds[1:], None]))


class UnitTimes(NamedTuple):
    """Seconds by unit of a pass: all, and those of compute alone, which a collective makes so much longer."""

    seconds: ByUnit
    alone: ByUnit
    slowdown: float

    def above(self, unit: str, travel):
        """Seconds that collectives add to the unit that they run beside: what is left of them when it ends,
        or what they slow it by."""
        return np.maximum(travel - self.seconds[unit], lost_to(travel, self.alone[unit], self.slowdown))


def wait_of_forward(place: Place, stack: Stack, compute: UnitTimes, gather: ByUnit):
    """Seconds that a unit waits: with prefetching for the whole first gather, and for what a later one takes
    above the unit before it."""
    before, unit, after = place
    if not stack.prefetch:
        return gather[unit]
    first = gather[unit] if before is None else 0.0
    return first + compute.above(unit, gather[after])


def wait_of_backward(place: Place, stack: Stack, compute: UnitTimes, gather: ByUnit, reduce: ByUnit):
    """Seconds that a unit waits: with prefetching it runs beside the next one's gather, and with overlap
    beside the reduction of the one before it in this pass; the first gather and the last reduction show
    whole. Without prefetching a reduction shows whole too if a gather comes behind it on its line."""
    following, unit, preceding = place  # backwards
    if not (stack.prefetch or stack.dp_overlap):
        return gather[unit] + reduce[unit]
    last = reduce[unit] if following is None else 0.0
    if not stack.prefetch:
        beside = compute.above(unit, reduce[preceding])
        return gather[unit] + np.where(gather[unit] > 0, reduce[preceding], beside) + last
    first = gather[unit] if preceding is None else 0.0
    if not stack.dp_overlap:
        return first + compute.above(unit, gather[following]) + reduce[unit]
    return first + compute.above(unit, gather[following] + reduce[preceding]) + last


def busier_line(counts: Sequence[int], *ways: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Take of each way's seconds, [line][unit], those of the line that carries most in all. `counts` says how
    many units there are of each kind."""
    first, second = (
        sum(count * seconds for way in ways for count, seconds in zip(counts, way[line])) for line in (0, 1)
    )
    return [[np.where(first >= second, *lines) for lines in zip(*way)] for way in ways]
