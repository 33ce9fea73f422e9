"""Claims about the queue of plans to be timed, on plans whose bounds are made up."""

from dataclasses import replace

import numpy as np
import pytest

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.pipeline.schedule_timer import FULL_ROUNDS
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.software import STACKS
from ndparallel.search import timing_queue
from ndparallel.search.candidates import Candidates, add
from ndparallel.search.pruning import Part, RowGroup
from ndparallel.search.timing_queue import (
    AGAIN,
    ATTEMPTS,
    FINALS,
    SEARCHES,
    SHARE,
    TIMES_MET,
    TOGETHER,
    Timed,
    TimingQueue,
    gap,
)

JOB = TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), STACKS["megatron-core"], 4096, 16)
SEARCHED = next(name for name, recipe in RECIPES.items() if recipe.is_searched)
EACH = 2 * TIMES_MET  # actions of a microbatch on two ranks


def candidates(groups, rows_by_group, micro_batch=2) -> Candidates:
    """Plans of two ranks and 16 / micro_batch microbatches: for every group its seconds."""
    sizes = [len(seconds) for seconds in rows_by_group]
    ones = np.ones(sum(sizes), dtype=int)
    family = Plan(tp=ones, pp=2 * ones, dp=ones, ep=ones, cp=ones, micro_batch=micro_batch * ones)
    found, first = Candidates(), np.cumsum([0, *sizes])
    add(
        found,
        [family],
        Part(
            [RowGroup(*group) for group in groups],
            [np.arange(start, start + size) for start, size in zip(first, sizes)],
            [np.array(seconds, dtype=float) for seconds in rows_by_group],
            [np.arange(size, 0, -1.0) for size in sizes],
        ),
    )
    return found


def queue_of(seconds, effort=1e9, name="1f1b") -> TimingQueue:
    return TimingQueue(JOB, candidates([(name, 1, 2)], [seconds]), effort)


def test_a_plan_costs_the_actions_of_its_microbatches_at_most_of_some_rounds_or_many_attempts():
    groups = [("1f1b", 1, 2), ("interleaved", 3, 2), (SEARCHED, 1, 2)]
    few = timing_queue.costs(JOB, candidates(groups, [[1.0]] * 3, micro_batch=8))  # two microbatches
    assert few.tolist() == [2 * EACH, 2 * EACH * 3, 2 * 2 * (ATTEMPTS + FINALS)]
    many = timing_queue.costs(replace(JOB, global_batch=1600), candidates(groups, [[1.0]] * 3, micro_batch=1))
    rounds = (FULL_ROUNDS + 1) * 2
    searched = 2 * (rounds * ATTEMPTS + 1600 * FINALS)
    assert many.tolist() == [rounds * EACH, rounds * EACH * 3, searched]


def test_plans_are_timed_from_the_least_estimate_on_so_many_together_and_only_below_the_limit():
    seconds = np.arange(20.0, 0.0, -1.0)
    queue = queue_of(seconds)
    assert queue.bound[queue.batch(np.inf, False)].tolist() == [*range(1, TOGETHER + 1)]
    assert queue.bound[queue.batch(4.0, False)].tolist() == [1, 2, 3]
    assert queue.bound[queue.least_bounds(4.0)].tolist() == [1, 2, 3]
    assert queue.bound[queue.least_bounds(np.inf)].tolist() == [*range(1, TOGETHER + 1)]


def test_what_a_schedule_adds_to_a_bound_is_learnt_and_counts_for_its_other_depths():
    """1F1B's step is twice its bound, so that the other schedule's larger bounds come first."""
    groups = [("1f1b", 1, 2), ("1f1b", 1, 4), ("gpipe", 1, 2), ("1f1b", 1, 8)]
    found = candidates(groups, [[1.0, 1.1], [1.2], [1.5, 1.6], [4.0]])
    queue = TimingQueue(JOB, found, 1e9)
    (first,) = np.flatnonzero(queue.bound == 1.0)
    queue.learn(int(first), 2.0)
    assert queue.factors_of_groups().tolist() == [2.0, 2.0, 1.0, 2.0]
    assert queue.bound[queue.batch(np.inf, False)].tolist() == [1.5, 1.6, 1.1, 1.2, 4.0]
    assert queue.bound[queue.least_bounds(np.inf)].tolist() == [1.1, 1.2, 1.5, 1.6, 4.0]
    queue.learn(int(np.flatnonzero(queue.bound == 1.2)[0]), 1.8)
    assert queue.factors_of_groups().tolist() == [2.0, 1.5, 1.0, 1.5]  # a third depth is as near as the best
    estimates = timing_queue.estimates_of(JOB, found, queue)
    assert sorted(estimates) == pytest.approx([1.5, 1.6, 1.8, 2.0, 2.2, 6.0])


def test_a_list_of_actions_is_written_once_and_a_searched_one_each_time():
    for name, again in (("1f1b", AGAIN), (SEARCHED, 1.0)):
        queue = queue_of([1.0, 2.0, 3.0], name=name)
        each, before, searches = queue.cost[0], queue.effort, queue.searches
        for place in range(3):
            queue.learn(place, 1.0)
        spent = each * (1 + 2 * again)
        assert before - queue.effort == pytest.approx(spent if name == "1f1b" else 0.0)
        assert searches - queue.searches == pytest.approx(0.0 if name == "1f1b" else spent)


def test_effort_ends_the_queue_but_for_what_must_be_shown():
    """One plan can be afforded; more are timed only while fewer than asked for are."""
    queue = queue_of([1.0, 2.0], effort=8 * EACH)
    assert len(queue.batch(np.inf, False)) == 1
    queue.learn(0, 1.0)
    assert queue.effort == 0 and len(queue.batch(np.inf, False)) == 0
    queue.beyond_effort = 8 * EACH * AGAIN
    assert queue.batch(np.inf, True).tolist() == [1]
    assert len(queue.least_bounds(np.inf)) == 0


def test_a_schedule_is_searched_for_within_what_is_left_for_searches_and_not_of_the_effort():
    queue = queue_of([1.0], effort=1e9, name=SEARCHED)
    assert queue.searches == SEARCHES * queue.effort
    for searches, left, timed in ((1e9, 1e9, 1), (queue.cost[0] / 2, 1e9, 0), (1e9, 0.0, 1)):
        queue.searches, queue.effort, queue.beyond_effort = searches, left, 0.0
        assert len(queue.batch(np.inf, True)) == len(queue.least_bounds(np.inf)) == timed


def test_for_the_certificate_written_and_searched_schedules_spend_each_their_own():
    queue = TimingQueue(JOB, candidates([("1f1b", 1, 2), (SEARCHED, 1, 2)], [[1.0, 3.0], [2.0, 4.0]]), 1e9)
    written, searched = (queue.cost[queue.searched == each].max() for each in (False, True))
    for effort, searches, bounds in (
        (2 * written, 2 * searched, [1, 2, 3, 4]),
        (written, 2 * searched, [1, 2, 4]),
        (2 * written, searched, [1, 2, 3]),
    ):
        queue.effort, queue.searches = effort, searches
        assert queue.bound[queue.least_bounds(np.inf)].tolist() == bounds


def test_for_the_certificate_plans_are_timed_that_could_be_faster_by_more_than_is_sure(monkeypatch):
    """The best bound's step is 1.02 s, one per cent less is 1.0098 s."""
    found = candidates([("1f1b", 1, 2)], [[1.0, 1.009, 1.011]])

    def times(job, found, queue, batch, known, executor):
        for place in batch:
            queue.learn(place, 1.02 * queue.bound[place])
        return [Timed(Plan(), 1.02 * queue.bound[place]) for place in batch]

    monkeypatch.setattr(timing_queue, "time_batch", times)
    timed, _ = timing_queue.time_best(JOB, found, 1, 8 * EACH, [], None)
    assert [one.seconds for one in timed] == [1.02 * 1.0, 1.02 * 1.009]


def test_what_is_left_of_the_effort_goes_to_the_certificate(monkeypatch):
    found, effort = candidates([("1f1b", 1, 2)], [[1.0]]), 100 * EACH
    monkeypatch.setattr(timing_queue, "time_all", lambda job, plans, executor: [Timed(p, 1.0) for p in plans])
    _, queue = timing_queue.time_best(JOB, found, 1, effort, [], None)
    assert queue.effort == effort - 8 * EACH + timing_queue.CERTIFY * effort  # eight microbatches were timed


def test_a_schedule_that_takes_a_quarter_of_all_searches_has_an_estimate_and_none_that_takes_more(
    monkeypatch,
):
    found = candidates([(SEARCHED, 1, 2)], [[1.0]])
    (cost,) = timing_queue.costs(JOB, found) * SHARE / SEARCHES
    for effort, estimate in ((cost, 1.0), (cost - 1, np.inf)):
        monkeypatch.setattr(timing_queue, "EFFORT", effort)
        queue = TimingQueue(JOB, found, effort)
        assert timing_queue.estimates_of(JOB, found, queue).tolist() == [estimate]


def test_of_a_schedules_many_plans_those_of_the_least_bounds_are_kept(monkeypatch):
    monkeypatch.setattr(timing_queue, "PER_SCHEDULE", 3)
    found = candidates([("1f1b", 1, 2)], [[5.0, 2.0, 1.0, 4.0, 1.0]])  # the later a plan, the less memory
    assert TimingQueue(JOB, found, 1e9).places.tolist() == [4, 2, 1]
    assert found.least(np.array([0, 1, 3]), found.seconds, 3).tolist() == [1, 3, 0]


def test_of_plans_that_take_as_long_those_of_least_memory_are_kept_whatever_the_order_of_a_processors_sort():
    found = candidates([("1f1b", 1, 2)], [[2.0] * 40 + [1.0] + [2.0] * 40])
    assert found.least(np.arange(81), found.seconds, 3).tolist() == [40, 80, 79]


def test_the_gap_is_how_much_less_than_the_best_the_least_bound_is_that_was_not_timed():
    found = candidates([("1f1b", 1, 2)], [[1.0, 1.5, 3.0]])
    queue = TimingQueue(JOB, found, 1e9)
    queue.learn(0, 2.0)
    timed = [Timed(Plan(), 2.0)]
    assert gap(found, queue, timed) == pytest.approx(1 - 1.5 / 2)
    queue.learn(1, 2.5)
    assert gap(found, queue, timed) == 0
    assert [timing_queue.kth_best_seconds([*timed, Timed(Plan(), 1.0)], k) for k in (1, 2, 3)] == [
        1.0,
        2.0,
        np.inf,
    ]
