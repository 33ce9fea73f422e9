"""What a source measured: seconds of a step or of a layer, and bytes, from whichever figures it prints.

Idea   Sources print seconds, tokens or samples a second, TFLOP/s or MFU: each gives the seconds of a step.
       The first of them that is stated counts.
Limit  Printed MFUs have many definitions; it is taken as ours (flops.py), of the peak of the run's own type
       of number.
"""

import re
from collections.abc import Mapping
from typing import Any

from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.flops import model_flops, recomputed_flops
from ndparallel.validation.hardware import number_in

# sources whose GB are 1024**3 bytes: KempnerForge's kempnerforge/metrics/memory.py
PRINTS_GIB = "KempnerForge"


def measured_seconds(measured: Mapping[str, Any], job: TrainingJob, plan: Plan) -> tuple[float | None, str]:
    """Return the seconds that the source gives or that follow from its figures, and what they measure;
    None where it gives none."""
    given = {key: number_in(value) for key, value in measured.items() if number_in(value)}
    if layer := seconds_of_layer(given):
        return layer
    ways = {
        "step_seconds": lambda value: value,
        "step_ms": lambda value: value / 1e3,
        "tokens_per_gpu_s": lambda value: job.global_batch * job.sequence / (value * plan.gpus),
        "tokens_per_s": lambda value: job.global_batch * job.sequence / value,
        "samples_per_s": lambda value: job.global_batch / value,
        "tflops_per_gpu": lambda value: model_flops(job) / (plan.gpus * value * 1e12),
        "model_tflops_per_gpu": lambda value: model_flops(job) / (plan.gpus * value * 1e12),
        "tflops_per_gpu_hw": lambda value: (
            (model_flops(job) + recomputed_flops(job, plan)) / (plan.gpus * value * 1e12)
        ),
        "mfu_pct": lambda value: model_flops(job) / (plan.gpus * value / 100 * job.peak),
    }
    return next((way(given[key]) for key, way in ways.items() if key in given), None), "step"


def seconds_of_layer(given: Mapping[str, float]) -> tuple[float, str] | None:
    """Return the seconds of one layer's passes, of both or of one."""
    forward, backward = (given.get(f"layer_{side}_ms", 0.0) for side in ("fwd", "bwd"))
    if total := given.get("layer_total_ms") or (forward + backward if forward and backward else 0.0):
        return total / 1e3, "layer"
    if forward or backward:
        return (forward or backward) / 1e3, "layer forward" if forward else "layer backward"
    return None


def measured_bytes(measured: Mapping[str, Any], source: str = "") -> float | None:
    """Return the bytes that the source gives; None where it gives none."""
    units = {"memory_gb": 2**30 if re.search(PRINTS_GIB, source) else 1e9, "memory_gib": 2**30}
    return next(
        (number_in(measured[key]) * unit for key, unit in units.items() if number_in(measured.get(key))), None
    )
