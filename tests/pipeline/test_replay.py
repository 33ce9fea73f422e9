"""A replayed schedule takes what the clock says."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.pipeline.actions import Action, Layout, Schedule
from ndparallel.pipeline.catalog import build, written
from ndparallel.pipeline.replay import Replay, replay_of
from ndparallel.pipeline.timing import peak_activations, time_schedule
from ndparallel.pipeline.work import Work


def random_work(stages: int, ranks: int, seed: int, wire: float | None) -> Work:
    """With a wire of up to 0.1, the same for all, no message finds its line taken; with links that differ
    some do."""
    draw = np.random.default_rng(seed)
    forward, backward_input, backward_weight = (draw.uniform(0.1, 1, stages) for _ in range(3))
    links = [draw.uniform(0, 0.5, (ranks, ranks)) for _ in range(2)] if wire is None else [0.3, wire]
    fused: Any = {} if seed % 2 else 0.7
    return Work(forward, backward_input, backward_weight, None, fused, *links)


@given(
    st.sampled_from(sorted(written())),
    st.integers(2, 4),
    st.integers(1, 8),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.1, 0.4, None]),
)
def test_a_replay_starts_and_ends_as_the_clock_does(name, ranks, rounds, seed, wire):
    schedule = build(name, ranks, rounds * ranks * 2)
    work = random_work(schedule.layout.stages, ranks, seed, wire)
    timing, ends = time_schedule(schedule, work), Replay(schedule).ends(work)
    assert ends.start == pytest.approx([start[0] for start in timing.start])
    assert ends.end == pytest.approx([end[-1] for end in timing.end], rel=1e-12)
    for rank, actions in enumerate(schedule.actions):
        completed = {action.stage: end for action, end in zip(actions, timing.end[rank]) if action.op in "BW"}
        assert {stage: ends.complete[stage] for stage in completed} == pytest.approx(completed, rel=1e-12)


def test_a_schedule_is_put_in_order_once():
    assert replay_of("1f1b", 4, 8, None) is replay_of("1f1b", 4, 8, None)
    assert replay_of("1f1b", 4, 8, None).peaks == peak_activations(build("1f1b", 4, 8)) == [4, 3, 2, 1]


def test_ranks_that_wait_for_one_another_are_an_error_that_says_so():
    backwards = [[Action("F", 0, 0), Action("B", 0, 0)], [Action("B", 1, 0), Action("F", 1, 0)]]
    with pytest.raises(UserError, match="cannot run: rank 1 waits for its own F of microbatch 0"):
        _ = Replay(Schedule("odd", Layout("loop", 2), 1, backwards, [[], []])).steps
