"""A clock that writes a journal in place of time: what one GPU computes, sends and waits for in a step.

Idea   The loops that time a step run on a StreamClock, and as well on this one. Its journal says which
       messages leave by which port of the GPU (ndparallel.planner.ports), and can be replayed where ports are
       shared.
Cost   Some microseconds for each action.
Limit  What collectives slow compute by is not in it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ndparallel.engines.journal import Action as Entry
from ndparallel.engines.journal import Computed, Journal, Received, Sent, WaitedForMessage, WaitedForStream
from ndparallel.pipeline.actions import ONWARD, Action, Schedule
from ndparallel.pipeline.checker import GIVES
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.ports import Piece, PortUse, Round
from ndparallel.planner.step.streams import (
    BEFORE,
    Item,
    Machine,
    MemoryCounter,
    StreamClock,
    line_of,
    longest,
)

COMPUTE = "compute"


class NoMemory(MemoryCounter):
    """A journal says nothing of what is held, which may be another number on each GPU."""

    def hold(self, kind: str, nbytes: Any) -> None:
        pass


class JournalClock(StreamClock):
    """The streams of one GPU of a pipeline rank, whose times stand still."""

    def __init__(self, machine: Machine, now: Any = 0.0, rank: int = 0) -> None:
        super().__init__(machine, now)
        self.memory = NoMemory()
        self.rank = rank
        self.journal: Journal = []
        self.latest: dict[str, int] = {}  # entry of each stream

    def write(self, entry: Entry) -> None:
        self.latest[entry.stream] = len(self.journal)
        self.journal.append(entry)

    def follow(self, stream: str, entries: Iterable[int]) -> None:
        """Let a stream wait for entries of others."""
        for entry in entries:
            if self.journal[entry].stream != stream:
                self.write(WaitedForStream(stream, entry))

    def spend(self, kind: str, seconds: Any) -> None:
        before = self.journal[-1] if self.journal else None
        if isinstance(before, Computed):
            self.journal[-1] = Computed(COMPUTE, before.seconds + longest(seconds))
        else:
            self.write(Computed(COMPUTE, longest(seconds)))

    def repeats(self, times: int) -> Iterator[None]:
        return iter([None] * times)

    # ---- collectives

    def run(self, items: Iterable[Item], kind: str = COMPUTE) -> None:
        for item in items:
            if not (isinstance(item, CollectiveOp) and self.run_alone(item)):
                super().run([item], kind)

    def run_alone(self, exchange: CollectiveOp) -> bool:
        """Send and receive at once what needs no stream of its own: where the line has nothing under way, and
        no round uses two ports."""
        line, rounds = line_of(exchange.group)[0], self.machine.rounds(exchange)
        busy = any(ends and other == line for (other, _), ends in self.ends.items())
        if busy or any(len({piece.port for piece in pieces}) > 1 for pieces in rounds):
            return False
        for pieces in rounds:
            self.hand_on(pieces, lambda port: COMPUTE)
        return True

    def hand_on(
        self, pieces: Round, stream: Callable[[str], str], right: int | None = None, left: int | None = None
    ) -> None:
        """Send pieces to the right neighbour, and take in as many from the left. Both are this one, as all
        GPUs of a pipeline rank are, or other pipeline ranks."""
        right, left = (self.rank if other is None else other for other in (right, left))
        for piece in pieces:
            self.write(Sent(stream(piece.port), right, piece, piece.size))
        for piece in pieces:
            self.write(Received(stream(piece.port), left, piece))

    def hand_round(self, rounds: Sequence[Round], ring: Sequence[int]) -> None:
        """A collective between pipeline ranks, which all of them wait for."""
        place = ring.index(self.rank)
        for pieces in rounds:
            self.hand_on(pieces, lambda port: COMPUTE, ring[(place + 1) % len(ring)], ring[place - 1])

    def start(self, exchange: CollectiveOp) -> None:
        line, _ = line_of(exchange.group)
        lines = (line, *BEFORE.get(line, ()))
        before = [COMPUTE, *(stream for each in lines for stream in streams_of(each))]
        behind = [self.latest[stream] for stream in before if stream in self.latest]
        for pieces in self.machine.rounds(exchange):
            streams = {f"{line} {piece.port}": None for piece in pieces}
            for stream in streams:
                self.follow(stream, behind)
            self.hand_on(pieces, f"{line} {{}}".format)
            behind = [self.latest[stream] for stream in streams]
        self.ends[line, exchange.name].append(behind)

    def wait(self, exchange: CollectiveOp) -> None:
        self.follow(COMPUTE, self.ends[line_of(exchange.group)[0], exchange.name].popleft())

    def wait_for_all(self) -> None:
        for ends in self.ends.values():
            for entries in ends:
                self.follow(COMPUTE, entries)
        self.ends.clear()

    # ---- messages between stages

    def send(self, message: Piece, target: int, waits: bool = False) -> None:
        """Send a piece on the line of its op, and wait until it has left where the software `waits`."""
        stream = f"pp {message.name[0]} from"
        self.follow(stream, [self.latest[COMPUTE]])
        self.write(Sent(stream, target, message, message.size))
        self.follow(COMPUTE, [self.latest[stream]] * waits)

    def receive(self, message: Piece, source: int) -> None:
        stream = f"pp {message.name[0]} to"
        self.write(Received(stream, source, message))
        self.write(WaitedForMessage(COMPUTE, self.latest[stream]))


class StageMessages:
    """Messages between stages, written into the journal of a pipeline rank."""

    schedule: Schedule
    rank: int
    waits = False  # for a message to leave

    @property
    def streams(self) -> JournalClock:
        raise NotImplementedError

    def piece(self, source: int, target: int) -> Piece:
        raise NotImplementedError

    def send(self, action: Action) -> None:
        op, stage, microbatch = action
        target = self.schedule.layout.other_rank(self.rank, stage + ONWARD[op])
        if target is not None:
            message = self.piece(self.rank, target)._replace(name=(GIVES[op], stage, microbatch))
            self.streams.send(message, target, self.waits)

    def receive(self, action: Action) -> None:
        op, stage, microbatch = action
        before = stage - ONWARD[op]
        source = self.schedule.layout.other_rank(self.rank, before)
        if source is not None:
            message = self.piece(source, self.rank)._replace(name=(GIVES[op], before, microbatch))
            self.streams.receive(message, source)


def streams_of(line: str) -> list[str]:
    """A collective has a stream for each port that it uses."""
    return [f"{line} {port}" for port in PortUse._fields]
