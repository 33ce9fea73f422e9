"""One attempt of a search, against lists that the clock times."""

from dataclasses import replace

import pytest

from ndparallel.pipeline.attempt import Memory, Policy, Problem, attempt
from ndparallel.pipeline.search import policies
from ndparallel.pipeline.timing import peak_activations, time_schedule
from ndparallel.pipeline.work import Work
from tests.support.pipelines import drawn_problem, is_legal


@pytest.mark.parametrize("seed", range(60))
def test_an_attempt_says_how_long_its_own_lists_take(seed):
    problem = drawn_problem(seed)
    for policy in policies(problem):
        made = attempt(problem, policy)
        assert made and is_legal(made.schedule())
        timing = time_schedule(made.schedule(), problem.work)
        assert made.span == pytest.approx(max(timing.spans), rel=1e-12)
        assert made.makespan == pytest.approx(timing.makespan, rel=1e-12)
        held = peak_activations(made.schedule(), problem.memory.released_by_input)
        assert max(held) <= problem.memory.limit + 1e-6


@pytest.mark.parametrize("seed", range(20))
def test_an_attempt_is_given_up_once_a_rank_has_been_idle_for_too_long_and_not_before(seed):
    problem = drawn_problem(seed)
    for policy in policies(problem):
        made = attempt(problem, policy)
        assert made and attempt(problem, policy, made.span * (1 + 1e-9)) == made
        timing = time_schedule(made.schedule(), problem.work)
        idle = [span - busy for span, busy in zip(timing.spans, timing.busy)]
        if idle[timing.spans.index(max(timing.spans))] > 0.01:
            assert attempt(problem, policy, made.span - 0.005) is None


EVEN = Problem(3, 6, Work(1.0, 1.0, 0.5, latency=0.5), Memory(9, 0.0))


def test_a_w_that_may_delay_nothing_leaves_f_and_i_where_they_are_without_it():
    """But for the first rank's I behind its last F, for which nobody waits."""
    starts = []
    for weight_seconds in (0.5, 0.0):
        problem = EVEN._replace(work=replace(EVEN.work, backward_weight=weight_seconds))
        made = attempt(problem, Policy((4, 2, 0), 0.0, False))
        assert made
        timing = time_schedule(made.schedule(), problem.work)
        starts.append(
            [
                [start for action, start in zip(actions, times) if action.op != "W"]
                for actions, times in zip(timing.schedule.actions[1:], timing.start[1:])
            ]
        )
    assert starts[0] == starts[1]


def ops_of(rank: int, problem: Problem, policy: Policy) -> str:
    made = attempt(problem, policy)
    assert made
    return "".join(action.op for action in made.schedule().actions[rank])


@pytest.mark.parametrize(
    ("weight_seconds", "delay", "delay_last", "end"),
    [
        (0.6, 0.0, False, "IWIWIWWWW"),
        (0.6, 0.5, False, "IWWIWIWWW"),  # a second W fits for two thirds
        (0.7, 0.5, False, "IWIWIWWWW"),  # and here for three sevenths
        (0.7, 1.0, False, "IWWIIWWWW"),  # then I4 is late, and the last one finds its gradient there
        (0.7, 1.0, True, "IWWIWIWWW"),
        (1.0, 0.0, False, "IWIWIWWWW"),  # as long as the wait
    ],
)
def test_a_w_is_done_in_a_wait_that_is_as_long_as_the_policy_wants(weight_seconds, delay, delay_last, end):
    """The middle rank waits a second before each of its last two I."""
    problem = EVEN._replace(work=replace(EVEN.work, backward_weight=weight_seconds))
    assert ops_of(1, problem, Policy((4, 2, 0), delay, delay_last))[9:] == end


def test_the_first_rank_does_all_w_that_are_due_once_its_last_f_is_done():
    """Though a W of 1.5 s fits into none of its waits, which last a second."""
    long = EVEN._replace(work=Work(1.0, 1.0, 1.5))
    assert ops_of(0, long, Policy((2, 1, 0), 0.0, False)) == "FFFIFIFIFWWWIWIWIW"


def test_a_rank_without_room_for_the_next_f_does_a_w_first():
    for limit, ops in ((9, "FFFIFIFIFI"), (4, "FFFIFIWFIW"), (3, "FFFIWFIWFI")):
        problem = EVEN._replace(memory=Memory(limit, 0.0))
        assert ops_of(1, problem, Policy((4, 2, 0), 0.0, False))[:10] == ops


def test_shares_of_activations_that_do_not_add_up_exactly_leave_the_room_that_there_is():
    """Five microbatches of which I frees 0.4 leave room for a sixth: 5 * 0.6 are 3.0000000000000004."""
    problem = Problem(1, 6, Work(), Memory(4, 0.4))
    assert ops_of(0, problem, Policy((0,), 1.0, True)) == "FIFIFIFIFIFWWWWWIW"
