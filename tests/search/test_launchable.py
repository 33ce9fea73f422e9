"""Claims about who can launch a plan: a search finds what a framework has, and its script can be written."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ndparallel.base.errors import UserError
from ndparallel.launch_flags.frameworks import FRAMEWORKS, emit, launched_by, one_has, with_own_jobs
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.software import find_stack
from ndparallel.search.search import search
from tests.search.test_search import job, random_plans

JOBS = {
    "megatron": job("llama-3-70b"),
    "torchtitan": job("llama-3-70b", software="torchtitan"),
    "deepspeed": job("llama-3-70b", software="deepspeed"),
    "accelerate": job("llama-3-70b", software="accelerate"),
}

SHARED_EXPERTS = {(1, 8, 3): True, (2, 8, 1): True, (2, 8, 2): True, (2, 8, 3): False, (2, 1, 3): True}


def switched(software: str, model: str = "llama-3-70b", **changes) -> TrainingJob:
    some = job(model, software=software)
    return replace(some, stack=replace(some.stack, **changes))


@pytest.mark.parametrize(
    ("name", "some", "least"),
    [
        ("megatron", JOBS["megatron"], 40),
        ("torchtitan", JOBS["torchtitan"], 40),
        ("deepspeed", JOBS["deepspeed"], 15),
        ("accelerate", JOBS["accelerate"], 3),
        ("megatron", job("mixtral-8x7b"), 40),
        ("torchtitan", job("qwen3-30b-a3b", software="torchtitan"), 20),
        ("torchtitan", switched("torchtitan", "qwen3-30b-a3b", dispatcher="allgather"), 2),
        ("torchtitan", switched("torchtitan", pp_overlap=False), 15),
        ("deepspeed", replace(JOBS["deepspeed"], moments="8bit"), 10),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_framework_has_a_plan_where_it_can_be_written_and_nowhere_else(name, some, least):
    framework = FRAMEWORKS[name]
    verdicts = []
    for plan in random_plans(some, 64, 300):
        try:
            written = bool(framework.written(some, plan))
        except UserError:
            written = False
        assert framework.has(some, plan) == written, plan
        verdicts.append(written)
    assert least <= sum(verdicts) < 260


@pytest.mark.parametrize(
    ("other", "wrong"),
    [
        ({"recompute": "selective"}, "no --recompute selective; take none or full"),
        ({"shards": 8}, "no --shards 8"),
    ],
)
def test_deepspeed_is_not_written_a_plan_that_it_would_run_as_another(other, wrong):
    with pytest.raises(UserError, match=wrong):
        emit("deepspeed", JOBS["deepspeed"], Plan(dp=64, zero=3, **other))


@pytest.mark.parametrize("name", [*FRAMEWORKS])
def test_a_schedule_that_a_framework_has_not_matters_in_a_pipeline_alone(name):
    framework, some = FRAMEWORKS[name], JOBS[name]
    for pp in (1, 4):
        plan = Plan(pp=pp, dp=64 // pp, zero=3, schedule="v-min", chunks=2 if pp > 1 else 1)
        assert bool(framework.has(some, plan)) == (not framework.refusal(some, plan)) == (pp == 1)


def test_a_refusal_names_what_is_wrong_with_the_plan_before_what_is_with_the_model():
    """Another plan mends it: torchtitan has no ZeRO-1, and no Mixtral."""
    some = job("mixtral-8x7b", software="torchtitan")
    said = [FRAMEWORKS["torchtitan"].refusal(some, Plan(dp=64, zero=zero)) for zero in (1, 3)]
    assert "has no ZeRO-1" in said[0] and "has no model of these sizes" in said[1]


def test_torchtitan_shards_over_one_rank_and_shards_that_are_whole_are_ddp():
    """fully_shard is always applied where states are not replicated: _mesh_exist in
    torchtitan/distributed/parallel_dims.py."""
    some = job("llama-3-8b", software="torchtitan", batch=8)
    framework = FRAMEWORKS["torchtitan"]
    assert "take --zero 3" in framework.refusal(some, Plan(tp=8, sequence_parallel=True))
    assert not framework.refusal(some, Plan(tp=8, zero=3, sequence_parallel=True))
    assert "take --zero 0" in framework.refusal(some, Plan(dp=8, zero=3, shards=1))
    found = search(some, 8, fixed={"tp": 8})
    assert {one.plan.zero for one in found.ranked} == {3}


def test_plans_over_one_rank_that_torchtitan_alone_has_are_searched_where_any_framework_may_launch_them():
    """It has no other ZeRO on one data-parallel rank, and no other framework has looped-bfs."""
    some = job("llama-3-8b", software="pytorch", batch=8)
    found = search(some, 2, fixed={"tp": 1, "pp": 2, "schedule": "looped-bfs"}, max_memory=1e13)
    assert found.best.plan.zero == 3 and FRAMEWORKS["torchtitan"].has(some, found.best.plan)


@pytest.mark.parametrize("software", ["megatron-core", "deepspeed", "accelerate"])
def test_plans_over_one_rank_are_searched_as_the_framework_that_is_asked_for_has_them(software):
    """torchtitan has ZeRO-3 alone on one data-parallel rank, whatever software is priced."""
    some = job("llama-3.2-1b", software=software, batch=16, sequence=4096)
    best = search(some, 2, {"tp": 2}, frameworks=["torchtitan"]).best.plan
    assert (best.tp, best.zero) == (2, 3) and FRAMEWORKS["torchtitan"].has(some, best)


def test_where_no_plan_can_be_launched_the_reason_is_none_that_another_zero_would_mend():
    """torchtitan cuts no tied embeddings into stages; on one data-parallel rank it has ZeRO-3 alone."""
    some = job("llama-3.2-1b", software="torchtitan", batch=16, sequence=4096)
    with pytest.raises(UserError, match="no pipeline for tied embeddings"):
        search(some, 8, {"pp": 8})
    with pytest.raises(UserError, match="take --zero 3"):
        search(some, 8, {"pp": 8, "zero": 0})


def test_deepspeed_has_zero_3_of_experts_that_ep_ranks_share_without_tp_alone():
    some = job("mixtral-8x7b", software="deepspeed")
    plans = {(tp, ep, zero): Plan(tp=tp, dp=64 // tp, ep=ep, zero=zero) for tp, ep, zero in SHARED_EXPERTS}
    assert {
        key: bool(FRAMEWORKS["deepspeed"].has(some, plan)) for key, plan in plans.items()
    } == SHARED_EXPERTS


def test_megatron_has_no_recomputation_of_every_second_matrix_and_need_not_where_nothing_runs_again():
    some = job("llama-3-70b")
    halves = replace(some, stack=replace(some.stack, selective=("half",)))
    found = [
        FRAMEWORKS["megatron"].has(halves, Plan(dp=64, zero=1, recompute=recompute))
        for recompute in ("none", "selective", "full")
    ]
    assert found == [True, False, True]


@pytest.mark.parametrize("name", [*FRAMEWORKS])
def test_of_many_plans_at_once_a_framework_has_those_that_it_has_one_by_one(name):
    some = JOBS[name]
    drawn = [replace(plan, recompute_modules=()) for plan in random_plans(some, 64, 400)]
    plans = [plan for plan in drawn if plan.schedule in ("1f1b", "interleaved", "zb-v")]
    rows = ("tp", "pp", "dp", "ep", "cp", "micro_batch", "zero", "shards", "sequence_parallel", "recompute")
    for schedule, chunks in {(plan.schedule, plan.chunks) for plan in plans}:
        alike = [plan for plan in plans if (plan.schedule, plan.chunks) == (schedule, chunks)]
        fields: dict[str, Any] = {row: np.array([getattr(plan, row) for plan in alike]) for row in rows}
        together = one_has(with_own_jobs([name], some), Plan(**fields, schedule=schedule, chunks=chunks))
        assert together.tolist() == [bool(FRAMEWORKS[name].has(some, plan)) for plan in alike]


def test_a_framework_is_judged_by_its_own_software_and_by_what_is_asked_for_beside_it():
    some = job("llama-3-70b")  # on Megatron-Core's software
    selective, context = Plan(dp=64, zero=3, recompute="selective"), Plan(cp=4, dp=16, zero=3)
    assert launched_by(some, selective) == ["megatron", "torchtitan"]
    assert launched_by(some, context) == [*FRAMEWORKS]
    modules = replace(some, stack=replace(some.stack, selective=("mlp",)))
    assert launched_by(modules, selective) == ["megatron"]
    ring = replace(some, stack=replace(find_stack("torchtitan"), context_parallel="ring"))
    assert launched_by(ring, context) == ["megatron", "accelerate"]


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_every_plan_that_is_found_for_a_framework_can_be_written_for_it(name):
    found = search(JOBS[name], 64, frameworks=[name], kinds=True)
    scripts = [FRAMEWORKS[name].written(found.job, one.plan) for one in found.ranked]
    assert len(scripts) > 10 and all(scripts)
    assert found.space.frameworks == [name]
    assert search(JOBS[name], 64, top=1).space.frameworks == [name], "its software is priced"


def test_without_a_framework_the_plan_of_the_priced_software_is_found_and_any_finds_no_slower_one():
    some = job("llama-3-70b")
    fixed = {"recompute": "none", "pp": 8}
    theirs, every = (search(some, 64, fixed, frameworks=names, top=3) for names in (None, ()))
    assert all("megatron" in launched_by(some, answer.plan) for answer in theirs.answers)
    assert every.best.seconds < theirs.best.seconds
    assert "megatron" not in launched_by(some, every.best.plan), "a zero-bubble schedule"


def test_a_schedule_that_is_asked_for_by_name_is_searched_although_its_software_does_not_have_it():
    found = search(job(), 16, {"schedule": "zb-h1", "pp": 4}, top=1)
    assert found.space.frameworks == [] and found.best.plan.schedule == "zb-h1"


@pytest.mark.parametrize(
    ("plan", "by"),
    [
        (
            Plan(tp=8, pp=4, dp=2, zero=1, chunks=5, schedule="interleaved", sequence_parallel=True),
            ["megatron"],
        ),
        (Plan(pp=4, dp=16, zero=1), ["megatron", "deepspeed"]),
        (Plan(tp=2, pp=4, dp=8, zero=1), ["megatron", "deepspeed"]),
        (Plan(dp=64, zero=3), ["megatron", "torchtitan", "deepspeed", "accelerate"]),
        (Plan(tp=8, dp=8, zero=3), ["megatron", "torchtitan", "deepspeed"]),
        (Plan(pp=4, dp=16, zero=2), []),
        (Plan(pp=4, dp=16, zero=3), ["torchtitan"]),
        (Plan(pp=4, dp=16, chunks=2, zero=3, schedule="zb-v"), ["torchtitan"]),
        (Plan(pp=4, dp=16, zero=1, schedule="zb-h1"), []),
        (Plan(pp=2, dp=32, zero=1, schedule="zb-h1"), []),
    ],
)
def test_a_plan_says_by_whom_it_can_be_launched(plan, by):
    """Megatron-Core has no zb-v; torchtitan no ZeRO-1; DeepSpeed no chunks; none ZeRO-2 in a pipeline."""
    assert launched_by(job("llama-3-70b"), plan) == by


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(dp=64, ep=8, zero=3), ""),
        (Plan(tp=2, dp=32, ep=8, zero=2), ""),
        (Plan(pp=4, dp=16, ep=8, zero=1), ""),
        (Plan(tp=2, dp=32, ep=2, zero=3), "take --zero 0, 1 or 2, or --tp 1"),
        (Plan(tp=2, pp=2, dp=16, ep=2, zero=1), "take --tp 1"),
    ],
)
def test_deepspeeds_experts_with_tensor_parallelism_take_no_zero_3_and_no_pipeline(plan, said):
    """validate_folding_global and _validate_zero3_moe_compatibility, DeepSpeed 0.19.6."""
    refusal = FRAMEWORKS["deepspeed"].refusal(job("mixtral-8x7b", software="deepspeed"), plan)
    assert refusal.endswith(f"{said}." if said else "") and bool(refusal) == bool(said)


def test_what_a_framework_does_not_have_is_refused_with_what_it_has():
    with pytest.raises(UserError, match="torchtitan 0.3.0 has no ZeRO-1; take --zero 0, 2 or 3"):
        search(job(software="torchtitan"), 16, {"zero": 1})
    for zero, pp in ((3, 4), (2, 2)):
        said = FRAMEWORKS["deepspeed"].refusal(JOBS["deepspeed"], Plan(pp=pp, dp=64 // pp, zero=zero))
        assert said == f"DeepSpeed 0.19.6 has no ZeRO-{zero} in a pipeline; take --zero 0 or 1."
    assert not FRAMEWORKS["deepspeed"].refusal(JOBS["deepspeed"], Plan(pp=2, dp=32, zero=1))
    assert not FRAMEWORKS["deepspeed"].refusal(JOBS["deepspeed"], Plan(dp=64, zero=2))
