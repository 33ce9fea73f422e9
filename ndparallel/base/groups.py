"""Groups of ranks: what a collective asks of its group and of its arguments, and how arrays are combined.

Limit  One rank's own arguments are checked; what the ranks of a group disagree about, `GPU.receive` finds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

Array = np.ndarray
REDUCTIONS: dict[str, Callable] = {"sum": np.add, "average": np.add, "max": np.maximum}


@dataclass(frozen=True)
class Group:
    """Ranks that work together. The stream of their messages has the group's name."""

    name: str
    ranks: tuple[int, ...]

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
            if self.size <= 8
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
        if not hasattr(root, "__index__") or not 0 <= root < self.size:
            raise ValueError(f"group {self.name!r} has members 0 to {self.size - 1}, and no root {root}.")
        return root


def reduction(op: str, array: Array) -> Callable:
    """Return what combines two arrays. Raises ValueError for an unknown one, and for an average of whole
    numbers."""
    if op not in REDUCTIONS:
        raise ValueError(f"there is no reduction {op!r}; there are {', '.join(REDUCTIONS)}.")
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
    if array.size != size:
        elements = f"{array.size} element{'s' * (array.size != 1)}"
        raise ValueError(f"`{name}` has {elements}; this rank's piece has {size}.")


def checked_splits(name: str, splits: Sequence[int] | Array, array: Array, group: Group) -> Sequence[int]:
    if len(splits) != group.size or sum(splits) != len(array) or min(splits) < 0:
        raise ValueError(
            f"`{name}` must be {group.size} numbers that add up to the array's {len(array)} rows, not "
            f"{[*map(int, splits)]}."
        )
    return [*splits]
