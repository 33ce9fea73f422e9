"""Repeated measurements of what can be run: in turn, so that a machine that drifts drifts under all of them.

Idea   A round runs everything once, one after another, and rounds follow one another. What is short is run so
       often within a round that the clock can see it. The median of the rounds counts; their spread says what
       it is worth.
Cost   rounds * sum of max(`least_seconds`, one run), and a first round that only warms up and counts.
Limit  What a machine does always (a frequency that is always low) no spread shows.

Glossary
    samples     seconds of one run, one for each round
    spread      the distance of the samples' quartiles, in their median
"""

import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from ndparallel.base.errors import UserError

MOST_SPREAD = 0.25  # an assumption
Key = TypeVar("Key")
Run = Callable[[], object]
Clock = Callable[[], float]  # seconds, when all that was begun is done
Announce = Callable[[str], None]


def measure_in_turn(
    runs: Mapping[Key, Run], rounds: int, least_seconds: float, clock: Clock, announce: Announce
) -> dict[Key, list[float]]:
    """Return the samples of each run."""
    times = {}
    for key, run in runs.items():
        announce(f"{key}, for the first time")
        times[key] = repetitions(run, least_seconds, clock)
    samples: dict[Key, list[float]] = {key: [] for key in runs}
    for number in range(1, rounds + 1):
        for key, run in runs.items():
            announce(f"{key}, round {number} of {rounds}")
            samples[key].append(seconds_of(run, times[key], clock))
    return samples


def repetitions(run: Run, least_seconds: float, clock: Clock) -> int:
    """Return how often a run must be repeated to take so long; it is warm afterwards."""
    run()
    times = 1
    while (seconds := times * seconds_of(run, times, clock)) < least_seconds:
        wanted = int(times * least_seconds / seconds) + 1 if seconds > 0 else 2 * times
        times = max(times + 1, min(10 * times, wanted))
    return times


def seconds_of(run: Run, times: int, clock: Clock) -> float:
    """Return the mean seconds of so many runs in a row."""
    start = clock()
    for _ in range(times):
        run()
    return (clock() - start) / times


def median(samples: list[float]) -> float:
    return statistics.median(samples)


def spread(samples: list[float]) -> float:
    """Return the distance of the quartiles, in the median."""
    low, high = np.quantile(samples, (0.25, 0.75))
    return float((high - low) / median(samples))


def check_spread(spreads: Mapping[str, float]) -> None:
    """Raise UserError where measurements of one thing differ too much from one another."""
    name, largest = max(spreads.items(), key=lambda one: one[1])
    if largest > MOST_SPREAD:
        raise UserError(
            f"repeated measurements of {name} spread by {largest:.0%} of their median, and at most "
            f"{MOST_SPREAD:.0%} are a calibration: something else runs on this machine, or its clock "
            "frequency changes. Stop it and try again, measure longer (without --quick), or count CPU "
            "seconds (--cpu-time)."
        )
