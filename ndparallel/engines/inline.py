"""All ranks in one process, each on a stack of its own, one running at a time.

Idea   A rank runs until it waits for a message that is not there; then the next rank that can run goes on, from where it stood. A
       message wakes exactly the rank that waits for it, so a switch costs the same among 4 ranks and 8,192.
Cost   One switch of stacks (greenlet) a wait that finds nothing.
Limit  One core. A debugger works: `breakpoint()` in a program stops every rank.

Glossary
    stack   a greenlet: a function under way, which can be left in the middle and gone on with later
    seat    one rank's place: its mailbox, its stack, and the message it waits for
    ready   the seats that can go on, in the order in which they became able to
"""

import importlib
import pickle
from collections import deque
from types import ModuleType
from typing import Any

from gpu import Message, say, snapshot
from ndparallel.engines.failures import DeadlockError, Failure, failure_of
from ndparallel.engines.job import Job, Program, RankResult, run_rank
from ndparallel.engines.waiting import Waiting, deadlocked, named, place, report
from ndparallel.errors import UserError


class Inline:
    """The engine. It keeps nothing between runs."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.greenlet = _import_greenlet()

    def run(self, program: Program, job: Job) -> list[RankResult]:
        return Round(self.world_size, program, job, self.greenlet).run()

    def close(self) -> None:
        pass


class Round:
    """One job on all ranks, from start to end."""

    def __init__(self, world_size: int, program: Program, job: Job, greenlet: ModuleType) -> None:
        self.main = greenlet.getcurrent()
        self.results: dict[int, RankResult] = {}
        self.failure: Failure | None = None
        self.program, self.job, self.arguments = program, job, pickle.dumps(job.arguments)
        self.ready: deque[Any] = deque()
        self.seats = {rank: Seat(self, rank, greenlet.greenlet(self._run_rank)) for rank in range(world_size)}

    def run(self) -> list[RankResult]:
        self.ready.extend(self.seats.values())
        try:
            while self.ready and not self.failure:
                seat = self.ready.popleft()
                seat.stack.switch(seat)
            if self.failure:
                raise self.failure.error()
            if len(self.results) < len(self.seats):
                raise DeadlockError(self._explain())
            return [self.results[rank] for rank in self.seats]
        finally:
            for seat in self.seats.values():
                seat.stack.throw()  # unwinds what an error left standing; a rank that has ended does not notice

    def _run_rank(self, seat: "Seat") -> None:
        job = self.job._replace(arguments=pickle.loads(self.arguments))  # its own, as in a process of its own
        try:
            self.results[seat.rank] = run_rank(seat.rank, self.program, job, seat)
        except Exception as error:
            self.failure = failure_of(seat.rank, error)

    def pause(self) -> None:
        """Leave this stack for one that can go on, or for the one that started them all."""
        if self.ready:
            seat = self.ready.popleft()
            seat.stack.switch(seat)
        else:
            self.main.switch()

    def _explain(self) -> str:
        waits_for = {seat.rank: seat.awaits[0] for seat in self.seats.values() if seat.awaits}
        return report([self.seats[rank].explain() for rank in deadlocked(waits_for, self.results.__contains__)])


class Seat:
    """One rank's transport."""

    def __init__(self, round: Round, rank: int, stack: Any) -> None:
        self.round, self.rank, self.stack = round, rank, stack
        self.boxes: dict[tuple, deque[Message]] = {}
        self.awaits: tuple | None = None

    def post(self, target: int, what: Any, message: Message) -> None:
        seat, key = self.round.seats[target], (self.rank, what)
        seat.boxes.setdefault(key, deque()).append(message._replace(array=snapshot(message.array)))
        if seat.awaits == key:
            seat.awaits = None
            self.round.ready.append(seat)

    def wait(self, source: int, what: Any) -> Message:
        key = (source, what)
        if key not in self.boxes:
            self.awaits = key
            self.round.pause()
        box = self.boxes[key]
        message = box.popleft()
        if not box:
            del self.boxes[key]
        return message

    def explain(self) -> Waiting:
        assert self.awaits
        source, what = self.awaits
        unread = [named(*key) for key, box in self.boxes.items() for _ in box]
        return Waiting(self.rank, source, say(what), place(self.stack.gr_frame), unread)


def _import_greenlet() -> ModuleType:
    try:
        return importlib.import_module("greenlet")
    except ImportError:
        raise UserError("engine 'inline' needs greenlet: pip install 'ndparallel[inline]', or choose engine='processes'.") from None
