"""Claims about the search: what it finds is never slower than what others find, its prices are bounds, and it
gives its reasons."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import is_folded, violations
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import legal_and_fits, peak_memory, predict, time_step
from ndparallel.planner.software import find_stack
from ndparallel.search import timing_queue
from ndparallel.search.advice import advise
from ndparallel.search.bounds.lower_bound import least_work, lower_bound, spread
from ndparallel.search.bounds.plan_table import DEGREES
from ndparallel.search.candidates import (
    FEW_PLANS,
    MOST_SHARES,
    PER_GROUP,
    PER_ROW,
    SLOWER,
    candidates,
    loads_by_length,
    may_take_less,
    shares_of,
)
from ndparallel.search.guide_rules import SMALL
from ndparallel.search.no_plan import nothing_left
from ndparallel.search.pruning import LACKS, reason
from ndparallel.search.search import Found, search
from ndparallel.search.space import SearchSpace, families, layouts, module_sets
from ndparallel.search.tables import advice_sentences, free_words, kinds, tighter_sentences
from ndparallel.validation.cases import express, read_cases

ROUNDING = 1e-9
MODULE_SETS: list[tuple[str, ...]] = [(), ("layernorm",), ("moe_act",), ("layernorm", "moe_act")]
SCHEDULES = {
    "1f1b": 1,
    "eager-1f1b": 1,
    "gpipe": 1,
    "interleaved": 3,
    "looped-bfs": 2,
    "zb-h1": 1,
    "zb-h2": 1,
    "zb-v": 2,
    "dualpipev": 2,
}


def job(
    model: str = "llama-3-8b",
    hardware: str = "h100",
    batch: int = 64,
    software: str = "megatron-core",
    sequence: int = 4096,
) -> TrainingJob:
    return TrainingJob(find_model(model), find_hardware(hardware), find_stack(software), sequence, batch)


# every legal plan that fits, whoever has it
ALL: dict[str, Any] = {"frameworks": (), "headroom": 0.0}


@cache
def found(model: str, gpus: int) -> Found:
    return search(job(model), gpus, **ALL)


def random_plans(of: TrainingJob, gpus: int, count: int) -> list[Plan]:
    """Legal plans, drawn without the search's own enumeration."""
    draw = random.Random(3)
    plans: list[Plan] = []
    while len(plans) < count:
        tp, pp, cp = (2 ** draw.randrange(7) for _ in range(3))
        schedule = draw.choice([*SCHEDULES]) if pp > 1 else "1f1b"
        plan = Plan(
            tp=tp,
            pp=pp,
            dp=gpus // (tp * pp * cp),
            cp=cp,
            ep=2 ** draw.randrange(4) if of.shape.experts else 1,
            chunks=SCHEDULES[schedule] if pp > 1 else 1,
            micro_batch=draw.choice([1, 2, 4, 8]),
            zero=draw.randrange(4),
            sequence_parallel=tp > 1 and draw.random() < 0.5,
            recompute=(recompute := draw.choice(["none", "selective", "selective", "full"])),
            recompute_modules=draw.choice(MODULE_SETS) if recompute == "selective" else (),
            schedule=schedule,
        )
        if plan.gpus == gpus and not any(violations(of, plan)):
            plans.append(plan)
    return plans


def priced(of: TrainingJob, plans: list[Plan]) -> Iterator[tuple[Plan, float]]:
    """Those that fit, with the bounds of their steps."""
    alike: dict[Plan, list[Plan]] = defaultdict(list)
    for plan in plans:
        alike[replace(plan, tp=1, pp=1, dp=1, ep=1, cp=1, chunks=1, micro_batch=1)].append(plan)
    for words, group in alike.items():
        numbers: dict[str, Any] = {
            name: np.array([getattr(plan, name) for plan in group])
            for name in ("tp", "pp", "dp", "ep", "cp", "chunks", "micro_batch")
        }
        costs = lower_bound(of, replace(words, **numbers))
        fit = costs.memory_bytes <= of.hardware.memory_bytes
        yield from ((plan, bound) for plan, bound, fits in zip(group, costs.seconds, fit) if fits)


@pytest.mark.parametrize(("model", "gpus"), [("llama-3-8b", 16), ("llama-3-70b", 64), ("mixtral-8x7b", 32)])
def test_the_best_plan_is_never_slower_than_hundreds_of_random_legal_ones(model, gpus):
    best = found(model, gpus).best.seconds
    plans = list(priced(job(model), random_plans(job(model), gpus, 500)))
    assert len(plans) > 75
    for number, (plan, bound) in enumerate(plans):
        if bound < best or number % 50 == 0:
            assert best <= time_step(job(model), plan).seconds * (1 + 1e-9), plan


@pytest.mark.parametrize("gpus", [2, 8])
def test_zero_is_searched_on_one_data_parallel_rank_where_tp_ranks_hold_the_same_experts(gpus):
    """They hold whole experts, and can share out their states."""
    of, roomy = job("mixtral-8x7b"), 1e13
    fixed = {"tp": gpus, "ep": 1, "micro_batch": 1, "recompute": "none", "sequence_parallel": True}
    best = search(of, gpus, fixed, frameworks=(), max_memory=roomy).best
    plans = [Plan(tp=gpus, zero=zero, sequence_parallel=True) for zero in (0, 1, 2, 3)]
    assert best.seconds == pytest.approx(min(time_step(of, plan).seconds for plan in plans))
    assert peak_memory(of, best.plan).total < 0.8 * peak_memory(of, plans[0]).total


def test_modules_run_again_where_that_spares_activations_their_way_to_the_host_and_not_for_memory_alone():
    mixture = job("mixtral-8x7b")
    of = replace(mixture, offload=("activations",), offload_share=0.5, sequence=2048, global_batch=8)
    best = search(of, 8, {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1}, frameworks=(), max_memory=1e13).best
    plain = Plan(dp=8, ep=8, zero=3)
    again = replace(plain, recompute="selective", recompute_modules=("moe_act",))
    assert time_step(of, again).seconds < 0.97 * time_step(of, plain).seconds
    assert best.seconds <= time_step(of, again).seconds * (1 + 1e-9)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_plan_that_has_nothing_to_shard_is_searched_under_the_zero_that_is_asked_for(zero):
    fixed = {"tp": 2, "zero": zero, "micro_batch": 1, "recompute": "none", "sequence_parallel": True}
    best = search(job(), 2, fixed, frameworks=(), max_memory=1e13).best
    assert best.seconds == pytest.approx(time_step(job(), Plan(tp=2, sequence_parallel=True)).seconds)


def test_a_single_gpu_of_software_that_always_shards_has_plans():
    """Accelerate has ZeRO-2 and 3 alone."""
    best = search(job("gpt2", batch=8, software="accelerate", sequence=1024), 1).best
    assert (best.plan.dp, best.plan.zero) == (1, 2)


def test_the_best_plan_is_never_slower_than_a_measured_runs_plan_on_the_same_job():
    one_of_each = {run["family"]: run for run in reversed(read_cases())}.values()
    cases = [case for run in one_of_each if (case := express(run)).plan.gpus <= 8 and not case.one_layer]
    assert len(cases) > 6
    for case in cases:
        best = search(case.job, int(case.plan.gpus), top=1, effort=200_000, **ALL).best.seconds
        assert best <= time_step(case.job, case.plan).seconds * (1 + 1e-9), case.name


@pytest.mark.parametrize(
    ("model", "gpus", "ways"),
    [("gpt2", 8, 1), ("llama-3-8b", 16, 1), ("llama-3-70b", 64, 2), ("mixtral-8x7b", 32, 2)],
)
def test_the_best_plan_is_never_slower_than_the_advice(model, gpus, ways):
    sequence = 1024 if model == "gpt2" else 4096
    advice: Any = advise(job(model, sequence=sequence), gpus)
    assert 0 < len(advice.ways) <= ways and advice.longer_than_best >= 0
    assert len({branch.question for branch in advice.branches}) == len(advice.branches), (
        "two ways ask of different plans"
    )
    assert advice.found.best.seconds <= advice.advised.seconds
    small = advice.found.job.shape.parameters().total < SMALL
    assert advice.branches[0].question.startswith("fits on one GPU?") and (
        not small or len(advice.branches) <= 5
    )


def test_of_few_plans_the_best_is_the_best_of_all_timed_one_by_one():
    some = job("llama-3-8b", batch=8)
    fixed = {
        "micro_batch": 1,
        "zero": 1,
        "recompute": "none",
        "sequence_parallel": False,
        "schedule": ("1f1b", "zb-h1", "zb-v", "gpipe"),
    }
    every = candidates(SearchSpace(some, 8, fixed, some.hardware.memory_bytes))
    steps = [time_step(some, every.plan(place)).seconds for place in range(len(every.rows))]
    result = search(some, 8, fixed, **ALL)
    assert len(steps) > 20 and result.best.seconds == pytest.approx(min(steps), rel=1e-12)
    assert result.gap <= 1 - min(every.seconds) / min(steps) + 1e-12


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipev"])
@pytest.mark.parametrize("hides", [False, True])
def test_what_folded_experts_take_at_least_hides_what_pairs_or_the_software_hide(
    monkeypatch, schedule, hides
):
    asked = []

    def least_of_both(job, plans, pairs):
        asked.append(pairs)
        return np.array([1.0, 3.0])

    monkeypatch.setattr("ndparallel.search.candidates.least_work", least_of_both)
    some = job("mixtral-8x7b")
    some = replace(some, stack=replace(some.stack, hides_dispatch=hides))
    space, one = (
        SearchSpace(some, 1, {"schedule": schedule}, 80e9),
        np.ones((1, len(DEGREES)), dtype=np.int64),
    )
    assert [may_take_less(space, one, seconds).tolist() for seconds in (1.0, 0.9)] == [[True], [False]]
    assert asked == 2 * [hides or schedule == "dualpipev"]


def test_plans_of_low_bounds_are_timed_until_the_certificate_is_one_per_cent(monkeypatch):
    """Stages of 126 layers are uneven but with 8 chunks, of which the bounds know nothing."""
    some = job("llama-3-405b", batch=2048, sequence=8192)
    fixed = {"tp": 4, "pp": 16, "schedule": "interleaved", "zero": 1, "recompute": "none"}
    sure = search(some, 16384, fixed, top=4, headroom=0.04, effort=100_000)
    monkeypatch.setattr(timing_queue, "CERTIFY", 0.0)
    unsure = search(some, 16384, fixed, top=4, headroom=0.04, effort=100_000)
    assert sure.gap < timing_queue.SURE < unsure.gap
    assert sure.best.plan == unsure.best.plan and sure.timed > unsure.timed


def test_a_price_is_a_bound_of_time_and_the_bytes_of_memory_in_every_schedule():
    some, near = job("llama-3-70b", batch=32), []
    for schedule, chunks in SCHEDULES.items():
        for zero, micro_batch in ((1, 1), (3, 2)):
            plan = Plan(
                tp=2,
                pp=4,
                dp=4,
                micro_batch=micro_batch,
                chunks=chunks,
                zero=zero,
                schedule=schedule,
                recompute="selective",
            )
            cost, exact = lower_bound(some, plan), time_step(some, plan).seconds
            assert cost.seconds[0] <= exact * (1 + ROUNDING) and cost.memory_bytes[0] == pytest.approx(
                float(peak_memory(some, plan).total), rel=1e-9
            )
            near.append(cost.seconds[0] / exact)
    assert np.median(near) > 0.95 and min(near) > 0.6


@pytest.mark.parametrize("tied", [False, True])
def test_of_a_dense_pipeline_with_replicas_a_price_is_a_bound_to_the_last_digit(tied):
    some = job("llama-3-8b")
    some = replace(some, shape=replace(some.shape, tied_embeddings=tied))
    plans = [plan for plan in random_plans(some, 16, 100) if plan.pp > 1 and plan.zero < 3]
    ratios = [lower_bound(some, plan).seconds[0] / time_step(some, plan).seconds for plan in plans]
    assert len(plans) > 30 and max(ratios) <= 1 + 1e-9 and np.median(ratios) > 0.99


def test_where_a_layer_does_not_fit_the_advice_is_to_cut_it():
    small = replace(find_hardware("h100"), memory_bytes=16 * 2**30)
    advice = advise(replace(job("llama-3-70b", batch=32), hardware=small), 128)
    assert "no: TP has to cut it" in [branch.follows for branch in advice.branches]
    assert advice.advised is None or advice.advised.plan.tp == 8


def test_in_a_pipeline_zero_2_takes_longer_than_zero_1_and_no_less_than_its_bound():
    for schedule, chunks in SCHEDULES.items():
        one, two = (Plan(tp=2, pp=4, dp=2, zero=zero, schedule=schedule, chunks=chunks) for zero in (1, 2))
        seconds = time_step(job(), two).seconds
        assert time_step(job(), one).seconds < seconds
        assert lower_bound(job(), two).seconds[0] <= seconds * (1 + ROUNDING)


def test_every_legal_plan_fits_or_is_counted_by_what_it_lacks():
    result = found("llama-3-70b", 64)
    lacking = sum(count for reason, count in result.rejected.items() if reason.startswith("does not fit"))
    assert result.legal == result.fit + lacking and result.fit > 10_000
    less = search(job("llama-3-70b"), 64, max_memory=60 * 2**30, frameworks=(), top=3)
    assert less.fit < result.fit and less.best.seconds >= result.best.seconds
    assert all(found.fullest.total <= 60 * 2**30 for found in less.answers)


def test_what_plans_lack_is_counted_in_gigabytes():
    some, most, fixed = job("llama-3-8b"), 20e9, {"recompute": "none"}
    every, less = (candidates(SearchSpace(some, 8, fixed, limit)) for limit in (float("inf"), most))
    lacking = (every.memory_bytes - most) / 1e9
    edges = (0, *LACKS, float("inf"))
    counts = [int(((low <= lacking) & (lacking < high)).sum()) for low, high in zip(edges, edges[1:])]
    found = [less.rejected[reason(low, high)] for low, high in zip((0, *LACKS), (*LACKS, None))]
    assert found == counts and min(counts[1:4]) > 0
    assert len(less.rows) == int((lacking <= 0).sum()) and less.legal == every.legal


def test_the_certificate_holds_over_plans_whose_modules_run_again():
    """Experts' activations that run again free what a good plan of DeepSeek-V3's job lacks otherwise."""
    some = job("deepseek-v3", "h800", batch=15360)
    plain = Plan(tp=2, pp=16, dp=64, ep=16, zero=1, sequence_parallel=True)
    again = replace(plain, recompute="selective", recompute_modules=("moe_act",))
    result = search(some, int(plain.gpus), top=1)
    most = result.space.memory_bytes
    assert peak_memory(some, again).total <= most < peak_memory(some, plain).total
    assert result.best.seconds <= time_step(some, again).seconds and result.gap <= 0.02


def test_modules_that_run_again_never_make_a_step_shorter():
    """What lets the search leave them out where a plan fits without."""
    some = job("mixtral-8x7b")
    for plan in random_plans(some, 32, 60):
        plain = replace(plan, recompute="none", recompute_modules=())
        for modules in module_sets(some):
            again = replace(plan, recompute="selective", recompute_modules=modules)
            assert time_step(some, plain).seconds <= time_step(some, again).seconds * (1 + ROUNDING), again


def test_modules_run_again_where_these_leave_just_enough_memory_free():
    """Two layers, of which full recomputation holds one whole: it leaves 5 GB more free."""
    some = replace(
        job("mixtral-8x7b", batch=8, sequence=32768), shape=replace(find_model("mixtral-8x7b"), layers=2)
    )
    again = Plan(dp=8, ep=8, zero=1, recompute="selective", recompute_modules=("layernorm", "moe_act"))
    fixed = {name: getattr(again, name) for name in ("tp", "pp", "dp", "cp", "ep", "zero")}
    found = candidates(SearchSpace(some, 8, fixed, peak_memory(some, again).total * (1 + ROUNDING)))
    assert again in [found.plan(place) for place in range(len(found.rows))]


def test_where_no_layout_is_legal_the_three_rules_that_most_of_them_break_are_told():
    job = TrainingJob(find_model("deepseek-v3"), find_hardware("h100"), find_stack("megatron-core"), 4096, 56)
    space = SearchSpace(job, 56, {"tp": 7, "ep": 3}, job.hardware.memory_bytes)
    told = str(
        nothing_left(space, Counter({"the third": 2, "the fourth": 1, "the first": 9, "the second": 3}))
    )
    assert "the first (9 layouts); the second (3 layouts); the third (2 layouts)." in told


def test_the_modules_that_are_tried_do_not_depend_on_the_order_of_the_rows(monkeypatch):
    some = job("mixtral-8x7b")
    usual = candidates(SearchSpace(some, 16, {}, some.usable_bytes()))
    monkeypatch.setattr("ndparallel.search.candidates.families", lambda *given: [*families(*given)][::-1])
    other = candidates(SearchSpace(some, 16, {}, some.usable_bytes()))
    assert (other.legal, other.rejected) == (usual.legal, usual.rejected)
    assert sorted(other.seconds) == pytest.approx(sorted(usual.seconds), rel=ROUNDING)


def test_layouts_with_folded_experts_are_left_out_only_where_all_their_plans_are_slower_than_the_best():
    mixture, gpus = job("mixtral-8x7b"), 16
    result, draw = search(mixture, gpus, **ALL), random.Random(7)
    every = random_plans(mixture, gpus, 400)
    folded = [plan for plan in every if is_folded(plan)]
    table = layouts(mixture, gpus, {}, Counter())
    number = sum(is_folded(Plan(**dict(zip(DEGREES, row)))) for row in table.tolist())
    assert 0 < result.rejected[SLOWER] < number and len(folded) > 50
    assert all(time_step(mixture, plan).seconds >= result.best.seconds for plan in draw.sample(folded, 50))


@pytest.mark.parametrize("hides", [False, True])
def test_no_schedule_takes_less_than_what_the_mean_rank_does(hides):
    """With pairs of microbatches, those of a schedule or of the software, all that can hide is left out."""
    mixture = job("mixtral-8x7b", sequence=8192)
    mixture = replace(mixture, stack=replace(mixture.stack, hides_dispatch=hides))
    near = []
    for plan in random_plans(mixture, 16, 120):
        pairs = hides or RECIPES[plan.schedule].pairs
        (least,) = least_work(mixture, [spread(plan)], pairs)
        near.append(least / time_step(mixture, plan).seconds)
    assert 0.7 < max(near) <= 1


def test_folded_experts_are_found_where_the_same_plan_lacks_memory_without():
    """Mixtral 8x7B on 16 GPUs: without tp and cp, over whose ranks experts can be spread, FSDP is best."""
    mixture = job("mixtral-8x7b", batch=256, sequence=8192)
    best = search(mixture, 16).best
    assert is_folded(best.plan) and best.seconds < 0.9 * search(mixture, 16, {"tp": 1, "cp": 1}).best.seconds
    assert peak_memory(mixture, replace(best.plan, ep=best.plan.dp)).total > mixture.usable_bytes()


def test_mlps_run_again_where_long_sequences_leave_no_memory_for_what_they_keep():
    """Llama 3 8B with 131,072 tokens on 8 GPUs: attention, most of the work, need not run again."""
    long = job(batch=8, sequence=131072)
    best, full = (search(long, 8, fixed).best for fixed in ({}, {"recompute": "full"}))
    assert best.plan.recompute_modules == ("mlp",) and best.seconds < 0.9 * full.seconds


def test_only_software_that_has_them_chooses_modules_that_the_model_has():
    assert module_sets(job()) == [("mlp",)]  # its norms are parts of products
    assert module_sets(job("mixtral-8x7b")) == [("layernorm", "moe_act"), ("layernorm",), ("moe_act",)]
    assert len(module_sets(job("deepseek-v3"))) == 7 and not module_sets(job(software="torchtitan"))
    fixed = {"recompute_modules": ("mla_up_proj",)}
    only = search(job("deepseek-v3", "h800", batch=15360), 2048, fixed | {"pp": 16, "tp": 2}, top=1)
    assert only.best.plan.recompute_modules == ("mla_up_proj",)


def test_a_faster_plan_that_leaves_less_memory_free_is_named():
    some = job("llama-2-13b", batch=64, software="torchtitan")
    usual, told, full = (
        search(some, 8),
        search(some, 8, tight=True),
        search(some, 8, headroom=0.0, tight=True),
    )
    assert told.tighter and told.tighter.plan == full.best.plan
    assert told.space.memory_bytes < told.tighter.fullest.total <= full.space.memory_bytes
    assert full.best.seconds < 0.98 * told.best.seconds and not full.tighter
    assert (told.ranked, told.rejected, told.fit) == (usual.ranked, usual.rejected, usual.fit)
    (sentence,) = tighter_sentences(told, "; --headroom {}")
    less, share = (
        1 - full.best.seconds / told.best.seconds,
        told.tighter.fullest.total / some.hardware.memory_bytes,
    )
    assert f"does not leave 8% of it free: DP8,zero2,mbs1 takes {less:.1%} less time" in sentence
    assert f"It fills {share:.1%}" in sentence and sentence.endswith(f"--headroom {int(100 * (1 - share))}.")
    said = advice_sentences(told, 1e12, None)
    assert f"{sentence.removesuffix('.')} lets a search take it." in said
    assert not tighter_sentences(usual)


def test_kinds_that_cannot_be_told_apart_are_said_to_be_marked_only_where_a_table_marks_them(
    monkeypatch,
):
    monkeypatch.setattr("ndparallel.search.tables.equal_kinds", lambda found: 3)
    found = search(job("llama-3-8b", batch=64), 8, top=1)
    marked, listed = (" ".join(advice_sentences(found, 1e12, None, top)) for top in (None, 3))
    assert "kinds marked = apart" in marked
    assert "kinds (listed without --top) apart" in listed and "marked" not in listed


@pytest.mark.parametrize(("equal", "marked"), [(1, False), (2, True)])
def test_a_table_marks_equal_kinds_only_where_there_are_several(equal, marked, monkeypatch):
    monkeypatch.setattr("ndparallel.search.tables.equal_kinds", lambda found: equal)
    table = kinds(search(job("llama-3-8b", batch=64), 8, top=1), 100)
    first = next(iter(table.columns[0].cells))
    assert f"{first}".startswith("= ") == marked


@pytest.mark.parametrize("tight", [False, True])
def test_the_memory_that_a_plan_leaves_is_the_gpus_less_the_plans(tight):
    """20 of 80 GB are a quarter, so that three quarters are free."""
    take = SimpleNamespace(
        fullest=SimpleNamespace(total=20e9), is_tight=tight, memory_bar=SimpleNamespace(fraction=0.1)
    )
    machine = SimpleNamespace(hardware=SimpleNamespace(memory_bytes=80e9))
    found: Any = SimpleNamespace(recommended=take, job=machine)
    said = "it leaves 75.0% of the memory, which" if tight else "leaves 75.0% of the memory free."
    assert said in free_words(found)


def test_what_no_rule_allows_is_counted_by_the_rule():
    reasons = search(job("llama-3-8b", batch=60), 12, top=1).rejected
    assert reasons["heads not divisible by tp"] > 0 and reasons["sequence not divisible by 2 cp"] > 0


def test_answers_are_ranked_distinct_and_what_the_planner_says_of_their_plans():
    result = found("llama-3-70b", 64)
    seconds = [each.seconds for each in result.answers]
    assert len(seconds) == 10 == len({each.plan for each in result.answers}) and seconds == sorted(seconds)
    for each in result.answers[:3]:
        assert predict(result.job, each.plan).as_dict() == each.as_dict()


def test_a_process_pool_finds_the_same():
    with ProcessPoolExecutor(2) as pool:
        found_the_same(search(job(batch=16), 8, executor=pool), search(job(batch=16), 8))


def test_forks_find_the_same(monkeypatch):
    alone = search(job(batch=16), 8)
    monkeypatch.setattr("ndparallel.search.candidates.FEW_PLANS", 1)
    monkeypatch.setattr("ndparallel.search.candidates.forks_at_once", lambda: 3)
    found_the_same(search(job(batch=16), 8), alone)


@given(st.dictionaries(st.integers(1, 64), st.integers(1, 10**6), max_size=20), st.integers(1, 128))
def test_shares_have_every_length_once_and_none_exceeds_the_mean_by_more_than_a_length(plans, cores):
    shares, most = shares_of(plans, cores), min(cores, MOST_SHARES, 1 + sum(plans.values()) // FEW_PLANS)
    assert sorted(sum(shares, [])) == sorted(plans) and len(shares) <= most
    loads = [sum(plans[length] for length in share) for share in shares]
    assert all(load < sum(loads) / most + max(plans.values()) for load in loads)


def test_a_length_loads_a_share_with_its_rows_their_plans_and_its_groups():
    """Two rows of one GPU have one group, and one row of two GPUs two: with 1F1B and with GPipe."""
    space = SearchSpace(job(), 2, {"schedule": ("1f1b", "gpipe")}, 1e12)
    one, two = (Plan(pp=np.array(lengths)) for lengths in ([1, 2], [1]))
    assert loads_by_length(space, [one, two]) == {
        1: 2 * PER_ROW + 2 + PER_GROUP,
        2: PER_ROW + 2 + 2 * PER_GROUP,
    }


def found_the_same(together, alone):
    assert [each.as_dict() for each in together.answers] == [each.as_dict() for each in alone.answers]
    assert (together.rejected, together.legal, together.timed, together.gap) == (
        alone.rejected,
        alone.legal,
        alone.timed,
        alone.gap,
    )


def test_what_is_fixed_stays():
    fixed = {
        "tp": 4,
        "schedule": "interleaved",
        "recompute": "full",
        "zero": 1,
        "micro_batch": 2,
        "chunks": 4,
        "pp": 2,
    }
    for each in search(job("llama-3-70b"), 64, fixed, top=3).answers:
        assert all(getattr(each.plan, name) == value for name, value in fixed.items())
    two = search(job("llama-3-70b"), 64, {"schedule": ("gpipe", "zb-h1"), "pp": 8}, top=5)
    assert {each.plan.schedule for each in two.answers} <= {"gpipe", "zb-h1"}


@pytest.mark.parametrize(
    ("gpus", "fixed", "said"),
    [
        (64, {"tp": 7}, "nearest: 2, 4, 8"),
        (64, {"tpp": 8}, "Did you mean 'tp'"),
        (64, {"zero": 5}, "unknown zero"),
        (64, {"dp": 0}, "at least 1"),
        (2, {}, "none of 939 legal plans of llama-3-70b fits on 2 GPUs"),
        (61, {"pp": 1}, "nearest: 61"),
        (64, {"shards": 7}, "that 7 divides"),
    ],
)
def test_a_search_that_can_find_nothing_says_why(gpus, fixed, said):
    with pytest.raises(UserError, match=said.replace("(", "\\(")):
        search(job("llama-3-70b"), gpus, fixed)


def test_the_lessons_own_software_is_refused():
    with pytest.raises(UserError, match="real framework"):
        search(replace(job(), stack=find_stack("pocket")), 8)


def test_nodes_are_a_replica_only_where_their_ranks_have_all_experts():
    """8 GPUs a node, 4 nodes: of ep 32 an expert's states would be on no whole number of two nodes' ranks."""
    mixture = job("qwen3-30b-a3b")
    plans = [*families(layouts(mixture, 32, {"pp": 1}, Counter()), mixture, {"zero": 3, "recompute": "none"})]
    hybrid = [plan for plan in plans if plan.shards]
    assert {8, 16} <= {plan.shards for plan in hybrid}
    assert max(int(plan.ep.max()) for plan in hybrid) == 16 < max(int(plan.ep.max()) for plan in plans)
    assert all((plan.tp * plan.shards % plan.ep == 0).all() for plan in hybrid)


def test_replicas_of_several_nodes_are_searched_and_no_neighbour_is_faster():
    """Rings over all of 1,024 GPUs have eight times the hops of rings over 128; the weights fit on these."""
    there = replace(job("llama-3-70b"), stack=find_stack("torchtitan-compiled"), global_batch=1024)
    found = search(there, 1024, {"pp": 1})
    assert found.best.plan.shards > there.hardware.gpus_per_node // found.best.plan.tp
    others = [replace(found.best.plan, shards=shards) for shards in (0, 8, 16, 32, 64, 128, 256)]
    fitting = [one for one in others if legal_and_fits(there, one, there.usable_bytes())]
    times = [time_step(there, one).seconds for one in fitting]
    assert found.best.seconds <= min(times) and found.best.seconds < 0.98 * times[0]


@pytest.mark.parametrize("shards", [2, 4])
def test_shards_that_fill_no_node_are_searched_where_they_are_asked_for(shards):
    some = job("llama-3-8b")
    best = search(some, 64, {"shards": shards, "pp": 1}, top=1).best
    assert best.plan.shards == shards
    alone = Plan(dp=64, zero=3, shards=shards)
    assert best.seconds <= time_step(some, alone).seconds


def test_fsdp_in_a_pipeline_is_searched_once():
    for software, stages in (("torchtitan", {1}), ("megatron-core", {1, 2, 4, 8, 16})):
        some = job(software=software)
        plans = families(layouts(some, 16, {"tp": 1, "cp": 1}, Counter()), some, {"zero": 2})
        assert {int(pp) for plan in plans for pp in plan.pp} == stages
