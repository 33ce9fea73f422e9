"""Rung 3 on many GPUs: 4D's own ranks run the sizes of real models, and the planner's step and memory are
what their clocks and memory counted. benchmarks/sizes.py does it on 1,024."""

from dataclasses import replace
from typing import Any

import pytest

from ndparallel.engines.launch import launch
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.lessons.registry import load
from ndparallel.parallel.mesh import Mesh
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.lesson_runs.model import config_of
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import peak_memory, time_step
from ndparallel.planner.software import POCKET as STACK
from ndparallel.results.measure import peak_memory as counted_bytes
from ndparallel.training.job import Job as LessonJob

H100 = replace(find_hardware("h100"), memory_bytes=1e15)
SEQUENCE_PARALLEL = {True: "sp", False: "none"}


def training_job(model: ModelShape, sequence: int, global_batch: int, **software: Any) -> TrainingJob:
    return TrainingJob(model, H100, replace(STACK, **software), sequence, global_batch)


def executed(job: TrainingJob, plan: Plan):
    """The lesson's ranks, each on its clock, in this process."""
    lesson = LessonJob(
        config_of(job),
        Mesh(plan.tp, plan.cp, plan.dp, plan.pp, plan.ep, etp=plan.etp(job.stack)),
        job.global_batch,
        plan.microbatches(job),
        recompute=plan.recompute,
        sequence_parallel=SEQUENCE_PARALLEL[plan.sequence_parallel],
        context_parallel=job.stack.context_parallel,
        schedule=plan.schedule,
        stage_chunks=plan.chunks if plan.chunks > 1 else None,
        zero=plan.zero,
        dtype=job.stack.dtype,
        sizes_only=True,
    )
    program = load("4d_combined").strategies[0].program
    return launch(program, plan.gpus, job.hardware, lesson, engine="inline", keep_events=False)


def assert_predicted(results, job: TrainingJob, plan: Plan) -> None:
    seconds, counted = max(result.end_seconds for result in results), counted_bytes(results)
    assert float(time_step(job, plan).seconds) == pytest.approx(seconds, rel=1e-6)
    memory = peak_memory(job, plan)
    assert {kind: getattr(memory, kind) for kind in counted} == counted


def quick(job: TrainingJob) -> TrainingJob:
    """The same job, timed by its schedule's actions as a framework's is."""
    return replace(job, stack=replace(job.stack, grid=False))


def test_llama_3_70b_on_128_gpus():
    job, plan = training_job(find_model("llama-3-70b"), 2048, 16), Plan(tp=8, pp=8, dp=2)
    results = executed(job, plan)
    assert len(results) == 128
    assert_predicted(results, job, plan)
    seconds = max(result.end_seconds for result in results)
    assert float(time_step(quick(job), plan).seconds) == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize(("model", "plan", "software"), [
    ("llama-3-8b", Plan(tp=2, pp=4, dp=2, zero=2, sequence_parallel=True, recompute="full"), {}),
    ("llama-3-8b", Plan(tp=2, cp=4, dp=2, zero=3, recompute="selective"), {}),
    ("llama-3-8b", Plan(cp=4, pp=2, dp=2, zero=1), {"context_parallel": "all-gather"}),
    ("llama-3-8b", Plan(tp=4, pp=2, chunks=2, schedule="interleaved", sequence_parallel=True), {}),
    ("mixtral-8x7b", Plan(tp=2, pp=2, dp=4, ep=4, zero=1), {}),
    ("mixtral-8x7b", Plan(pp=2, dp=4, ep=2, zero=2, schedule="zb-h1"), {"dtype": "bfloat16"}),
    ("mixtral-8x7b", Plan(tp=2, cp=2, dp=2, ep=2, sequence_parallel=True, recompute="full"), {}),
    ("mixtral-8x7b", Plan(tp=4, pp=2, dp=2, ep=8, zero=1, sequence_parallel=True), {"expert_tp": False}),
], ids=repr)  # fmt: skip
def test_experts_context_recomputation_and_sequence_parallelism_in_smaller_grids(model, plan, software):
    eight_layers = replace(find_model(model), layers=8)
    job = training_job(eight_layers, 1024, 4 * plan.dp, **software)
    assert_predicted(executed(job, plan), job, plan)
