"""Tables of plans: columns of numbers, one row for every plan, and what a stage consists of.

Glossary
    part   what a stage consists of: the bare stage itself, embedding, head, and every kind of layers
    unit   a part that is not the bare stage
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.stages import ENDS, KEPT

OF_UNITS = slice(1, None)  # of parts, all but the bare stage
EMBEDDING, HEAD, LAYERS = 0, 1, slice(2, None)  # places of units
DEGREES = ("tp", "pp", "dp", "ep", "cp", "micro_batch")
MANY = 1e9  # parameters: enough that a difference of two prices is exact

# the last axis of each counts plans; before it stand passes, lines or parts
PlanTable = dict[str, np.ndarray]
Passes = list[list[Any]]  # seconds by [F, I, W][part]
Lines = list[list[Any]]  # seconds by [line][unit]
Travel = list[Lines]  # of [reduce, gather]


def whole(column: Any, size: int) -> np.ndarray:
    """Nested lists of numbers and arrays of plans as one array, plans last."""
    if isinstance(column, list | tuple):
        return np.stack([whole(part, size) for part in column])
    return np.broadcast_to(np.asarray(column, dtype=float), (size,))


def joined(tables: Sequence[PlanTable]) -> PlanTable:
    return {name: np.concatenate([table[name] for table in tables], axis=-1) for name in tables[0]}


def take(columns: PlanTable, rows: np.ndarray) -> PlanTable:
    """Some of the plans, by their places."""
    return {name: np.take(column, rows, axis=-1) for name, column in columns.items()}


def weighted_sum(counts: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Add up so many of each part: (ranks, parts) and (..., parts, plans) make (..., ranks, plans). What
    numpy's matmul calls rounds each product on some processors, and only their sum on others, so that of
    plans with equal bounds another one would be the first."""
    ranks = "r" * (counts.ndim - 1)
    return np.einsum(f"{ranks}p,...pn->...{ranks}n", counts, columns)


def units_of(job: TrainingJob, plans: Plan) -> tuple[str, ...]:
    """The kinds of units that have columns of their own."""
    return units_in(job.shape, some_kept(plans))


def some_kept(plans: Plan) -> bool:
    """Whether some layers of a stage are recomputed and the others are kept."""
    return bool(np.any(plans.recompute_layers))


def units_in(shape: ModelShape, some_kept: bool = False) -> tuple[str, ...]:
    """The kinds of units of a model; those of layers twice where some are recomputed and others kept."""
    kept = [kind + KEPT for kind in shape.layer_kinds] if some_kept else []
    return (*ENDS, *shape.layer_kinds, *kept)


def line_through(of: Callable, size: int = 2) -> tuple[Any, ...]:
    """A linear function of (parameters that dp ranks share, parameters of experts), held and trained where
    these differ: what it is for none, and for one of each."""
    none = of(*[0.0] * size)
    return none, *((of(*MANY * one) - none) / MANY for one in np.eye(size))
