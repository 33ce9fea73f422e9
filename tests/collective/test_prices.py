"""Claims about the price of a collective and the choice between algorithms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS, Group
from gpu import Hardware
from ndparallel.base.errors import UserError
from ndparallel.collective.algorithms import candidates
from ndparallel.collective.prices import (
    choose_algorithm,
    closed_form_seconds,
    envelope,
    first,
    lockstep_seconds,
    price,
)
from ndparallel.hardware.accelerator import find_hardware
from tests.support.collective_programs import PAIRS, Case, execute, hardware

SPEEDS = st.tuples(st.floats(0, 1e-3), st.floats(1e6, 1e12))
SLOWDOWNS = st.tuples(st.floats(0, 1e-2), st.floats(1, 1e3))


RINGS = st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"])
CHOICES = st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"])


def price_of(pair: tuple[str, str], group: Group, machine: Hardware, nbytes):
    collective, algorithm = pair
    return price(collective, algorithm, group, machine, nbytes)


@given(RINGS, st.integers(1, 6), st.integers(1, 6), SPEEDS, SLOWDOWNS, st.integers(0, 10**7))
@settings(max_examples=300, deadline=None)
def test_a_ring_through_nodes_has_a_closed_form_too(collective, g, m, inside, slowdown, multiple):
    machine = hardware(g, inside, (inside[0] + slowdown[0], inside[1] / slowdown[1]))
    group, nbytes = Group("test", tuple(range(g * m))), multiple * g * m
    closed_form = closed_form_seconds(collective, "ring", group, machine, nbytes)
    assert closed_form == pytest.approx(
        lockstep_seconds(collective, "ring", group, machine, nbytes), rel=1e-9, abs=0
    )


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("gpus_per_node", [3, 12])
def test_prices_of_many_sizes_at_once_are_those_of_each(pair, gpus_per_node):
    group, sizes = Group("test", tuple(range(12))), np.array([12, 1200, 96000])
    together = np.broadcast_to(price_of(pair, group, hardware(gpus_per_node), sizes), sizes.shape)
    assert together.tolist() == pytest.approx(
        [price_of(pair, group, hardware(gpus_per_node), int(size)) for size in sizes]
    )


@given(CHOICES, st.integers(1, 12), st.integers(1, 12), st.integers(0, 10**8))
@settings(max_examples=150, deadline=None)
def test_the_chosen_algorithm_is_the_fastest_in_lockstep(collective, p, gpus_per_node, multiple):
    # all pieces are equal
    group, machine, nbytes = Group("test", tuple(range(p))), hardware(gpus_per_node), 27720 * 8 * multiple
    names = candidates(collective, group, machine)
    best = min(lockstep_seconds(collective, name, group, machine, nbytes) for name in names)
    chosen = choose_algorithm(collective, group, machine, nbytes)
    assert lockstep_seconds(collective, chosen, group, machine, nbytes) == pytest.approx(best, rel=1e-6)


def test_on_h100s_latency_bytes_and_then_nodes_decide():
    h100, node, pod = find_hardware("h100"), Group("tp", tuple(range(8))), Group("dp", tuple(range(512)))
    assert choose_algorithm("all_reduce", node, h100, 8) == "naive"
    assert choose_algorithm("all_reduce", node, h100, 1e9) == "halving-doubling"
    assert choose_algorithm("all_reduce", pod, h100, 1e9) == "hierarchical"
    assert choose_algorithm("reduce_scatter", pod, h100, 1e9) == "hierarchical"


@given(st.integers(1, 10**9), SPEEDS)
def test_equal_prices_go_to_the_algorithm_named_first_whatever_their_rounding(nbytes, inside):
    # among two, halving and doubling is a ring; and all ways to broadcast take a + b
    two = Group("test", (0, 1))
    assert choose_algorithm("all_reduce", two, hardware(2, inside), nbytes) == "ring"
    assert choose_algorithm("broadcast", two, hardware(2, inside), nbytes) == "one-by-one"


OTHER_RINGS = [
    ((0, 4, 1, 5), (2e-6, 1e8)),
    ((0, 1, 4, 5), (2e-6, 1e10)),
    ((0, 1, 4, 5), (0, 1e8)),
    ((0, 1, 4), (2e-6, 1e8)),
]


@pytest.mark.parametrize(("ranks", "across"), OTHER_RINGS)
def test_a_ring_that_zigzags_or_crosses_faster_than_it_goes_inside_or_meets_uneven_nodes_is_run_in_lockstep(
    ranks, across
):
    machine, group = hardware(4, (1e-6, 1e9), across), Group("test", ranks)
    assert closed_form_seconds("all_reduce", "ring", group, machine, 12000) is None
    executed = execute(machine, Case("all_reduce", "ring", ranks, 12000, "int8", only_size=True))
    assert price("all_reduce", "ring", group, machine, 12000) == pytest.approx(
        max(result.end_seconds for result in executed), rel=1e-12
    )


@pytest.mark.parametrize("p", [3, 8, 24])
@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "reduce"])
def test_the_envelope_names_the_size_at_which_the_fastest_changes(collective, p):
    group, machine = Group("test", tuple(range(p))), find_hardware("h100")
    steps = envelope(collective, group, machine)
    assert steps[0] == (1, choose_algorithm(collective, group, machine, 1))
    for (_, before), (size, after) in zip(steps, steps[1:]):
        assert choose_algorithm(collective, group, machine, size * 0.999) == before != after
        assert choose_algorithm(collective, group, machine, size * 1.001) == after


def test_two_straight_lines_cross_where_algebra_says():
    # naive 2a + 2(p-1)b and halving-doubling 2 log2(p) a + 2(p-1)/p b, for p = 8: 4a = 14b - 1.75b
    [(_, first), (size, second)] = envelope(
        "all_reduce", Group("test", tuple(range(8))), hardware(8, (1e-3, 1e6))
    )
    assert (first, second) == ("naive", "halving-doubling")
    assert size == pytest.approx(4 * 1e-3 * 1e6 / 12.25, rel=1e-2)


def test_hierarchies_are_candidates_only_for_several_even_nodes_of_several_members():
    def names(ranks, gpus_per_node):
        return candidates("all_reduce", Group("test", tuple(ranks)), hardware(gpus_per_node))

    assert "hierarchical" in names(range(8), 4)
    for ranks, gpus_per_node in [(range(8), 8), (range(8), 1), (range(6), 4), (range(0, 8, 4), 4)]:
        assert names(ranks, gpus_per_node) == [
            name for name in ALGORITHMS["all_reduce"] if name != "hierarchical"
        ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("all_redoce", "ring"), "Did you mean 'all_reduce'"), (("all_reduce", "rign"), "'ring'")],
)
def test_unknown_names_come_with_the_nearest(arguments, said):
    with pytest.raises(UserError, match=said):
        price_of(arguments, Group("test", (0, 1)), hardware(), 1000)


def test_the_envelope_of_one_algorithm_begins_with_a_byte():
    assert envelope("all_to_all", Group("pair", (0, 1)), hardware()) == [(1, "direct")]


@pytest.mark.parametrize(("latency", "size"), [(1e-3, 1000), (1.5e-6, 2)])
def test_the_envelope_of_two_algorithms_names_where_the_second_takes_over(latency, size):
    """One by one a + 3nb, binomial 2a + 2nb: of 4 ranks, as soon as a byte takes as long as a latency."""
    steps = envelope("reduce", Group("test", (0, 1, 2, 3)), hardware(4, (latency, 1e6)))
    assert steps == [(1, "one-by-one"), (pytest.approx(size, rel=1e-2), "binomial")]


@pytest.mark.parametrize("least", [*range(2, 40), 1000])
def test_small_sizes_are_found_to_the_byte(least):
    assert first(lambda sizes: sizes >= least, 1, 1000) == least
