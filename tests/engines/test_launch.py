"""Programs run on ranks, on each engine, and give the same clocks, bytes and numbers there."""

import functools
import multiprocessing
import os
import shutil

import numpy as np
import pytest

from gpu import CLASSROOM, Hardware, Link, MismatchError
from ndparallel.base.errors import UserError
from ndparallel.engines.launch import DeadlockError, RankError, Ranks, launch
from ndparallel.engines.task import load, reference_to
from tests.support import rank_programs

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


@pytest.mark.parametrize("engine", ENGINES)
def test_a_ring_of_four_takes_two_times_three_hops_of_a_quarter(engine):
    results = launch(rank_programs.ring_all_reduce, 4, CLASSROOM, 4, np.ones(500, np.float32), engine=engine)
    assert [result.end_seconds for result in results] == pytest.approx([6 * (0.05 + 1.25)] * 4)


@pytest.mark.parametrize("engine", ENGINES)
def test_events_are_kept_only_where_they_are_asked_for(engine):
    for keep_events, count in ((True, 2 * 6), (False, 0)):
        results = launch(
            rank_programs.ring_all_reduce, 4, CLASSROOM, 4, np.ones(8), engine=engine, keep_events=keep_events
        )
        assert [len(result.events) for result in results] == [count] * 4


def test_what_is_run_on_ranks_that_were_ended_starts_new_ones_and_leaves_none():
    numbers = []
    with Ranks(2) as ranks:
        for _ in range(2):
            numbers += [result.value for result in ranks.run(rank_programs.process_number, CLASSROOM)]
            ranks.end()
    assert len(set(numbers)) == 4 and not multiprocessing.active_children()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_program_is_found_under_fork_and_under_spawn(method):
    with Ranks(2, "processes", method) as ranks:
        values = [result.value for result in ranks.run(rank_programs.ring_of, CLASSROOM, 2, 10, "float32")]
    np.testing.assert_array_equal(values[0][0], 2 * np.arange(10) + 1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_program_in_a_file_that_cannot_be_imported_is_loaded_by_its_path(method, tmp_path):
    lesson = tmp_path / "1d_lesson.py"
    shutil.copy(rank_programs.__file__, lesson)
    program = load(reference_to(rank_programs.module_name)._replace(file=str(lesson), module="1d_lesson"))
    with Ranks(2, "processes", method) as ranks:
        assert [result.value for result in ranks.run(program, CLASSROOM)] == ["1d_lesson"] * 2


def test_a_module_that_is_loaded_already_is_used_as_it_is():
    assert load(reference_to(rank_programs.rank_number)) is rank_programs.rank_number


@pytest.mark.parametrize("program", [lambda gpu: gpu.rank, functools.partial(rank_programs.rank_number)])
def test_a_program_that_no_process_could_find_is_one_sentence(program):
    with pytest.raises(UserError, match="at the top level of a file, or choose engine='inline'"):
        launch(program, 2, CLASSROOM, engine="processes")
    assert [result.value for result in launch(program, 2, CLASSROOM, engine="inline")] == [0, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_rank_has_a_copy_of_the_arguments_of_its_own(engine):
    numbers: list = []
    results = launch(
        rank_programs.change_argument, 3, CLASSROOM, rank_programs.Argument(7), numbers, engine=engine
    )
    assert [result.value for result in results] == [(7, [rank]) for rank in range(3)] and numbers == []


def test_processes_are_kept_between_runs():
    with Ranks(3) as ranks:
        first, second = (
            [result.value for result in ranks.run(rank_programs.process_number, CLASSROOM)] for _ in range(2)
        )
    assert first == second and len(set(first)) == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_run_again_after_a_run_that_failed(engine):
    with Ranks(2, engine) as ranks:
        with pytest.raises(RankError):
            ranks.run(rank_programs.raise_in, CLASSROOM, 1, "nonsense")
        assert [result.value for result in ranks.run(rank_programs.rank_number, CLASSROOM)] == [0, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_one_run_left_unread_does_not_reach_the_next(engine):
    with Ranks(2, engine) as ranks:
        with pytest.raises(MismatchError, match="Rank 1 has not read"):
            ranks.run(rank_programs.leave_unread, CLASSROOM, 3, 100)
        with pytest.raises(DeadlockError, match="rank 1, .* waits for 'unread' from rank 0, which has ended"):
            ranks.run(read_unread, CLASSROOM)


def read_unread(gpu):
    if gpu.rank == 1:
        gpu.receive(0, "unread")


def test_an_unknown_engine_is_one_sentence_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'processes'"):
        launch(rank_programs.rank_number, 2, CLASSROOM, engine="process")


def test_an_unknown_start_method_is_one_sentence_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'spawn'"):
        Ranks(2, start_method="spwan")


def test_no_ranks_at_all_is_an_error_for_people():
    with pytest.raises(UserError, match="0 ranks"):
        Ranks(0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_begun_before_the_last_ones_results_are_asked_for_loses_nothing(engine):
    with Ranks(3, engine) as ranks:
        underway = [ranks.begin(rank_programs.number_or_error, CLASSROOM, number) for number in range(4)]
        for number in (2, 0, 3, 1, 0):
            assert [result.value for result in underway[number].results()] == [number] * 3


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_that_fails_is_told_where_its_results_are_asked_for_and_the_next_one_runs(engine):
    with Ranks(3, engine) as ranks:
        fails, works = (ranks.begin(rank_programs.number_or_error, CLASSROOM, number) for number in (-1, 1))
        assert [result.value for result in works.results()] == [1] * 3
        for _ in range(2):
            with pytest.raises(UserError, match="-1 is negative"):
                fails.results()


def test_results_that_are_asked_for_after_the_ranks_have_ended_are_refused_in_a_sentence():
    with Ranks(2) as ranks:
        underway = ranks.begin(rank_programs.rank_number, CLASSROOM)
    with pytest.raises(UserError, match="ended before their results"):
        underway.results()


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system has no way to keep a process to a core"
)
def test_ranks_that_outnumber_the_cores_keep_to_one_each_and_all_cores_have_as_many():
    mine = sorted(os.sched_getaffinity(0))
    crowd = [result.value for result in launch(rank_programs.cores, 3 * len(mine), CLASSROOM)]
    assert sorted(crowd) == sorted([core] for core in mine for _ in range(3))
    assert [result.value for result in launch(rank_programs.cores, len(mine), CLASSROOM)] == [mine] * len(
        mine
    )
    assert sorted(os.sched_getaffinity(0)) == mine
