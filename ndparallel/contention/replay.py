"""A run again, from the journals of its ranks, on another network.

Idea   What a program does does not depend on how long its messages take: it computes the same, and sends and
       receives the same, in the same order on every stream. So the journals of all ranks and a network give
       the seconds that the run takes on that network. On the network of the first clock they are the first
       clock's, to the last digit.
Cost   Some microseconds an action.
Limit  A program that asks for the time, and then does something else, is replayed as it went the first time.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from gpu import Hardware, Link
from ndparallel.contention.agenda import Agenda, Moment, go_on
from ndparallel.contention.networks import Flow, Line
from ndparallel.engines.journal import (
    Action,
    Computed,
    Journal,
    Received,
    Sent,
    WaitedForMessage,
    WaitedForStream,
)

Place = tuple[int, int]  # a rank, and the number of an action in its journal
Numbered = list[tuple[int, Action]]


def replay(journals: Sequence[Journal], hardware: Hardware, network: type) -> list[float]:
    """Return the seconds at which each rank ends, if its messages travel through this kind of network (see
    networks.py). `journals` are those of ranks 0, 1, ... of a run that has ended."""
    return Replayed(journals, hardware, network).ends


class Replayed:
    """All streams of all ranks, each going through its part of its rank's journal."""

    def __init__(self, journals: Sequence[Journal], hardware: Hardware, network: type) -> None:
        self.hardware, self.agenda = hardware, Agenda()
        self.done = {place: Moment() for place in awaited(journals)}
        self.arrived: dict[Place, Moment] = defaultdict(Moment)  # by the action that receives
        self.receiver = dict(matched(journals))
        self.ends = [0.0] * len(journals)
        lines = {
            (rank, stream): numbered
            for rank, journal in enumerate(journals)
            for stream, numbered in by_stream(journal).items()
        }
        self.network = network(self.agenda, hardware, {line: receives(lines[line]) for line in lines})
        for line, numbered in lines.items():
            go_on(self.stream(line, numbered))
        self.agenda.run()

    def stream(self, line: Line, actions: Numbered) -> Iterator[Moment]:
        """Do one action after another; yield what each has to wait for."""
        rank, _ = line
        for number, action in actions:
            match action:
                case WaitedForStream():
                    yield self.done[rank, action.entry]
                case Sent():
                    yield self.send(rank, number, action)
                case Received():
                    yield self.arrived[rank, number]
                case Computed():
                    yield self.agenda.after(action.seconds)
                case WaitedForMessage():
                    yield self.arrived[rank, action.entry]
            if done := self.done.get((rank, number)):
                done.come()
        self.ends[rank] = self.agenda.now

    def send(self, rank: int, number: int, action: Sent) -> Moment:
        line, entry = self.receiver[rank, number]
        arrived = self.arrived[action.target, entry]
        link, now, sent = self.link(rank, action), self.agenda.now, Moment()
        self.network.send(Flow(rank, line, entry, action.bytes, link, now, sent, arrived, action.what))
        return sent

    def link(self, rank: int, action: Sent) -> Link:
        return self.hardware.link(rank, action.target)


def by_stream(journal: Journal) -> dict[str, Numbered]:
    """A journal's actions with their numbers, apart for every stream."""
    streams: dict[str, Numbered] = defaultdict(list)
    for number, action in enumerate(journal):
        streams[action.stream].append((number, action))
    return streams


def awaited(journals: Sequence[Journal]) -> Iterator[Place]:
    """Yield the actions that another stream waits for."""
    for rank, journal in enumerate(journals):
        yield from ((rank, action.entry) for action in journal if isinstance(action, WaitedForStream))


def receives(actions: Numbered) -> list[int]:
    return [number for number, action in actions if isinstance(action, Received)]


def matched(journals: Sequence[Journal]) -> Iterator[tuple[Place, tuple[Line, int]]]:
    """Yield each sending action with the stream and the number of the one that receives its message: of those
    with one name from one source the oldest is received first."""
    waiting: dict[tuple, deque[int]] = defaultdict(deque)
    for rank, journal in enumerate(journals):
        for number, action in enumerate(journal):
            if isinstance(action, Received):
                waiting[action.source, rank, action.what].append(number)
    for rank, journal in enumerate(journals):
        for number, action in enumerate(journal):
            if isinstance(action, Sent):
                entry = waiting[rank, action.target, action.what].popleft()
                yield (rank, number), ((action.target, journals[action.target][entry].stream), entry)
