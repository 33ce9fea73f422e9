"""One process per rank.

Idea   The launcher starts the ranks, hands each its task, and then only watches: results and errors come through one connection per
       rank, the death of a process through its sentinel, and a deadlock shows in the table that all ranks share.
Cost   Starting: about 1.5 ms a rank with fork, 60 ms with spawn.
Limit  Fork copies only the calling thread: start ranks before threads that they would have to share locks with.

Glossary
    fork, spawn   start a process as a copy of this one (the default on Linux), or as a fresh Python (elsewhere)
    sentinel      becomes readable when its process ends
    crew          the processes of one Ranks, kept between tasks of the same size
"""

import multiprocessing
import os
import pickle
import selectors
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from ndparallel.engines.channel import LAUNCHER, LENGTH, Channel, Wiring
from ndparallel.engines.failures import DeadlockError, Failure, failure_of, killed
from ndparallel.engines.shared import ENDED, SharedFile, Table
from ndparallel.engines.task import Program, RankResult, Task, load, reference_to, run_rank
from ndparallel.engines.waiting import Waiting, deadlocked, report

TICK_SECONDS = 0.02  # how often the table is looked at; a deadlock is what two looks find unchanged
SPINS = 50


class Processes:
    """The engine. Its processes start with the first task, and anew after a task that failed."""

    def __init__(self, world_size: int, start_method: str | None = None) -> None:
        self.world_size = world_size
        self.start_method = start_method or ("fork" if sys.platform == "linux" else "spawn")
        self.crew: Crew | None = None

    def run(self, program: Program, task: Task) -> list[RankResult]:
        reference = reference_to(program)
        self.crew = self.crew or Crew(self.world_size, self.start_method)
        try:
            return self.crew.run((reference, pickle.dumps(task)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.crew:
            self.crew.close()
            self.crew = None


class Crew:
    def __init__(self, world_size: int, start_method: str) -> None:
        context: Any = multiprocessing.get_context(start_method)
        pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
        self.wiring = Wiring([reader for reader, _ in pipes], [writer for _, writer in pipes], SharedFile(world_size))
        for end in (*self.wiring.readers, *self.wiring.writers):
            os.set_blocking(end.fileno(), False)
        self.table = Table(self.wiring.file)
        self.runs = 0
        self.processes: list[Any] = []
        self.connections: list[Connection] = []
        with _interrupts_held():
            for rank in range(world_size):
                self._start(context, rank)

    def _start(self, context: Any, rank: int) -> None:
        here, there = context.Pipe()
        spins = SPINS if len(self.wiring.readers) <= len(os.sched_getaffinity(0)) else 0
        process = context.Process(target=live, args=(rank, self.wiring, there, spins), name=f"rank {rank}", daemon=True)
        process.start()
        there.close()
        self.processes.append(process)
        self.connections.append(here)

    def run(self, task: tuple) -> list[RankResult]:
        self.runs += 1
        for rank in range(len(self.processes)):
            self.table.begin(rank)
        for here in self.connections:
            here.send((self.runs, *task))
        return Watch(self).results()

    def close(self) -> None:
        """End all processes, whatever they are doing: they keep nothing that has to be put away."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
            process.close()
        for end in (*self.connections, *self.wiring.readers, *self.wiring.writers):
            end.close()
        self.wiring.file.close()


class Watch:
    """The launcher's view of one task."""

    def __init__(self, crew: Crew) -> None:
        self.crew, self.table = crew, crew.table
        self.done: dict[int, RankResult] = {}
        self.told: dict[int, Waiting] = {}
        self.stuck: tuple = ()
        self.asked: list[int] = []

    def results(self) -> list[RankResult]:
        """Wait for all ranks. Raises what the first rank to fail raised, RankError for one that was killed, or DeadlockError."""
        ranks = range(len(self.crew.processes))
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                selector.register(self.crew.connections[rank], selectors.EVENT_READ, rank)
                selector.register(self.crew.processes[rank].sentinel, selectors.EVENT_READ, rank)
            while len(self.done) < len(ranks):
                news = {key.data for key, _ in selector.select(TICK_SECONDS)}
                self._hear(sorted(news))
                self._look_for_deadlock()
        return [self.done[rank] for rank in ranks]

    def _hear(self, ranks: list[int]) -> None:
        for rank in ranks:
            said = self._receive(rank)
            if isinstance(said, Failure):
                raise said.error()
            if isinstance(said, Waiting):
                self.told[rank] = said
            else:
                self.done[rank] = said

    def _receive(self, rank: int) -> Any:
        process = self.crew.processes[rank]
        with suppress(EOFError, ConnectionError):
            if self.crew.connections[rank].poll():
                return self.crew.connections[rank].recv()
        process.join()
        raise killed(rank, process.exitcode)

    def _look_for_deadlock(self) -> None:
        if self.asked:
            if all(rank in self.told for rank in self.asked):
                raise DeadlockError(report([self.told[rank] for rank in self.asked]))
            return
        waits = {rank: wait for rank in range(len(self.crew.processes)) if (wait := self.table.idle_wait(rank))}
        stuck = deadlocked({rank: source for rank, (source, _) in waits.items()}, lambda rank: self.table.state(rank) == ENDED)
        seen = tuple((rank, waits[rank]) for rank in stuck)
        if stuck and seen == self.stuck:
            self._ask(stuck)
        self.stuck = seen

    def _ask(self, stuck: list[int]) -> None:
        body = pickle.dumps((self.crew.runs, LAUNCHER, *[None] * 8), 5)
        for rank in stuck:
            os.write(self.crew.wiring.writers[rank].fileno(), LENGTH.pack(len(body)) + body)
        self.asked = stuck


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back until every rank has been started and is known, so that none is left behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---------------------------------------------------------------------------------------------- in the rank's process


def live(rank: int, wiring: Wiring, launcher: Connection, spins: int) -> None:
    """Run tasks until the launcher ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    channel = Channel(rank, wiring, launcher, spins)
    while True:
        run, reference, task = _next_task(channel, launcher)
        channel.begin(run)
        launcher.send_bytes(_outcome(channel, reference, task))


def _end_with_launcher() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    connection.wait([parent.sentinel])
    os._exit(1)


def _next_task(channel: Channel, launcher: Connection) -> tuple:
    """Wait for a task, and meanwhile take in what comes, so that a rank that has ended never blocks another's outbox."""
    while not launcher.poll():
        channel.sleep(also=launcher.fileno())
        channel.read()
    return launcher.recv()


def _outcome(channel: Channel, reference: Any, pickled_task: bytes) -> bytes:
    try:
        program = load(reference)  # first: the arguments may be of kinds that its file defines
        result = pickle.dumps(run_rank(channel.rank, program, pickle.loads(pickled_task), channel))
        channel.end(failed=False)
    except BaseException as error:
        result = pickle.dumps(failure_of(channel.rank, error))
        channel.end(failed=True)
    sys.stdout.flush()
    return result
