"""Predictions held against measured runs: the error of every case, and the contrasts inside pairs.

Idea   A constant TFLOP/s for each GPU already comes within 7 % on some tables. Pairs that differ in one thing
       show skill.
Limit  Where a run does not say something, a rule says it for all runs (see cases.py), and the case is marked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.prediction import peak_memory, time_step
from ndparallel.planner.step.framework import slowest
from ndparallel.validation.cases import Case, express

PAIRS = (  # runs that differ in one thing
    ("kor_t5_22B_full", "kor_t5_22B_seqsel"),
    ("kor_t5_175B_full", "kor_t5_175B_seqsel"),
    ("ptdp_t2_zero3_175B_384", "ptdp_t2_zero3_175B_1536"),
    ("zb_1.5B_ZB-2p_m24", "zb_1.5B_1F1B_m24"),
    ("zb_14.6B_ZB-2p_m48", "zb_14.6B_1F1B_m48"),
    ("kempner_mfu_04", "kempner_mfu_05"),
    ("titan_t1_eager", "titan_t1_compile"),
    ("zoo_qwen235_0", "zoo_qwen235_4"),
)


@dataclass(frozen=True)
class Result:
    """The measured and the predicted values of one case. Errors are signed fractions; None where nothing
    was measured."""

    name: str
    measured_seconds: float | None = None
    predicted_seconds: float | None = None
    measured_bytes: float | None = None
    predicted_bytes: float | None = None
    unstated: tuple[str, ...] = ()
    missed: str = ""

    @property
    def step_error(self) -> float | None:
        return _error(self.predicted_seconds, self.measured_seconds)

    @property
    def memory_error(self) -> float | None:
        return _error(self.predicted_bytes, self.measured_bytes)

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "measured_seconds": self.measured_seconds,
            "predicted_seconds": self.predicted_seconds,
            "step_error": self.step_error,
            "measured_memory_bytes": self.measured_bytes,
            "predicted_memory_bytes": self.predicted_bytes,
            "memory_error": self.memory_error,
        } | ({"missed": self.missed} if self.missed else {})


def _error(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or measured is None else predicted / measured - 1


def validate(runs: Iterable[Mapping[str, Any]]) -> list[Result]:
    """Predict every run. A run that cannot be expressed has the reason instead."""
    return [result_of(run) for run in runs]


def result_of(run: Mapping[str, Any]) -> Result:
    name = str(run.get("id", "?"))
    try:
        case = express(run)
        predicted = (
            float(predicted_seconds(case)),
            float(peak_memory(case.job, case.plan).total) * case.widened,
        )
    except UserError as error:
        return Result(name, missed=str(error))
    return Result(
        name,
        case.measured_seconds,
        predicted[0],
        case.measured_bytes,
        predicted[1],
        tuple(as_list(run.get("unknown"))),
    )


def as_list(unknown: Any) -> list[str]:
    return list(map(str, unknown)) if isinstance(unknown, list) else [str(unknown)] if unknown else []


def predicted_seconds(case: Case) -> float:
    """Return the seconds of a step, or of the last layer's passes where those were measured."""
    if not case.one_layer:
        return time_step(case.job, case.plan).seconds
    job = replace(case.job, hardware=slowest(case.job.hardware, case.plan.gpus))
    layer = Pricing(job, case.plan).unit(
        "experts" if job.shape.has_experts(job.shape.layers - 1) else "dense"
    )
    return {"layer": layer.total, "layer forward": layer.forward, "layer backward": layer.backward}[
        case.part
    ].total


def summary(results: list[Result]) -> dict[str, Any]:
    """Return what `validate --json` prints. A run that cannot be predicted counts with an error of 100 %;
    a run without measured seconds does not count."""
    steps = [
        1.0 if result.missed else abs(result.step_error or 0.0)
        for result in results
        if result.missed or result.measured_seconds
    ]
    memory = [abs(result.memory_error) for result in results if result.memory_error is not None]
    return {
        "cases": [result.as_json() for result in results],
        "mean_absolute_step_error": sum(steps) / len(steps) if steps else None,
        "max_absolute_step_error": max(steps, default=None),
        "mean_absolute_memory_error": sum(memory) / len(memory) if memory else None,
        "contrasts": contrasts(results),
    }


def contrasts(results: list[Result]) -> list[dict[str, Any]]:
    """Return the ratio of two steps for every pair whose runs are both in the list."""
    measured = {result.name: result.measured_seconds for result in results if result.measured_seconds}
    predicted = {result.name: result.predicted_seconds for result in results if result.predicted_seconds}
    return [
        {
            "pair": [a, b],
            "measured_ratio": measured[a] / measured[b],
            "predicted_ratio": predicted[a] / predicted[b],
        }
        for a, b in PAIRS
        if {a, b} <= predicted.keys()
    ]
