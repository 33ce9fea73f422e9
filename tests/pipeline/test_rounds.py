"""Rounds of a full pipeline are added to a short step only where they follow from it to the last digit."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.pipeline.catalog import RECIPES, build, written_schedules
from ndparallel.pipeline.replay import Ends, Replay
from ndparallel.pipeline.rounds import (
    BEHIND,
    DOES,
    RANK,
    cut_of,
    ends_by_rounds,
    round_before,
    round_seconds,
    shortened,
    waits_by_rank,
)
from ndparallel.pipeline.search import search
from ndparallel.pipeline.work import Reduction, Work
from tests.pipeline.test_replay import random_work

AT_ONCE = {"gpipe", "looped-bfs"}  # all forwards stand before all backwards: a round is put in twice


def steps(name: str, ranks: int) -> list[Replay]:
    """A step that fills the pipeline, one with a round more, and one with three."""
    group = ranks if RECIPES[name].group else None
    few, period = (3 * ranks, ranks) if group else (2 * ranks + 2, 2)
    return [Replay(build(name, ranks, few + rounds * period, group=group)) for rounds in (0, 1, 3)]


def same(one: Ends, other: Ends) -> bool:
    return all(moments == pytest.approx(those, rel=1e-12) for moments, those in zip(one, other))


@pytest.mark.parametrize("name", sorted(written_schedules()))
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_longer_step_has_a_round_more_in_one_place_unless_forwards_come_first(name, ranks):
    few, more, _ = steps(name, ranks)
    assert bool(round_before(few, more)) == (name not in AT_ONCE)


def test_the_steps_of_two_ranks_are_compared_that_the_example_names():
    few, more = (Replay(build("1f1b", 2, microbatches)) for microbatches in (3, 4))
    work, done = Work(1.0, 2.0, 0.0), few.order.done
    waited = {("B0 of 0", "B1 of 0"): (6, 9), ("B1 of 1", "B2 of 1"): (7, 10)}  # seconds
    names = {done["I", rank][batch]: f"B{batch} of {rank}" for rank in range(2) for batch in range(3)}
    ends = few.clocks(few.durations(work)).ends
    compared = round_before(few, more)
    assert {(names[one], names[other]): (ends[one], ends[other]) for one, other in compared} == waited
    assert [max(each.ends(work).end) for each in (few, more)] == [12, 15]


def test_a_rank_waits_for_another_so_many_places_behind_its_action_or_for_the_action_before():
    # F0 F1 B0 F2 B1 B2 and F0 B0 F1 B1 F2 B2
    first, last = (rows[:, [RANK, BEHIND]].tolist() for rows in waits_by_rank(build("1f1b", 2, 3)))
    assert first == [[0, 1], [0, 1], [1, 1], [0, 1], [1, 1], [1, 0]]
    assert last == [[0, 0], [1, 1], [0, 1], [1, 1], [0, 1], [1, 1]]


@pytest.mark.parametrize("ranks", [2, 64, 128])
def test_actions_of_another_op_or_stage_or_that_run_as_one_with_the_next_differ(ranks):
    schedule = build("dualpipev", ranks, 2 * ranks)
    numbers = [rows[:, DOES].tolist() for rows in waits_by_rank(schedule)]
    kinds = {
        (action.op, action.stage, place in fused, number)
        for actions, fused, mine in zip(schedule.actions, map(set, schedule.fused), numbers)
        for place, (action, number) in enumerate(zip(actions, mine))
    }
    assert len(kinds) == len({kind[:3] for kind in kinds}) == len({kind[3] for kind in kinds})


def test_two_actions_that_run_as_one_are_not_cut_apart():
    few, more, _ = steps("dualpipev", 3)
    for *both, actions in zip(*(waits_by_rank(each.schedule) for each in (few, more)), few.schedule.fused):
        assert cut_of(*both) - 1 not in actions
    first, second, third = [50, 0, 1], [51, 0, 1], [52, 0, 1]  # the second runs as one with the next
    assert cut_of(np.array([first, second, third]), np.array([first, second, first])) == 1
    assert cut_of(np.array([first, third, second]), np.array([first, third, first])) == 2


@pytest.mark.parametrize("microbatches", [1, 2])
def test_nothing_is_compared_with_what_would_be_before_the_step_or_with_the_step_itself(microbatches):
    few, more = (Replay(build("naive", 2, number)) for number in (microbatches, 2 * microbatches))
    assert not round_before(few, more) and not round_before(few, few)


def test_a_round_may_begin_with_the_step():
    few, more = (Replay(build("1f1b", 2, microbatches)) for microbatches in (2, 3))
    first = few.order.step_of(few.schedule.actions[0][0])
    assert first in [before for before, _ in round_before(few, more)]


@pytest.mark.parametrize("ranks", [4, 16])
def test_1f1b_is_in_its_stride_two_microbatches_after_it_is_full(ranks):
    few, more, most = (Replay(build("1f1b", ranks, ranks + 2 + rounds * 2)) for rounds in (0, 1, 9))
    work = Work([1.0] * (ranks - 1) + [1.3], 1.2, 0.9)
    found = round_seconds(few, more, work)
    assert found
    ends, seconds = found
    assert seconds == pytest.approx(2 * (1.3 + 1.2 + 0.9))  # two microbatches on the busiest rank
    assert same(ends.later(9 * seconds), most.ends(work))


def test_where_ranks_are_all_as_busy_messages_are_waited_for_anew_after_as_many_microbatches_as_ranks():
    work = Work(1.0, 0.5, 0.5, wire=0.9)
    few, *longer = (Replay(build("1f1b", 8, 24 + period)) for period in range(9))
    found = [round_seconds(few, more, work) for more in longer]
    assert [period for period, each in enumerate(found, 1) if each] == [8]


@given(
    st.sampled_from(sorted({*written_schedules()} - AT_ONCE)),
    st.integers(2, 4),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.1, 0.4, None]),
)
def test_rounds_that_are_added_end_as_those_that_are_timed(name, ranks, seed, wire):
    few, more, most = steps(name, ranks)
    work = random_work(few.schedule.layout.stages, ranks, seed, wire)
    if found := round_seconds(few, more, work):
        ends, seconds = found
        assert same(ends, few.ends(work))
        assert same(ends.later(seconds), more.ends(work))
        assert same(ends.later(3 * seconds), most.ends(work))


def test_a_first_rank_that_still_runs_ahead_is_not_extrapolated():
    """Its lead grows until as many microbatches are in flight as it may have."""
    few, more, _ = steps("zb-h2", 4)
    assert round_before(few, more)
    assert round_seconds(few, more, Work([0.1, 0.5, 0.5, 1.0], 1.0, 0.1)) is None


def test_a_longer_step_that_ends_otherwise_is_none_of_the_shorter_with_a_round_more():
    few, more, _ = steps("1f1b", 4)
    first, *others = more.schedule.actions
    last = next(place for place, action in enumerate(first) if action[::2] == ("F", 11))
    later = [*first[:last], first[last + 1], first[last], *first[last + 2 :]]
    assert not round_before(few, Replay(replace(more.schedule, actions=[later, *others])))


def test_messages_that_find_lines_taken_and_gradients_on_their_way_are_timed_to_the_end():
    few, more, _ = steps("1f1b", 2)
    assert round_seconds(few, more, Work(1.0, 0.5, 0.5, wire=0.9))
    assert round_seconds(few, more, Work(1.0, 0.5, 0.5, wire=1.1)) is None
    assert round_seconds(few, more, Work(reductions=[Reduction(0.1, 0.1, 0.0)] * 2)) is None


def work_with_most_on_the_last(ranks: int, latency: float = 0.05) -> Work:
    forward, inputs, weights = ([each] * (ranks - 1) + [each * 1.5] for each in (1.0, 1.1, 0.9))
    return Work(forward, inputs, weights, latency=latency, wire=0.02)


@lru_cache
def searched(ranks: int, microbatches: int, memory: int) -> Replay:
    work = work_with_most_on_the_last(ranks)
    return Replay(search(ranks, microbatches, work, memory_limit=memory * ranks))


def test_most_of_a_searched_schedules_microbatches_are_rounds_in_its_middle():
    for microbatches in (32, 64):
        few, rounds = shortened(searched(3, microbatches, 2))
        assert few.schedule.microbatches + rounds == microbatches
        assert few.schedule.microbatches <= 16
        assert round_before(few, searched(3, microbatches, 2), rounds)


@given(st.sampled_from([1, 2]), st.integers(2, 4), st.integers(0, 99), st.booleans())
def test_a_searched_schedule_ends_when_it_does_with_every_round_timed(memory, ranks, seed, alike):
    """On seconds that it was not made for: its last rank has most to do of all, or not."""
    replay = searched(ranks, 40, memory)
    draw = np.random.default_rng(seed)
    seconds = draw.uniform(0.3, 1, (3, 1 if alike else ranks)) * ([1] * (ranks - 1) + [1.5])
    forward, inputs, weights = seconds
    work = Work(forward, inputs, weights, latency=draw.uniform(0, 0.1), wire=draw.uniform(0, 0.1))
    assert same(ends_by_rounds(replay, work), replay.ends(work))


def test_rounds_are_added_to_a_searched_schedule_where_they_last_as_long_as_the_last_ranks_work():
    few, rounds = shortened(replay := searched(3, 40, 2))
    found = round_seconds(few, replay, work_with_most_on_the_last(3), rounds)
    assert found and found[1] == pytest.approx(1.5 * 3)
    assert round_seconds(few, replay, work_with_most_on_the_last(3, latency=2.0), rounds) is None


def test_a_round_that_is_done_otherwise_is_timed():
    few, rounds = shortened(replay := searched(3, 40, 2))
    first, *others = replay.schedule.actions
    middle = len(first) // 2
    changed = [*first[:middle], first[middle + 1], first[middle], *first[middle + 2 :]]
    other = Replay(replace(replay.schedule, actions=[changed, *others]))
    assert round_before(few, replay, rounds) and not round_before(few, other, rounds)
    assert shortened(other)[1] < rounds


@pytest.mark.parametrize("name", sorted(written_schedules()))
def test_any_schedule_can_be_asked_for_rounds_in_its_middle(name):
    """Of those written, ZB-H1 and ZB-H2 have rounds of one microbatch; in a v two stages take turns."""
    replay = Replay(build(name, 4, 40))
    work = random_work(replay.schedule.layout.stages, 4, 1, 0.1)
    assert bool(shortened(replay)[1]) == (name in ("zb-h1", "zb-h2"))
    assert same(ends_by_rounds(replay, work), replay.ends(work))
