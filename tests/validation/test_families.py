"""Claims about families of runs: means, bars and chance, worked out by hand."""

from itertools import product
from math import prod

import pytest

from ndparallel.validation.families import BARS, RunFamily, binomial_range, every_run, families_of
from ndparallel.validation.result import Result


def family(*results: Result) -> RunFamily:
    return RunFamily("of tests", results)


def run(measured: float | None, predicted: float | None = None, **others) -> Result:
    return Result("run", measured, predicted, **others)


def test_a_familys_errors_are_shares_of_what_was_measured_and_a_missed_run_is_all_wrong():
    found = family(run(10, 9), run(10, 11), run(10, 14)).as_json()
    numbers = {"mean_absolute_step_error": 0.6 / 3, "median_absolute_step_error": 0.1, "bias": 0.4 / 3}
    assert {name: found[name] for name in numbers} == pytest.approx(numbers) and found["runs"] == 3
    assert family(run(10, 9), run(None, missed="no such model")).mean == pytest.approx(1.1 / 2)


def test_the_best_constant_is_the_rate_of_the_run_to_which_the_others_are_nearest():
    """10, 5 and 2.5 FLOP/s: from 10 they are 0, a half and three quarters away, from 5 1, 0 and a half."""
    runs = [run(seconds, model_flops=10.0) for seconds in (1.0, 2.0, 4.0)]
    assert family(*runs).constant == pytest.approx(1.25 / 3)
    assert family(*runs[1:]).constant == pytest.approx(0.5 / 2)
    assert family(runs[0], run(None, 1.0, model_flops=10.0)).constant is None


def test_runs_are_inside_a_bar_up_to_its_end_and_those_without_one_are_not_asked():
    bars = [run(measured, 1.0, error_bar=0.25) for measured in (1.0, 0.75, 1.3, 1.5, 1.6)]
    found = family(*bars, run(1.0, 1.0), run(None, 1.0, error_bar=0.25))
    assert (found.inside(1), found.inside(2)) == (2 / 5, 4 / 5)
    assert family(run(1.0, 1.0)).inside(1) is None


@pytest.mark.parametrize("runs", [1, 2, 5, 9])
@pytest.mark.parametrize("bars", BARS)
def test_what_chance_leaves_inside_is_what_all_outcomes_together_say(runs, bars):
    """Fewer than usual, or more, are at most a fortieth of all outcomes; one more run would be more."""
    share, outcomes = BARS[bars], list(product((0, 1), repeat=runs))

    def chance(holds) -> float:
        some = [outcome for outcome in outcomes if holds(sum(outcome))]
        return sum(prod(share if inside else 1 - share for inside in outcome) for outcome in some)

    least, most = binomial_range(runs, share)
    assert chance(lambda inside: inside < least) <= 0.025 < chance(lambda inside: inside <= least)
    assert chance(lambda inside: inside > most) <= 0.025 < chance(lambda inside: inside >= most)
    results = [run(1.0 if place < least else 9.0, 1.0, error_bar=0.1) for place in range(runs)]
    assert family(*results).usual(bars) == (least / runs, most / runs) and family(*results).is_usual(bars)
    assert family(*results[1:], results[-1]).is_usual(bars) == (not least)


def test_chance_explains_whatever_a_family_without_bars_is():
    assert family(run(1.0, 2.0)).usual(1) == (0, 0) and family(run(1.0, 2.0)).is_usual(1)


def test_families_have_the_runs_that_count_in_the_order_in_which_they_come():
    results = [run(1.0, family="b"), run(None, family="b"), run(1.0, family="a"), run(2.0, family="b")]
    found = {each.name: [one.measured_seconds for one in each.results] for each in families_of(results)}
    assert found == {"b": [1.0, 2.0], "a": [1.0]} and [*found] == ["b", "a"]
    assert [one.measured_seconds for one in every_run(results).results] == [1.0, 1.0, 2.0]
