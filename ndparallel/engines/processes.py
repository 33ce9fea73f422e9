"""One process per rank.

Idea   The launcher starts the ranks, hands each its task, and then only watches: results and errors come
       through one connection per rank, the death of a process through its sentinel, and a deadlock shows in
       the table that all ranks share.
Cost   Starting: about 1.5 ms a rank with fork, 60 ms with spawn. A deadlock is found within two ticks.
Limit  A deadlock of some ranks is told at once, while others may still be on their way to a failure of their
       own, and none before the launcher asks for results. Fork copies only the thread that calls it: start
       ranks before threads that may hold locks (a progress display, say). Ranks that outnumber the cores keep
       to one each, so what else runs on one of them holds up all.

Glossary
    fork, spawn   start a process as a copy of this one (the default on Linux), or as a fresh Python
                  (elsewhere)
    sentinel      becomes readable when its process ends
    pool          the processes of one engine, kept between tasks
    tick          how often the launcher looks at the table; a deadlock is what two looks find unchanged
"""

import math
import multiprocessing
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ndparallel.base.errors import UserError, unknown
from ndparallel.engines.channel import QUESTION, Channels, write_frame
from ndparallel.engines.failures import PATIENCE_SECONDS, DeadlockError, Failure, killed
from ndparallel.engines.rank_process import RankSettings, launcher_sentinel, rank_main
from ndparallel.engines.shared import ENDED, RUNNING, SharedFile, Table
from ndparallel.engines.system import interrupts_held, return_freed_memory
from ndparallel.engines.task import PendingRun, Program, Task, pickled, reference_to, unpickled_result
from ndparallel.engines.waiting import Unread, Waiting, deadlocked, nobody_read, report

SPAWN_HINT = ' Was it launched outside `if __name__ == "__main__":`? Every rank reads that file anew.'
TICK_SECONDS = 0.02


class Processes:
    """The engine. A task that fails ends its processes; the next task starts new ones."""

    def __init__(self, world_size: int, start_method: str | None = None) -> None:
        if multiprocessing.current_process().daemon:
            raise UserError("a rank cannot start processes of its own: inside a rank choose engine='inline'.")
        methods = multiprocessing.get_all_start_methods()
        if start_method not in (None, *methods):
            raise unknown("start method", str(start_method), methods)
        self.world_size, self.ranks = world_size, range(world_size)
        self.start_method = start_method or ("fork" if sys.platform == "linux" else "spawn")
        self.pool: ProcessPool | None = None

    def start(self) -> None:
        """Start the processes, where they do not run yet."""
        self._living_pool().start()

    def begin(self, program: Program, task: Task) -> PendingRun:
        self._living_pool().begin((reference_to(program), pickled(task)))
        return PendingRun(self._finish, lambda outcomes: list(map(unpickled_result, self.ranks, outcomes)))

    def _finish(self) -> list[bytes]:
        if not self.pool:
            raise UserError(
                "these ranks were ended before their results were asked for: ask within the `with` block."
            )
        try:
            return RunMonitor(self.pool).results()
        except BaseException:
            self.close()
            raise

    def _living_pool(self) -> "ProcessPool":
        """The pool, or a new one where it or one of its processes has been killed."""
        if self.pool and not self.pool.is_alive():
            self.close()
        self.pool = self.pool or ProcessPool(self.world_size, self.start_method)
        return self.pool

    def end(self) -> None:
        if self.pool:
            self.pool.kill()

    def close(self) -> None:
        pool, self.pool = self.pool, None
        if pool:
            pool.close()


class ProcessPool:
    def __init__(self, world_size: int, start_method: str) -> None:
        self.processes: list[Any] = []
        self.connections: list[Any] = []
        self.killed = False
        self.runs, self.ranks, self.start_method = 0, range(world_size), start_method
        self.context: Any = multiprocessing.get_context(start_method)
        self.had_ignored_children = _heed_children()
        with self._able_to_start():
            pipes = [self.context.Pipe(duplex=False) for _ in self.ranks]
            self.wiring = Channels(
                [reader for reader, _ in pipes], [writer for _, writer in pipes], SharedFile(world_size)
            )
            self.table = Table(self.wiring.file)
            for _, writer in pipes:
                os.set_blocking(writer.fileno(), False)
        if start_method == "fork":
            return_freed_memory()

    def start(self) -> None:
        """Start the ranks that have not been started."""
        with self._able_to_start():
            for rank in self.ranks[len(self.processes) :]:
                self._start(rank)

    def begin(self, order: tuple) -> None:
        """Give every rank its task. A rank that has to be started computes while the next ones are."""
        self.runs += 1
        with self._able_to_start():
            for rank in self.ranks:
                if rank == len(self.processes):
                    self._start(rank)
                self.table.set_state(rank, RUNNING)
                with suppress(ConnectionError):  # it has just died, as its sentinel will tell
                    self.connections[rank].send((self.runs, *order))

    def _start(self, rank: int) -> None:
        settings = RankSettings(
            rank, launcher_sentinel(), threading.current_thread() is threading.main_thread()
        )
        with interrupts_held():
            here, there = self.context.Pipe()
            process = self.context.Process(
                target=rank_main, args=(settings, self.wiring, there), name=f"rank {rank}", daemon=True
            )
            process.start()
            there.close()  # or it would be open in all ranks started after this one
            self.processes.append(process)
            self.connections.append(here)

    @contextmanager
    def _able_to_start(self) -> Iterator[None]:
        """Raise UserError where the system refuses what the ranks need."""
        try:
            yield
        except OSError as error:
            self.close()
            raise UserError(
                f"cannot start {len(self.ranks)} processes ({error}): choose fewer ranks, or engine='inline'."
            ) from None

    def is_alive(self) -> bool:
        return not self.killed and all(process.is_alive() for process in self.processes)

    def kill(self) -> None:
        """Let all processes end, whatever they are doing: they hold nothing that has to be put away."""
        self.killed = True
        for process in self.processes:
            process.kill()

    def close(self) -> None:
        """End all processes, and wait for that."""
        with interrupts_held():
            self.kill()
            for process in self.processes:
                process.join()
                process.close()
            for end in self.connections:
                end.close()
        if hasattr(self, "table"):
            self.table.close()
        if hasattr(self, "wiring"):
            self.wiring.close()
        if self.had_ignored_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)


class RunMonitor:
    """The launcher's view of one task."""

    def __init__(self, pool: ProcessPool) -> None:
        self.pool, self.table, self.ranks = pool, pool.table, range(len(pool.processes))
        self.done: dict[int, bytes] = {}  # their RankResults, pickled
        self.failed: dict[int, Exception] = {}
        self.patience_ends = math.inf
        # after a failure, at the last tick: what each of the others waits for
        self.waits: dict[int, tuple | None] = {}
        # at the last tick: the ranks of a deadlock, and the waits that make it one
        self.stuck: dict[int, tuple] = {}
        self.asked: list[int] = []
        self.answers: dict[int, Waiting] = {}

    def results(self) -> list[bytes]:
        """Wait for all ranks' results. Raises what the lowest rank that failed raised, RankError for one that
        was killed, DeadlockError, or MismatchError for messages that nobody has read.

        After a failure the others run on until each has failed, ended or waits: who is reported does not
        depend on who was first.
        """
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                selector.register(self.pool.connections[rank], selectors.EVENT_READ, rank)
                selector.register(self.pool.processes[rank].sentinel, selectors.EVENT_READ, rank)
            while len(self.done) < len(self.ranks):
                heard = {key.data for key, _ in selector.select(TICK_SECONDS)}
                for rank in sorted(heard or self._ended_unheard()):
                    self._hear(rank, selector)
                if not self.failed:
                    self._look_for_deadlock()
                elif self._others_have_settled():
                    raise self.failed[min(self.failed)]
        if unread := self.table.with_unread():
            raise nobody_read(map(self._unread_by, unread))
        return [self.done[rank] for rank in self.ranks]

    def _hear(self, rank: int, selector: selectors.BaseSelector) -> None:
        said = self._receive(rank)
        if said is None:
            selector.unregister(self.pool.connections[rank])
            selector.unregister(self.pool.processes[rank].sentinel)
            hint = SPAWN_HINT if self.pool.start_method == "spawn" else ""
            self._fail(rank, killed(rank, self.pool.processes[rank].exitcode, hint))
        elif isinstance(said, Failure):
            self._fail(rank, said.error())
        elif isinstance(said, Waiting):
            self.answers[rank] = said
        else:
            self.done[rank] = said

    def _ended_unheard(self) -> set[int]:
        """Ranks whose end their sentinel does not tell, because a child that they have forked keeps it
        open."""
        others = set(self.ranks) - self.done.keys() - self.failed.keys()
        return {rank for rank in others if not self.pool.processes[rank].is_alive()}

    def _receive(self, rank: int) -> Any:
        """What a rank says, or None where it will say nothing more."""
        with suppress(EOFError, OSError):  # it may be killed while it writes
            if self.pool.connections[rank].poll():
                return self.pool.connections[rank].recv()
        self.pool.processes[rank].join()
        return None

    def _unread_by(self, rank: int) -> Unread:
        """Ask a rank that has ended what it has not read."""
        inlet = self.pool.wiring.writers[rank].fileno()
        while not write_frame(inlet, QUESTION) and self.pool.processes[rank].is_alive():
            time.sleep(TICK_SECONDS)  # until it has emptied its pipe
        with suppress(EOFError, OSError):
            return self.pool.connections[rank].recv()
        return Unread(rank, ["messages that it can no longer name"])

    def _fail(self, rank: int, error: Exception) -> None:
        self.done.pop(rank, None)
        self.failed.setdefault(rank, error)
        self.patience_ends = min(self.patience_ends, time.monotonic() + PATIENCE_SECONDS)

    def _others_have_settled(self) -> bool:
        """Two looks must find all others waiting for the same, with no message on its way: then none of them
        will move again."""
        others = set(self.ranks) - self.done.keys() - self.failed.keys()
        before, self.waits = self.waits, {rank: self.table.idle_wait(rank) for rank in others}
        return (self.waits == before and None not in before.values()) or time.monotonic() > self.patience_ends

    def _look_for_deadlock(self) -> None:
        """Two looks must find the same waits, with no message on its way: in between, then, none of these
        ranks can have moved."""
        if self.asked:
            if all(rank in self.answers for rank in self.asked):
                raise DeadlockError(report([self.answers[rank] for rank in self.asked]))
            return
        waits = {rank: wait for rank in self.ranks if (wait := self.table.idle_wait(rank))}
        ranks = deadlocked(
            {rank: source for rank, (source, _) in waits.items()},
            lambda rank: self.table.state(rank) == ENDED,
        )
        stuck = {rank: waits[rank] for rank in ranks}
        if (
            stuck
            and stuck == self.stuck
            and all(write_frame(self.pool.wiring.writers[rank].fileno(), QUESTION) for rank in ranks)
        ):
            self.asked = ranks
        self.stuck = stuck


def _heed_children() -> bool:
    """Let children be waited for, where whatever started this process had it ignore how they end. Returns
    whether it had."""
    ignored = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    if not ignored or threading.current_thread() is not threading.main_thread():
        return False
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return True
