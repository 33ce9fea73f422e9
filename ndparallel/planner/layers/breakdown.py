"""Seconds by what they are spent on: compute, a kind of communication that nothing hides, the optimizer.

Glossary
    launch    seconds that a GPU waits for the CPU to launch its kernels; a step counts them as compute
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from ndparallel.base.sums import sum_of


class TimeBreakdown(dict[str, Any]):
    """Seconds by what they are spent on, of a list that hides nothing beyond its own end, 0 for all else; and
    the CPU's `launch_seconds`, than which the list takes no less."""

    launch_seconds: Any = 0.0

    def __missing__(self, kind: str) -> float:
        return 0.0

    @property
    def total(self) -> Any:
        return sum_of(self.values())

    def __add__(self, other: "TimeBreakdown") -> "TimeBreakdown":
        return total((self, other))

    @property
    def plain(self) -> "TimeBreakdown":
        """Leave out what takes no time; take Python's own numbers, which are the quickest."""
        if any(isinstance(seconds, np.ndarray) for seconds in self.values()):
            return self
        return self.launched(TimeBreakdown({kind: float(each) for kind, each in self.items() if each}))

    def times(self, factor) -> "TimeBreakdown":
        found = TimeBreakdown({kind: factor * seconds for kind, seconds in self.items()})
        found.launch_seconds = factor * self.launch_seconds
        return found

    def at(self, places: np.ndarray) -> "TimeBreakdown":
        """Those of plans of an array, of which some are at several places."""
        found = TimeBreakdown({kind: each[places] if np.ndim(each) else each for kind, each in self.items()})
        launch = self.launch_seconds
        found.launch_seconds = launch[places] if np.ndim(launch) else launch
        return found

    def launched(self, other: "TimeBreakdown") -> "TimeBreakdown":
        """Another one, of the same launches."""
        other.launch_seconds = self.launch_seconds
        return other


def end_to_end(parts: Sequence[TimeBreakdown], counts: Sequence[int]) -> TimeBreakdown:
    """Seconds of so many plans, and behind them those of as many others."""

    def column(seconds: Iterable[Any]) -> np.ndarray:
        return np.concatenate([np.full(count, each) for count, each in zip(counts, seconds)])

    kinds = dict.fromkeys(kind for part in parts for kind in part)
    found = TimeBreakdown({kind: column(part[kind] for part in parts) for kind in kinds})
    found.launch_seconds = column(part.launch_seconds for part in parts)
    return found


def total(parts: Iterable[TimeBreakdown], times: Iterable[int] = repeat(1)) -> TimeBreakdown:
    """The sum of parts, each as many times."""
    result = TimeBreakdown()
    for part, factor in zip(parts, times):
        for kind, seconds in part.items():
            result[kind] = result[kind] + factor * seconds
        result.launch_seconds = result.launch_seconds + factor * part.launch_seconds
    return result
