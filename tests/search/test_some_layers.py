"""Claims about full recomputation of some layers of a stage: as few as fit, and no other number is faster."""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.job import HEADROOM, Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.plan_name import parsed_name
from ndparallel.planner.prediction import peak_memory, predict, time_step
from ndparallel.planner.software import STACKS
from ndparallel.planner.stages import kinds_by_stage, split_of
from ndparallel.search.bounds.lower_bound import fewest_layers, lower_bound, spread
from ndparallel.search.bounds.sharded import places_in, places_of
from ndparallel.search.candidates import candidates
from ndparallel.search.search import search
from ndparallel.search.space import SearchSpace, chooses_layers, outside
from tests.search.test_bounds import DENSE, KINDS, ROUNDING, any_job, legal

WRITTEN = [name for name, recipe in RECIPES.items() if not recipe.is_searched]
SOME = ("none", "full")
FIXED = ("tp", "pp", "cp", "micro_batch", "chunks")
DEEPSEEK = TrainingJob(find_model("deepseek-v3"), find_hardware("gb200"), STACKS["megatron-core"], 4096, 2048)


def by_layers(job: TrainingJob, plan: Plan) -> list[Plan]:
    """The plan with full recomputation of 1, 2, 3 ... layers of a stage, and of all."""
    numbers = [*range(1, max(split_of(job.shape, plan))), 0]
    return [replace(plan, recompute="full", recompute_modules=(), recompute_layers=each) for each in numbers]


def held(job: TrainingJob, plan: Plan) -> float:
    return float(peak_memory(job, plan).total)


@pytest.mark.parametrize(("schedule", "kinds"), [*product(["none", *WRITTEN], KINDS)])
def test_more_recomputed_layers_make_no_step_shorter_and_no_memory_larger_and_bounds_hold(schedule, kinds):
    for zero in (0, 1, 2, 3):
        for job, plan in legal(schedule, zero, kinds, 1):
            every = by_layers(job, plan)
            steps = [time_step(job, each).seconds for each in (replace(plan, recompute="none"), *every)]
            bytes_held = [held(job, each) for each in every]
            assert all(one <= other * (1 + ROUNDING) for one, other in zip(steps, steps[1:]))
            assert all(one >= other * (1 - ROUNDING) for one, other in zip(bytes_held, bytes_held[1:]))
            for each, seconds, memory in zip(every, steps[1:], bytes_held):
                bound = lower_bound(job, each)
                assert bound.seconds[0] <= seconds * (1 + ROUNDING)
                assert bound.memory_bytes[0] == pytest.approx(memory, rel=1e-12)


def test_bounds_of_several_numbers_of_layers_are_those_of_each():
    job = TrainingJob(DENSE, find_hardware("h100"), STACKS["megatron-core"], 4096, 64)
    plan = Plan(pp=2, dp=4, recompute="full")
    together = lower_bound(job, replace(plan, recompute_layers=np.array([2, 0, 1, 3])))
    alone = [lower_bound(job, replace(plan, recompute_layers=layers)) for layers in (2, 0, 1, 3)]
    assert together.seconds == pytest.approx([one.seconds[0] for one in alone], rel=1e-12)
    assert together.memory_bytes == pytest.approx([one.memory_bytes[0] for one in alone], rel=1e-12)


@pytest.mark.parametrize("kinds", KINDS)
def test_every_place_of_a_unit_among_recomputed_and_kept_layers_is_known(kinds):
    for fields, stages, layers in product(KINDS[kinds], (1, 2, 3, 4), (1, 2, 3)):
        shape = replace(DENSE, **fields)
        for stage in kinds_by_stage(shape, stages, layers):
            assert {*places_in(stage)} <= {*places_of(shape, some_kept=True)}


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_the_fewest_layers_are_those_with_which_the_plan_fits_and_with_one_less_does_not(pp):
    job = TrainingJob(replace(DENSE, layers=13), find_hardware("h100"), STACKS["megatron-core"], 4096, 64)
    plan = Plan(pp=pp, dp=4, recompute="full")
    every = by_layers(job, plan)
    for one, fewer in zip(every[1:], every):
        layers = fewest_layers(job, spread(plan), held(job, one))
        assert layers.tolist() == [one.recompute_layers]
        assert held(job, fewer) > held(job, one)


# ------------------------------------------------------------------------------------------------ the search


def plans_of(job: TrainingJob, gpus: int, fixed: dict) -> list[Plan]:
    """All plans, whatever they hold, with every number of recomputed layers."""
    every = candidates(SearchSpace(job, gpus, fixed, float("inf"), ["megatron"]))
    plans = [every.plan(place) for place in range(len(every.rows))]
    return [each for plan in plans for each in (by_layers(job, plan) if plan.recompute == "full" else [plan])]


def crowded(draw: random.Random, kinds: str) -> tuple[TrainingJob, Plan]:
    """A plan that recomputes some layers, of a job whose GPUs it fills, and on which the plan that recomputes
    nothing does not fit."""
    given = {"recompute": SOME, "micro_batch": (1, 2), "chunks": (1, 2)}
    while True:
        job = replace(
            any_job(draw, draw.choice(KINDS[kinds])), stack=STACKS["megatron-core"], global_batch=32
        )
        plans = [each for each in plans_of(job, 4, given) if each.recompute_layers]
        length = draw.choice(sorted({each.pp for each in plans}))
        plan = draw.choice([each for each in plans if each.pp == length])
        memory = held(job, plan)
        if held(job, replace(plan, recompute="none", recompute_layers=0)) > memory:
            hardware = replace(job.hardware, memory_bytes=memory / (1 - HEADROOM) * (1 + ROUNDING))
            return replace(job, hardware=hardware), plan


@pytest.mark.parametrize("kinds", KINDS)
def test_no_number_of_layers_is_faster_than_what_the_search_finds(kinds):
    draw, found = random.Random(kinds), []
    for _ in range(8):
        job, plan = crowded(draw, kinds)
        fixed = {name: getattr(plan, name) for name in FIXED} | {"recompute": SOME}
        found.append(search(job, 4, fixed, frameworks=["megatron"]))
        fitting = [each for each in plans_of(job, 4, fixed) if held(job, each) <= job.usable_bytes()]
        best = min(time_step(job, each).seconds for each in fitting)
        assert found[-1].best.seconds <= best * (1 + ROUNDING)
        assert found[-1].best.seconds * (1 - found[-1].gap) <= best * (1 + ROUNDING)
    assert any(one.best.plan.recompute_layers for one in found)


def test_every_plan_whose_bound_without_recomputation_may_be_as_fast_is_tried_with_the_fewest_layers():
    job = TrainingJob(find_model("llama-3-8b"), find_hardware("a100-40"), STACKS["megatron-core"], 8192, 32)
    space = SearchSpace(job, 8, {"recompute": SOME}, job.usable_bytes(), ["megatron"])
    found, every = candidates(space), candidates(replace(space, memory_bytes=float("inf")))
    tried = {found.plan(place) for place in range(len(found.rows))}
    whole = [place for place in range(len(found.rows)) if not found.plan(place).recompute_layers]
    limit = time_step(job, found.plan(min(whole, key=found.seconds.__getitem__))).seconds
    nothing = {every.plan(place): every.seconds[place] for place in range(len(every.rows))}
    wanted = set()
    for plan, bound in nothing.items():
        if plan.recompute == "none" and bound <= limit and held(job, plan) > job.usable_bytes():
            fits = [each for each in by_layers(job, plan) if held(job, each) <= job.usable_bytes()]
            wanted |= {*fits[:1]}
    assert {plan for plan in tried if plan.recompute_layers} == {
        plan for plan in wanted if plan.recompute_layers
    }
    assert len(wanted) > 10


def test_a_plan_that_lacks_memory_recomputes_one_layer_of_a_stage_where_that_is_enough():
    """DeepSeek-V3 on 512 GB200s: all 8 layers of a stage again made the step a fifth longer."""
    asked = Plan(**parsed_name("PP4xDP128xEP64,zero1,dualpipev,mbs1,full1"))
    fixed = {"schedule": "dualpipev", "pp": 4, "ep": 64, "tp": 1, "cp": 1, "zero": 1, "recompute": SOME}
    found = search(DEEPSEEK, 512, fixed, frameworks=[])
    assert found.best.seconds <= predict(DEEPSEEK, asked).seconds
    assert found.best.plan == asked


@pytest.mark.parametrize(
    ("software", "given", "frameworks"),
    [
        ("torchtitan", {}, None),
        ("deepspeed", {}, None),
        ("megatron-core", {"recompute": "full"}, None),
        ("megatron-core", {}, ["torchtitan"]),
    ],
)
def test_some_layers_are_recomputed_only_where_none_and_all_can_be_and_a_framework_has_it(
    software, given, frameworks
):
    job = TrainingJob(find_model("llama-3-8b"), find_hardware("a100-40"), STACKS[software], 8192, 64)
    found = search(job, 8, given, frameworks=frameworks, kinds=True, tight=True)
    assert any(one.plan.recompute == "full" for one in found.ranked)
    assert not any(one.plan.recompute_layers for one in found.ranked)
    assert "--recompute-layers;" in outside(found.space)


def test_what_a_search_says_of_layers_is_what_it_tries():
    space = SearchSpace(DEEPSEEK, 512, {}, 0.0, ["megatron"])
    assert chooses_layers(space)
    assert "--recompute-layers;" not in outside(space)
    assert "Of --recompute-layers the fewest that fit are tried" in outside(space)
    assert not chooses_layers(replace(space, job=replace(DEEPSEEK, offload=("activations",))))
