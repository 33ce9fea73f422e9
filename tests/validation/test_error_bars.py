"""Claims about the constants of the error bar, on the errors of all public runs."""

from functools import partial
from math import log
from statistics import median

import pytest

from ndparallel.planner import error_bar
from ndparallel.planner.error_bar import bar_of, known_errors, of_prediction, weighted_errors

RUNS = known_errors()
EVERY = 5  # runs are tried: neighbours are of one sweep


def held_out(nearer: float, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Errors, and the bars that the runs of other sources make."""
    monkeypatch.setattr(error_bar, "NEARER", nearer)
    return [
        (
            of_prediction(run["step_error"]),
            bar_of(weighted_errors(frozenset(run["traits"]), others, "step_error")),
        )
        for run in RUNS[::EVERY]
        for others in [[other for other in RUNS if other["source"] != run["source"]]]
    ]


def likelihood(pairs: list[tuple[float, float]]) -> float:
    """The mean logarithm of a normal density, but for a constant."""
    return sum(-log(bar) - (error / bar) ** 2 / 2 for error, bar in pairs) / len(pairs)


def test_likeness_weighs_as_much_as_makes_the_errors_of_other_sources_likeliest(monkeypatch):
    by_weight = {nearer: likelihood(held_out(nearer, monkeypatch)) for nearer in (0.5, 0.7, 0.9)}
    assert max(by_weight, key=lambda nearer: by_weight[nearer]) == 0.9


def test_a_bar_holds_two_thirds_of_the_runs_of_other_sources_and_two_nearly_all(monkeypatch):
    pairs = held_out(0.9, monkeypatch)
    inside = [sum(error <= bars * bar for error, bar in pairs) / len(pairs) for bars in (1, 2)]
    assert 0.6 <= inside[0] <= 0.78 and 0.9 <= inside[1] <= 0.98


def test_a_trait_that_no_run_has_widens_the_bar_by_what_leaving_out_the_median_trait_costs():
    ratios = []
    for trait in {trait for run in RUNS for trait in run["traits"]}:
        without = [run for run in RUNS if trait not in run["traits"]]
        having = [run for run in RUNS if trait in run["traits"]]
        if len(having) >= error_bar.FEWEST:
            tried = having[:: max(1, len(having) // 8)]
            ratios.append(sorted(map(partial(over_bar, without), tried))[int(0.68 * len(tried))])
    assert median(ratios) == pytest.approx(error_bar.WIDER, abs=0.1)


def over_bar(others, run) -> float:
    """A run's error in the bars that these others make."""
    strangers = [other for other in others if other["source"] != run["source"]]
    bar = bar_of(weighted_errors(frozenset(run["traits"]), strangers, "step_error"))
    return of_prediction(run["step_error"]) / bar
