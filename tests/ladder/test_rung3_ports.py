"""Rung 3, shared ports: what the planner says that they add to a step is what `--contention` finds, which
replays the messages of the executed run on them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpu import CLASSROOM, Hardware
from ndparallel.engines.launch import launch
from ndparallel.parallel.mesh import Mesh
from ndparallel.planner.layers import collective_time, pricing
from ndparallel.planner.lesson_runs.journal import executed_journals
from ndparallel.planner.ports import PortsAlone, ReplayedPlan
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.planner.step.pipeline import schedule_of
from ndparallel.planner.step.pipeline_journal import framework_journals
from ndparallel.planner.token_counts import TokenCounts
from ndparallel.results.contention import measure_contention
from tests.ladder.test_rung3_framework import (
    GPUS,
    LESSON,
    STACK,
    fsdp_in_a_pipeline,
    gathers_beside_the_next_forward,
    reduces_in_turn,
)
from tests.ladder.test_rung3_scale import (
    ALL_EXPERTS,
    ROOMY,
    SMALL,
    chunks_of,
    grid_job,
    planned,
    seconds_of,
)
from tests.support.common import strategy

GRID: dict[str, Any] = {"grid": True, "bucket_bytes": 2e4}
EIGHT_LAYERS = SMALL.replace(layers=8)
TIED = EIGHT_LAYERS.replace(tied=True)


def added(
    mesh: Mesh,
    hardware: Hardware,
    changes: dict,
    software: dict,
    program: Callable | None = None,
) -> tuple[float, Prediction]:
    """The share of a step that sharing adds where the executed run is replayed, and the prediction."""
    lesson = grid_job(mesh, changes)
    program = program or strategy("4d_combined", "DP only").program
    how: dict[str, Any] = {"engine": "inline", "keep_events": False, "keep_journal": True}
    results = launch(program, mesh.world_size, hardware, lesson, **how)
    found = predict(*planned(lesson, hardware, zero=lesson.zero, **software))
    assert found.seconds == pytest.approx(seconds_of(results), rel=1e-6)
    replayed = measure_contention(results, hardware, 1)
    assert replayed.arrival_order_seconds == 0
    return replayed.sharing_seconds / found.seconds, found


def assert_added(mesh: Mesh, gpus_per_node: int, rel: float = 1e-6, **changes) -> float:
    usual = {"bucket_mb": 0.02} | ({"model": ALL_EXPERTS} if mesh.ep > 1 else {})
    replayed, found = added(mesh, replace(ROOMY, gpus_per_node=gpus_per_node), usual | changes, GRID)
    assert found.sharing_seconds / found.seconds == pytest.approx(replayed, rel=rel, abs=1e-9)
    return replayed


def alone(found: Prediction, journals: Callable) -> float:
    """The seconds of a step whose journals are replayed on ports that nobody shares."""
    written = journals(found.work, schedule_of(found.work))
    return max(ReplayedPlan(written, CLASSROOM, PortsAlone).ends)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("mesh", "changes"),
    [
        (Mesh(tp=2, dp=2), {}),
        (Mesh(dp=4, ep=2), {"model": ALL_EXPERTS}),
        (Mesh(tp=2, pp=2, dp=2), {}),
        (Mesh(tp=2, pp=2, dp=2), {"model": TIED}),
        (Mesh(dp=4, ep=2, pp=2), {"model": ALL_EXPERTS}),
        (Mesh(tp=2, dp=2, ep=2, etp=1), {"model": ALL_EXPERTS}),
    ],
    ids=str,
)
def test_journals_replayed_on_ports_that_nobody_shares_take_the_steps_seconds(mesh, changes, zero):
    lesson = grid_job(mesh, {"bucket_mb": 0.02, "zero": zero} | changes)
    found = predict(*planned(lesson, replace(ROOMY, gpus_per_node=2), zero=zero, **GRID))
    assert alone(found, executed_journals) == pytest.approx(found.seconds, rel=1e-9)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("pp", [2, 4])
def test_the_norm_of_a_pipeline_is_summed_behind_its_last_rank(pp, zero):
    """Nearly: some pieces of one number are empty, and here all that travel are as large as the number."""
    lesson = grid_job(Mesh(pp=pp, dp=2), {"bucket_mb": 0.02, "zero": zero, "clip_grad_norm": 0.5})
    found = predict(*planned(lesson, replace(ROOMY, gpus_per_node=1), zero=zero, **GRID))
    assert alone(found, executed_journals) == pytest.approx(found.seconds, rel=1e-4)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("mesh", "gpus_per_node"),
    [
        (Mesh(tp=2, dp=2), 1),
        (Mesh(dp=4, ep=2), 1),
        (Mesh(dp=4, ep=4), 1),
        (Mesh(dp=2, pp=2), 1),
        (Mesh(tp=2, pp=2, dp=2), 1),
        (Mesh(tp=2, pp=2, dp=2), 2),
        (Mesh(cp=2, pp=2, dp=2), 1),
        (Mesh(dp=4, ep=2, pp=2), 2),
        (Mesh(tp=2, dp=2, ep=4, etp=1), 1),
    ],
    ids=str,
)
def test_gradients_and_weights_beside_layers_and_pipeline_messages_by_the_same_port(
    mesh, gpus_per_node, zero
):
    """From 0.3% of the step to 35%, ep with DDP."""
    assert 0.003 < assert_added(mesh, gpus_per_node, zero=zero) < 0.36


@pytest.mark.parametrize(
    "schedule", ["gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-v", "dualpipev", "v-half"]
)
def test_pipeline_messages_beside_tp_in_every_order_of_actions(schedule):
    """Of 9 microbatches some are not timed one by one."""
    changes = {"schedule": schedule, "stage_chunks": chunks_of(schedule), "model": EIGHT_LAYERS}
    changes |= {"microbatches": 8 if schedule == "interleaved" else 9}
    changes |= {"batch": 2 * changes["microbatches"], "zero": 1}
    assert assert_added(Mesh(tp=2, pp=2, dp=2), 1, **changes) > 0.001


@pytest.mark.parametrize("tp", [2, 4])
def test_pipeline_messages_beside_tp_alone(tp):
    assert assert_added(Mesh(tp=tp, pp=4), 1) > 0.02


@pytest.mark.parametrize("mesh", [Mesh(pp=2), Mesh(pp=4), Mesh(pp=4, dp=2), Mesh(tp=2, pp=2, dp=2)], ids=str)
def test_the_sum_of_a_table_at_both_ends_of_a_pipeline_beside_its_last_messages(mesh):
    assert assert_added(mesh, 1, model=TIED) > 0.002


@pytest.mark.parametrize(
    ("mesh", "zero", "most"),
    [(Mesh(tp=4, pp=2), 0, 0.08), (Mesh(tp=4, dp=2), 1, 0.05), (Mesh(cp=2, dp=2), 1, 0.01)],
)
def test_where_a_ring_has_links_of_both_kinds_one_gpu_stands_for_all_but_nearly(mesh, zero, most):
    """And where what a shift hands on leaves before what it gets has come."""
    assert_added(mesh, 1 if mesh.cp > 1 else 2, rel=most, zero=zero)


@pytest.mark.parametrize(
    ("mesh", "gpus_per_node"), [(Mesh(tp=2, dp=2), 4), (Mesh(tp=2, dp=4), 4), (Mesh(pp=4), 1)], ids=str
)
def test_where_groups_have_ports_of_their_own_nothing_is_added(mesh, gpus_per_node):
    """Four GPUs of a node that exchange little at the same time; tp in nodes, dp across; a pipeline alone."""
    assert assert_added(mesh, gpus_per_node, zero=1) == 0


@pytest.mark.parametrize(
    ("mesh", "zero", "top_k", "rel"),
    [
        (Mesh(dp=4, ep=4), 1, 4, 1e-6),
        (Mesh(dp=4, ep=2, pp=2), 2, 4, 1e-6),
        (Mesh(dp=4, ep=2), 0, 2, 0.03),
    ],
    ids=str,
)
def test_rows_that_a_run_has_noted_share_ports_exactly_if_in_balance_and_else_nearly(mesh, zero, top_k, rel):
    lesson = grid_job(mesh, {"bucket_mb": 0.02, "zero": zero, "model": ALL_EXPERTS.replace(top_k=top_k)})
    program, hardware = strategy("4d_combined", "DP only").program, replace(ROOMY, gpus_per_node=1)
    results = launch(program, mesh.world_size, hardware, lesson, engine="inline", keep_journal=True)
    job, plan = planned(lesson, hardware, zero=zero, **GRID)
    counts = TokenCounts.of_step([result.value.routed[0] for result in results])
    found = predict(replace(job, token_counts=counts), plan)
    replayed = measure_contention(results, hardware, 1)
    assert found.sharing_seconds == pytest.approx(replayed.sharing_seconds, rel=rel)
    assert replayed.sharing_seconds > 0


# ------------------------------------------------------------------------------------- a framework's plans


@pytest.fixture
def no_cost_of_nccls_own(monkeypatch):
    monkeypatch.setattr(collective_time, "START_SECONDS", 0.0)
    monkeypatch.setattr(pricing, "slowdown_of", lambda hardware: 0.0)


@pytest.mark.usefixtures("no_cost_of_nccls_own")
@pytest.mark.parametrize(
    ("program", "changes", "software"),
    [
        (None, {"zero": 0}, {}),
        (None, {"zero": 1, "schedule": "interleaved", "stage_chunks": 2}, {}),
        (None, {"zero": 2}, {}),
        (reduces_in_turn, {"zero": 1}, {"dp_overlap": False}),
        (reduces_in_turn, {"zero": 2}, {"dp_overlap": False}),
        (gathers_beside_the_next_forward, {"zero": 1}, {"gathers_first": True}),
        (fsdp_in_a_pipeline, {"zero": 3}, {}),
        (fsdp_in_a_pipeline, {"zero": 3, "schedule": "gpipe"}, {}),
        (fsdp_in_a_pipeline, {"zero": 3, "schedule": "interleaved", "stage_chunks": 2}, {}),
    ],
)
@pytest.mark.parametrize("pp", [2, 4])
def test_a_frameworks_pipeline_messages_beside_its_gradients_and_weights(program, changes, software, pp):
    """Where they are 0.1 to 2% of the step; at most 4% of that off. Alone they take the step's seconds."""
    hardware, usual = replace(GPUS, gpus_per_node=1), LESSON | {"model": EIGHT_LAYERS}
    replayed, found = added(Mesh(pp=pp, dp=2), hardware, usual | changes, STACK | software, program)
    assert alone(found, framework_journals) == pytest.approx(found.seconds, rel=1e-9)
    assert found.sharing_seconds / found.seconds == pytest.approx(replayed, rel=0.04)
