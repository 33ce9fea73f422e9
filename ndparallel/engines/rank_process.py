"""The life of one rank's process: run one task after another until the launcher ends it.

Limit  Ctrl-C is the launcher's to handle. Should the launcher die, a thread that does nothing else ends this
       process.
"""

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.connection import Connection

from ndparallel.engines.channel import Channel, Channels
from ndparallel.engines.failures import Failure, failure_of
from ndparallel.engines.garbage import rare_garbage_collection
from ndparallel.engines.system import keep_to_core, usable_cores
from ndparallel.engines.task import ProgramReference, load, run_rank


def live(rank: int, wiring: Channels, launcher: Connection, looks: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    _keep_to_a_core(rank, len(wiring.readers))
    channel = Channel(rank, wiring, launcher, looks)
    gc.freeze()  # what was inherited is no garbage: looking for it there would take long, and copy its memory
    with rare_garbage_collection():
        while True:
            run, reference, task = _next_task(channel, launcher)
            channel.begin(run)
            launcher.send(_outcome(channel, reference, task))


def _keep_to_a_core(rank: int, world_size: int) -> None:
    """Share the ranks out evenly where they outnumber the cores: the scheduler would not, as a rank that
    looks for messages seems busy."""
    cores = usable_cores()
    if cores and world_size > len(cores):
        keep_to_core(cores[rank % len(cores)])


def _end_with_launcher() -> None:
    launcher = multiprocessing.parent_process()
    assert launcher
    connection.wait([launcher.sentinel])
    os._exit(1)


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
        program = load(reference)  # first: the arguments may be of kinds that its file defines
        outcome = pickle.dumps(
            run_rank(channel.rank, program, pickle.loads(task), channel), pickle.HIGHEST_PROTOCOL
        )
        channel.end(failed=False)
    except BaseException as error:
        outcome = failure_of(channel.rank, error)
        channel.end(failed=True)
    with suppress(OSError, ValueError):  # whoever read what the program prints may have gone
        sys.stdout.flush()
    return outcome
