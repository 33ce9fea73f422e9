"""Seconds by what they are spent on: compute, a kind of communication that nothing hides, the optimizer."""

from collections.abc import Iterable
from typing import Any

import numpy as np


class TimeBreakdown(dict[str, Any]):
    """Seconds by what they are spent on, of a list that hides nothing beyond its own end."""

    @property
    def total(self) -> Any:
        return sum(self.values())

    def __add__(self, other: "TimeBreakdown") -> "TimeBreakdown":
        return total((self, other))

    @property
    def plain(self) -> "TimeBreakdown":
        """Without what takes no time; Python's own numbers, which are the quickest."""
        if any(isinstance(seconds, np.ndarray) for seconds in self.values()):
            return self
        return TimeBreakdown({kind: float(seconds) for kind, seconds in self.items() if seconds})

    def times(self, factor) -> "TimeBreakdown":
        return TimeBreakdown({kind: factor * seconds for kind, seconds in self.items()})


def total(parts: Iterable[TimeBreakdown]) -> TimeBreakdown:
    result = TimeBreakdown()
    for part in parts:
        for kind, seconds in part.items():
            result[kind] = result.get(kind, 0.0) + seconds
    return result
