"""The life of one rank's process: run one task after another until the launcher ends it.

Limit  Ctrl-C is the launcher's to handle. Should the launcher die, the kernel ends this process (Linux), or,
       where the kernel cannot, a thread that does nothing else.

Glossary
    sentinel   becomes readable when the launcher ends, in whatever way
"""

import gc
import multiprocessing
import os
import signal
import sys
import threading
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from typing import NamedTuple

from ndparallel.engines.channel import Channel, Channels
from ndparallel.engines.failures import Failure, failure_of
from ndparallel.engines.garbage import rare_garbage_collection
from ndparallel.engines.system import end_with_parent, keep_to_core, usable_cores
from ndparallel.engines.task import ProgramReference, perform


class LauncherSentinel:
    """A pipe whose writing end only the launcher keeps: it closes when the launcher ends. All ranks of this
    process, of whatever pool, have the same, so that none inherits the writing end of another, as it does
    that of multiprocessing's own."""

    def __init__(self) -> None:
        self.reader, self.writer = multiprocessing.Pipe(duplex=False)

    def __getstate__(self) -> dict:
        return {"reader": self.reader}  # a rank that is spawned gets no more

    def close_writer(self) -> None:
        """Close the writing end that this process has inherited."""
        if hasattr(self, "writer"):
            self.writer.close()

    def watch(self) -> None:
        """End this process with the launcher's, by a thread that costs as much as a tenth of the start."""
        threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        self.reader.poll(None)
        os._exit(1)


launcher_sentinel = cache(LauncherSentinel)


class RankSettings(NamedTuple):
    """What a rank's process is told once."""

    rank: int
    sentinel: LauncherSentinel
    launcher_is_main_thread: bool


def rank_main(settings: RankSettings, wiring: Channels, launcher: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        _end_with_launcher(settings)
        _keep_to_a_core(settings.rank, len(wiring.readers))
        channel = Channel(settings.rank, wiring, launcher)
    except Exception as error:  # no memory, no threads
        launcher.send(failure_of(settings.rank, error))
        raise SystemExit(1) from None
    gc.freeze()  # what was inherited is no garbage: looking for it there would take long, and copy its memory
    with rare_garbage_collection():
        while True:
            run, reference, task = _next_task(channel, launcher)
            channel.begin(run)
            launcher.send(_outcome(channel, reference, task))


def _keep_to_a_core(rank: int, world_size: int) -> None:
    """Share the ranks out evenly where they outnumber the cores: the scheduler would move a rank when it
    wakes it, which takes longer than a small message."""
    cores = usable_cores()
    if cores and world_size > len(cores):
        keep_to_core(cores[rank % len(cores)])


def _end_with_launcher(settings: RankSettings) -> None:
    settings.sentinel.close_writer()
    launcher = multiprocessing.parent_process()
    is_main = settings.launcher_is_main_thread  # other threads may end before the launcher does
    if not (is_main and launcher and launcher.pid and end_with_parent(launcher.pid)):
        settings.sentinel.watch()


def _next_task(channel: Channel, launcher: Connection) -> tuple[int, ProgramReference, bytes]:
    """Wait for a task, and meanwhile do what the messages need: a rank that has ended never keeps another
    from ending."""
    while not launcher.poll():
        channel.idle(launcher.fileno())
    return launcher.recv()


def _outcome(channel: Channel, reference: ProgramReference, task: bytes) -> bytes | Failure:
    """Run the program: a pickled RankResult, which the launcher opens when it has the time, or a Failure."""
    outcome: bytes | Failure
    try:
        outcome = perform(channel.rank, reference, task, channel)
        channel.end(failed=False)
    except BaseException as error:
        outcome = failure_of(channel.rank, error)
        channel.end(failed=True)
    with suppress(OSError, ValueError):  # nobody may be left who reads what the program prints
        sys.stdout.flush()
    return outcome
