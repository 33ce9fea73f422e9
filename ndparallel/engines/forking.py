"""Work on several items at once: on some of them here, on the others in forks of this process.

Idea   One process for every core. Each begins with an item of its own, and then takes the next that nobody
       has: places are read from a file whose offset all share. What a fork does not send, because it was
       killed or could not go on, is done here again. So results and errors are those of one process.
Limit  On Linux alone, and from the main thread: another thread may hold what a fork would wait for. Elsewhere
       everything is done here, in turn.
"""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ndparallel.engines.system import end_with_parent, interrupts_held, usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
AT_WORK: list["Fork"] = []  # forks of this process
BYTES_OF_PLACE = 4


def forks_at_once() -> int:
    """How many processes work at once, this one among them: 1 where it cannot fork, or has forks on the other
    cores already."""
    is_main = threading.current_thread() is threading.main_thread()
    can_fork = sys.platform == "linux" and is_main and not multiprocessing.current_process().daemon
    return max(1, len(usable_cores())) if can_fork and not AT_WORK else 1


def map_in_forks(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return what `work` returns for every item, in their order: results that pickle takes."""
    number = min(len(items), forks_at_once())
    if number < 2:
        return [work(item) for item in items]
    with (
        places_left(range(number, len(items))) as left,
        forks(partial(take_items, work, items, left), range(1, number)) as begun,
    ):
        done = take_items(work, items, left, 0)
        for fork in begun:
            done |= fork.result()
    return [done[place] if place in done else work(item) for place, item in enumerate(items)]


@contextmanager
def places_left(places: Sequence[int]) -> Iterator[int]:
    """A file of places, in memory, opened by its name: two that read it at once are let in one after the
    other, which they are not where `memfd_create` has opened it."""
    left = unnamed = os.memfd_create("places")
    with suppress(OSError):  # there is no /proc: then two may take the same item
        left = os.open(f"/proc/self/fd/{unnamed}", os.O_RDWR)
        os.close(unnamed)
    try:
        os.write(left, b"".join(place.to_bytes(BYTES_OF_PLACE, "little") for place in places))
        os.lseek(left, 0, os.SEEK_SET)
        yield left
    finally:
        os.close(left)


def take_items(
    work: Callable[[Item], Result], items: Sequence[Item], left: int, first: int
) -> dict[int, Result]:
    """Work on the first item and on what is left, until nothing is; return the results by their places."""
    done = {first: work(items[first])}
    while place := os.read(left, BYTES_OF_PLACE):
        number = int.from_bytes(place, "little")
        done[number] = work(items[number])
    return done


@contextmanager
def forks(work: Callable, items: Sequence) -> Iterator[list["Fork"]]:
    """One fork for every item. None of them outlives the block."""
    begun: list[Fork] = []
    try:
        for item in items:
            with interrupts_held():
                begun.append(Fork(work, item))
                AT_WORK.append(begun[-1])
        yield begun
    finally:
        with interrupts_held():
            for fork in begun:
                fork.end()
                AT_WORK.remove(fork)


class Fork:
    """A process that works on one item; one that the system refuses has no result of its own."""

    def __init__(self, work: Callable, item: Any) -> None:
        self.work, self.item = work, item
        context: Any = multiprocessing.get_context("fork")
        self.end_here, there = context.Pipe(duplex=False)
        self.process = context.Process(target=send_result, args=(there, work, item), daemon=True)
        with suppress(OSError):  # no more processes
            self.process.start()
        there.close()

    def result(self) -> Any:
        with suppress(EOFError, OSError):
            return self.end_here.recv()
        return self.work(self.item)

    def end(self) -> None:
        if self.process.pid:
            self.process.kill()
            self.process.join()
        self.end_here.close()


def send_result(there: Connection, work: Callable, item: Any) -> None:
    """Work in a fork. Ctrl-C is for the process that has forked: here it is held back to the end, as it was
    when the fork began."""
    end_with_parent(os.getppid())
    with suppress(Exception):  # it is raised where the work is done again
        there.send(work(item))
