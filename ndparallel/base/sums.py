"""Sums of floats that every Python rounds alike: from 3.12 on `sum` carries along what additions lose."""

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any


def sum_of(numbers: Iterable[Any], start: Any = 0) -> Any:
    """Add numbers, or arrays of them, one after another."""
    return reduce(add, numbers, start)
