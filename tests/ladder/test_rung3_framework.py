"""Rung 3 of real frameworks' plans: what prices and times them gives the step and the bytes of the executed
lessons, where both are to price the same thing.

Between two ranks NCCL's ring and the lessons' are the same sum; what NCCL adds to it, a start and slower
compute beside it, is left out here, and so is a kernel's overhead, since a framework steps all its
parameters in one kernel. The lessons run in bfloat16 with float32 masters, as frameworks do."""

from dataclasses import replace
from typing import Any

import pytest

from ndparallel.model.stages import layers_per_stage
from ndparallel.parallel.mesh import Mesh
from ndparallel.pipeline.catalog import written
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers import collective_time, pricing
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.memory.total import in_flight
from ndparallel.planner.prediction import peak_memory, step_of, time_step
from ndparallel.planner.step.framework import FrameworkWorkload, framework_workload
from ndparallel.results.measure import peak_memory as counted_bytes
from ndparallel.training.job import Job
from tests.ladder.test_rung3_scale import (
    ONE_D,
    ROOMY,
    SMALL,
    chunks_of,
    executed,
    executed_grid,
    planned,
    seconds_of,
)

GPUS = replace(ROOMY, kernel_overhead_seconds=0.0, gpus_per_node=64)
# every unit is a bucket; attention's list has no ring's messages to itself
LESSON: dict[str, Any] = {
    "dtype": "bfloat16",
    "bucket_mb": 1e-6,
    "unit_mb": 1e-6,
    "context_parallel": "all-gather",
}
# what the lessons' loss moves and keeps in 2 bytes, and AdamW with a float32 master and its rounding
STACK: dict[str, Any] = {
    "executed": False,
    "vocabulary_sums": False,
    "logit_bytes": 8,
    "logits_kept": 2,
    "optimizer_bytes": 7 * 4 + 4 + 2,
}


@pytest.fixture(autouse=True)
def no_cost_of_nccls_own(monkeypatch):
    monkeypatch.setattr(collective_time, "START_SECONDS", 0.0)
    monkeypatch.setattr(pricing, "slowdown_of", lambda hardware: 0.0)


def assert_seconds(lesson: Job, results, rel: float = 1e-9, **software) -> tuple[TrainingJob, Plan]:
    job, plan = planned(lesson, GPUS, **STACK | software)
    assert float(time_step(job, plan).seconds) == pytest.approx(seconds_of(results), rel=rel)
    return job, plan


def assert_memory(results, job: TrainingJob, plan: Plan) -> None:
    """But for the embedding's tokens, of a byte each, and buffers of gradients."""
    memory, counted, rows = peak_memory(job, plan), counted_bytes(results), plan.share(job).rows
    for kind in ("weights", "gradients", "optimizer"):
        assert getattr(memory, kind) == counted[kind]
    tokens = rows * in_flight(framework_workload(job, plan))[0]
    assert memory.activations + memory.logits + tokens == counted["activations"]


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("name", ["DDP overlapped", "ZeRO-1", "ZeRO-2"])
def test_data_parallelism_of_a_framework_is_the_lessons(name, microbatches):
    lesson, results = executed("1d_data_parallel", name, 2, GPUS, microbatches=microbatches, **LESSON)
    assert_memory(results, *assert_seconds(lesson, results, **ONE_D[name]))


@pytest.mark.parametrize("name", ["FSDP", "FSDP prefetch", "FSDP no reshard"])
def test_fsdp_of_a_framework_is_the_lessons(name):
    """Its shards are in float32 alone; the lessons' are in both types of numbers."""
    lesson, results = executed("1d_data_parallel", name, 2, GPUS, microbatches=2, **LESSON)
    assert_seconds(lesson, results, **ONE_D[name])


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_computed_again_in_a_framework_is_the_lessons(recompute):
    changes = LESSON | {"recompute": recompute}
    lesson, results = executed("1d_data_parallel", "ZeRO-1", 2, GPUS, **changes)
    job, plan = assert_seconds(lesson, results, zero=1)
    if recompute == "selective":
        assert_memory(results, job, plan)


@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("mesh", [Mesh(pp=2), Mesh(pp=2, dp=2), Mesh(pp=2, cp=2)], ids=repr)
def test_a_pipeline_of_a_framework_is_the_lessons(mesh, zero):
    lesson, results = executed_grid(mesh, GPUS, LESSON | {"zero": zero})
    assert_memory(results, *assert_seconds(lesson, results, zero=zero))


@pytest.mark.parametrize("schedule", written())
def test_every_schedule_of_a_framework_is_the_lessons(schedule):
    changes = {"schedule": schedule, "zero": 1, "stage_chunks": chunks_of(schedule), "batch": 16}
    changes |= {"microbatches": 8, "model": SMALL.replace(layers=8)}
    assert_seconds(*executed_grid(Mesh(pp=4, dp=2), GPUS, LESSON | changes), zero=1)


@pytest.mark.parametrize("schedule", written())
@pytest.mark.parametrize(("layers", "rel"), [(8, 1e-9), (11, 2e-3)])
def test_rounds_that_are_not_timed_one_by_one_take_as_long_as_executed_ones(schedule, layers, rel):
    """Where stages are uneven, to some thousandths."""
    changes = {"schedule": schedule, "stage_chunks": chunks_of(schedule), "batch": 41, "microbatches": 41}
    changes |= {"model": SMALL.replace(layers=layers)}
    lesson, results = executed_grid(Mesh(pp=4), GPUS, LESSON | changes)
    pricing = Pricing(*planned(lesson, GPUS, **STACK))
    work = FrameworkWorkload(pricing, layers_per_stage(lesson.model, pricing.plan.stages))
    assert float(step_of(work).seconds) == pytest.approx(seconds_of(results), rel=rel)


@pytest.mark.parametrize("zero", [0, 1])
def test_a_table_at_both_ends_is_summed_in_a_framework_as_in_the_lessons(zero):
    """There it is a bucket of its own besides, which costs a latency more."""
    changes = LESSON | {"zero": zero, "model": SMALL.replace(tied=True)}
    lesson, results = executed_grid(Mesh(pp=2, dp=2), GPUS, changes)
    assert_seconds(lesson, results, rel=5e-3, zero=zero)


def test_fsdp_with_replicas_is_the_lessons_hsdp():
    """What a rank has of the gradients goes across nodes when it is reduced inside, and not before."""
    pairs = replace(GPUS, gpus_per_node=2)
    lesson, results = executed("1d_data_parallel", "HSDP", 4, pairs, microbatches=2, **LESSON)
    job, plan = planned(lesson, pairs, **STACK, zero=3)
    step = time_step(job, replace(plan, shards=2))
    assert float(step.seconds) == pytest.approx(seconds_of(results), rel=1e-9)
