"""Claims about clocks in lockstep: they are the executed run's clocks, for everything that closed forms leave
out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from collectives import ALGORITHMS
from ndparallel.base.errors import UserError
from ndparallel.collective.clocks import start_clocks
from ndparallel.collective.lockstep import advance, direct_all_to_all
from ndparallel.engines.launch import launch
from tests.collective.test_numbers import ROWS, exchange_rows
from tests.support.collective_programs import (
    LINKS,
    PAIRS,
    Case,
    bytes_sent,
    execute,
    hardware,
    messages_sent,
    sequences,
)

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 0}


def in_lockstep(machine, cases):
    """The clocks of a group after all cases, and their times after each."""
    clocks, times = start_clocks(machine, cases[0].ranks), []
    for case in cases:
        clocks.itemsize = np.dtype(case.dtype).itemsize
        clocks.now = clocks.now + (case.starts or 0.0)
        advance(clocks, case.collective, case.algorithm, case.size * clocks.itemsize, case.root)
        times.append(clocks.now.copy())
    return clocks, times


@given(sequences(most=3), LINKS, LINKS)
@settings(max_examples=400, deadline=None)
def test_lockstep_equals_the_executed_clock_on_mixed_links_with_uneven_pieces_and_different_starts(
    drawn, inside, across
):
    gpus_per_node, cases = drawn
    machine = hardware(gpus_per_node, inside, across)
    clocks, times = in_lockstep(machine, cases)
    results = execute(machine, *cases)
    for member, rank in enumerate(cases[0].ranks):
        np.testing.assert_allclose(
            [time[member] for time in times], [time for _, time in results[rank].value], **EXACT
        )
        assert clocks.bytes_sent[member] == bytes_sent(results[rank])
        assert clocks.messages[member] == messages_sent(results[rank])


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_lockstep_equals_the_executed_clock_on_64_ranks_also_when_a_second_one_queues_behind_the_first(
    collective, algorithm
):
    first = Case(
        collective, algorithm, tuple(range(64)), 1003, starts=tuple(np.linspace(0, 1e-4, 64)), only_size=True
    )
    cases = [first, replace(first, starts=())]
    clocks, _ = in_lockstep(hardware(8), cases)
    results = execute(hardware(8), *cases)
    np.testing.assert_allclose(clocks.now, [result.end_seconds for result in results], **EXACT)
    np.testing.assert_array_equal(clocks.messages, [messages_sent(result) for result in results])


@given(ROWS)
@settings(max_examples=50, deadline=None)
def test_an_uneven_all_to_all_in_lockstep_equals_the_executed_one(table):
    machine, rows = hardware(2), np.array(table) * 3 * 8
    clocks = start_clocks(machine, range(len(table)))
    direct_all_to_all(clocks, rows)
    results = launch(exchange_rows, len(table), machine, table, False, engine="inline")
    np.testing.assert_allclose(clocks.now, [result.end_seconds for result in results], **EXACT)


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_many_groups_and_many_sizes_move_at_once(collective, algorithm):
    machine, sizes = hardware(4), np.array([[8, 1000], [77, 123456]])
    ranks = np.array([np.arange(8), np.arange(8, 16)])
    together = start_clocks(machine, np.broadcast_to(ranks, (2, 2, 8)))
    advance(together, collective, algorithm, sizes)
    for place, size in np.ndenumerate(sizes):
        alone = start_clocks(machine, ranks[place[1]])
        advance(alone, collective, algorithm, size)
        np.testing.assert_array_equal(together.now[place], alone.now)
        np.testing.assert_array_equal(together.bytes_sent[place], alone.bytes_sent)


def test_a_ring_on_clocks_is_the_recurrence_of_the_blackboard():
    start, a, b = np.array([0.0, 3.0, 1.0, 0.5]), 0.25, 2.0
    clocks = start_clocks(hardware(inside=(a, 1.0)), range(4), now=start)
    advance(clocks, "all_gather", "ring", 4 * b)
    now = start
    for _ in range(3):
        now = np.maximum(now + b, np.roll(now + b + a, 1))
    np.testing.assert_array_equal(clocks.now, now)


def test_every_algorithm_has_its_twin():
    known = [ALGORITHMS[collective][name] for collective, name in PAIRS]
    assert all(one.lockstep and one.lockstep is not one.run for one in known)


def test_a_hierarchy_of_uneven_nodes_is_refused_in_lockstep_too():
    with pytest.raises(UserError, match="as many members in every node"):
        advance(start_clocks(hardware(2), range(3)), "all_reduce", "hierarchical", 100)
