"""Rounds, windows and their spread, on clocks that are made up: no test measures."""

import gc
from collections.abc import Iterator
from itertools import chain, count, repeat
from types import SimpleNamespace

import pytest

from ndparallel.base.errors import UserError
from ndparallel.calibration.kernels import Kernel
from ndparallel.calibration.links import REPETITIONS, MeasuredTransfer, Together
from ndparallel.calibration.timing import (
    Budget,
    Core,
    Repeated,
    Windows,
    check_spread,
    measure_in_turn,
    median,
    repetitions,
    spread,
)

ONE_RUN = Windows(1, 0.0)


@pytest.fixture(autouse=True)
def little_garbage() -> Iterator[None]:
    """Spare what other tests left: it would be looked through once a round."""
    gc.freeze()
    yield
    gc.unfreeze()


class Clock:
    """A clock that moves when something runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def runs(self, seconds):
        def run() -> None:
            self.now += next(seconds)

        return run


def test_everything_is_measured_once_in_every_round_and_what_is_short_often():
    clock = Clock()
    order: list[str] = []
    slow, quick = clock.runs(iter(lambda: 1.0, 0)), clock.runs(iter(lambda: 0.125, 0))
    one = Windows(1, 1.0)
    runs = {"slow": Repeated(slow, one, clock), "quick": Repeated(quick, one, clock)}
    samples = measure_in_turn(runs, 3, Budget(100, clock), order.append)
    assert samples == {"slow": [1.0] * 3, "quick": [0.125] * 3}
    assert [words.split(",")[0] for words in order[2:]] == ["slow", "quick"] * 3


def test_a_call_that_is_several_runs_counts_as_so_many():
    clock = Clock()
    assert Repeated(clock.runs(repeat(1.0)), Windows(1, 2.0), clock, runs=8)() == pytest.approx(0.125)


def test_a_machine_that_drifts_drifts_under_all_that_is_measured():
    clock = Clock()
    speed = (1.0 + number / 100 for number in count())  # ever slower

    def run() -> None:
        clock.now += next(speed)

    both = {name: Repeated(run, ONE_RUN, clock) for name in ("a", "b")}
    samples = measure_in_turn(both, 9, Budget(1000, clock), lambda words: None)
    assert median(samples["a"]) / median(samples["b"]) == pytest.approx(1, abs=0.02)


def test_an_interrupt_in_one_of_a_rounds_windows_does_not_count():
    clock = Clock()
    first = [1.0] * 5  # one warms up, four find that three are enough
    windows = [1.0, 1.3, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0]
    run = Repeated(clock.runs(iter([*first, *windows])), Windows(3, 2.0), clock)
    assert run() == pytest.approx(1.0) and clock.now == pytest.approx(sum(first + windows))


@pytest.mark.parametrize("each", [2.0, 0.125, 1e-3])
def test_a_run_is_repeated_until_a_window_is_full_and_hardly_longer(each):
    clock = Clock()
    times = repetitions(clock.runs(repeat(each)), 1.0, clock)
    assert 1.0 <= times * each <= max(1.1 + each, 2.0)


def test_a_collective_is_repeated_as_often_as_a_window_is_long():
    clock, calls = Clock(), count()
    torch = SimpleNamespace(distributed=SimpleNamespace(barrier=lambda: None))

    def run() -> None:
        next(calls)
        clock.now += 0.125

    together = Together(torch, run, Windows(3, 1.0), clock)
    assert [together(), together()] == [0.125] * 2
    assert next(calls) == REPETITIONS + 2 * 3 * 8


def test_no_garbage_is_collected_while_something_is_measured():
    enabled: list[bool] = []

    def sampler() -> float:
        enabled.append(gc.isenabled())
        return 1.0

    measure_in_turn({"a": sampler}, 3, Budget(100), lambda words: None)
    assert not any(enabled) and gc.isenabled()


@pytest.mark.parametrize(("programs", "is_refused"), [(0, False), (1, True)])
def test_a_thread_that_shares_its_core_with_a_program_that_never_rests_is_refused(programs, is_refused):
    """Two that want one core have it for half of the time each; no spread shows that."""
    wall, own = Clock(), Clock()
    core, waiting = Core(wall, own), chain([100.0], repeat(programs))  # first for a compiler

    def sampler() -> float:
        own.now += 1.0
        wall.now += 1.0 + next(waiting)
        return 1.0

    samples = measure_in_turn({"a": core.watching(sampler)}, 3, Budget(100), lambda words: None)
    check_spread(samples)
    if is_refused:
        with pytest.raises(UserError, match="had a processor for 50% of the time"):
            core.check()
    else:
        core.check()


def measured_for(seconds: float, rounds: int = 15) -> tuple[dict[str, list[float]], float]:
    """Samples of ten runs of a second each in so much time, and the time that it took."""
    clock = Clock()
    runs = {f"{number}": Repeated(clock.runs(iter(lambda: 1.0, 0)), ONE_RUN, clock) for number in range(10)}
    return measure_in_turn(runs, rounds, Budget(seconds, clock), lambda words: None), clock.now


@pytest.mark.parametrize("seconds", [60, 65, 100])
def test_measuring_ends_when_its_time_is_over_with_the_rounds_that_there_are(seconds):
    samples, taken = measured_for(seconds)
    assert seconds <= taken < seconds + 2
    assert {len(found) for found in samples.values()} <= {*range(3, 15)}


def test_a_machine_too_busy_for_three_rounds_is_refused():
    with pytest.raises(UserError, match="in 40 seconds this machine had time for 1 of the 3 rounds"):
        measured_for(40)


def test_what_one_process_finds_over_is_over_for_all():
    clock = Clock()
    budget = Budget(1.0, clock)
    budget.agreed = lambda over: True  # another process found so
    with pytest.raises(UserError, match="time for 0 of the 3"):
        measure_in_turn({"a": lambda: 1.0}, 3, budget, lambda words: None)


def test_spread_is_the_distance_of_the_quartiles_in_the_median():
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert spread([2.0] * 7) == 0


def test_a_machine_whose_measurements_spread_too_far_is_refused_with_the_worst_kernel():
    with pytest.raises(UserError, match="matmul 8 x 8 x 8 in float32 spread by 40%"):
        check_spread({Kernel("matmul", "float32", (8, 8, 8)): spread_by(0.4), "sum": spread_by(0.1)})
    with pytest.raises(UserError, match="all_gather inside of 1,024 bytes spread by 30%"):
        check_spread({MeasuredTransfer("all_gather", "inside", 2, 1024): spread_by(0.3)})
    check_spread({"sum": spread_by(0.25)})


def spread_by(share: float) -> list[float]:
    return [1 - share / 2] * 2 + [1.0] + [1 + share / 2] * 2
