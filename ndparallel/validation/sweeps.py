"""Sweeps: one job that was measured with several layouts, and what following the predictions would have
cost.

Idea   Of each sweep the layout that is predicted to be the quickest is taken; its regret is how much longer
       it was measured to take than the quickest that was measured.
Limit  Layouts that nobody measured do not count, and who publishes a sweep has chosen its layouts.

Glossary
    sweep    runs of the same model on the same GPUs and software, with the same batch and precision
    chance   how much longer than the quickest the layouts of a sweep took on average: the regret of a guess
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ndparallel.base.sums import sum_of
from ndparallel.planner.job import Plan
from ndparallel.validation.cases import express
from ndparallel.validation.result import Result

FEWEST = 3  # layouts: of two a coin finds the better one half of the time
SAME = ("gpus", "hardware", "software", "model", "precision")


@dataclass(frozen=True)
class LayoutSweep:
    """The results of one sweep's layouts."""

    results: Sequence[Result]

    @property
    def quickest(self) -> float:
        return min(measured(result) for result in self.results)

    @property
    def regret(self) -> float:
        first = min(self.results, key=lambda result: result.predicted_seconds or 0.0)
        return measured(first) / self.quickest - 1

    @property
    def chance(self) -> float:
        return sum_of(measured(result) for result in self.results) / len(self.results) / self.quickest - 1


def measured(result: Result) -> float:
    assert result.measured_seconds
    return result.measured_seconds


def sweeps_of(runs: Iterable[Mapping[str, Any]], results: Iterable[Result]) -> list[LayoutSweep]:
    """The sweeps among these runs: those of a whole step, with at least FEWEST layouts."""
    found: dict[str, dict[Plan, Result]] = {}
    for run, result in zip(runs, results):
        batch = run.get("batch") or {}
        if result.step_error is not None and result.model_flops and batch.get("global"):
            job = [run.get(name) for name in SAME] + [batch["global"], batch.get("sequence")]
            found.setdefault(words(job), {}).setdefault(express(run).plan, result)
    return [LayoutSweep([*layouts.values()]) for layouts in found.values() if len(layouts) >= FEWEST]


def words(fields: Any) -> str:
    return json.dumps(fields, sort_keys=True, default=str)


def as_json(sweeps: Sequence[LayoutSweep]) -> dict[str, Any] | None:
    """What `validate --json` says of all sweeps together."""
    if not sweeps:
        return None
    return {
        "sweeps": len(sweeps),
        "layouts": sum(len(sweep.results) for sweep in sweeps),
        "mean_regret": sum_of(sweep.regret for sweep in sweeps) / len(sweeps),
        "max_regret": max(sweep.regret for sweep in sweeps),
        "mean_regret_of_a_guess": sum_of(sweep.chance for sweep in sweeps) / len(sweeps),
        "without_regret": sum(sweep.regret == 0 for sweep in sweeps),
    }
