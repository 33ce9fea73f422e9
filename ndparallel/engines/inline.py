"""All ranks in one process, each on a stack of its own, one running at a time.

Idea   A rank runs until it waits for a message that is not there; then the next rank that can run goes on,
       from where it stood. A message wakes exactly the rank that waits for it, so a switch costs the same
       among 4 ranks and 8,192.
Cost   One switch of stacks for every wait that finds nothing.
Limit  One core. A debugger works: `breakpoint()` in a program stops every rank.

Glossary
    stack   a function under way, which can be left in the middle and gone on with later: a greenlet, or a
            thread where greenlet is not installed
    main    the stack that started them all; it goes on when a rank has ended, or when none can go on
    seat    one rank's place: its inboxes, its stack, and the message it waits for
    ready   the stacks that can go on, in the order in which they became able to
"""

import importlib
import pickle
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

from ndparallel.base.messages import ARRAY, copied
from ndparallel.engines.failures import DeadlockError, Failure, failure_of
from ndparallel.engines.garbage import rare_garbage_collection
from ndparallel.engines.inbox import check_awaited, in_a_second_thread, no_such_rank, take
from ndparallel.engines.system import note_once
from ndparallel.engines.task import PendingRun, Program, RankResult, Task, in_limit, pickled, run_rank
from ndparallel.engines.thread_stacks import MainStack, ThreadStack
from ndparallel.engines.waiting import Unread, Waiting, deadlocked, nobody_read, report, unread_in, waiting

FEW = 64  # ranks that take no notable time as threads


class Inline:
    """The engine. It keeps nothing between runs."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def start(self) -> None:
        pass

    def begin(self, program: Program, task: Task) -> PendingRun:
        return PendingRun(InlineRun(self.world_size, program, task).run)

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


class InlineRun:
    """One task on all ranks, from start to end."""

    def __init__(self, world_size: int, program: Program, task: Task) -> None:
        self.program, self.task = program, task
        self.arguments = pickled(task.arguments)
        self.main, make_stack = stacks(world_size)
        self.ready: deque[Any] = deque()
        self.results: dict[int, RankResult] = {}
        self.failures: dict[int, Failure] = {}
        self.seats: dict[int, InlineRank] = {}
        for rank in range(world_size):
            self.seats[rank] = InlineRank(self, rank, make_stack(self._run_rank))

    def run(self) -> list[RankResult]:
        with rare_garbage_collection(), in_limit(self.task):
            return self._run()

    def _run(self) -> list[RankResult]:
        try:
            # started from here and not by one another: a stack starts as deep as its starter
            for seat in self.seats.values():
                seat.stack.switch(seat)
            while self.ready:
                self.ready.popleft().switch()
            # the others have run on, as they would in processes of their own: the lowest rank is reported
            if self.failures:
                raise self.failures[min(self.failures)].error()
            if len(self.results) < len(self.seats):
                raise DeadlockError(self._explain())
            self._check_all_was_read()
            return [self.results[rank] for rank in self.seats]
        finally:
            self._unwind()

    def _run_rank(self, seat: "InlineRank") -> None:
        # its own, as in a process of its own
        task = self.task._replace(arguments=pickle.loads(self.arguments))
        seat.thread = get_ident()
        try:
            self.results[seat.rank] = run_rank(seat.rank, self.program, task, seat)
        except (Exception, SystemExit, GeneratorExit) as error:
            self.failures[seat.rank] = failure_of(seat.rank, error)

    def _explain(self) -> str:
        waits_for = {seat.rank: seat.awaits[0] for seat in self.seats.values() if seat.awaits}
        return report(
            [self.seats[rank].explain() for rank in deadlocked(waits_for, self.results.__contains__)]
        )

    def _check_all_was_read(self) -> None:
        """Raise MismatchError where a message is left that no rank has asked for."""
        unread = [
            Unread(seat.rank, unread_in(seat.inboxes))
            for seat in self.seats.values()
            if any(seat.inboxes.values())
        ]
        if unread:
            raise nobody_read(unread)

    def _unwind(self) -> None:
        """Leave the stacks that an error left standing, by way of their `finally`s; those that have ended do
        not notice."""
        self.ready.clear()
        for seat in self.seats.values():
            seat.stack.throw()
            seat.receivers.clear()
        self.seats.clear()


class InlineRank:
    """One rank's transport. Slots, for thousands of these do not fit into the processor's cache otherwise."""

    __slots__ = (
        "rank",
        "stack",
        "seats",
        "ready",
        "main",
        "inboxes",
        "receivers",
        "awaits",
        "arrived",
        "last_size",
        "thread",
        "misuse",
    )

    def __init__(self, run: InlineRun, rank: int, stack: Any) -> None:
        self.rank, self.stack = rank, stack
        self.seats, self.ready, self.main = run.seats, run.ready, run.main
        self.inboxes: dict[int, deque[tuple]] = defaultdict(deque)
        # by target: its seat, and its inbox for what comes from here
        self.receivers: dict[int, tuple[InlineRank, deque[tuple]]] = {}
        self.awaits: tuple[int, Any] | None = None
        self.arrived: tuple = ()
        self.last_size: Any = None
        self.thread, self.misuse = 0, None  # which receives, and an error of one that should not

    def post(self, target: int, message: tuple) -> None:
        array = message[ARRAY]
        if array is not self.last_size:
            if array.flags.writeable or any(array.strides):
                message = (*message[:ARRAY], copied(array), None)
            else:
                self.last_size = array  # it is only a size, which need not be found out again and again
        seat, inbox = self.receivers.get(target) or self._receiver(target)
        if seat.awaits is None or seat.awaits != (self.rank, message[0]):
            inbox.append(message)
        else:
            seat.awaits, seat.arrived = None, message
            self.ready.append(seat.stack)

    def _receiver(self, target: int) -> "tuple[InlineRank, deque[tuple]]":
        seat = self.seats.get(target) or no_such_rank(self.rank, target, len(self.seats))
        return self.receivers.setdefault(target, (seat, seat.inboxes[self.rank]))

    def wait(self, source: int, what: Any) -> tuple:
        inbox = self.inboxes[source]
        try:  # mostly it is the first
            if inbox and inbox[0][0] == what:
                return inbox.popleft()
        except ValueError:
            pass  # `take` says of what
        return take(inbox, what) or self._pause(source, what)

    def _pause(self, source: int, what: Any) -> tuple:
        """Leave this stack for one that can go on, until the message has arrived."""
        check_awaited(self.rank, source, what, self.seats)
        self.awaits = (source, what)
        stack = self.ready.popleft() if self.ready else self.main
        try:
            stack.switch()
        except Exception:  # of greenlet, or of thread_stacks.py
            if get_ident() == self.thread:
                raise
            self.awaits = None
            if stack is not self.main:
                self.ready.appendleft(stack)
            in_a_second_thread(self)
        return self.arrived

    def explain(self) -> Waiting:
        assert self.awaits
        return waiting(self.rank, self.awaits, self.stack.gr_frame, self.inboxes)


def stacks(ranks: int) -> tuple[Any, Callable[[Callable[..., None]], Any]]:
    """The stack that runs now, and what makes others: greenlets, or threads where greenlet is missing."""
    try:
        greenlet = importlib.import_module("greenlet")
    except ImportError:
        if ranks > FEW:
            slower = "ranks run inline as threads: the same results, but slower"
            note_once(f"without greenlet, {slower} (pip install greenlet).")
        main = MainStack()
        return main, partial(ThreadStack, main)
    return greenlet.getcurrent(), greenlet.greenlet
