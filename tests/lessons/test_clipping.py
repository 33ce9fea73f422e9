"""Clipping by the global norm: one number over all axes, each element counted once."""

import json

import numpy as np
import pytest

from gpu import COLLECTIVE, COMPUTE, SEND
from ndparallel.base.errors import UserError
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.main import main
from ndparallel.lessons.registry import LESSONS, load
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.model.vocabulary import TiedTable
from ndparallel.parallel.mesh import Mesh
from ndparallel.training import clipping
from ndparallel.training.job import Job
from tests.support.common import (
    SMALL,
    difference_of_weights,
    loss_and_gradient_difference,
    names,
    on_mesh,
    reference,
    run,
    strategy,
)

MODEL = SMALL.replace(layers=8, hidden=32, heads=8, kv_heads=2)
JOB = Job(model=MODEL, dtype="float64", clip_grad_norm=0.5, steps=2)
EVERY = [(lesson, name) for lesson in LESSONS for name in names(lesson)]
SPARSE = MODEL.replace(experts=4, expert_ffn=8, layers=4)
MESHES = [
    Mesh(tp=2, pp=2, dp=2),
    Mesh(tp=4, dp=2),  # two tp ranks have each of the two key-value heads
    Mesh(cp=2, pp=2, dp=2),
    Mesh(pp=2, dp=3),
]


def norms(results) -> set[tuple[float, ...]]:
    return {tuple(result.value.gradient_norms) for result in results}


@pytest.mark.parametrize(("lesson", "name"), EVERY)
def test_every_strategy_of_every_lesson_clips_as_one_gpu_does(lesson, name):
    chosen, job = strategy(lesson, name), Job(**vars(JOB) | load(lesson).defaults)
    with Runner(POCKET, "inline") as runner:
        entry = entry_of(chosen, job, load(lesson).gpus)
        row, results = runner.measured(entry)
        alone = runner.reference(entry.job, chosen.reference).measurement
    assert row.gradient_norm == pytest.approx(alone.gradient_norm, rel=1e-14)
    assert max(row.max_gradient_difference or 0.0, (row.max_weight_difference or 0.0) / 1e3) <= 1e-14
    assert len(norms(results)) == 1, "one number on all ranks, to the bit"


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_every_element_is_counted_once_whoever_holds_it(mesh, tied, zero):
    job = JOB.replace(
        model=MODEL.replace(tied=tied),
        batch=4 * mesh.dp,
        microbatches=2 * mesh.pp,
        zero=zero,
        sequence_parallel="sp" if mesh.tp > 1 and zero % 2 else "none",
    )
    results = run(on_mesh("4d_combined", "DP only", mesh), job, mesh.world_size)
    assert max(loss_and_gradient_difference(results, job)) <= 1e-14
    assert [*norms(results)][0] == pytest.approx(reference(job).value.gradient_norms, rel=1e-13)


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(dp=4, ep=4),
        Mesh(tp=2, pp=2, dp=4, ep=2),
        Mesh(dp=4, ep=2),
        Mesh(tp=2, dp=2, etp=1),  # all four ranks have all experts
        Mesh(tp=2, cp=2, ep=4, etp=1),  # each has one
        Mesh(tp=4, pp=2, ep=2, etp=2),
        Mesh(tp=4, dp=2, ep=2, etp=2, order="dp-ep-tp"),
    ],
    ids=repr,
)
def test_experts_are_counted_once_wherever_they_are(mesh, zero):
    job = JOB.replace(model=SPARSE, microbatches=2 * mesh.pp, batch=16, zero=zero)
    results = run(on_mesh("4d_combined", "DP only", mesh), job, mesh.world_size)
    assert max(loss_and_gradient_difference(results, job)) <= 1e-14
    assert difference_of_weights(results, job) <= 1e-11


def test_the_norm_is_that_of_the_whole_models_gradients_and_becomes_the_limit():
    free, clipped = (reference(JOB.replace(clip_grad_norm=limit, steps=1)).value for limit in (None, 0.5))
    squares = [sum(np.sum(held.array**2) for held in outcome.gradients) for outcome in (free, clipped)]
    length, scaled = np.sqrt(squares)
    assert clipped.gradient_norms == [pytest.approx(length, rel=1e-14)]
    assert scaled == pytest.approx(0.5, rel=1e-5) and length > 1


def test_gradients_within_the_limit_stay_as_they_are_to_the_bit():
    free, clipped = (reference(JOB.replace(clip_grad_norm=limit, steps=1)).value for limit in (None, 100.0))
    assert all((a.array == b.array).all() for a, b in zip(free.gradients, clipped.gradients))


@pytest.mark.parametrize("forgotten", ["tp", "pp", "dp"])
def test_an_axis_that_is_left_out_is_another_norm_and_so_another_gradient(forgotten, monkeypatch):
    added_up = clipping.added_up

    def forget(gpu, value, groups, context):
        return added_up(gpu, value, [group for group in groups if group.name != forgotten], context)

    monkeypatch.setattr(clipping, "added_up", forget)
    job = JOB.replace(zero=1, microbatches=2)
    results = run(on_mesh("4d_combined", "DP only", Mesh(tp=2, pp=2, dp=2)), job, 8)
    assert loss_and_gradient_difference(results, job)[1] > 1e-3


@pytest.mark.parametrize("what", ["copies", "is_copy"])
def test_what_is_counted_twice_is_another_norm(what, monkeypatch):
    job = JOB.replace(model=MODEL.replace(tied=True), microbatches=2)
    expected = reference(job).value.gradient_norms
    if what == "copies":
        monkeypatch.setattr(clipping, "copies", lambda parameter, tp: 1)
    else:
        never = property(lambda table: False, lambda table, value: None)
        monkeypatch.setattr(TiedTable, "is_copy", never)
    results = run(on_mesh("4d_combined", "DP only", Mesh(tp=2, pp=2)), job, 4)
    assert [*norms(results)][0] != pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("zero", "axes"), [(0, {"tp", "pp"}), (1, {"tp", "pp", "dp"})])
def test_the_norm_costs_one_number_along_each_axis_and_three_passes(zero, axes):
    """And ranks wait for it after their last gradient, before their optimizer: nothing hides it."""
    job = JOB.replace(zero=zero, microbatches=2, steps=1, bucket_mb=1)
    results = run(on_mesh("4d_combined", "DP only", Mesh(tp=2, pp=2, dp=2)), job, 8)
    for result in results:
        computed = [event for event in result.events if event[2] == COMPUTE]
        at = {event[3]: event for event in computed if event[3].startswith("optimizer")}
        start, end = at["optimizer norm"][5], at["optimizer clip"][4]
        between = [event for event in result.events if start <= event[4] and event[5] <= end]
        assert {event[1] for event in between if event[2] == COLLECTIVE} == axes
        assert sum(event[6] for event in between if event[2] == SEND) == 8 * len(axes)
        assert at["optimizer clip"][6] == 2 * at["optimizer norm"][6] > 0


def test_the_option_and_its_key(capsys):
    argv = ["--clip-grad-norm", "0.5", "--engine", "inline", "--json", "--strategy", "ZeRO-1"]
    assert main(load("1d_data_parallel"), argv) == 0
    (row,) = json.loads(capsys.readouterr().out)["strategies"]
    assert row["gradient_norm"] > 0.5 and row["max_gradient_difference"] <= 1e-5
    assert main(load("1d_data_parallel"), ["--clip-grad-norm", "0"]) == 2
    assert "--clip-grad-norm is 0; it must be above 0." in capsys.readouterr().err


def test_a_limit_that_is_none_is_refused():
    with pytest.raises(UserError, match="must be above 0"):
        Job(clip_grad_norm=float("nan"))
