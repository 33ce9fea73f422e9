"""One rank in each process that mpirun has started, on as many machines as it was told.

Idea   Rank 0 orders the others to run a program, runs it too, and keeps the table of who waits for whom.
       While a rank waits, it looks for data and for control messages; what it waits for it tells rank 0 once,
       after a few looks in vain.
Cost   A control message for every wait that is not over at once.
Limit  Rank 0 looks at its table only while it waits itself, or has ended. A killed process is mpirun's to
       report, which ends all.

Glossary
    coordinator  rank 0's table of one run, which ends it with a verdict: all results, or an error
    tell         send a control message to rank 0
    abandon      leave a rank program in the middle, because there is a verdict already
"""

import signal
import sys
from collections import defaultdict, deque
from functools import partial
from threading import get_ident
from typing import Any

from ndparallel.base.bfloat16 import to_wire
from ndparallel.base.errors import UserError
from ndparallel.base.messages import ARRAY
from ndparallel.base.words import count
from ndparallel.engines.coordinator import RunCoordinator, WaitReport
from ndparallel.engines.failures import failure_of
from ndparallel.engines.frame import block_of, frame_of, header_of, message_of
from ndparallel.engines.inbox import check_awaited, in_a_second_thread, no_such_rank, take
from ndparallel.engines.task import PendingRun, Program, RankResult, Task, perform, pickled, reference_to
from ndparallel.engines.time_limit import TooLong
from ndparallel.engines.waiting import Unread, Waiting, unread_in, waiting
from ndparallel.engines.world import World, world

LOOKS_BEFORE_TELLING = 30


class Abandoned(BaseException):
    """Not an error of this rank: the run is over."""


class MPI:
    """The engine, as rank 0 sees it. Elsewhere it is never seen: the process serves, and ends with rank 0."""

    def __init__(self, world_size: int) -> None:
        self.world, self.world_size = world(), world_size
        serve_unless_first(self.world)
        check_size(self.world.size, world_size, exactly=False)

    def start(self) -> None:
        pass

    def begin(self, program: Program, task: Task) -> PendingRun:
        return PendingRun(partial(self._run, reference_to(program), pickled(task)))

    def _run(self, *program_and_task: Any) -> list[RankResult]:
        here = self.world
        here.run += 1
        order = ("order", here.run, self.world_size, *program_and_task)
        for rank in range(1, self.world_size):
            here.send(rank, order)
        here.absent = set(range(1, self.world_size))
        coordinator = RunCoordinator(here, here.run, self.world_size)
        channel = take_part(here, order, coordinator)
        while not coordinator.verdict:
            if not here.look():
                coordinator.decide()
            channel.take_in()
        return coordinator.results()

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


def check_size(started: int, wanted: int, exactly: bool = True) -> None:
    """Raise UserError where mpirun has not started as many processes as are wanted, or at least not so
    many."""
    if started < wanted or (exactly and started != wanted):
        started_words = (
            f"mpirun has started {started} processes" if started > 1 else "this process was started alone"
        )
        are = "is" if wanted == 1 else "are"
        raise UserError(
            f"{count(wanted, 'GPU')} {are} to be simulated and {started_words}: write mpirun -n {wanted}, or "
            f"name strategies and --gpus such that the largest takes {started}, or choose --engine processes "
            "or inline."
        )


# ------------------------------------------------------------------------------------------- what a rank does


def serve_unless_first(here: World) -> None:
    """Rank 0 goes on; the others take part in what it runs, and end with it."""
    if here.rank:
        serve(here)
        here.farewell()
        sys.exit()


def serve(here: World) -> None:
    """Carry out rank 0's orders until the end. Ctrl-C is mpirun's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = None
    while True:
        while not here.arrived:
            here.look()
        source, frame, content = here.arrived.popleft()
        if frame[0] == "order":
            here.run = frame[1]
            here.take_early()
            channel = take_part(here, frame, None)
            here.take_early()
        elif frame[0] == "end":
            return
        elif frame[1] > here.run:  # a message of a run whose order has not come yet
            here.early.append((source, frame, content))
        elif channel and frame[1] == here.run and frame[0] != "abandon":
            channel.sort(source, frame, content)


def take_part(here: World, order: tuple, coordinator: RunCoordinator | None) -> "MPIChannel":
    """Run an order's program as this rank, and tell rank 0 how it ended. Returns its transport."""
    _, run, size, reference, task = order
    channel = MPIChannel(here, run, size, coordinator)
    try:
        result = perform(here.rank, reference, task, channel)
        channel.tell("ended", channel.sent, channel.taken(), result)
    except Abandoned:
        channel.tell("back")
    except (Exception, SystemExit, GeneratorExit, TooLong) as error:
        channel.tell("failed", channel.sent, failure_of(here.rank, error))
    return channel


class MPIChannel:
    """One rank's transport, for one run."""

    def __init__(self, here: World, run: int, size: int, coordinator: RunCoordinator | None) -> None:
        self.world, self.rank, self.run, self.size, self.coordinator = here, here.rank, run, size, coordinator
        self.inboxes: dict[int, deque[tuple]] = defaultdict(deque)
        self.sent, self.received = [0] * size, [0] * size
        self.expected: list[int] | None = None  # messages of each rank, when all have ended
        self.thread, self.misuse = get_ident(), None  # which receives, and an error of one that should not
        self.waits = 0
        self.awaits: tuple[int, Any] | None = None

    def post(self, target: int, message: tuple) -> None:
        if not 0 <= target < self.size:
            no_such_rank(self.rank, target, self.size)
        # which follow the frame, in place of a block
        frame = frame_of(self.run, self.rank, message, lambda array: array.nbytes)
        follow = block_of(frame)
        self.sent[target] += 1
        self.world.send(
            target,
            ("content" if follow else "data", self.run, frame, follow),
            to_wire(message[ARRAY]) if follow else None,
        )

    def wait(self, source: int, what: Any) -> tuple:
        inbox, looks = self.inboxes[source], 0
        self.take_in()
        while (message := take(inbox, what)) is None:
            if get_ident() != self.thread:
                in_a_second_thread(self)
            check_awaited(self.rank, source, what, range(self.size))
            self.world.look()
            looks = 0 if self.take_in() else looks + 1  # what came may change what has to be told
            if looks == LOOKS_BEFORE_TELLING:
                self.waits, self.awaits = self.waits + 1, (source, what)
                self.tell("waits", WaitReport(self.waits, source, self.received[source], list(self.sent)))
            if self.coordinator and looks >= LOOKS_BEFORE_TELLING:
                self.coordinator.decide()
                if self.coordinator.verdict:
                    raise Abandoned
        self.awaits = None
        return message

    def take_in(self) -> bool:
        """Sort all that has come. Returns whether there were messages."""
        arrived, before = self.world.arrived, sum(self.received)
        for _ in range(len(arrived)):
            self.sort(*arrived.popleft())
        return sum(self.received) > before

    def sort(self, source: int, frame: tuple, content: Any) -> None:
        """Put a message into its inbox, answer a question, at rank 0 enter into the table what is for it."""
        kind, run = frame[:2]
        if run > self.run:
            self.world.early.append((source, frame, content))
        elif run < self.run:
            return
        elif kind in ("data", "content"):
            self._take_message(source, frame[2], content)
            self._name_unread()
        elif kind == "ask":
            self._answer(frame[2])
        elif kind == "count":
            self.expected = frame[2]
            self._name_unread()
        elif kind == "abandon":
            raise Abandoned
        elif self.coordinator:
            self.coordinator.hear(source, frame)

    def _take_message(self, source: int, frame: bytes, content: Any) -> None:
        self.received[source] += 1
        message = message_of(
            header_of(frame), frame, lambda _, dtype, shape: (content.view(dtype).reshape(shape), None)
        )
        self.inboxes[source].append(message)

    def _answer(self, number: int) -> None:
        if self.awaits and number == self.waits:
            self.tell("still", number, self.explain())

    def taken(self) -> list[int]:
        """How many messages of each rank the program has asked for."""
        return [self.received[source] - len(self.inboxes[source]) for source in range(self.size)]

    def _name_unread(self) -> None:
        """Name what was not read, once rank 0 has asked for it and all that was sent has come."""
        if self.received == self.expected:
            self.expected = None
            self.tell("unread", Unread(self.rank, unread_in(self.inboxes)))

    def tell(self, kind: str, *words: Any) -> None:
        """Tell rank 0, which is perhaps this one."""
        if self.coordinator:
            self.coordinator.hear(self.rank, (kind, self.run, *words))
        else:
            self.world.send(0, (kind, self.run, *words))

    def explain(self) -> Waiting:
        assert self.awaits
        return waiting(self.rank, self.awaits, sys._getframe(), self.inboxes)
