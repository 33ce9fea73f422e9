"""The searcher: what it must reach, what it must keep to."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.pipeline import schedule_timer
from ndparallel.pipeline.attempt import Memory, Policy, Problem, attempt
from ndparallel.pipeline.catalog import RECIPES, build, written_schedules
from ndparallel.pipeline.schedule_timer import ScheduleTimer
from ndparallel.pipeline.search import (
    attempts,
    check_size,
    handwritten,
    head_starts,
    length,
    most_held,
    policies,
    search,
)
from ndparallel.pipeline.timing import peak_activations, time_schedule
from ndparallel.pipeline.work import Work
from tests.support.pipelines import DURATIONS, drawn_problem, is_legal, timed

# arXiv 2401.10241, table 5: P, M, hidden, heads, tF, tI, tW, tComm in microseconds; bubble rates of ZB-1p and
# ZB-2p
PUBLISHED = [
    (8, 24, 2304, 24, 18522, 18086, 9337, 601, 0.1585, 0.0433),
    (8, 32, 4096, 32, 29802, 29428, 19530, 577, 0.1045, 0.0022),
    (16, 48, 5120, 40, 11347, 11248, 8132, 377, 0.1397, 0.0066),
]


def released_by_input(hidden: int, heads: int, sequence: int = 1024) -> float:
    """Activations are 34h + 5as for every token and layer, of which W needs 32h (arXiv 2401.10241, table
    1)."""
    return (2 * hidden + 5 * heads * sequence) / (34 * hidden + 5 * heads * sequence)


@pytest.mark.parametrize(("P", "M", "hidden", "heads", "F", "I", "W", "p2p", "with_p", "with_2p"), PUBLISHED)
def test_search_reaches_the_published_bubble_rates(P, M, hidden, heads, F, I, W, p2p, with_p, with_2p):
    work, released = Work(F, I, W, latency=p2p), released_by_input(hidden, heads)
    for limit, published in ((P, with_p), (2 * P, with_2p)):
        schedule = search(P, M, work, limit, released)
        assert time_schedule(schedule, work).span_bubble_ratio <= published + 1e-4
        assert max(peak_activations(schedule, released)) <= limit + 1e-6


def test_first_published_case_is_solved_to_the_bound():
    """The first rank cannot end before the last has done M F and M I, one W excepted, and the gradient has
    come up through all ranks."""
    P, M, hidden, heads, F, I, W, p2p, *_ = PUBLISHED[0]
    work = Work(F, I, W, latency=p2p)
    bound = (P - 1) * (F + p2p) + M * (F + I) + (P - 1) * (I + p2p) + W
    schedule = search(P, M, work, 2 * P, released_by_input(hidden, heads))
    assert max(time_schedule(schedule, work).spans) == pytest.approx(bound)


@settings(max_examples=40)
@given(
    P=st.integers(1, 5),
    M=st.integers(1, 12),
    times=st.tuples(DURATIONS, DURATIONS, DURATIONS, st.floats(0, 2)),
    limit=st.floats(1, 12),
    released=st.floats(0, 1),
)
def test_what_is_found_is_legal_and_keeps_to_the_limit(P, M, times, limit, released):
    F, I, W, p2p = times
    schedule = search(P, M, Work(F, I, W, latency=p2p), limit, released)
    assert is_legal(schedule)
    assert max(peak_activations(schedule, released)) <= limit + 1e-6


@settings(max_examples=40)
@given(
    P=st.integers(1, 6),
    rounds=st.floats(1, 4),
    F=DURATIONS,
    I=DURATIONS,
    W=st.floats(0, 1),
    p2p=st.floats(0, 1),
)
def test_search_is_no_slower_than_the_handmade_orders_of_the_same_memory(P, rounds, F, I, W, p2p):
    """In spans, for W no longer than F or I, for which those orders are made."""
    M, W = round(P * rounds), W * min(F, I)
    for name, limit in (("1f1b", P), ("zb-h1", P), ("zb-h2", 2 * P - 1)):
        handmade, found = (timed(each, P, M, F, I, W, p2p, memory_limit=limit) for each in (name, "searched"))
        assert max(found.spans) <= max(handmade.spans) * (1 + 1e-9)


def test_search_takes_the_handmade_order_where_a_long_w_makes_it_the_shortest():
    """The search alone ends at 52.525, zb-h1 at 50.32."""
    handmade, found = (timed(name, 8, 11, 0.315, 1.142, 1.771, 0.487) for name in ("zb-h1", "searched"))
    assert found.makespan <= handmade.makespan == pytest.approx(50.32)


@pytest.mark.parametrize("seed", range(40))
def test_search_never_ends_after_a_handmade_order_that_keeps_to_the_memory(seed):
    """Of any times and messages, memory and share that I frees."""
    draw = Random(seed)
    P, M, limit = draw.randint(2, 8), draw.randint(1, 24), draw.randint(1, 16)
    released = draw.choice([0.0, 0.4])
    forward, backward_input, backward_weight = (draw.uniform(0.3, 2) for _ in range(3))
    work = Work(forward, backward_input, backward_weight, latency=draw.choice([0.0, 0.5]))
    found = search(P, M, work, limit, released)
    assert is_legal(found) and max(peak_activations(found, released)) <= limit + 1e-6
    for name in (name for name in written_schedules() if RECIPES[name].chunks == 1):
        handmade = build(name, P, M)
        if max(peak_activations(handmade, released)) <= limit:
            makespans = [time_schedule(each, work).makespan for each in (found, handmade)]
            assert makespans[0] <= makespans[1] * (1 + 1e-9)


@pytest.mark.parametrize(("name", "limit", "ticks"), [("zb-v", 4, 51), ("v-half", 3, 53), ("v-min", 2, 59)])
def test_an_order_of_two_chunks_may_end_before_what_is_searched_for_one(name, limit, ticks):
    """A limit that the documents tell: with the same memory, in ticks of half a forward."""
    handmade, found = timed(name, 4, 8), timed("searched", 4, 8, memory_limit=limit)
    assert max(handmade.peak_held) / 2 == max(found.peak_held) == limit
    assert 2 * handmade.makespan == ticks < 2 * found.makespan and found.schedule.chunks == 1


def test_more_memory_is_never_slower():
    work = Work(1.0, 1.0, 0.5, latency=0.2)
    spans = [max(time_schedule(search(6, 20, work, limit), work).spans) for limit in (1, 2, 3, 4, 6, 8, 12)]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] < spans[0]


def test_uneven_stages_are_searched_too():
    """A last stage with a heavy head: the search beats the order made for even stages."""
    work = Work([1, 1, 1, 1.5], [1, 1, 1, 1.5], [0.8, 0.8, 0.8, 1.2], latency=0.1)
    found, handmade = (
        time_schedule(schedule, work) for schedule in (search(4, 12, work, 7), build("zb-h2", 4, 12))
    )
    assert max(found.spans) <= max(handmade.spans)


def test_without_a_limit_the_memory_is_that_of_1f1b():
    assert max(search(4, 8, Work()).actions[0], key=lambda action: action.microbatch).microbatch == 7
    assert max(peak_activations(search(4, 8, Work()))) == 4


def test_build_hands_times_and_limit_to_the_search():
    work = Work(1.0, 2.0, 0.5, latency=0.3)
    assert build("searched", 4, 8, work=work, memory_limit=6, released_by_input=0.5) == search(
        4, 8, work, 6, 0.5
    )
    assert replace(build("searched", 4, 8), name="") == replace(search(4, 8, Work(), 4), name="")


@pytest.mark.parametrize(
    ("limit", "released", "sentence"),
    [
        (0.5, 0.0, "a memory limit of 0.5 activations is too low: a rank holds at least 1."),
        (float("nan"), 0.0, "a memory limit of nan activations is too low: a rank holds at least 1."),
        (4, 1.5, "the share of the activations that I frees is from 0 to 1, not 1.5."),
    ],
)
def test_limits_that_cannot_be_are_one_sentence(limit, released, sentence):
    with pytest.raises(UserError, match=sentence):
        search(4, 8, Work(), limit, released)


@pytest.mark.parametrize(
    ("P", "M", "I", "W", "p2p"), [(3, 31, 1.1, 0.6, 0.3), (4, 40, 0.9, 1.1, 0.05), (6, 48, 1.0, 0.7, 0.0)]
)
def test_a_long_step_is_searched_as_well_as_with_all_attempts_at_its_full_length(P, M, I, W, p2p):
    work, memory = Work(1.0, I, W, latency=p2p), Memory(2 * P, 0.4)
    problem = Problem(P, M, work, memory)
    best = attempts(problem, policies(problem))[0]
    found = time_schedule(search(P, M, work, *memory), work)
    assert max(found.spans) <= 1.001 * best.span


def test_a_search_of_more_than_its_limit_is_refused():
    check_size(50, 1000)
    with pytest.raises(UserError, match="zb-1p tries about 50 orders, too many for 3 stages and 16667 micro"):
        check_size(3, 16_667, "zb-1p")


def test_a_search_tries_about_50_policies():
    assert len(set(policies(Problem(16, 64, Work(), Memory(64, 0.0))))) == 54


@pytest.mark.parametrize(
    ("ranks", "limit", "expected"),
    [
        (4, 4, [3, 2, 1, 0]),  # as 1F1B
        (4, 3 - 1e-12, [2, 1, 0, 0]),  # a limit may be a sum of shares
        (4, 20, [9, 6, 3, 0]),
        (9, 20, [24, 21, 18, 15, 12, 9, 6, 3, 0]),  # which is as many as there are microbatches
    ],
)
def test_a_head_start_of_three_per_rank_below_is_as_long_as_memory_allows(ranks, limit, expected):
    assert head_starts(Problem(ranks, 20, Work(), Memory(limit, 0.0)), 3) == expected


ONE_CHUNK = [name for name in written_schedules() if RECIPES[name].chunks == 1]


@pytest.mark.parametrize("seed", [*range(12), 48, 148, 1826])
def test_what_is_found_ends_no_later_than_any_written_order_of_one_chunk_that_keeps_to_the_memory(seed):
    """Nor has one that ends as soon a shorter span. An order of a shorter span that ends later was tried: an
    attempt (seeds 48 and 148), and zb-h2 (1826)."""
    P, M, work, memory = drawn_problem(seed)
    found = time_schedule(search(P, M, work, *memory), work)
    written = [build(name, P, M) for name in ONE_CHUNK]
    kept = [each for each in written if max(peak_activations(each, memory[1])) <= memory.limit]
    times = [time_schedule(each, work) for each in kept]
    soonest = min(each.makespan for each in times) * (1 + 1e-9)
    assert found.makespan <= soonest
    assert all(max(found.spans) <= max(each.spans) * (1 + 1e-9) for each in times if each.makespan <= soonest)


@pytest.mark.parametrize("released", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("name", ONE_CHUNK)
def test_a_written_order_holds_what_its_actions_leave(name, released):
    for P, M in ((1, 3), (4, 3), (4, 12)):
        held = max(peak_activations(build(name, P, M), released))
        assert most_held(ScheduleTimer(name, P, 1, M), released) == pytest.approx(held)


def test_a_written_order_keeps_to_a_limit_that_may_be_a_sum_of_shares():
    for limit, is_kept in ((4, True), (4 - 1e-12, True), (4 - 1e-3, False)):
        names = [order.name for order in handwritten(Problem(4, 8, Work(), Memory(limit, 0.0)))]
        assert ("1f1b" in names) == is_kept


@pytest.mark.parametrize("seed", range(8))
def test_a_written_order_is_timed_exactly_however_long_it_is(seed, monkeypatch):
    """Also where its rounds are not alike, so that a plan's step would be extrapolated."""
    monkeypatch.setattr(schedule_timer, "WHOLE", 0)
    problem = drawn_problem(seed)._replace(microbatches=50, memory=Memory(60, 0.0))
    for order in handwritten(problem):
        timing = time_schedule(order.schedule(), problem.work)
        assert order.span == pytest.approx(max(timing.spans), rel=1e-12)
        assert order.makespan == pytest.approx(timing.makespan, rel=1e-12)


def test_spans_that_differ_by_rounding_are_as_long_as_one_another():
    made = attempt(Problem(3, 6, Work(0.1, 0.2, 0.7), Memory(9, 0.0)), Policy((4, 2, 0), 0.0, False))
    assert made and length(made._replace(span=made.span * (1 + 1e-15))) == length(made)
    assert length(made._replace(span=made.span * (1 + 1e-9))) > length(made)
