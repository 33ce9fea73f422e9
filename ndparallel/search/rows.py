"""Families of plans, whose rows are numbered through: picked, joined, and told apart.

Idea   A family is one Plan whose degrees are arrays, so that a row is a place in them. Rows of several
       families are numbered one family after another.

Glossary
    row      a layout with its three words
    base     of a row: the first one that says the same but for what runs again
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ndparallel.planner.job import Plan
from ndparallel.search.bounds.plan_table import DEGREES

ROW = (*DEGREES, "zero", "shards", "sequence_parallel", "recompute")  # what a row says of a plan


def starts_of(families: list[Plan]) -> list[int]:
    """The first row of each family."""
    return np.cumsum([0, *(len(family.tp) for family in families)]).tolist()


def narrowed(families: list[Plan], rows: np.ndarray) -> list[Plan]:
    """The families, with these rows alone; without those that have none of them."""
    starts = starts_of(families)
    rows_of_each = np.split(rows, np.searchsorted(rows, starts[1:-1]))
    return [
        taken(family, mine - start, DEGREES)
        for family, mine, start in zip(families, rows_of_each, starts)
        if len(mine)
    ]


def in_one(families: Sequence[Plan]) -> Plan:
    """Plans of several families as one, whose words are arrays as well."""
    rows: dict[str, Any] = {
        name: np.concatenate([spread(family, name) for family in families]) for name in ROW
    }
    return Plan(**rows, recompute_modules=families[0].recompute_modules)


def spread(family: Plan, name: str) -> np.ndarray:
    return np.broadcast_to(np.asarray(getattr(family, name)), np.shape(family.tp))


def taken(plans: Plan, rows: np.ndarray, names: Sequence[str] = ROW) -> Plan:
    columns: dict[str, Any] = {name: getattr(plans, name)[rows] for name in names}
    return replace(plans, **columns)


def bases_of(families: list[Plan]) -> np.ndarray:
    """The base of each row."""
    first: dict[tuple, int] = {}
    starts = [
        first.setdefault((family.zero, family.shards, family.sequence_parallel), start)
        for family, start in zip(families, starts_of(families))
    ]
    return np.concatenate([start + np.arange(len(family.tp)) for family, start in zip(families, starts)])


def among(numbers: np.ndarray, *sets: np.ndarray) -> np.ndarray:
    """Which of these numbers are in one of the sets."""
    return np.isin(numbers, np.concatenate(sets), kind="table")


def union(sets: Iterable[np.ndarray], size: int) -> np.ndarray:
    """All these numbers, below `size`, in order."""
    mask = np.zeros(size, dtype=bool)
    for numbers in sets:
        mask[numbers] = True
    return np.flatnonzero(mask)
