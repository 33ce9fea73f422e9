"""Claims about kinds of plans: one line a kind, equals that measurements cannot tell apart, the simplest of
them, and how sure a choice is."""

import random
from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from statistics import median

import numpy as np
import pytest

from ndparallel.planner.error_bar import PLANS_OF_ONE_JOB, known_errors
from ndparallel.planner.job import Plan
from ndparallel.planner.prediction import peak_memory, predict, time_step
from ndparallel.search import kinds
from ndparallel.search.bounds.lower_bound import spread
from ndparallel.search.candidates import Candidates, add
from ndparallel.search.kinds import (
    adds_to,
    by_kind,
    choice_error,
    codes_of,
    equals_of,
    kind_of,
    margin,
    simplest,
)
from ndparallel.search.pruning import Part, RowGroup
from ndparallel.search.search import Found, search
from ndparallel.search.space import at
from ndparallel.search.tables import merit
from ndparallel.search.timing_queue import Timed
from ndparallel.validation.cases import express, read_cases
from tests.search.test_search import job


@cache
def found(model: str, gpus: int, batch: int = 64) -> Found:
    return search(job(model, batch=batch), gpus, kinds=True)


SEARCHED = [("llama-3-70b", 64, 64), ("mixtral-8x7b", 32, 64), ("llama-3-8b", 16, 64)]


def test_a_kind_is_the_dimensions_that_a_plan_uses_and_whether_weights_are_sharded():
    three = Plan(tp=2, pp=4, dp=4, zero=1, chunks=2, schedule="interleaved")
    assert kind_of(three) == kind_of(Plan(tp=8, pp=2)) == {"tp", "pp"}
    assert kind_of(Plan(dp=8, zero=3)) == {"FSDP"} and kind_of(Plan(dp=8, zero=2)) == frozenset()
    assert adds_to(kind_of(Plan(dp=8, zero=3, shards=4)), kind_of(Plan(dp=8, zero=3)))
    assert not adds_to(kind_of(Plan(dp=8, zero=3)), kind_of(Plan(dp=8))), "another way, not one more"


def test_rows_have_the_same_number_where_their_plans_are_of_one_kind_and_there_alone():
    tp, cp, pp, ep = np.array([*product((1, 2), repeat=4)]).T
    ways = [(0, 0), (2, 0), (3, 0), (3, 2)]
    families = [Plan(tp, pp, 4, ep, cp, zero=zero, shards=shards) for zero, shards in ways]
    plans = [at(family, row, "1f1b", 1) for family in map(spread, families) for row in range(16)]
    codes = codes_of(Candidates(families=families)).tolist()
    assert len({*zip(codes, map(kind_of, plans))}) == len({*codes}) == len({*map(kind_of, plans)}) == 48


def test_kinds_are_taken_from_the_least_estimate_on_below_the_limit_without_those_that_add_to_one():
    tp, pp, cp, none = (np.array(column) for column in ([2, 1, 2, 1], [1, 2, 2, 1], [1, 1, 1, 2], [1] * 4))
    family = Plan(tp=tp, pp=pp, cp=cp, dp=none, ep=none, micro_batch=none)
    made = Candidates()
    seconds = np.array([2.0, 1.0, 3.0, 4.0])  # of tp, of pp, of both, and of cp
    add(made, [family], Part([RowGroup("1f1b", 1, 2)], [np.arange(4)], [seconds], [np.ones(4)]))
    assert [places.tolist() for places in by_kind(made, seconds, 4.0)] == [[1], [0]]


def test_equals_are_within_the_margin_of_the_fastest(monkeypatch):
    fastest, near, far = (Timed(Plan(dp=size), seconds) for size, seconds in ((1, 1.0), (2, 1.5), (4, 1.6)))
    monkeypatch.setattr(kinds, "margin", lambda job, best: 0.5 * (best == fastest.plan))
    assert equals_of(job(), [far, near, fastest]) == [fastest, near]


@pytest.mark.parametrize(("model", "gpus", "batch"), SEARCHED)
def test_each_kind_has_one_line_and_none_adds_dimensions_to_a_faster_one(model, gpus, batch):
    answers = found(model, gpus, batch).kinds
    kinds = [kind_of(answer.plan) for answer in answers]
    assert len(kinds) == len({*kinds}) > 1
    assert [one.seconds for one in answers] == sorted(one.seconds for one in answers)
    assert not any(adds_to(slower, faster) for faster, slower in combinations(kinds, 2))


@pytest.mark.parametrize(("model", "gpus", "batch"), SEARCHED)
def test_the_best_of_a_kind_is_what_a_search_of_that_kind_alone_finds(model, gpus, batch):
    """The oracle is a search whose dimensions are given; FSDP, which shares its factors with other plans."""
    both = found(model, gpus, batch)
    fsdp = next(one for one in both.kinds if "FSDP" in kind_of(one.plan))
    used = {name: tuple(2**n for n in range(1, 8)) for name in kind_of(fsdp.plan) & {"tp", "cp", "pp", "ep"}}
    alone = {name: used.get(name, 1) for name in ("tp", "cp", "pp", "ep")} | {"zero": 3}
    best = search(both.job, gpus, alone | {"shards": 0}, top=1).best
    assert fsdp.seconds == pytest.approx(best.seconds, rel=0.01)


@pytest.mark.parametrize(("model", "gpus", "batch"), SEARCHED)
def test_what_is_recommended_is_an_equal_of_the_fastest_and_no_equal_has_fewer_dimensions(model, gpus, batch):
    both = found(model, gpus, batch)
    take, limit = both.recommended, 1 + margin(both.job, both.best.plan)
    dimensions = {
        one.plan: sum(degree > 1 for degree in degrees(one.plan)) + (one.plan.recompute == "full")
        for one in both.equals
    }
    assert both.best.seconds <= take.seconds <= both.best.seconds * limit
    assert dimensions[take.plan] == min(dimensions.values())
    assert take.fullest.total <= 0.92 * both.job.hardware.memory_bytes


def degrees(plan: Plan) -> tuple[int, ...]:
    return plan.tp, plan.cp, plan.pp, plan.ep


def interleaved(chunks: int, **changes) -> Plan:
    return Plan(tp=2, pp=4, dp=8, zero=1, chunks=chunks, schedule="interleaved", micro_batch=1, **changes)


LLAMA = job("llama-3-8b")
WIDE, INSIDE = Plan(tp=16, dp=4, zero=1), Plan(tp=8, dp=8, zero=1)
MORE, LESS = Plan(dp=64, zero=1), Plan(dp=64, zero=3)  # memory


@pytest.mark.parametrize(
    ("fastest", "taken", "why"),
    [
        (WIDE, INSIDE, "its TP stays inside a node"),
        (Plan(dp=64, zero=3, recompute="full"), LESS, "it recomputes no layers"),
        (Plan(tp=2, dp=32, zero=3), LESS, "it needs no model parallelism where the fastest needs TP"),
        (interleaved(3), interleaved(4), "all its stages have the same number of layers"),
        (MORE, LESS, "it leaves 43.6 GB more of the memory free"),
        (interleaved(8), interleaved(4), "it has 4 chunks on a pipeline rank where the fastest has 8"),
        (Plan(dp=64, zero=3, shards=32), LESS, "it has no replicas of its shards"),
        (interleaved(4, recompute="selective"), interleaved(4), "it recomputes nothing"),
    ],
)
def test_of_plans_as_fast_with_as_many_dimensions_the_simplest_is_taken_and_why_is_said(fastest, taken, why):
    """Inside a node, then even stages, free memory, few chunks, no replicas, nothing computed twice."""
    seconds = time_step(LLAMA, taken).seconds
    assert simplest(LLAMA, [Timed(fastest, seconds), Timed(taken, seconds)]).plan == taken
    assert merit(LLAMA, predict(LLAMA, taken), predict(LLAMA, fastest)) == why


def test_a_plan_without_tp_that_runs_layers_again_is_no_simpler_than_one_with_tp_that_does_not():
    quick, again = Plan(tp=2, dp=32, zero=3), Plan(dp=64, zero=3, recompute="full", recompute_layers=9)
    assert simplest(LLAMA, [Timed(quick, 1.0), Timed(again, 1.04)]).plan == quick
    assert simplest(LLAMA, [Timed(quick, 1.0), Timed(replace(again, recompute="none"), 1.04)]).plan != quick


def test_plans_whose_memory_differs_by_no_more_than_its_predictions_are_compared_by_their_chunks(monkeypatch):
    shares = {interleaved(8): 0.5, interleaved(4): 0.5 + kinds.ROOM}
    monkeypatch.setattr(kinds, "memory_share", lambda job, plan: shares[plan])
    timed = [Timed(plan, 1.0) for plan in shares]
    assert simplest(LLAMA, timed).plan == interleaved(4)
    shares[interleaved(4)] += 0.001
    assert simplest(LLAMA, timed).plan == interleaved(8)


def test_for_one_gigabyte_more_that_is_free_no_step_is_one_percent_longer():
    fastest, roomier = interleaved(4), interleaved(8)
    assert 0 < peak_memory(LLAMA, fastest).total - peak_memory(LLAMA, roomier).total < 1.1e9
    timed = [Timed(plan, time_step(LLAMA, plan).seconds) for plan in (fastest, roomier)]
    assert 1.01 < timed[1].seconds / timed[0].seconds < 1.02
    assert simplest(LLAMA, timed).plan == fastest


# --------------------------------------------------------------------------------------- how sure a choice is


@pytest.mark.parametrize("plans", [1, 2, 4, 12])
def test_a_choice_is_as_sure_as_the_least_of_so_many_drawn_predictions(plans):
    """Drawn: true steps of 1, predictions off by a normal error, the least of them taken. The error of the
    choice is what 84 of 100 draws stay below, as one prediction's bar is for one draw."""
    draw, error = random.Random(1), 0.05
    low = sorted(-min(draw.gauss(0, error) for _ in range(plans)) for _ in range(20_000))
    assert choice_error(error, plans) == pytest.approx(low[int(0.8413 * len(low))], rel=0.03)
    assert (
        choice_error(error, plans) == pytest.approx(error)
        if plans == 1
        else choice_error(error, plans) > error
    )


def test_errors_of_two_measured_plans_of_one_job_differ_by_as_much_as_the_margin_says():
    errors, jobs = {run["id"]: run["step_error"] for run in known_errors()}, defaultdict(list)
    for case in map(express, read_cases()):
        if case.name in errors:
            shape, stack = case.job.shape, case.job.stack.name.partition("-")[0]
            same = (shape.name, shape.layers, case.job.hardware.name, stack, case.plan.gpus, case.one_layer)
            jobs[same].append(1 + errors[case.name])
    pairs = [[abs(one / other - 1) for one, other in combinations(alike, 2)] for alike in jobs.values()]
    medians = [median(alike) for alike in pairs if alike]
    assert len(medians) > 30 and median(medians) == pytest.approx(PLANS_OF_ONE_JOB, abs=0.02)
