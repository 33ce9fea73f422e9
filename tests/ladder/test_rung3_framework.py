"""Rung 3 of real frameworks' plans: what prices and times them gives the step and the bytes of the executed
lessons, where both are to price the same thing.

Between two ranks NCCL's ring and the lessons' are the same sum; what NCCL adds to it, a start and slower
compute beside it, is left out here, and so is a kernel's overhead, since a framework steps all its
parameters in one kernel. The lessons run in bfloat16 with float32 masters, as frameworks do."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gpu import GPU, Hardware
from ndparallel.engines.launch import launch
from ndparallel.model.stages import layers_per_stage
from ndparallel.parallel.mesh import Mesh
from ndparallel.pipeline.catalog import written_schedules
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers import collective_time, pricing
from ndparallel.planner.layers.kept import once_bytes
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.prediction import in_flight, peak_memory, step_of, time_step
from ndparallel.planner.step.framework import FrameworkWorkload, framework_workload
from ndparallel.results.measure import peak_memory as counted_bytes
from ndparallel.search.bounds.lower_bound import lower_bound
from ndparallel.training.buckets import Bucket, FullyShardedUnit, Handles, ShardedGradients, ShardedOptimizer
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica
from tests.ladder.test_rung3_scale import (
    ALL_EXPERTS,
    ONE_D,
    ROOMY,
    SMALL,
    chunks_of,
    executed,
    executed_grid,
    grid_job,
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


def assert_seconds(
    lesson: Job, results, rel: float = 1e-9, hardware: Hardware = GPUS, shards: int = 0, **software
) -> tuple[TrainingJob, Plan]:
    """Hold the step, and what a search bounds it and its memory by, against the executed run."""
    job, plan = planned(lesson, hardware, **STACK | software)
    plan, seconds = replace(plan, shards=shards), seconds_of(results)
    assert float(time_step(job, plan).seconds) == pytest.approx(seconds, rel=rel)
    bound = lower_bound(job, plan)
    assert 0.8 * seconds < bound.seconds[0] <= seconds * (1 + rel)
    assert bound.memory_bytes[0] == pytest.approx(peak_memory(job, plan).total)
    return job, plan


def assert_memory(results, job: TrainingJob, plan: Plan) -> None:
    """But for the embedding's tokens, of a byte each, buffers of gradients, and what one layer gathers or
    makes again, which the lesson has freed when it holds most: while it has logits."""
    memory, counted, rows = peak_memory(job, plan), counted_bytes(results), plan.share(job).rows
    for kind in ("weights", "gradients", "optimizer"):
        assert getattr(memory, kind) == counted[kind]
    tokens = rows * in_flight(framework_workload(job, plan))[0]
    once = once_bytes(job, plan, "dense", plan.recompute)
    assert memory.activations - once + memory.logits + tokens == counted["activations"]


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


@pytest.mark.parametrize("schedule", written_schedules())
def test_every_schedule_of_a_framework_is_the_lessons(schedule):
    changes = {"schedule": schedule, "zero": 1, "stage_chunks": chunks_of(schedule), "batch": 16}
    changes |= {"microbatches": 8, "model": SMALL.replace(layers=8)}
    assert_seconds(*executed_grid(Mesh(pp=4, dp=2), GPUS, LESSON | changes), zero=1)


@pytest.mark.parametrize("schedule", written_schedules())
@pytest.mark.parametrize(("layers", "rel"), [(8, 1e-9), (11, 2e-3)])
def test_rounds_that_are_not_timed_one_by_one_take_as_long_as_executed_ones(schedule, layers, rel):
    """Where stages are uneven, to some thousandths."""
    changes = {"schedule": schedule, "stage_chunks": chunks_of(schedule), "batch": 25, "microbatches": 25}
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
    assert_seconds(lesson, results, hardware=pairs, shards=2, zero=3)


# -------------------------------------------------------------------------- programs that no lesson has


def fsdp_in_a_pipeline(gpu: GPU, job: Job) -> Outcome:
    """FSDP whose every action gathers and reduces for itself, with prefetching inside its stage."""
    replica = Replica(gpu, job, FullyShardedUnit, job.bucket_mb)
    for _ in replica.steps():
        for (action,) in replica.stages.steps():
            x, buckets = replica.stages.receive(action), replica.buckets_of(action.stage)
            on_its_way = Handles()
            in_order = buckets[::-1] if action.op == "F" else buckets
            for bucket, following in pairwise([*in_order, None]):
                bucket.gather()
                if following:
                    following.gather(async_op=True)
                if action.op == "F":
                    x = bucket.forward(x, action.microbatch)
                    bucket.reshard()
                    continue
                bucket.allocate_gradients()
                x = bucket.backward(x, action.microbatch)
                bucket.reshard()
                on_its_way.wait()
                on_its_way = bucket.reduce_scatter(async_op=True)
            on_its_way.wait()
            replica.stages.send(action, x)
        replica.optimizer_step()
    return replica.outcome


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
@pytest.mark.parametrize("mesh", [Mesh(pp=2, dp=2), Mesh(pp=2, dp=2, cp=2), Mesh(pp=4, dp=2)], ids=repr)
def test_fsdp_in_a_pipeline_waits_inside_every_pass(mesh, schedule):
    model = SMALL.replace(layers=8)
    changes = {"model": model, "zero": 3, "schedule": schedule, "stage_chunks": chunks_of(schedule)}
    lesson = grid_job(mesh, LESSON | changes)
    results = launch(fsdp_in_a_pipeline, mesh.world_size, GPUS, lesson, engine="inline", keep_events=False)
    assert_seconds(lesson, results, zero=3)


def gathers_beside_the_next_forward(gpu: GPU, job: Job) -> Outcome:
    """ZeRO-1 in a pipeline; what the others have stepped comes while the first microbatch goes forward."""
    replica = Replica(gpu, job, ShardedOptimizer, job.bucket_mb)
    for _ in replica.steps():
        coming = {bucket: bucket.all_gather(async_op=True) for bucket in reversed(replica.buckets)}
        for (action,) in replica.stages.steps():
            x = replica.stages.receive(action)
            for bucket in reversed(replica.buckets_of(action.stage)) if action.op == "F" else ():
                coming.pop(bucket, Handles()).wait()
                x = bucket.forward(x, action.microbatch)
            for bucket in replica.buckets_of(action.stage) if action.op == "B" else ():
                x = bucket.backward(x, action.microbatch)
                if replica.stages.completes(action):
                    replica.on_their_way[bucket] = bucket.reduce_scatter(async_op=True)
            replica.stages.send(action, x)
        replica.wait_for_gradients()
        replica.optimizer_step()
    return replica.outcome


@pytest.mark.parametrize("mesh", [Mesh(pp=2), Mesh(pp=2, dp=2), Mesh(pp=2, dp=4), Mesh(pp=4, dp=2)], ids=repr)
def test_weights_that_come_beside_a_pipelines_next_forward_pass(mesh):
    lesson = grid_job(mesh, LESSON | {"model": SMALL.replace(layers=8), "zero": 1})
    results = launch(
        gathers_beside_the_next_forward, mesh.world_size, GPUS, lesson, engine="inline", keep_events=False
    )
    assert_seconds(lesson, results, zero=1, gathers_first=True)


def reduces_in_turn(gpu: GPU, job: Job) -> Outcome:
    """A pipeline that stands still while gradients travel, in ZeRO-2 those of every microbatch."""
    replica = Replica(gpu, job, (Bucket, ShardedOptimizer, ShardedGradients)[job.zero], job.bucket_mb)
    reduce = "reduce_scatter" if job.zero else "all_reduce"
    for _ in replica.steps():
        for (action,) in replica.stages.steps():
            x, buckets = replica.stages.receive(action), replica.buckets_of(action.stage)
            for bucket in reversed(buckets) if action.op == "F" else ():
                x = bucket.forward(x, action.microbatch)
            for bucket in buckets if action.op == "B" else ():
                if job.zero == 2:
                    bucket.allocate_gradients()
                x = bucket.backward(x, action.microbatch)
                if job.zero == 2:
                    bucket.reduce_scatter()
            replica.stages.send(action, x)
        for bucket in replica.buckets if job.zero < 2 else ():
            getattr(bucket, reduce)()
        replica.optimizer_step()
        for bucket in replica.buckets if job.zero else ():
            bucket.all_gather()
    return replica.outcome


@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("mesh", [Mesh(pp=2, dp=2), Mesh(pp=4, dp=2)], ids=repr)
def test_a_pipeline_whose_gradients_hide_nowhere(mesh, zero):
    lesson = grid_job(mesh, LESSON | {"model": SMALL.replace(layers=8), "zero": zero})
    results = launch(reduces_in_turn, mesh.world_size, GPUS, lesson, engine="inline", keep_events=False)
    assert_seconds(lesson, results, zero=zero, dp_overlap=False)


# ------------------------------------------------------------------------------------------------ experts


# a framework's list of a router is shorter than the lessons', and no rows travel beside anything
ROUTER: dict[str, Any] = {"routing_in_full": False, "ep_overlap": False, "experts_in_turn": False}


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("mesh", [Mesh(dp=4, ep=4), Mesh(dp=4, ep=2), Mesh(pp=2, dp=4, ep=2)], ids=repr)
def test_experts_in_balance_of_a_framework_are_the_lessons_but_for_the_router(mesh, zero):
    lesson, results = executed_grid(mesh, GPUS, LESSON | {"model": ALL_EXPERTS, "zero": zero})
    assert_seconds(lesson, results, rel=0.03, zero=zero, **ROUTER)


def test_pairs_of_microbatches_hide_most_of_their_rows():
    """In the lesson one microbatch waits for its rows while the other does, too."""
    changes = {"schedule": "dualpipev", "stage_chunks": 2, "batch": 64, "microbatches": 16}
    changes |= {"model": ALL_EXPERTS.replace(layers=8)}
    lesson, results = executed_grid(Mesh(pp=4, dp=4, ep=4), GPUS, LESSON | changes)
    job, plan = assert_seconds(lesson, results, rel=0.03, **ROUTER)
    pairs, alone = (time_step(job, replace(plan, schedule=name)) for name in ("dualpipev", "zb-v"))
    assert 0 < 2.5 * pairs.breakdown["ep"] < alone.breakdown["ep"]
    assert float(pairs.seconds) < seconds_of(results)
