"""The closed forms of collectives among themselves: of powers of two, of hierarchies, of arrays, of one rank.
That they are what an executed run takes is rung 2 of the ladder."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS
from tests.support.collective_programs import PAIRS, Case, bytes_sent, execute, hardware

FLAT = [pair for pair in PAIRS if pair[1] != "hierarchical"]
LAYERED = [pair for pair in PAIRS if pair[1] == "hierarchical"]
DTYPES = st.sampled_from(["float32", "float64", "int8", "complex128"])
TRIPLES = st.tuples(st.integers(1, 300), st.floats(0, 1), st.floats(0, 1))


def seconds(collective, algorithm, *arguments):
    return ALGORITHMS[collective][algorithm].seconds(*arguments)


def test_the_classroom_ring_all_reduce_takes_7_8_seconds():
    assert (
        seconds("all_reduce", "ring", 4, 0.05, 5.0)
        == pytest.approx(2 * 3 * (0.05 + 1.25))
        == pytest.approx(7.8)
    )


@given(TRIPLES)
def test_a_binomial_tree_is_as_slow_as_its_worst_member_popcount_a_plus_bit_length_b(triple):
    p, a, b = triple
    worst = max((r.bit_count() * a + r.bit_length() * b for r in range(1, p)), default=0)
    for collective in ("broadcast", "reduce"):
        assert seconds(collective, "binomial", p, a, b) == pytest.approx(worst, rel=1e-12)
    assert seconds("all_reduce", "tree", p, a, b) == pytest.approx(2 * worst, rel=1e-12)


@pytest.mark.parametrize("k", range(12))
def test_for_powers_of_two_a_tree_takes_log_p_hops_and_halving_doubling_as_few_with_a_rings_bytes(k):
    a, b, p = 0.25, 8.0, 2**k
    assert seconds("broadcast", "binomial", p, a, b) == k * (a + b)
    assert seconds("all_reduce", "halving-doubling", p, a, b) == 2 * k * a + 2 * (p - 1) / p * b
    assert seconds("all_reduce", "ring", p, 0, b) == seconds("all_reduce", "halving-doubling", p, 0, b)


@given(TRIPLES, st.integers(1, 40))
def test_hierarchical_forms_are_the_sums_of_their_rings(triple, g):
    m, a, b = triple
    A, B = 3 * a, 7 * b
    ring = {
        collective: ALGORITHMS[collective]["ring"].seconds
        for collective in ("all_reduce", "reduce_scatter", "all_gather")
    }
    node = ring["reduce_scatter"](g, a, b)
    whole = seconds("all_reduce", "hierarchical", g, m, a, b, A, B)
    assert whole == pytest.approx(node + ring["all_reduce"](m, A, B / g) + ring["all_gather"](g, a, b))
    for collective in ("reduce_scatter", "all_gather"):
        assert seconds(collective, "hierarchical", g, m, a, b, A, B) == pytest.approx(
            node + ring[collective](m, A, B / g)
        )


@pytest.mark.parametrize("pair", FLAT)
def test_closed_forms_take_arrays_of_ranks_latencies_and_sizes(pair):
    p, a, b = np.arange(1, 40)[:, None, None], np.array([0, 1e-6, 1e-3])[:, None], np.array([0.0, 1e-5, 1.0])
    for place, value in np.ndenumerate(seconds(*pair, p, a, b)):
        one = (p[place[0], 0, 0], a[place[1], 0], b[place[2] if pair[0] != "barrier" else 0])
        assert value == seconds(*pair, *one)


@pytest.mark.parametrize("pair", PAIRS)
def test_one_rank_alone_takes_no_time(pair):
    alone = (1, 1, 1e-3, 1.0, 1e-2, 10.0) if pair[1] == "hierarchical" else (1, 1e-3, 1.0)
    assert seconds(*pair, *alone) == 0


@given(st.integers(1, 8), st.integers(1, 100))
@settings(max_examples=40, deadline=None)
def test_a_ring_sends_the_same_bytes_from_every_rank(p, multiple):
    case = Case("all_reduce", "ring", tuple(range(p)), multiple * p, "float32", only_size=True)
    assert {bytes_sent(result) for result in execute(hardware(), case)} == {2 * (p - 1) * multiple * 4}
