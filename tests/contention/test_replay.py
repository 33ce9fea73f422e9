"""A replay on the first clock's network is the first clock, to the last digit; on shared ports it is a fluid
that is pushed on in small steps."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu import Hardware
from ndparallel.contention.networks import ArrivalOrder, ProgramOrder, SharedPorts
from ndparallel.contention.replay import replay
from ndparallel.engines.launch import launch
from ndparallel.hardware.disturbances import Disturbances
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.lesson import Strategy
from ndparallel.lessons.registry import LESSONS, load
from ndparallel.training.job import Job
from tests.support.brute_force_network import STEP, Stepped
from tests.support.common import SMALL, strategy
from tests.support.random_programs import DISTURBED, HARDWARE, PROGRAMS, RANKS, Compute, run_program

EVERY = [
    pytest.param(lesson, strategy, id=f"{lesson} {strategy.name}")
    for lesson in LESSONS
    for strategy in load(lesson).strategies
]
MODEL = SMALL.replace(layers=8, heads=8, kv_heads=4)
ROUGH = replace(POCKET, disturbances=Disturbances(((1, 1.3),), ((0, 1, 3.0),), jitter=0.1))


def journaled(program, gpus, hardware, *arguments, engine="inline"):
    return launch(program, gpus, hardware, *arguments, engine=engine, keep_journal=True)


def ends(results, hardware, network):
    return replay([result.journal for result in results], hardware, network)


@pytest.mark.parametrize(("lesson", "strategy"), EVERY)
def test_in_program_order_and_without_sharing_a_replay_is_the_first_clock_to_the_last_digit(lesson, strategy):
    assert_replayed(lesson, strategy, POCKET)


@pytest.mark.parametrize(("lesson", "strategy"), EVERY[::4])
def test_so_it_is_on_disturbed_gpus(lesson, strategy):
    assert_replayed(lesson, strategy, ROUGH)


def assert_replayed(lesson: str, strategy: Strategy, hardware: Hardware) -> None:
    gpus = load(lesson).gpus
    chosen: dict[str, Any] = {"model": MODEL, "steps": 2} | load(lesson).defaults
    job = strategy.job(Job(**chosen), gpus)
    hardware = replace(hardware, **strategy.hardware)
    results = journaled(strategy.program, job.mesh.world_size, hardware, job)
    assert ends(results, hardware, ProgramOrder) == [result.end_seconds for result in results]


@given(PROGRAMS, st.sampled_from([HARDWARE, DISTURBED]))
@settings(max_examples=300, deadline=None)
def test_so_it_is_for_any_program(actions, hardware):
    results = journaled(run_program, RANKS, hardware, actions)
    assert ends(results, hardware, ProgramOrder) == [result.end_seconds for result in results]


@given(PROGRAMS, st.sampled_from([HARDWARE, DISTURBED]))
@settings(max_examples=60, deadline=None)
def test_shared_ports_carry_what_a_fluid_in_small_steps_carries(actions, hardware):
    results = journaled(run_program, RANKS, hardware, actions)
    stepped = Stepped([result.journal for result in results], hardware).run()
    assert ends(results, hardware, SharedPorts) == pytest.approx(stepped, abs=2 * STEP * len(actions))


@pytest.mark.parametrize(
    ("lesson", "name"),
    [("1d_data_parallel", "DDP overlapped"), ("2d_tensor_parallel", "TP + SP"), ("4d_combined", "TP only")],
)
def test_messages_that_never_meet_take_what_the_first_clock_says_to_the_last_digit(lesson, name):
    gpus = load(lesson).gpus
    found = strategy(lesson, name)
    results = journaled(found.program, gpus, POCKET, found.job(Job(model=MODEL), gpus))
    for network in (ArrivalOrder, SharedPorts):
        assert ends(results, POCKET, network) == [result.end_seconds for result in results]


@given(PROGRAMS, st.sampled_from([HARDWARE, DISTURBED]), st.sampled_from([ArrivalOrder, SharedPorts]))
@settings(max_examples=100, deadline=None)
def test_a_replay_is_the_same_every_time_and_changes_nothing_in_the_journals(actions, hardware, network):
    results = journaled(run_program, RANKS, hardware, actions)
    journals = [result.journal for result in results]
    before = [list(journal) for journal in journals]
    assert replay(journals, hardware, network) == replay(journals, hardware, network)
    assert journals == before


def test_no_journal_is_kept_where_none_is_asked_for():
    (result,) = launch(run_program, 1, HARDWARE, [Compute(0, "a", 1.0)], engine="inline")
    assert list(result.journal) == []
