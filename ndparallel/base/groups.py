"""Groups of ranks: what a collective asks of its group and of its arguments, and how arrays are combined.

Limit  One rank's own arguments are checked; what the ranks of a group disagree about, `GPU.receive` finds.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ndparallel.base.algorithms import ALGORITHMS
from ndparallel.base.pieces import require_array

Array = np.ndarray
REDUCTIONS: dict[str, Callable] = {"sum": np.add, "average": np.add, "max": np.maximum}
NUMBERS = "biufc"  # kinds of dtypes: truth values, whole numbers with a sign and without, real, complex


@dataclass(frozen=True)
class Group:
    """Ranks that work together. The stream of their messages has the group's name."""

    name: str
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", as_ranks(self.name, self.ranks))

    @staticmethod
    def valid(group: "Group") -> "Group":
        """Return the group. Raises TypeError for what is none."""
        if not isinstance(group, Group):
            raise TypeError(f"{group!r} is no group: make one of a name and ranks, as Group('pair', (0, 1)).")
        return group

    @cached_property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def words(self) -> str:
        return (
            f"among ranks {', '.join(map(str, self.ranks))}"
            if 0 < self.size <= 8
            else "which has no ranks"
            if not self.size
            else f"among {self.size} ranks from {self.ranks[0]} on"
        )

    def index(self, rank: int) -> int:
        """The place of a rank. Raises ValueError for one that is no member, or is one twice."""
        if rank not in self.ranks:
            raise ValueError(f"rank {rank} is not in group {self.name!r}, {self.words}.")
        place = self.ranks.index(rank)
        if rank in self.ranks[place + 1 :]:
            raise ValueError(f"rank {rank} is in group {self.name!r} twice, {self.words}: once is enough.")
        return place

    def valid_root(self, root: int) -> int:
        if as_index(root) not in range(self.size):
            raise ValueError(f"group {self.name!r} has members 0 to {self.size - 1}, and no root {root!r}.")
        return root


def as_ranks(name: str, ranks: Any) -> tuple[int, ...]:
    """Return the ranks of a group. Raises TypeError for what are no whole numbers."""
    try:
        return tuple(map(operator.index, ranks))
    except TypeError:
        raise TypeError(
            f"the ranks of group {name!r} are {ranks!r}: give whole numbers, as Group('pair', (0, 1))."
        ) from None


def as_index(number: Any) -> int | None:
    """Return a whole number of Python's or of numpy's; None for anything else."""
    try:
        return operator.index(number)
    except TypeError:
        return None


def reduction(op: str, array: Array) -> Callable:
    """Return what combines two arrays. Raises ValueError for an unknown one, for what are no numbers, and for
    an average of whole ones."""
    if not isinstance(op, str) or op not in REDUCTIONS:
        algorithm = isinstance(op, str) and any(op in known for known in ALGORITHMS.values())
        meant = f" An algorithm is given by its name: algorithm={op!r}." * algorithm
        raise ValueError(f"there is no reduction {op!r}; there are {', '.join(REDUCTIONS)}.{meant}")
    if array.dtype.kind not in NUMBERS:
        raise ValueError(f"an array of {array.dtype} has no {op} over ranks: reduce numbers.")
    if op == "average" and not np.issubdtype(array.dtype, np.inexact):
        raise ValueError(
            f"an average of {array.dtype} would not be {array.dtype}: reduce with 'sum', or floating-point "
            "numbers."
        )
    return REDUCTIONS[op]


def average(array: Array, op: str, group: Group) -> None:
    """Divide a sum by the number of ranks, where an average is wanted."""
    if op == "average" and array.flags.writeable:
        array /= group.size


def given(name: str, array: Array | None) -> Array:
    if array is None:
        raise ValueError(f"the root needs an array as `{name}`; only the others may give None.")
    return array


def check_size(name: str, array: Array, size: int) -> None:
    require_array(array)
    if array.size != size:
        elements = f"{array.size} element{'s' * (array.size != 1)}"
        raise ValueError(f"`{name}` has {elements}; this rank's piece has {size}.")


def checked_splits(name: str, splits: Any, array: Array, group: Group) -> Sequence[int]:
    """Return how many rows each rank gets, or sends. Raises ValueError for what does not cut the array into
    as many parts as there are ranks."""
    numbers = [*map(as_index, splits)] if np.iterable(splits) else [splits]
    whole = [number for number in numbers if number is not None and number >= 0]
    if len(whole) != len(numbers) or len(whole) != group.size or sum(whole) != len(array):
        raise ValueError(
            f"`{name}` must be {group.size} whole numbers that add up to the array's {len(array)} rows, "
            f"not {splits}."
        )
    return whole
