"""Rung 3 at a thousand GPUs: `python benchmarks/sizes.py [dp ...]`, 16 and 2 where none is given.

4D's rank program runs the sizes of Llama-3-70B on TP8 x PP8 x DP16, 1,024 H100s in this one process, and the
planner predicts the same step: on the clocks of all GPUs, and by its schedule's actions alone. Seconds are
CPU seconds of this process, memory is its largest.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ndparallel.base.errors import guarded
from ndparallel.engines.launch import launch
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import with_event_sums
from ndparallel.parallel.mesh import Mesh
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.lesson_runs.model import config_of
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import peak_memory, time_step
from ndparallel.planner.software import find_stack
from ndparallel.results.measure import peak_memory as counted_bytes
from ndparallel.training.job import Job

MICROBATCHES = 16


def llama(dp: int) -> tuple[TrainingJob, Plan]:
    """Llama-3-70B, one sequence of 2,048 tokens in a microbatch."""
    shape, hardware, stack = find_model("llama-3-70b"), find_hardware("h100"), find_stack("pocket")
    return TrainingJob(shape, hardware, stack, 2048, MICROBATCHES * dp), Plan(tp=8, pp=8, dp=dp)


def executed(job: TrainingJob, plan: Plan) -> tuple[float, dict[str, float]]:
    """Seconds of the step and peak memory of the fullest GPU, as the lesson's own ranks count them."""
    mesh = Mesh(tp=plan.tp, pp=plan.pp, dp=plan.dp)
    lesson = Job(config_of(job), mesh, job.global_batch, MICROBATCHES, sizes_only=True)
    program = load("4d_combined").strategies[0].program
    ranks = launch(with_event_sums, mesh.world_size, job.hardware, program, lesson, engine="inline")
    return max(rank.end_seconds for rank in ranks), counted_bytes(ranks)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    return work(), time.process_time() - start


def compare(dp: int) -> None:
    job, plan = llama(dp)
    (seconds, memory), took = timed(lambda: executed(job, plan))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{plan.gpus:,} GPUs: executed in {took:.0f} s and {peak / 1e9:.2f} GB, a step of {seconds:.6f} s")
    quick = replace(job, stack=replace(job.stack, grid=False))
    for name, planned in {"on the clocks of all GPUs": job, "by the schedule's actions": quick}.items():
        step, took = timed(lambda: float(time_step(planned, plan).seconds))  # noqa: B023
        print(f"  planned {name}: {step:.6f} s, {step / seconds - 1:+.1e}, in {took:.1f} s")
    planned_bytes = peak_memory(job, plan).total
    print(f"  memory: {memory['total']:,.0f} B counted, {planned_bytes - memory['total']:+,.0f} B planned")


def main(sizes: list[int]) -> None:
    for dp in sizes:
        compare(dp)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dp", type=int, nargs="*", default=[16, 2])
    raise SystemExit(guarded(lambda: main(parser.parse_args().dp)))
