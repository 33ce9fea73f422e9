"""Tied embeddings: one table at both ends of the model, under everything that cuts it."""

from dataclasses import replace

import pytest

from ndparallel.hardware.pocket import POCKET
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.job import Job
from ndparallel.training.replica import Replica
from tests.support.common import (
    SMALL,
    difference_of_weights,
    loss_and_gradient_difference,
    names,
    on_mesh,
    run,
    strategy,
)

TIED = SMALL.replace(layers=8, tied=True, vocab=257)
JOB = Job(model=TIED, dtype="float64", steps=3, bucket_mb=0.004)
TWO_NODES = replace(POCKET, gpus_per_node=2)


def assert_one_gpus(results, job: Job) -> None:
    assert max(loss_and_gradient_difference(results, job)) <= 1e-14
    assert difference_of_weights(results, job) <= 1e-12


@pytest.mark.parametrize("bucket_mb", [0.004, 1.0])
@pytest.mark.parametrize("name", names("1d_data_parallel"))
def test_every_kind_of_data_parallelism(name, bucket_mb):
    """In buckets of a few units, and with both ends in one bucket."""
    job = JOB.replace(microbatches=2, bucket_mb=bucket_mb, unit_mb=bucket_mb)
    assert_one_gpus(run(strategy("1d_data_parallel", name), job, 4, TWO_NODES), job)


@pytest.mark.parametrize("name", ["TP", "TP + SP", "TP + SP regather", "TP in parts", "TP x FSDP"])
def test_every_kind_of_tensor_parallelism(name):
    assert_one_gpus(run(strategy("2d_tensor_parallel", name), JOB, 2), JOB)


MESHES = [Mesh(tp=2, pp=2, dp=2), Mesh(pp=4, dp=2), Mesh(cp=2, pp=2, dp=2), Mesh(pp=2, dp=3)]


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", None), ("interleaved", 2), ("zb-v", None)])
@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_every_stage_of_zero_under_every_way_to_place_the_ends(mesh, schedule, chunks, zero):
    """The ends are on the first and the last pipeline rank, or both on the first."""
    batch = 4 * mesh.dp
    job = JOB.replace(batch=batch, microbatches=4, zero=zero, schedule=schedule, stage_chunks=chunks)
    assert_one_gpus(run(on_mesh("4d_combined", "DP only", mesh), job, mesh.world_size), job)


def test_with_experts_the_table_and_the_experts_have_buckets_of_their_own():
    model = TIED.replace(experts=4, expert_ffn=8)
    job, mesh = JOB.replace(model=model, microbatches=4, zero=2), Mesh(tp=2, pp=2, dp=2, ep=2)
    assert_one_gpus(run(on_mesh("4d_combined", "DP only", mesh), job, 8), job)


def test_two_tables_that_are_not_summed_part(monkeypatch):
    """What the sum is for: without it each end steps by its own gradient."""
    monkeypatch.setattr(Replica, "sum_tied", lambda replica: None)
    job = JOB.replace(microbatches=4, zero=1)
    results = run(on_mesh("4d_combined", "DP only", Mesh(pp=2, dp=2)), job, 4)
    assert loss_and_gradient_difference(results, job)[1] > 0.1


@pytest.mark.parametrize(("zero", "share"), [(0, 1), (1, 2), (3, 2)])
def test_both_ends_sum_what_each_owns_of_the_table_once_a_step(zero, share):
    """2 (2-1)/2 of the table's bytes, or of the shard's, by the first and by the last of two ranks."""
    from ndparallel.results.measure import sends

    job = JOB.replace(microbatches=4, zero=zero, steps=1)
    results = run(on_mesh("4d_combined", "DP only", Mesh(pp=2, dp=2)), job, 4)
    for result in results:
        sent = sum(event[6] for event in sends(result.events) if event[1] == "tied")
        assert sent == pytest.approx(TIED.vocab * TIED.hidden * 8 / share, rel=0.01)


def test_the_option(capsys):
    import json

    from ndparallel.lessons.main import main
    from ndparallel.lessons.registry import load

    argv = ["--tied", "--engine", "inline", "--json", "--dtype", "float64", "--strategy", "FSDP prefetch"]
    assert main(load("1d_data_parallel"), argv) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["model"]["tied"] and told["strategies"][0]["max_gradient_difference"] <= 1e-14
