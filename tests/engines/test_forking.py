"""Work that is done in forks of a process: the same results and errors as in one, and nothing left behind."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from ndparallel.base.errors import UserError
from ndparallel.engines import forking
from ndparallel.engines.forking import forks, map_in_forks, places_left, take_items
from ndparallel.engines.system import interrupts_held


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(forking, "usable_cores", lambda: [0, 1, 2, 3])


def squared_there(number):
    return number**2, os.getpid()


@pytest.mark.parametrize("items, processes", [(0, 0), (1, 1), (3, 3), (4, 4), (11, 4)])
def test_every_core_has_an_item_and_this_process_the_first(items, processes):
    opened = os.listdir("/proc/self/fd")
    results = map_in_forks(squared_there, range(items))
    assert [square for square, _ in results] == [number**2 for number in range(items)]
    pids = [pid for _, pid in results]
    assert pids[:1] == [os.getpid()] * bool(items) and len(set(pids)) == processes
    assert not multiprocessing.active_children() and os.listdir("/proc/self/fd") == opened


def test_who_is_done_takes_the_next_item_that_nobody_has(monkeypatch):
    """The first one waits until the third is done, which a fork must have taken."""
    monkeypatch.setattr(forking, "usable_cores", lambda: [0, 1])
    wait, tell = os.pipe()

    def work(number):
        if number == 1:
            os.read(wait, 1)
        if number == 3:
            os.write(tell, b"x")
        return squared_there(number)

    (_, here), *others = map_in_forks(work, [1, 2, 3])
    assert here == os.getpid() and [square for square, _ in others] == [4, 9]
    assert {pid for _, pid in others} != {here}


def test_no_two_processes_take_the_same_item():
    """Of many that take no time: both begin together, so that they ask for the next one at once."""
    many, together = range(200_000), multiprocessing.get_context("fork").Barrier(2)

    def work(number):
        if number < 2:
            together.wait()

    with places_left(many[2:]) as left, forks(partial(take_items, work, many, left), [1]) as (fork,):
        here = take_items(work, many, left, 0)
        there = fork.result()
    assert len(here) + len(there) == len(here | there) == len(many)


def test_a_process_whose_forks_are_at_work_forks_no_more():
    """They have the other cores."""

    def work(number):
        return os.getpid(), map_in_forks(squared_there, [number, number, number])

    done = map_in_forks(work, [1, 2, 3])
    assert len({pid for pid, _ in done}) == 3  # nor does one fail to, so that its item is done here
    for pid, squares in done:
        assert {each for _, each in squares} == {pid}
    assert len({pid for _, pid in map_in_forks(squared_there, [1, 2, 3])}) == 3  # and now it does


@pytest.mark.parametrize("killed_at", [2, 6])  # its own item, or one that it has taken
def test_what_a_killed_fork_had_to_do_is_done_here(killed_at, monkeypatch):
    monkeypatch.setattr(forking, "usable_cores", lambda: [0, 1])
    here, (wait, tell) = os.getpid(), os.pipe()

    def work(number):
        if number == 1:
            os.read(wait, 1)
        if number == killed_at and os.getpid() != here:
            os.write(tell, b"x")
            os.kill(os.getpid(), 9)
        return squared_there(number)

    assert map_in_forks(work, [1, 2, 6])[1:] == [(4, here), (36, here)]


def test_what_a_fork_raises_is_raised_here_with_the_words():
    def work(number):
        if number == 2:
            raise UserError(f"no plan for {number}")
        return number

    with pytest.raises(UserError, match="no plan for 2"):
        map_in_forks(work, [1, 2, 3])
    assert not multiprocessing.active_children()


def test_an_error_here_ends_the_forks():
    def work(number):
        if number == 1:
            raise UserError("no plan for 1")
        threading.Event().wait()

    with pytest.raises(UserError):
        map_in_forks(work, [1, 2])
    assert not multiprocessing.active_children()


def test_a_fork_ends_with_its_process_and_leaves_ctrl_c_to_it(monkeypatch):
    ends_with: list[int] = []
    monkeypatch.setattr(forking, "end_with_parent", ends_with.append)

    def work(number):
        return [*ends_with], signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])

    assert map_in_forks(work, [1, 2]) == [([], False), ([os.getpid()], True)]


def test_ctrl_c_while_a_fork_begins_ends_the_forks_and_is_not_for_them(monkeypatch, capfd):
    """Which would say so, each in a traceback of its own."""
    process: Any = multiprocessing.process.BaseProcess
    started = process._bootstrap

    def interrupted(*given, **named):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getppid(), signal.SIGINT)
        return started(*given, **named)

    monkeypatch.setattr(process, "_bootstrap", interrupted)
    with pytest.raises(KeyboardInterrupt):
        map_in_forks(lambda number: threading.Event().wait(9), [1, 2])
    assert not multiprocessing.active_children() and not forking.AT_WORK
    assert capfd.readouterr().err == ""


def test_ctrl_c_waits_for_the_end_of_a_block_even_where_another_thread_gets_it():
    """Answered in between, it was lost where Python itself ran code before it came back from a fork."""
    over, reached = threading.Event(), []
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt), interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            over.wait(0.05)
            reached.append("the end")
    finally:
        over.set()
        other.join()
    assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_proc_forks_do_the_same(monkeypatch):
    opened = os.open

    def refused(name, *given):
        if str(name).startswith("/proc/"):
            raise FileNotFoundError(name)
        return opened(name, *given)

    monkeypatch.setattr(os, "open", refused)
    assert [square for square, _ in map_in_forks(squared_there, range(9))] == [n**2 for n in range(9)]


def test_where_the_system_refuses_a_process_its_item_is_done_here(monkeypatch):
    def refused(*given):
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.popen_fork.Popen._launch", refused)
    assert map_in_forks(squared_there, [1, 2]) == [(1, os.getpid()), (4, os.getpid())]


def test_another_thread_does_not_fork():
    with ThreadPoolExecutor(1) as pool:
        results = pool.submit(map_in_forks, squared_there, [1, 2]).result()
    assert {pid for _, pid in results} == {os.getpid()}


@pytest.mark.parametrize("platform, cores", [("darwin", [0, 1]), ("linux", [0])])
def test_elsewhere_and_on_one_core_everything_is_done_here(platform, cores, monkeypatch):
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(forking, "usable_cores", lambda: cores)
    assert {pid for _, pid in map_in_forks(squared_there, [1, 2])} == {os.getpid()}
