"""One rank in each process that mpirun has started, on as many machines as it was told.

Idea   Rank 0 orders the others to run a program, runs it too, and keeps the table of who waits for whom. While a rank waits, it looks for
       data and for control messages; what it waits for it tells rank 0 once, after a few looks in vain.
Cost   A control message for every wait that is not over at once.
Limit  Rank 0 looks at its table only while it waits itself, or has ended. A killed process is mpirun's to report, which ends all.

Why a deadlock is a fact   Rank 0 suspects a circle, or a rank that waits for one that has ended, from what ranks have told; that may be
out of date. So it asks each whether it still waits as it told. Where all say yes, each has waited from its telling to its answer, and the
asking lies between: at that instant all of them waited, with no message on its way between them.

Glossary
    told       a rank's wait, as it told rank 0: its number, whom it waits for, how many messages it has had from there and sent to each
    suspect    a rank that would never move again if what was told still holds
    verdict    how a run ends: all results, or an error
    abandon    leave a rank program in the middle, because there is a verdict already
"""

import pickle
import signal
import sys
import time
from collections import defaultdict, deque
from typing import Any, NamedTuple

import numpy as np

from gpu import say
from ndparallel.engines.failures import DeadlockError, Failure, failure_of
from ndparallel.engines.frame import pack, unpack
from ndparallel.engines.inbox import no_such_rank, take
from ndparallel.engines.task import Program, RankResult, Task, load, reference_to, run_rank
from ndparallel.engines.waiting import Waiting, deadlocked, named, place, report
from ndparallel.engines.world import BACK, CONTENT_BYTES, World, world
from ndparallel.errors import UserError

LOOKS_BEFORE_TELLING = 30
PATIENCE_SECONDS = 10  # after a failure, with ranks that neither fail, end nor wait


class Abandoned(BaseException):
    """Not an error of this rank: the run is over."""


class Told(NamedTuple):
    number: int
    source: int
    received: int
    sent: list[int]


class MPI:
    """The engine, as rank 0 sees it. Elsewhere it is never seen: the process serves, and ends with rank 0."""

    def __init__(self, world_size: int) -> None:
        self.world, self.world_size = world(), world_size
        self.world.serve_unless_first()
        check_size(self.world.size, world_size, exactly=False)

    def start(self) -> None:
        pass

    def run(self, program: Program, task: Task) -> list[RankResult]:
        here = self.world
        here.run += 1
        order = ("order", here.run, self.world_size, reference_to(program), pickle.dumps(task, pickle.HIGHEST_PROTOCOL))
        for rank in range(1, self.world_size):
            here.send(rank, order)
        here.absent = set(range(1, self.world_size))
        keeper = Keeper(here, here.run, self.world_size)
        perform(here, order, keeper)
        while not keeper.verdict:
            if not here.look():
                keeper.judge()
            keeper.hear_all()
        return keeper.results()

    def close(self) -> None:
        pass


def check_size(started: int, wanted: int, exactly: bool = True) -> None:
    """Raise UserError where mpirun has not started as many processes as are wanted, or at least not so many."""
    if started < wanted or (exactly and started != wanted):
        started_words = f"mpirun has started {started} processes" if started > 1 else "this process was started alone"
        raise UserError(
            f"{wanted} GPUs are to be simulated and {started_words}: write mpirun -n {wanted}, or name strategies "
            f"and --gpus such that the largest takes {started}, or choose --engine processes or inline."
        )


# ---------------------------------------------------------------------------------------------------- what a rank does


def serve(here: World) -> None:
    """Carry out rank 0's orders until the end. Ctrl-C is mpirun's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        while not here.arrived:
            here.look()
        source, frame, content = here.arrived.popleft()
        if frame[0] == "order":
            here.run = frame[1]
            perform(here, frame, None)
        elif frame[0] == "end":
            return
        elif frame[1] > here.run:  # a message of a run whose order has not come yet
            here.arrived.append((source, frame, content))
            here.look()


def perform(here: World, order: tuple, keeper: "Keeper | None") -> None:
    """Run an order's program as this rank, and tell rank 0 how it ended."""
    _, run, size, reference, task = order
    channel = Channel(here, run, size, keeper)
    try:
        program = load(reference)
        result = run_rank(here.rank, program, pickle.loads(task), channel)
        channel.tell("ended", channel.sent, pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
    except Abandoned:
        channel.tell("back")
    except (Exception, SystemExit) as error:
        channel.tell("failed", channel.sent, failure_of(here.rank, error))


class Channel:
    """One rank's transport, for one run."""

    def __init__(self, here: World, run: int, size: int, keeper: "Keeper | None") -> None:
        self.world, self.rank, self.run, self.size, self.keeper = here, here.rank, run, size, keeper
        self.inboxes: dict[int, deque[tuple[Any, tuple]]] = defaultdict(deque)
        self.sent, self.received = [0] * size, [0] * size
        self.waits = 0
        self.awaits: tuple[int, Any] | None = None

    def post(self, target: int, what: Any, message: tuple) -> None:
        if not 0 <= target < self.size:
            no_such_rank(self.rank, target, self.size)
        call, departed, first_byte, wire_seconds, array, _ = message
        dtype, shape, content, repeated = pack(array, CONTENT_BYTES)
        frame = (self.run, what, call, departed, first_byte, wire_seconds, dtype, shape, content, repeated)
        self.sent[target] += 1
        if content is None:
            self.world.send(target, ("content", *frame, array.nbytes), array)
        else:
            self.world.send(target, ("data", *frame))

    def wait(self, source: int, what: Any) -> tuple:
        inbox, looks = self.inboxes[source], 0
        self.take_in()
        while (message := take(inbox, what)) is None:
            if not 0 <= source < self.size:
                no_such_rank(self.rank, source, self.size)
            self.world.look()
            looks = 0 if self.take_in() else looks + 1  # what came may change what has to be told
            if looks == LOOKS_BEFORE_TELLING:
                self.waits, self.awaits = self.waits + 1, (source, what)
                self.tell("waits", Told(self.waits, source, self.received[source], list(self.sent)))
            if self.keeper and looks >= LOOKS_BEFORE_TELLING:
                self.keeper.judge()
                if self.keeper.verdict:
                    raise Abandoned
        self.awaits = None
        return message

    def take_in(self) -> bool:
        """Sort what has come: messages into their inboxes, questions to be answered, at rank 0 what is for its table. Returns whether
        there were messages."""
        arrived, before = self.world.arrived, sum(self.received)
        for _ in range(len(arrived)):
            source, frame, content = arrived.popleft()
            kind, run = frame[:2]
            if kind in ("data", "content") and run == self.run:
                self._take_message(source, frame, content)
            elif run > self.run:
                arrived.append((source, frame, content))
            elif run == self.run and kind == "ask":
                self._answer(frame[2])
            elif run == self.run and kind == "abandon":
                raise Abandoned
            elif run == self.run and self.keeper:
                self.keeper.hear(source, frame)
        return sum(self.received) > before

    def _take_message(self, source: int, frame: tuple, content: np.ndarray | None) -> None:
        _, _, what, call, departed, first_byte, wire_seconds, dtype, shape, small, repeated, *_ = frame
        array, release = (content.view(dtype).reshape(shape), None) if content is not None else unpack(dtype, shape, small, repeated)
        self.received[source] += 1
        self.inboxes[source].append((what, (call, departed, first_byte, wire_seconds, array, release)))

    def _answer(self, number: int) -> None:
        if self.awaits and number == self.waits:
            self.tell("still", number, self.explain())

    def tell(self, kind: str, *words: Any) -> None:
        """Tell rank 0, which is perhaps this one."""
        if self.keeper:
            self.keeper.hear(self.rank, (kind, self.run, *words))
        else:
            self.world.send(0, (kind, self.run, *words))

    def explain(self) -> Waiting:
        assert self.awaits
        source, what = self.awaits
        unread = [named(sender, name) for sender, inbox in self.inboxes.items() for name, _ in inbox]
        return Waiting(self.rank, source, say(what), place(sys._getframe()), unread)


# ---------------------------------------------------------------------------------------------------- rank 0's table


class Keeper:
    """The table of one run: who waits for whom, who has ended or failed."""

    def __init__(self, here: World, run: int, size: int) -> None:
        self.world, self.run, self.ranks = here, run, range(size)
        self.told: dict[int, Told] = {}
        self.sent: dict[int, list[int]] = {}  # by each rank, when it was last heard of
        self.ended: dict[int, bytes] = {}
        self.failed: dict[int, Failure] = {}
        self.asked: dict[int, int] = {}
        self.answers: dict[int, Waiting] = {}
        self.patience_ends = float("inf")
        self.verdict: str | None = None

    def hear_all(self) -> None:
        """Between the end of rank 0's own program and the verdict; data that nobody will ask for are dropped."""
        while self.world.arrived:
            source, frame, _ = self.world.arrived.popleft()
            if frame[1] == self.run and frame[0] not in ("data", "content"):
                self.hear(source, frame)

    def hear(self, rank: int, frame: tuple) -> None:
        match frame[0], *frame[2:]:
            case "waits", told:
                self.told[rank], self.sent[rank] = told, told.sent
            case "ended", sent, result:
                self.ended[rank], self.sent[rank] = result, sent
            case "failed", sent, failure:
                self.failed[rank], self.sent[rank] = failure, sent
                self.patience_ends = min(self.patience_ends, time.monotonic() + PATIENCE_SECONDS)
            case "still", number, waiting:
                if self.asked.get(rank) == number:
                    self.answers[rank] = waiting
        if frame[0] in BACK:
            self.world.absent.discard(rank)
            self.told.pop(rank, None)

    def judge(self) -> None:
        """Reach a verdict if the table allows one; ask those whom a verdict would hang on."""
        if self.verdict:
            return
        others = set(self.ranks) - self.ended.keys() - self.failed.keys()
        suspects = {rank: self.told[rank].number for rank in self._suspects(others)}
        if suspects != self.asked:
            self.asked, self.answers = suspects, {}
            self._ask()
        if not others or (self.failed and time.monotonic() > self.patience_ends):
            self._reach("failure" if self.failed else "results")
        elif suspects and self.answers.keys() == suspects.keys():
            self._reach("failure" if self.failed else "deadlock")

    def _suspects(self, others: set[int]) -> list[int]:
        """After a failure, all that have neither failed nor ended, if none of them can move; else the ranks of a deadlock."""
        idle = {rank: told.source for rank, told in self.told.items() if self._is_idle(rank, told)}
        if self.failed:
            return sorted(others) if others <= idle.keys() else []
        return deadlocked(idle, self.ended.__contains__)

    def _is_idle(self, rank: int, told: Told) -> bool:
        return told.source in self.sent and self.sent[told.source][rank] == told.received

    def _ask(self) -> None:
        for rank, number in self.asked.items():
            self.world.send(rank, ("ask", self.run, number))

    def _reach(self, verdict: str) -> None:
        self.verdict = verdict
        for rank in self.world.absent & set(self.ranks):
            self.world.send(rank, ("abandon", self.run))

    def results(self) -> list[RankResult]:
        """Of all ranks. Raises what the lowest rank that failed raised, or DeadlockError."""
        if self.verdict == "failure":
            raise self.failed[min(self.failed)].error()
        if self.verdict == "deadlock":
            raise DeadlockError(report([self.answers[rank] for rank in self.asked]))
        return [pickle.loads(self.ended[rank]) for rank in self.ranks]
