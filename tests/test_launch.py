"""Programs run on ranks, on each engine, and give the same clocks, bytes and numbers there."""

import numpy as np
import pytest
import rank_programs

from gpu import CLASSROOM, Hardware, Link
from ndparallel.errors import UserError
from ndparallel.launch import Ranks, launch

HARDWARE = Hardware("test", 1e3, 1e12, 0, 1e12, 4, Link(1e-6, 1e9), Link(7e-6, 1e8))
ENGINES = ("inline", "processes")


@pytest.mark.parametrize("engine", ENGINES)
def test_results_come_in_the_order_of_the_ranks(engine):
    results = launch(rank_programs.rank_number, 5, CLASSROOM, engine=engine)
    assert [(result.rank, result.value) for result in results] == [(rank, rank) for rank in range(5)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [0, 1, 7, 1000, 100_000])
def test_both_engines_give_the_same_clocks_bytes_and_numbers(world_size, size):
    arguments = rank_programs.ring_of, world_size, HARDWARE, world_size, size, "float64"
    inline, processes = (launch(*arguments, engine=engine) for engine in ENGINES)
    expected = sum(np.arange(size, dtype=float) + rank for rank in range(world_size))
    for one, other in zip(inline, processes, strict=True):
        np.testing.assert_array_equal(one.value[0], expected)
        np.testing.assert_array_equal(other.value[0], expected)
        assert one._replace(value=one.value[1]) == other._replace(value=other.value[1])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_program_is_found_under_fork_and_under_spawn(method):
    with Ranks(2, "processes", method) as ranks:
        values = [result.value for result in ranks.run(rank_programs.ring_of, CLASSROOM, 2, 10, "float32")]
    np.testing.assert_array_equal(values[0][0], 2 * np.arange(10) + 1)


def test_processes_are_kept_between_runs():
    with Ranks(3) as ranks:
        first, second = ([result.value for result in ranks.run(rank_programs.process_number, CLASSROOM)] for _ in range(2))
    assert first == second and len(set(first)) == 3


def test_an_unknown_engine_is_one_sentence_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'processes'"):
        launch(rank_programs.rank_number, 2, CLASSROOM, engine="process")


def test_no_ranks_at_all_is_an_error_for_people():
    with pytest.raises(UserError, match="0 ranks"):
        Ranks(0)
