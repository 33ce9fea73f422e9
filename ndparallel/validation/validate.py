"""Predictions held against measured runs: the error of every case, and the contrasts inside pairs.

Idea   A constant TFLOP/s for each GPU already comes within 7% on some tables. Pairs that differ in one thing
       show skill.
Limit  Where a run does not say something, a rule says it for all runs (see cases.py), and the case is marked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.sums import sum_of
from ndparallel.engines.forking import map_in_forks
from ndparallel.planner.error_bar import error_bar, source_of
from ndparallel.planner.layers.flops import model_flops
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.prediction import peak_memory, time_step
from ndparallel.planner.step.framework import slowest_of
from ndparallel.validation.cases import Case, express, read_cases
from ndparallel.validation.families import every_run, families_of
from ndparallel.validation.result import Result

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


def validate(runs: Iterable[Mapping[str, Any]]) -> list[Result]:
    """Predict every run. A run that cannot be expressed has the reason instead."""
    return map_in_forks(result_of, list(runs))


@cache
def published_results() -> list[Result]:
    """Return the predictions of the package's own runs, which are made once."""
    return validate(read_cases())


def result_of(run: Mapping[str, Any]) -> Result:
    name, family = str(run.get("id", "?")), str(run.get("family") or "other")
    try:
        case = express(run)
        predicted = (float(predicted_seconds(case)), predicted_bytes(case))
    except UserError as error:
        return Result(name, missed=str(error), family=family)
    return Result(
        name,
        case.measured_seconds,
        predicted[0],
        case.measured_bytes,
        predicted[1],
        tuple(as_list(run.get("unknown"))),
        family=family,
        error_bar=error_bar(
            case.job, case.plan, without=source_of(case.source), software=case.software
        ).fraction,
        model_flops=0.0 if case.one_layer else model_flops(case.job) / case.plan.gpus,
        notes=case.notes,
    )


def as_list(unknown: Any) -> list[str]:
    return list(map(str, unknown)) if isinstance(unknown, list) else [str(unknown)] if unknown else []


def predicted_seconds(case: Case) -> float:
    """Return the seconds of a step, or of the last layer's passes where those were measured."""
    if not case.one_layer:
        return time_step(case.job, case.plan).seconds
    job = replace(case.job, hardware=slowest_of(case.job.hardware, case.plan.gpus))
    layer = Pricing(job, case.plan).unit(job.shape.last_kind)
    return {"layer": layer.total, "layer forward": layer.forward, "layer backward": layer.backward}[
        case.part
    ].total


def predicted_bytes(case: Case) -> float:
    """Return what the framework prints as a GPU's memory: PyTorch's tensors at their peak, or its blocks."""
    memory = peak_memory(case.job, case.plan)
    printed = memory.reserved if case.job.stack.prints_reserved else memory.allocated
    return float(printed) * case.widened


def summary(results: list[Result]) -> dict[str, Any]:
    """Return what `validate --json` prints. A run that cannot be predicted counts with an error of 100%;
    a run without measured seconds does not count."""
    steps = [abs(result.counted_error) for result in results if result.counts]
    memory = [abs(result.memory_error) for result in results if result.memory_error is not None]
    return {
        "cases": [result.as_json() for result in results],
        "mean_absolute_step_error": sum_of(steps) / len(steps) if steps else None,
        "max_absolute_step_error": max(steps, default=None),
        "mean_absolute_memory_error": sum_of(memory) / len(memory) if memory else None,
        "contrasts": contrasts(results),
        "families": [family.as_json() for family in families_of(results)],
        "all_runs": every_run(results).as_json() if steps else None,
    }


def contrasts(results: list[Result]) -> list[dict[str, Any]]:
    """Return the ratio of two steps for every pair whose runs are both in the list with measured seconds."""
    measured = {result.name: result.measured_seconds for result in results if result.measured_seconds}
    predicted = {result.name: result.predicted_seconds for result in results if result.predicted_seconds}
    return [
        {
            "pair": [a, b],
            "measured_ratio": measured[a] / measured[b],
            "predicted_ratio": predicted[a] / predicted[b],
        }
        for a, b in PAIRS
        if {a, b} <= predicted.keys() & measured.keys()
    ]
