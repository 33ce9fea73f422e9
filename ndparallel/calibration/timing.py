"""Repeated measurements of what can be run, in turn, and within a time that is given.

Idea   A round measures everything once, one after another, and rounds follow one another: a machine that
       drifts drifts under all of it. What is short is run so often within a window that the clock can see it,
       and of a round's windows the least counts: an interrupt, or a program that wakes up, is not in all of
       them. When the time is over, the rounds that there are must do. The median of the rounds counts; their
       spread says what it is worth.
Cost   rounds * windows * sum of max(a window's seconds, one run), and a first round that only warms up and
       counts; at most the time that is given, and one measurement more.
Limit  What a machine does always (a frequency that is always low) no spread shows; programs that never rest
       are seen, where the wall's clock counts, by how long this thread had to wait for a core.

Glossary
    window      runs in a row, timed together
    sampler     measures once in a round, and returns seconds
    samples     seconds of one run, one for each round
    spread      the distance of the samples' quartiles, in their median
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.results.progress import Announce

MOST_SPREAD = 0.25
LEAST_SHARE = 0.9  # of the wall's seconds, in which a quiet machine's thread has a core
FEWEST_ROUNDS = 3
Key = TypeVar("Key")
Run = Callable[[], object]
Sampler = Callable[[], float]
Clock = Callable[[], float]  # seconds, when all that was begun is done


class Budget:
    """A limit of seconds from now on. Where several processes measure together, `agreed` tells all of them
    that it is over when one finds so."""

    def __init__(self, seconds: float, now: Clock = time.monotonic) -> None:
        self.seconds, self.now, self.end = seconds, now, now() + seconds
        self.agreed: Callable[[bool], bool] = bool

    def is_over(self) -> bool:
        return self.agreed(self.now() >= self.end)


class Windows(NamedTuple):
    """The windows of a sample: how many, and how long each is; one run may take longer."""

    number: int
    seconds: float


class Repeated:
    """A sampler of what is short: the mean seconds of a run in the quickest of its windows. The first sample
    counts how many calls a window has; a call may be several runs."""

    def __init__(self, call: Run, windows: Windows, clock: Clock, runs: int = 1) -> None:
        self.call, self.windows, self.clock, self.runs, self.times = call, windows, clock, runs, 0

    def __call__(self) -> float:
        self.times = self.times or repetitions(self.call, self.windows.seconds, self.clock)
        return (
            min(mean_seconds(self.call, self.times, self.clock) for _ in range(self.windows.number))
            / self.runs
        )


class Core:
    """How long this thread had a core while something was measured, of the wall's seconds."""

    def __init__(self, wall: Clock = time.perf_counter, own: Clock = time.thread_time) -> None:
        self.clocks, self.seconds = (own, wall), np.zeros(2)

    def watching(self, sampler: Sampler) -> Sampler:
        """Return the sampler, watched after its first sample, which may wait for a compiler."""
        earlier = count()

        def watched() -> float:
            before = self.now()
            seconds = sampler()
            if next(earlier):
                self.seconds += self.now() - before
            return seconds

        return watched

    def now(self) -> np.ndarray:
        return np.array([clock() for clock in self.clocks])

    def check(self) -> None:
        """Raise UserError where the thread had to wait."""
        own, wall = self.seconds
        if own < LEAST_SHARE * wall:
            raise UserError(
                f"this process had a processor for {own / wall:.0%} of the time, and at least "
                f"{LEAST_SHARE:.0%} are a calibration: something else runs on this machine, or it has fewer "
                "processors than processes. Stop the others and try again, or count CPU seconds (--cpu-time)."
            )


def measure_in_turn(
    samplers: Mapping[Key, Sampler], rounds: int, budget: Budget, announce: Announce
) -> dict[Key, list[float]]:
    """Return the samples of each. Raises UserError where the time is over before there are enough rounds."""
    samples: dict[Key, list[float]] = {key: [] for key in samplers}
    for number in range(rounds + 1):
        with no_garbage_collected():
            for key, sampler in samplers.items():
                if budget.is_over():
                    check_rounds(samples, budget.seconds)
                    return samples
                announce(f"{key}, round {number} of {rounds}" if number else f"{key}, for the first time")
                seconds = sampler()
                if number:
                    samples[key].append(seconds)
    return samples


@contextmanager
def no_garbage_collected() -> Iterator[None]:
    """Collect garbage now, and none while this lasts."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def of_kind(samples: Mapping[Any, list[float]], kind: type) -> dict[Any, list[float]]:
    """Return the samples of kernels, of transfers, or of steps."""
    return {key: found for key, found in samples.items() if isinstance(key, kind)}


def check_rounds(samples: Mapping[Any, list[float]], seconds: float) -> None:
    """Raise UserError where a median would stand on too little."""
    if (fewest := min(map(len, samples.values()))) < FEWEST_ROUNDS:
        raise UserError(
            f"in {seconds:g} seconds this machine had time for {fewest} of the {FEWEST_ROUNDS} rounds that "
            "a calibration needs: something else runs on it. Stop it and try again, or measure longer "
            "(without --quick)."
        )


def repetitions(run: Run, least_seconds: float, clock: Clock) -> int:
    """Return how often a run must be repeated to take so long; it is warm afterwards."""
    run()
    times = 1
    while (seconds := times * mean_seconds(run, times, clock)) < least_seconds:
        wanted = int(times * least_seconds / seconds) + 1 if seconds > 0 else 2 * times
        times = max(times + 1, min(10 * times, wanted))
    return times


def mean_seconds(run: Run, times: int, clock: Clock) -> float:
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


def check_spread(samples: Mapping[Any, list[float]], or_else: str = "") -> None:
    """Raise UserError where measurements of one thing differ too much from one another; `or_else` is what may
    help beside the usual."""
    spreads = {name: spread(found) for name, found in samples.items()}
    name, largest = max(spreads.items(), key=lambda one: one[1])
    if largest > MOST_SPREAD:
        raise UserError(
            f"repeated measurements of {name} spread by {largest:.0%} of their median, and at most "
            f"{MOST_SPREAD:.0%} are a calibration: something else runs on this machine, or its clock "
            f"frequency changes. Stop it and try again, or measure longer (without --quick){or_else}."
        )
