"""A replayed schedule takes what the clock says."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.pipeline.actions import Action, Layout, Schedule
from ndparallel.pipeline.catalog import build, written_schedules
from ndparallel.pipeline.replay import Ends, Replay, replay_of
from ndparallel.pipeline.timing import Timing, peak_activations, time_schedule
from ndparallel.pipeline.work import Reduction, Work


def random_work(stages: int, ranks: int, seed: int, wire: float | None) -> Work:
    """With a wire of up to 0.1, the same for all, no message finds its line taken; with links that differ
    some do."""
    draw = np.random.default_rng(seed)
    forward, backward_input, backward_weight = (draw.uniform(0.1, 1, stages) for _ in range(3))
    links = [draw.uniform(0, 0.5, (ranks, ranks)) for _ in range(2)] if wire is None else [0.3, wire]
    fused: Any = {} if seed % 2 else 0.7
    return Work(forward, backward_input, backward_weight, None, fused, *links)


@given(
    st.sampled_from(sorted(written_schedules())),
    st.integers(2, 4),
    st.integers(1, 8),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.1, 0.4, None]),
)
def test_a_replay_starts_and_ends_as_the_clock_does(name, ranks, rounds, seed, wire):
    schedule = build(name, ranks, rounds * ranks * 2)
    work = random_work(schedule.layout.stages, ranks, seed, wire)
    timing, ends = time_schedule(schedule, work), Replay(schedule).ends(work)
    assert_same(timing, ends)


def assert_same(timing: Timing, ends: Ends) -> None:
    schedule = timing.schedule
    assert ends.start == pytest.approx([start[0] for start in timing.start])
    assert ends.end == pytest.approx([end[-1] for end in timing.end], rel=1e-12)
    for rank, actions in enumerate(schedule.actions):
        completed = {action.stage: end for action, end in zip(actions, timing.end[rank]) if action.op in "BW"}
        assert {stage: ends.complete[stage] for stage in completed} == pytest.approx(completed, rel=1e-12)


@given(
    st.sampled_from(sorted(written_schedules())),
    st.integers(2, 4),
    st.integers(1, 4),
    st.floats(0, 4),
    st.floats(0, 1),
)
def test_both_let_a_stage_wait_until_its_last_gradients_are_reduced(name, ranks, rounds, line, slowdown):
    """ZeRO-2: a stage's line is as long as up to four passes, and slows compute beside it."""
    schedule = build(name, ranks, rounds * ranks * 2)
    work = random_work(schedule.layout.stages, ranks, rounds, 0.1)
    reductions = [
        Reduction(line * share, line * share / 2, slowdown)
        for share in np.linspace(0.1, 1, schedule.layout.stages)
    ]
    reduced = replace(work, reductions=reductions)
    timing, ends = time_schedule(schedule, reduced), Replay(schedule).ends(reduced)
    assert_same(timing, ends)
    assert timing.busy == time_schedule(schedule, work).busy, "reducing is not work"


def work_with_short_steps(stages: int, seed: int) -> Work:
    """Every op takes as long as a message is on its line, but on one stage perhaps less."""
    draw = np.random.default_rng(seed)

    def seconds() -> np.ndarray:
        each = draw.uniform(0.4, 1, stages)
        each[draw.integers(stages)] *= draw.choice([0.1, 1])
        return each

    return Work(seconds(), seconds(), seconds(), latency=0.3, wire=0.4)


@given(
    st.sampled_from(sorted(written_schedules())), st.integers(2, 4), st.integers(1, 4), st.integers(0, 999)
)
def test_some_steps_may_be_shorter_than_messages_and_yet_no_line_is_waited_for(name, ranks, rounds, seed):
    replay = Replay(build(name, ranks, rounds * ranks * 2))
    work = work_with_short_steps(replay.schedule.layout.stages, seed)
    if replay.durations(work).lines_free:
        timing = time_schedule(replay.schedule, work)
        assert replay.ends(work).end == pytest.approx([end[-1] for end in timing.end], rel=1e-12)


@pytest.mark.parametrize(
    ("forward", "free"),
    [([0.1, 1, 1], True), ([1, 1, 0.1], True), ([1, 0.1, 1], True), ([0.1, 0.1, 1], False)],
)
def test_a_line_is_free_where_all_that_send_on_it_or_all_that_receive_take_as_long_as_a_message(
    forward, free
):
    assert Replay(build("1f1b", 3, 6)).durations(Work(forward, wire=0.4)).lines_free == free


def test_a_line_to_several_ranks_is_free_where_none_of_them_is_shorter_than_a_message():
    """The middle one of three ranks in a v sends forward to both others."""
    replay = Replay(build("zb-v", 3, 6))
    found = (replay.durations(Work([1, first, 1, 1, 1, 1], wire=0.4)) for first in (0.4, 0.1))
    assert [durations.lines_free for durations in found] == [True, False]


def test_a_schedule_is_put_in_order_once():
    assert replay_of("1f1b", 4, 8) is replay_of("1f1b", 4, 8)
    assert replay_of("1f1b", 4, 8).peaks == peak_activations(build("1f1b", 4, 8)) == [4, 3, 2, 1]


def test_ranks_that_wait_for_one_another_are_an_error_that_says_so():
    backwards = [[Action("F", 0, 0), Action("B", 0, 0)], [Action("B", 1, 0), Action("F", 1, 0)]]
    with pytest.raises(UserError, match="cannot run: rank 1 waits for its own F of microbatch 0"):
        _ = Replay(Schedule("odd", Layout("loop", 2), 1, backwards, [[], []])).order
