"""Rung 1, numbers: every parallel run computes what one GPU computes: the loss, and every gradient.

It rests on the single GPU alone, which takes the batch whole and recomputes nothing; its gradients are held
against finite differences in tests/model/test_experts.py. Two runs add the same numbers in another order, so
they are equal up to rounding: TOLERANCE in tests/support/common.py says how much that is.

What is special to one strategy (tied embeddings, experts that drop tokens, 16 GPUs) is in the tests of its
room; what every strategy must do is here.
"""

from dataclasses import replace
from itertools import product

import pytest

from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.registry import LESSONS, load
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.context import VARIANTS
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.job import Job
from tests.support.common import (
    SMALL,
    TOLERANCE,
    difference_of_weights,
    loss_and_gradient_difference,
    names,
    on_mesh,
    pipeline,
    run,
    strategy,
)
from tests.support.meshes import (
    CONTEXT_MESHES,
    EXPERT_JOBS,
    EXPERT_MESHES,
    MANY_HEADS,
    differences,
    layouts,
    name,
)
from tests.support.pipelines import SCHEDULES

EVERY = [(lesson, name) for lesson in LESSONS for name in names(lesson)]
ONE_D = names("1d_data_parallel")
BREADTH = ModelConfig(layers=8, hidden=32, heads=8, kv_heads=2, ffn=24, sequence=32)  # which all can cut
WIDE = ModelConfig(layers=2, hidden=32, heads=8, kv_heads=2, ffn=24, vocab=251, sequence=16)
DEEP = replace(SMALL, layers=8)
DENSE = replace(SMALL, layers=4)
SPARSE = replace(DENSE, experts=4, expert_ffn=8, shared_experts=1)


def assert_equals_the_single_gpu(results, job: Job):
    loss, gradient = loss_and_gradient_difference(results, job)
    assert loss <= TOLERANCE[job.dtype] and gradient <= TOLERANCE[job.dtype]


# ------------------------------------------------------------------------------------------- every strategy


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("lesson", "name"), EVERY)
def test_every_strategy_of_every_lesson_equals_the_single_gpu(lesson, name, dtype):
    """The single GPU trains the strategy's own model: the lessons', with experts, or two layers alone."""
    chosen, gpus = strategy(lesson, name), load(lesson).gpus
    job = Job(**{"model": BREADTH, "dtype": dtype} | load(lesson).defaults)
    with Runner(POCKET, "inline") as runner:
        entry = entry_of(chosen, job, gpus)
        row, _ = runner.measured(entry)
        alone = runner.reference(entry.job, chosen.reference).measurement
    assert row.loss == pytest.approx(alone.loss, rel=TOLERANCE[dtype])
    assert row.max_gradient_difference is not None and row.max_gradient_difference <= TOLERANCE[dtype]


# --------------------------------------------------------------------------------------------- data parallel


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ONE_D)
def test_data_parallel_in_two_microbatches(name, dtype):
    job = Job(model=SMALL, batch=16, dtype=dtype, microbatches=2)
    assert_equals_the_single_gpu(run(strategy("1d_data_parallel", name), job, 4), job)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "tolerance"),
    [
        ("sgd", "float32", 1e-5),
        ("sgd", "float64", 1e-12),
        ("adamw", "float32", 1e-3),
        ("adamw", "float64", 1e-9),
    ],
)
@pytest.mark.parametrize("name", ONE_D)
def test_weights_after_three_steps_of_data_parallel(name, optimizer, dtype, tolerance):
    job = Job(model=SMALL, batch=16, dtype=dtype, optimizer=optimizer, steps=3)
    assert difference_of_weights(run(strategy("1d_data_parallel", name), job, 4), job) <= tolerance


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("gpus_per_node", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ["FSDP prefetch", "HSDP"])
def test_sharded_data_parallel_over_nodes_of_any_size(name, gpus_per_node, dtype):
    job = Job(model=SMALL, dtype=dtype, microbatches=2, batch=16)
    hardware = replace(POCKET, gpus_per_node=gpus_per_node)
    assert_equals_the_single_gpu(run(strategy("1d_data_parallel", name), job, 8, hardware), job)


# ------------------------------------------------------------------------------- tensor and context parallel


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("sequence_parallel", ["none", "sp", "sp-regather"])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_tensor_parallel(tp, sequence_parallel, kv_heads, dtype):
    model = replace(WIDE, kv_heads=kv_heads)
    job = Job(model=model, dtype=dtype, sequence_parallel=sequence_parallel, batch=2)
    assert_equals_the_single_gpu(run(on_mesh("2d_tensor_parallel", "TP", Mesh(tp=tp)), job, tp), job)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("tp", "dp"), [(2, 2), (2, 4), (4, 2)])
@pytest.mark.parametrize("sequence_parallel", ["none", "sp", "sp-regather"])
def test_tensor_parallel_times_fsdp(tp, dp, sequence_parallel, dtype):
    job = Job(model=WIDE, dtype=dtype, batch=4, sequence_parallel=sequence_parallel)
    both = on_mesh("2d_tensor_parallel", "TP x FSDP", Mesh(tp=tp, dp=dp))
    assert_equals_the_single_gpu(run(both, job, tp * dp), job)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("variant", VARIANTS)
@layouts(CONTEXT_MESHES)
def test_context_parallel(mesh, sequence_parallel, variant, dtype):
    job = Job(
        model=MANY_HEADS,
        mesh=mesh,
        dtype=dtype,
        microbatches=2,
        sequence_parallel=sequence_parallel,
        context_parallel=variant,
    )
    assert max(differences(job)) <= TOLERANCE[dtype]


# -------------------------------------------------------------------------------------------------- pipelines


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("extra", [0, 1, 2])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule(schedule, ranks, extra, dtype):
    """M in P, 2P, 2P + 1."""
    microbatches = [ranks, 2 * ranks, 2 * ranks + 1][extra]
    job = Job(model=DEEP, batch=microbatches, microbatches=microbatches, dtype=dtype)
    assert_equals_the_single_gpu(run(pipeline(schedule), job, ranks), job)


# ---------------------------------------------------------------------------------------------------- experts


@pytest.mark.parametrize(
    ("model", "dtype"), [*((model, "float64") for model in EXPERT_JOBS), ("shared", "float32")]
)
@layouts(EXPERT_MESHES)
def test_experts(mesh, sequence_parallel, model, dtype):
    job = EXPERT_JOBS[model].replace(
        mesh=mesh, dtype=dtype, microbatches=2, sequence_parallel=sequence_parallel
    )
    assert max(differences(job)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("name", ONE_D)
@pytest.mark.parametrize(
    "mesh", [Mesh(dp=4, ep=2), Mesh(dp=4, ep=4), Mesh(dp=2, cp=2, ep=2), Mesh(dp=2, cp=2, ep=4)], ids=name
)
def test_experts_under_every_kind_of_data_parallel(name, mesh):
    job = EXPERT_JOBS["shared"].replace(dtype="float64", optimizer="sgd", steps=3, microbatches=2)
    results = run(on_mesh("1d_data_parallel", name, mesh), job, 4)
    assert_equals_the_single_gpu(results, job)
    assert difference_of_weights(results, job) <= 1e-12


# ------------------------------------------------------------------------------------------- all combinations


def meshes() -> list[Mesh]:
    """All combinations of tp, pp, dp, cp in 1, 2 on at most 8 ranks, those with dp 2 again with ep 2, and
    those with tp 2 again with whole experts, spread over up to 4 ranks of a stage."""
    found = []
    for tp, pp, dp, cp in product((1, 2), repeat=4):
        if tp * pp * dp * cp <= 8:
            found += [Mesh(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep) for ep in (1, 2) if ep <= dp]
            found += [Mesh(tp=tp, pp=pp, dp=dp, cp=cp, ep=min(4, tp * dp * cp), etp=1)] * (tp > 1)
    return found


def combined(number: int, mesh: Mesh) -> Job:
    """Each mesh with another schedule, ZeRO stage, kind of sequence parallelism, and model."""
    return Job(
        model=SPARSE if mesh.ep > 1 or number % 3 == 0 else DENSE,
        dtype="float64",
        batch=8,
        microbatches=4 // mesh.dp if mesh.pp == 1 else 4,
        schedule=("1f1b", "interleaved", "zb-h1")[number % 3] if mesh.pp > 1 else "1f1b",
        stage_chunks=2 if mesh.pp > 1 and number % 3 == 1 else None,
        zero=number % 4,
        sequence_parallel=("none", "sp", "sp-regather")[number // 2 % 3],
        context_parallel=VARIANTS[number // 3 % 3],
    )


def test_there_are_at_least_twenty_distinct_combinations():
    assert len(meshes()) == len(set(meshes())) >= 20


@pytest.mark.parametrize(("number", "mesh"), list(enumerate(meshes())), ids=str)
def test_every_combination_of_dimensions(number, mesh):
    job = combined(number, mesh)
    grid = on_mesh("4d_combined", "TP2 x PP2 x DP2", mesh)
    assert_equals_the_single_gpu(run(grid, job, mesh.world_size), job)


@pytest.mark.parametrize("model", [DENSE, SPARSE], ids=["dense", "experts"])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1"])
@pytest.mark.parametrize("zero", range(4))
def test_every_zero_stage_under_every_schedule(zero, schedule, model):
    mesh = Mesh(tp=2, pp=2, dp=2, ep=2 if model.experts else 1)
    chunks = 2 if schedule == "interleaved" else None
    job = Job(model=model, dtype="float64", microbatches=4, zero=zero, schedule=schedule, stage_chunks=chunks)
    assert_equals_the_single_gpu(run(on_mesh("4d_combined", "TP2 x PP2 x DP2", mesh), job, 8), job)
