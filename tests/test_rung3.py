"""Rung 3: the planner's step and peak memory of a small cluster are those that the executed run's clock and memory counted."""

from dataclasses import replace

import pytest
from common import strategy

from gpu import Hardware
from ndparallel.job import Job as LessonJob
from ndparallel.launch import launch
from ndparallel.measure import measure
from ndparallel.planner.memory import peak_memory
from ndparallel.planner.plan import Job, Plan
from ndparallel.planner.shape import ModelShape
from ndparallel.planner.stack import POCKET as STACK
from ndparallel.planner.step import predict
from ndparallel.pocket import POCKET
from ndparallel.units import ModelConfig

ROOMY = replace(POCKET, memory_bytes=1e9)
NO_NODES = replace(ROOMY, gpus_per_node=1)
MODEL = ModelConfig(layers=8)


def planned(lesson: LessonJob, hardware: Hardware, **software) -> tuple[Job, Plan]:
    """The planner's words for an executed job; `software` is what its rank program does."""
    model, mesh = lesson.model, lesson.mesh
    sizes = (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.ffn, model.vocab)
    zero, schedule = software.pop("zero", 0), lesson.schedule if mesh.pp > 1 else "1f1b"
    stack = replace(STACK, dtype=lesson.dtype, regathers=lesson.sequence_parallel == "sp-regather", tp_chunks=lesson.chunks, **software)
    plan = Plan(
        **{axis: getattr(mesh, axis) for axis in ("tp", "pp", "dp", "ep", "cp")},
        chunks=lesson.stage_chunks or (2 if schedule in ("interleaved", "zb-v", "dualpipev") else 1),
        micro_batch=lesson.microbatch,
        zero=zero,
        sequence_parallel=lesson.sequence_parallel != "none",
        recompute=lesson.recompute,
        schedule=schedule,
    )
    return Job(ModelShape("pocket", *sizes), hardware, stack, model.sequence, lesson.batch), plan


def executed(lesson: str, name: str, gpus: int, hardware: Hardware, **changes):
    chosen = strategy(lesson, name)
    job = chosen.job(LessonJob(**{"model": MODEL} | changes), gpus)
    results = launch(chosen.program, job.mesh.world_size, hardware, job, engine="inline")
    return job, measure(name, results, hardware, job.steps)


def assert_equal(lesson: str, name: str, gpus: int = 4, hardware: Hardware = ROOMY, changes=None, **software):
    job, measured = executed(lesson, name, gpus, hardware, **(changes or {}))
    there = planned(job, hardware, **software)
    step, memory = predict(*there), peak_memory(*there)
    assert float(step.seconds) == pytest.approx(measured.step_seconds, rel=1e-6)
    assert memory.total == measured.peak_memory_bytes["total"]
    for kind in ("weights", "gradients", "optimizer", "activations", "buffers"):
        assert getattr(memory, kind) == measured.peak_memory_bytes[kind]


DDP = {"dp_overlap": False, "bucket_bytes": float("inf")}
ONE_D = {
    "DDP ring": DDP,
    "DDP overlapped": {},
    "ZeRO-1": {"zero": 1},
    "ZeRO-2": {"zero": 2},
    "FSDP": {"zero": 3, "prefetch": False, "dp_overlap": False},
    "FSDP prefetch": {"zero": 3},
    "FSDP no reshard": {"zero": 3, "reshards": False},
}
PIPELINES = ["naive", "GPipe", "1F1B", "interleaved", "ZB-H1", "ZB-V", "DualPipeV"]
WHOLE = {"bucket_bytes": float("inf")}


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("name", ONE_D)
def test_data_parallelism_in_every_form(name, microbatches):
    assert_equal("1d_data_parallel", name, changes={"microbatches": microbatches}, **ONE_D[name])


@pytest.mark.parametrize("name", ["DDP overlapped", "FSDP prefetch"])
def test_data_parallelism_over_links_of_both_kinds(name):
    assert_equal("1d_data_parallel", name, gpus=8, **ONE_D[name])


@pytest.mark.parametrize("name", ["DDP overlapped", "ZeRO-2", "FSDP prefetch"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_data_parallelism_that_recomputes(name, recompute):
    assert_equal("1d_data_parallel", name, changes={"recompute": recompute, "microbatches": 2}, **ONE_D[name])


@pytest.mark.parametrize("name", ["TP", "TP + SP", "TP + SP regather"])
@pytest.mark.parametrize(("gpus", "hardware"), [(2, ROOMY), (4, ROOMY), (8, ROOMY), (4, NO_NODES)])
def test_tensor_parallelism_inside_nodes_and_across(name, gpus, hardware):
    assert_equal("2d_tensor_parallel", name, gpus, hardware, **WHOLE)


def test_tensor_parallelism_in_chunks():
    assert_equal("2d_tensor_parallel", "TP in chunks", changes={"chunks": 4}, **WHOLE)


def test_tensor_parallelism_times_fsdp():
    assert_equal("2d_tensor_parallel", "TP x FSDP", zero=3)


@pytest.mark.parametrize("microbatches", [4, 8])
@pytest.mark.parametrize("name", PIPELINES)
def test_every_schedule_of_a_pipeline(name, microbatches):
    assert_equal("3d_pipeline_parallel", name, changes={"batch": 8, "microbatches": microbatches}, **WHOLE)


@pytest.mark.parametrize("name", ["1F1B", "ZB-V"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_a_pipeline_that_recomputes_over_links_of_both_kinds(name, recompute):
    changes = {"batch": 8, "microbatches": 8, "recompute": recompute, "model": replace(MODEL, layers=16)}
    assert_equal("3d_pipeline_parallel", name, 8, changes=changes, **WHOLE)


def test_a_single_gpu():
    assert_equal("0d_single_gpu", "4 microbatches", 1, **WHOLE)
