"""The checker: what is legal by an independent oracle runs, and what is not is explained in words."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.pipeline.actions import Action, Layout, Schedule
from ndparallel.pipeline.catalog import build
from ndparallel.pipeline.checker import explain, waits_for
from ndparallel.pipeline.timing import time_schedule
from ndparallel.pipeline.work import Work
from tests.support.pipelines import is_legal, schedules


def by_hand(*ranks: str, fused=None, kind="loop", chunks=1) -> Schedule:
    """A schedule of lists such as "F0.1 B0.1": op, stage, microbatch; as many microbatches as the largest
    number says."""
    actions = [[Action(word[0], *map(int, word[1:].split("."))) for word in words.split()] for words in ranks]
    microbatches = 1 + max(action.microbatch for row in actions for action in row)
    return Schedule(
        "by hand", Layout(kind, len(ranks), chunks), microbatches, actions, fused or [[] for _ in ranks]
    )


@given(schedules())
def test_built_schedules_need_no_explanation(schedule):
    assert explain(schedule) is None


@given(st.data())
def test_two_swapped_actions_are_legal_or_explained(data):
    """Legal is what an independent topological sort can order; a legal mutant is timed, one that gets stuck
    refused with the reason."""
    schedule = data.draw(schedules())
    actions = [list(row) for row in schedule.actions]
    (a, i), (b, j) = (
        data.draw(st.sampled_from([(r, p) for r, row in enumerate(actions) for p in range(len(row))]))
        for _ in range(2)
    )
    actions[a][i], actions[b][j] = actions[b][j], actions[a][i]
    mutant = replace(schedule, actions=actions)
    reason = explain(mutant)
    assert (reason is None) == is_legal(mutant)
    try:
        assert time_schedule(mutant, Work()).makespan > 0
    except UserError as error:
        assert str(error) == f"{schedule.name} cannot run: {reason}"


@given(st.data())
def test_a_dropped_or_repeated_action_is_explained(data):
    schedule = data.draw(schedules())
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    place = data.draw(st.integers(0, len(schedule.actions[rank]) - 1))
    action = schedule.actions[rank][place]
    without, twice = (list(map(list, schedule.actions)) for _ in range(2))
    del without[rank][place]
    twice[rank].append(action)
    nowhere: list[list] = [[] for _ in schedule.fused]
    lack = explain(replace(schedule, actions=without, fused=nowhere))
    assert (
        lack is not None
        and f"rank {rank} never does" in lack
        and f"microbatch {action.microbatch} on stage {action.stage}" in lack
    )
    more = explain(replace(schedule, actions=twice))
    assert more == f"rank {rank} lists 2 times, not once, {action}."


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        (by_hand("F0.0"), "rank 0 never does the backward pass of microbatch 0 on stage 0."),
        (
            by_hand("F0.0 I0.0"),
            "rank 0 never does W, the gradient of the weights, of microbatch 0 on stage 0.",
        ),
        (by_hand("F0.0 W0.0"), "rank 0 never does I, the gradient of the input, of microbatch 0 on stage 0."),
        (by_hand("B0.0"), "rank 0 never does F of microbatch 0 on stage 0."),
        (
            by_hand("F0.0 B0.0 W0.0"),
            "rank 0 lists besides B, which is I and W at once, also W of microbatch 0 on stage 0.",
        ),
        (by_hand("F0.0 B0.0 B0.0"), "rank 0 lists 2 times, not once, B of microbatch 0 on stage 0."),
        (
            by_hand("F1.0 B0.0", "F0.0 B1.0"),
            "rank 0 lists F of microbatch 0 on stage 1: its only stage is 0.",
        ),
        (
            by_hand("F0.0 B4.0", kind="v", chunks=2),
            "rank 0 lists B of microbatch 0 on stage 4: its stages are 0 and 1.",
        ),
        (by_hand("F0.-1 B0.0"), "rank 0 lists F of microbatch -1 on stage 0: there are microbatches 0 to 0."),
        (by_hand("F0.0 X0.0"), "rank 0 lists X of microbatch 0 on stage 0: an op is one of F, B, I, W."),
        (
            by_hand("B0.0 F0.0"),
            "rank 0 waits for its own F of microbatch 0 on stage 0, which does not come earlier in its list.",
        ),
        (
            by_hand("F0.0 W0.0 I0.0"),
            "rank 0 waits for its own I of microbatch 0 on stage 0, which does not come earlier in its list.",
        ),
        (
            by_hand("F0.0 B0.0", fused=[[0]]),
            "rank 0 waits for its own F of microbatch 0 on stage 0, which does not come earlier in its list.",
        ),
        (
            by_hand("F0.0 B0.0", fused=[[1]]),
            "rank 0 fuses position 1 with the next: a pair begins at 0 to 0.",
        ),
        (
            by_hand("F0.0 F0.1 F0.2 B0.0 B0.1 B0.2", fused=[[0, 1]]),
            "rank 0 fuses positions 0 and 1 each with the next: a pair is two actions, not three.",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(schedule, sentence):
    assert explain(schedule) == sentence


def test_a_circle_says_who_waits_for_what_from_whom():
    """Rank 0 wants a gradient before it sends the activations that it takes to make that gradient."""
    schedule = by_hand("F0.0 B0.0 F0.1 B0.1", "F1.0 F1.1 B1.0 B1.1")
    assert explain(schedule) == (
        "rank 0 waits for the gradients of microbatch 0 (stage 1) from rank 1, "
        "which waits for the activations of microbatch 1 (stage 0) from rank 0: none of them can go on."
    )


def test_a_rank_that_only_waits_for_the_circle_is_not_blamed():
    schedule = by_hand("F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B1.1", "F2.0 F2.1 B2.0 B2.1")
    reason = explain(schedule)
    assert reason == (
        "rank 1 waits for the gradients of microbatch 0 (stage 2) from rank 2, "
        "which waits for the activations of microbatch 1 (stage 1) from rank 1: none of them can go on."
    )


def test_why_an_action_cannot_run_yet_is_the_first_thing_that_it_lacks():
    done = {("F", 0, 3), ("F", 1, 3)}
    assert waits_for(Action("F", 0, 7), done, last_stage=1) is None
    assert waits_for(Action("F", 1, 7), done, last_stage=1) == Action("F", 0, 7)
    assert waits_for(Action("B", 1, 3), done, last_stage=1) is None
    assert waits_for(Action("I", 0, 3), done, last_stage=1) == Action("I", 1, 3)
    assert waits_for(Action("W", 0, 3), done, last_stage=1) == Action("I", 0, 3)


def test_microbatches_may_leave_out_of_turn():
    """Order is a choice of the schedule, not a law: the backwards of a GPipe in reverse are legal."""
    schedule = build("gpipe", 3, 4)
    backwards = [row[:4] + row[:3:-1] for row in schedule.actions]
    assert explain(replace(schedule, actions=backwards)) is None
