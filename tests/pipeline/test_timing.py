"""The timing of schedules: an oracle for every step, messages, and the three bubble figures. The formulas
of the papers are rung 2 of the ladder."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.pipeline.actions import Action, Layout, Schedule
from ndparallel.pipeline.catalog import build
from ndparallel.pipeline.timing import peak_activations, time_schedule
from ndparallel.pipeline.work import Reduction, Work
from tests.support.pipelines import DURATIONS, SCHEDULES, ends_by_longest_path, schedules, timed, works

close = pytest.approx


def test_gpipe_is_slightly_faster_than_1f1b_when_messages_take_time():
    """By turns, each rank waits for an answer from below; all forwards at once hide the messages."""
    gpipe, one_f_one_b = timed("gpipe", 4, 8, p2p=0.1).makespan, timed("1f1b", 4, 8, p2p=0.1).makespan
    assert gpipe == close(33 + 2 * 3 * 0.1)
    assert gpipe < one_f_one_b < gpipe + 3


def test_eager_1f1b_hides_messages_as_gpipe_does():
    assert timed("eager-1f1b", 4, 16, p2p=0.3).makespan == close(timed("gpipe", 4, 16, p2p=0.3).makespan)


@given(F=DURATIONS, I=DURATIONS, W=DURATIONS, P=st.integers(1, 6), rounds=st.integers(1, 3))
def test_every_schedule_does_the_same_work(F, I, W, P, rounds):
    for name in SCHEDULES:
        for chunks in (1, 2, 4) if name in ("interleaved", "looped-bfs") else (None,):
            busy = timed(name, P, P * rounds, F, I, W, chunks=chunks).busy
            assert busy == close([P * rounds * (F + I + W)] * P, rel=1e-9)


@given(st.data())
def test_every_step_ends_where_the_longest_path_does(data):
    schedule = data.draw(schedules())
    work = data.draw(works(schedule))
    timing, expected = time_schedule(schedule, work), ends_by_longest_path(schedule, work)
    for rank in range(schedule.ranks):
        positions = itertools.accumulate((len(step) for step in schedule.steps(rank)), initial=0)
        for place, (step, position) in enumerate(zip(schedule.steps(rank), positions)):
            assert timing.end[rank][position : position + len(step)] == close(
                [expected[rank, place]] * len(step)
            )


@given(st.data())
def test_the_three_bubble_figures_are_their_definitions(data):
    schedule = data.draw(schedules())
    timing = time_schedule(schedule, data.draw(works(schedule)))
    work, area = sum(timing.busy), len(timing.busy) * timing.makespan
    assert timing.bubble_ratio == close((area - work) / area, abs=1e-12)
    assert timing.bubble_over_ideal == close(area / work - 1, abs=1e-12)
    longest = max(range(schedule.ranks), key=lambda rank: timing.end[rank][-1] - timing.start[rank][0])
    span = timing.end[longest][-1] - timing.start[longest][0]
    assert timing.span_bubble_ratio == close((span - timing.busy[longest]) / span, abs=1e-12)


def test_the_three_bubble_figures_differ():
    """zb-h2: nobody waits between its first and last action, yet each starts and ends at another time."""
    timing = timed("zb-h2", 4, 8)
    figures = (timing.bubble_ratio, timing.bubble_over_ideal, timing.span_bubble_ratio)
    assert figures == close((float(Fraction(3, 27)), float(Fraction(3, 24)), 0.0), abs=1e-12)


def test_a_fused_pair_waits_for_both_inputs_and_counts_once():
    one = [Action("F", 0, 0), Action("F", 0, 1), Action("B", 0, 0), Action("B", 0, 1)]
    two = [Action("F", 1, 0), Action("F", 1, 1), Action("B", 1, 0), Action("B", 1, 1)]
    schedule = Schedule("by hand", Layout("loop", 2), 2, [one, two], [[], [1]])
    timing = time_schedule(schedule, Work(fused=2.5))
    # F of microbatch 1, at 2, and B of 0, which could have run then too, run as one
    assert timing.start[1] == [1, 2, 2, 4.5]
    assert timing.end[1] == [2, 4.5, 4.5, 6.5]
    assert timing.busy == [6, 5.5]


def test_seconds_of_whole_stages_are_shared_out_over_the_chunks_of_a_rank_fused_pairs_too():
    work = Work.of_whole_stages(2, 1.0, 2.0, 3.0, p2p=0.5, fused=7.0)
    assert (work.forward, work.backward_input, work.backward_weight) == (0.5, 1.0, 1.5)
    assert (work.latency, work.fused_seconds(0, 1)) == (0.5, 3.5)


def test_a_microbatch_loses_to_reductions_what_is_left_of_them_and_never_more_than_its_own_time():
    work = Work(reductions=[Reduction(1.0, 0.6, 0.2), Reduction(1.0, 0.9, 0.5)])
    assert work.lost_to_reductions([0, 1], 10.0) == close(0.5 * (0.6 + 0.9) / 1.5)
    assert work.lost_to_reductions([0], 10.0) == close(0.2 * 0.6 / 1.2)
    assert work.lost_to_reductions([0, 1], 0.4) == close(0.5 * 0.4)
    assert Work().lost_to_reductions([0, 1], 10.0) == 0


def test_messages_on_one_line_follow_one_another():
    """A message of 3 seconds on the wire leaves when the line is free, and the next comes in only after
    it."""
    timing = time_schedule(build("gpipe", 2, 2), Work(latency=0.5, wire=3.0))
    assert timing.start[1][:2] == [1 + 0.5 + 3, 1 + 0.5 + 3 + 3]
    assert timing.end[1][2:] == [10.5, 12.5]
    assert timing.start[0][2:] == [10.5 + 0.5 + 3, 10.5 + 0.5 + 3 + 3]


def test_messages_of_two_senders_to_one_rank_come_in_one_after_the_other():
    """A V on 3 ranks: rank 1 gets activations from rank 0 for its first chunk, until 9, and from rank 2, sent
    at 8, for its second."""
    down = [Action("F", 0, microbatch) for microbatch in range(4)]
    middle = [*(Action("F", 1, microbatch) for microbatch in range(4)), Action("F", 4, 0)]
    schedule = Schedule(
        "forwards", Layout("v", 3, 2), 4, [down, middle, [Action("F", 2, 0), Action("F", 3, 0)]], [[], [], []]
    )
    timing = time_schedule(schedule, Work(wire=2.0))
    assert timing.end[2] == [7, 8]
    assert timing.start[1] == [3, 5, 7, 9, 11]


def test_messages_of_one_sender_to_two_ranks_leave_one_after_the_other():
    """The same V: until 25 rank 1's line is taken by activations for rank 2; those for rank 0, ready at 23,
    leave only then."""
    first = [*(Action("F", 0, microbatch) for microbatch in range(3)), Action("F", 5, 0)]
    middle = [*(Action("F", 1, microbatch) for microbatch in range(3)), Action("F", 4, 0)]
    schedule = Schedule(
        "forwards",
        Layout("v", 3, 2),
        3,
        [first, middle, [Action("F", 2, 0), Action("F", 3, 0)]],
        [[], [], []],
    )
    timing = time_schedule(schedule, Work([1, 4, 1, 1, 1, 1], wire=5.0))
    assert timing.end[1] == [10, 15, 20, 23]
    assert timing.start[0][-1] == 25 + 5


def test_gradients_and_activations_do_not_wait_for_one_another_on_the_wire():
    """Full duplex, four lines: rank 1 sends a gradient up while the next activation comes down."""
    timing = time_schedule(build("1f1b", 2, 2), Work(wire=1.5))
    assert timing.start[1] == [2.5, 3.5, 5.5, 6.5]
    assert timing.start[0] == [0, 1, 7, 10]


def test_distance_between_ranks_is_looked_up_by_sender_and_receiver():
    far = [[0, 5, 9], [1, 0, 7], [9, 2, 0]]
    timing = time_schedule(build("gpipe", 3, 1), Work(latency=far))
    assert [start[0] for start in timing.start] == [0, 1 + 5, 7 + 7]
    assert [start[1] for start in timing.start] == [21 + 1, 17 + 2, 15]


def test_chunks_next_to_each_other_on_one_rank_send_no_message():
    """The V of 4 stages turns on the last of 2 ranks: of 3 hops there and 3 back, 2 and 2 cost a message."""
    assert timed("zb-v", 2, 1, W=0.0, p2p=100.0).makespan == close(4 * 0.5 + 4 * 0.5 + 4 * 100)


def test_one_number_or_one_for_every_stage_is_the_same():
    schedule = build("zb-v", 3, 7)
    even = time_schedule(schedule, Work(0.5, 0.7, 0.3, latency=0.1))
    listed = time_schedule(schedule, Work([0.5] * 6, [0.7] * 6, [0.3] * 6, latency=[[0.1] * 3] * 3))
    assert even == listed


@pytest.mark.parametrize("released", [0.0, 0.25, 1.0])
def test_what_input_gradients_release_is_between_held_and_live(released):
    timing = timed("zb-h2", 4, 12)
    kept = peak_activations(timing.schedule, released)
    assert all(live <= peak <= held for live, peak, held in zip(timing.peak_live, kept, timing.peak_held))
    assert kept[0] == 7


@pytest.mark.parametrize(
    ("work", "sentence"),
    [
        (lambda: Work(forward=-1.0), "seconds of F must be finite and not below 0, not -1.0."),
        (lambda: Work(backward_weight=float("nan")), "seconds of W must be finite and not below 0, not nan."),
        (
            lambda: Work(forward=[1.0, 2.0]),
            r"seconds of F: \(2,\) numbers were given where \(4,\) are needed, or one for all.",
        ),
        (lambda: Work(latency=-0.1), "seconds of a message must be finite and not below 0, not -0.1."),
        (lambda: Work(fused=-2.0), r"seconds of a fused pair must be finite and not below 0, not \[-2.0\]."),
        (lambda: Work(0.0, 0.0, 0.0), "no action takes any time: give at least one op more than 0."),
    ],
)
def test_durations_that_cannot_be_are_one_sentence(work, sentence):
    with pytest.raises(UserError, match=sentence):
        time_schedule(build("1f1b", 4, 8), work())


def test_a_schedule_that_cannot_run_is_not_timed_but_explained():
    stuck = Schedule("stuck", Layout("loop", 1), 1, [[Action("B", 0, 0), Action("F", 0, 0)]], [[]])
    with pytest.raises(UserError, match="stuck cannot run: rank 0 waits for its own F of microbatch 0"):
        time_schedule(stuck, Work())
