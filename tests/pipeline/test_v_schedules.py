"""V-Half and V-Min beyond their lists: with real numbers, in the planner, and in a search of plans."""

from dataclasses import replace

import pytest

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.pipeline.catalog import RECIPES, build, names_in
from ndparallel.pipeline.timing import time_schedule
from ndparallel.pipeline.work import Work
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import find_stack
from ndparallel.search.bounds.lower_bound import lower_bound
from ndparallel.search.search import search
from ndparallel.training.job import Job
from tests.support.common import SMALL, loss_and_gradient_difference, pipeline, run

NAMES = ["v-half", "v-min"]


def planned(batch: int = 64) -> TrainingJob:
    return TrainingJob(
        find_model("llama-3-8b"), find_hardware("h100"), find_stack("megatron-core"), 8192, batch
    )


@pytest.mark.parametrize(("schedule", "ranks"), [("v-half", 4), ("v-min", 4), ("v-half", 3), ("v-min", 3)])
def test_they_compute_what_one_gpu_computes(schedule, ranks):
    job = Job(model=replace(SMALL, layers=8), microbatches=8, dtype="float64", steps=2)
    loss, gradients = loss_and_gradient_difference(run(pipeline(schedule), job, ranks), job)
    assert loss <= 1e-12 and gradients <= 1e-12


@pytest.mark.parametrize("schedule", NAMES)
@pytest.mark.parametrize("batch", [8, 32, 64])
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_the_bound_of_a_plan_holds_for_them_too(schedule, pp, batch):
    plan = Plan(tp=2, pp=pp, dp=1, chunks=2, schedule=schedule)
    assert lower_bound(planned(batch), plan).seconds[0] <= predict(planned(batch), plan).seconds


def test_a_search_of_plans_tries_them_only_where_they_are_named():
    found = search(planned(), 16, {"pp": 4}).answers
    assert found and not {answer.plan.schedule for answer in found} & {*NAMES}
    for name in NAMES:
        found = search(planned(), 16, {"pp": 4, "schedule": name}).answers
        assert found and {answer.plan.schedule for answer in found} == {name}


def test_no_framework_that_is_launched_has_them():
    assert not any({*names_in(framework)} & {*NAMES} for framework in ("megatron", "torchtitan"))


@pytest.mark.parametrize(("name", "memory", "bubble"), [("v-half", 1 / 2, 1 / 2), ("v-min", 1 / 3, 2 / 3)])
def test_the_shares_of_1f1bs_memory_and_bubble_are_those_of_many_ranks(name, memory, bubble):
    assert "On many ranks" in RECIPES[name].summary
    few, many = (shares_of_1f1b(name, ranks) for ranks in (4, 48))
    assert few[0] >= memory + 1 / 6 - 1e-9 and abs(few[1] - bubble) > 0.03  # of four ranks it is not true
    assert many == pytest.approx((memory, bubble), abs=0.025)


def shares_of_1f1b(name: str, ranks: int) -> tuple[float, float]:
    """Return what a schedule holds and how long it waits beside 1F1B, with two microbatches a rank."""
    held, waits = [], []
    for schedule in (build(name, ranks, 2 * ranks), build("1f1b", ranks, 2 * ranks)):
        timing = time_schedule(schedule, Work.of_whole_stages(schedule.chunks))
        held.append(max(timing.peak_held) / schedule.chunks)
        waits.append(timing.makespan - 3 * 2 * ranks)
    return held[0] / held[1], waits[0] / waits[1]
