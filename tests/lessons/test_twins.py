"""Claims about what a lesson writes out although the package has it too: the two do the same, so that what a
reader sees in the lesson is what runs everywhere else."""

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from gpu import GPU
from ndparallel.engines.launch import launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.registry import load
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.tensor import TensorParallel
from ndparallel.pipeline.catalog import build
from ndparallel.training.buckets import FullyShardedUnit
from ndparallel.training.job import Job
from ndparallel.training.overlapped import ddp_overlapped
from tests.support.common import SMALL, run, strategy


def lesson(name: str) -> ModuleType:
    load(name)
    return sys.modules[name]


@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b"])
def test_the_orders_written_in_3d_are_those_of_the_catalog(schedule):
    order = lesson("3d_pipeline_parallel").ORDERS[schedule]
    for ranks in range(1, 7):
        for microbatches in range(1, 14):
            listed = build(schedule, ranks, microbatches)
            written = [list(order(rank, ranks, microbatches)) for rank in range(ranks)]
            assert written == listed.actions


@pytest.mark.parametrize("name", ["naive", "GPipe", "1F1B"])
def test_3d_runs_the_orders_that_it_writes(name, monkeypatch):
    module, chosen = lesson("3d_pipeline_parallel"), strategy("3d_pipeline_parallel", name)
    taken: list = []
    orders = {key: spied(order, taken) for key, order in module.ORDERS.items()}
    monkeypatch.setattr(module, "ORDERS", orders)
    run(chosen, Job(model=SMALL, batch=4, microbatches=4, mesh=Mesh(pp=2)), 2)
    assert sorted(taken) == [0, 1]


def spied(order, taken):
    def counted(rank, ranks, microbatches):
        taken.append(rank)
        return order(rank, ranks, microbatches)

    return counted


def f_and_g(gpu: GPU, mesh: Mesh) -> list[np.ndarray]:
    module, tp = lesson("2d_tensor_parallel"), mesh.group("tp", gpu.rank)
    return [
        operator(gpu, activations(gpu.rank), tp)
        for operator in (module.f, module.g, module.g_backward, module.f_backward)
    ]


def enter_and_leave(gpu: GPU, mesh: Mesh) -> list[np.ndarray]:
    tp = TensorParallel(gpu, mesh.group("tp", gpu.rank))
    return [
        operator(activations(gpu.rank))
        for operator in (tp.column_input, tp.row_output, tp.row_output_backward, tp.column_input_backward)
    ]


def activations(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal((6, 5))


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_f_and_g_of_2d_are_the_operators_of_the_layers(tp):
    mesh = Mesh(tp=tp)
    ours, theirs = (
        launch(program, tp, POCKET, mesh, engine="inline") for program in (f_and_g, enter_and_leave)
    )
    for one, other in zip(ours, theirs):
        assert all(np.array_equal(x, y) for x, y in zip(one.value, other.value, strict=True))
        assert one.events == other.events


def assert_same_run(ours, theirs) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.events == other.events and one.peak_bytes == other.peak_bytes
        assert one.value.losses == other.value.losses
        assert [holding.array.tobytes() for holding in one.value.gradients] == [
            holding.array.tobytes() for holding in other.value.gradients
        ]


def test_gather_and_reshard_of_1d_are_those_of_the_package(monkeypatch):
    job, chosen = Job(model=SMALL, batch=16, microbatches=2), strategy("1d_data_parallel", "FSDP")
    ours = run(chosen, job, 4)
    monkeypatch.setattr(lesson("1d_data_parallel"), "GatheredUnit", FullyShardedUnit)
    assert_same_run(ours, run(chosen, job, 4))


def test_the_overlap_of_1d_is_the_one_that_other_lessons_put_around_theirs():
    job, chosen = Job(model=SMALL, batch=16, microbatches=2), strategy("1d_data_parallel", "DDP overlapped")
    assert_same_run(run(chosen, job, 4), run(replace(chosen, program=ddp_overlapped), job, 4))


def test_1d_runs_the_gather_that_it_writes(monkeypatch):
    module, gathered = lesson("1d_data_parallel"), []

    def fails(gpu, *rest, **options):
        gathered.append(gpu.rank)
        return 1 / 0

    monkeypatch.setattr(module, "all_gather", fails)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        run(strategy("1d_data_parallel", "FSDP"), Job(model=SMALL, batch=8), 4)
    assert gathered
