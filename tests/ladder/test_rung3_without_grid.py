"""Rung 3 without a grid: what times thousands of GPUs, by one length of each kind of action, gives the step
and the memory of the executed 4D lesson."""

import random
from dataclasses import replace

import pytest

from ndparallel.parallel.mesh import Mesh
from ndparallel.pipeline.catalog import written_schedules
from ndparallel.planner.prediction import peak_memory, time_step
from ndparallel.results.measure import peak_memory as counted_bytes
from ndparallel.training.job import Job as LessonJob
from tests.ladder.test_rung3_scale import (
    ALL_EXPERTS,
    CLIPPED,
    ROOMY,
    SMALL,
    assert_predicted,
    assert_same_memory,
    can_be_cut,
    chunks_of,
    executed_grid,
    planned,
    random_grid,
    seconds_of,
)


@pytest.mark.parametrize("schedule", written_schedules())
def test_what_times_thousands_of_gpus_times_a_small_grid_to_the_last_digit(schedule):
    zero = 0 if schedule == "gpipe" else 1
    changes = {"schedule": schedule, "zero": zero, "stage_chunks": chunks_of(schedule), "bucket_mb": 0.02}
    lesson, results = executed_grid(Mesh(tp=2, pp=2, dp=2), ROOMY, changes)
    there = planned(lesson, ROOMY, zero=zero, grid=False, bucket_bytes=2e4)
    assert float(time_step(*there).seconds) == pytest.approx(seconds_of(results), rel=1e-6)


@pytest.mark.parametrize("microbatches", [6, 11, 33])
def test_what_times_thousands_of_gpus_times_groups_too(microbatches):
    """33 on 4 ranks go round in groups of 7, the last of 5; of them 26 and 33 are timed one by one."""
    changes = {"schedule": "interleaved", "stage_chunks": 2, "bucket_mb": 0.02}
    changes |= {"batch": microbatches, "microbatches": microbatches, "model": SMALL.replace(layers=8)}
    lesson, results = executed_grid(Mesh(pp=4), ROOMY, changes)
    job, plan = planned(lesson, ROOMY, grid=False, bucket_bytes=2e4)
    assert float(time_step(job, plan).seconds) == pytest.approx(seconds_of(results), rel=1e-6)
    assert peak_memory(job, plan).total == counted_bytes(results)["total"]


PIPELINED = [
    Mesh(pp=2, dp=4),
    Mesh(tp=2, pp=2, dp=2),
    Mesh(cp=2, pp=2, dp=2),
    Mesh(pp=2, dp=4, ep=2),
    Mesh(tp=2, pp=2, dp=2, ep=2),
    Mesh(cp=2, pp=2, dp=2, ep=2),
    Mesh(tp=2, pp=2, dp=2, ep=4, etp=1),
]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipev"])
@pytest.mark.parametrize("mesh", PIPELINED, ids=repr)
def test_what_times_thousands_of_gpus_knows_every_stage_of_zero_experts_and_cp_in_a_pipeline(
    mesh, schedule, zero
):
    changes = {"schedule": schedule, "zero": zero, "stage_chunks": chunks_of(schedule), "bucket_mb": 0.02}
    changes |= {"model": ALL_EXPERTS if mesh.ep > 1 else SMALL, "batch": 8 * mesh.dp, "microbatches": 8}
    lesson, results = executed_grid(mesh, ROOMY, changes)
    there = planned(lesson, ROOMY, zero=zero, grid=False, bucket_bytes=2e4)
    error = max(1e-6, error_without_grid(lesson) if mesh.tp > 1 or zero == 2 else 0)
    assert float(time_step(*there).seconds) == pytest.approx(seconds_of(results), rel=error)
    assert_same_memory(results, *there)


def error_without_grid(lesson: LessonJob) -> float:
    """How far a step may be off that is timed without a grid."""
    mesh = lesson.mesh
    if lesson.zero == 3:
        return 1e-6  # there the grid times it
    if mesh.tp > 1 and (mesh.ep > 1 or lesson.sequence_parallel != "none"):
        return 5e-3  # the last message leaves before gradients are summed that tp ranks share
    if lesson.zero == 2 and lesson.stage_chunks:
        return 1e-3  # of several stages on a rank, which reduce in their own order
    return 1e-5  # the first of several owners may step an element more


@pytest.mark.parametrize("seed", range(24))
def test_any_small_pipeline_where_all_links_are_alike(seed):
    """Any numbers of layers and ranks, whether they divide or not, in both types of numbers."""
    draw, held = random.Random(seed), False
    while not held:
        mesh, hardware, changes = random_grid(draw)
        hardware = replace(hardware, gpus_per_node=draw.choice([1, 64]))
        held = mesh.pp > 1 and mesh.world_size <= 24 and can_be_cut(mesh, changes)
    lesson, results = executed_grid(mesh, hardware, changes | {"bucket_mb": 0.02})
    there = planned(lesson, hardware, zero=lesson.zero, grid=False, bucket_bytes=2e4)
    error = error_without_grid(lesson)
    assert float(time_step(*there).seconds) == pytest.approx(seconds_of(results), rel=error)
    assert_same_memory(results, *there)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize(
    "mesh",
    [Mesh(dp=4, ep=2), Mesh(tp=2, dp=2, ep=2), Mesh(cp=2, dp=2, ep=2), Mesh(tp=2, dp=2, ep=4, etp=1)],
    ids=repr,
)
def test_what_times_thousands_of_gpus_knows_experts_without_a_pipeline(mesh, zero):
    lesson, results = executed_grid(mesh, ROOMY, {"zero": zero, "model": ALL_EXPERTS, "bucket_mb": 0.02})
    assert_predicted(results, *planned(lesson, ROOMY, zero=zero, grid=False, bucket_bytes=2e4))


@pytest.mark.parametrize("changes", [{}, CLIPPED], ids=["tables", "norms"])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "looped-bfs"])
@pytest.mark.parametrize(
    ("mesh", "zero", "layers"), [(Mesh(pp=3, dp=4), 0, 9), (Mesh(pp=2, cp=2), 1, 7)], ids=repr
)
def test_what_times_thousands_of_gpus_lets_ranks_wait_for_tables_and_norms(
    mesh, zero, layers, schedule, changes
):
    """Where the rank that comes first to them has the most to step, it is done last: by up to 2%."""
    changes = {"schedule": schedule, "stage_chunks": chunks_of(schedule), "bucket_mb": 0.02} | changes
    changes |= {
        "model": SMALL.replace(tied=True, layers=layers),
        "microbatches": 3,
        "batch": 12,
        "zero": zero,
    }
    lesson, results = executed_grid(mesh, ROOMY, changes)
    there = planned(lesson, ROOMY, zero=zero, grid=False, bucket_bytes=2e4)
    assert float(time_step(*there).seconds) == pytest.approx(seconds_of(results), rel=1e-6)
    assert_same_memory(results, *there)
