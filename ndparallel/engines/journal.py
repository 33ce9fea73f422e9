"""A journal of what a rank program asked of its GPU: all that is needed to time the same run again, on
another network.

Idea   Events say when something happened. A journal says what it waited for: which stream an action was on,
       which message was received, which work a handle stood for. So it has no times, and a clock of another
       kind can give them (ndparallel/contention/).
Cost   One tuple an action, about half a microsecond; nothing where no journal is asked for.

Glossary
    entry    one action of one stream; its number is its place in the rank's journal
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpu import GPU, Handle, On, Operation, Pending


class Computed(NamedTuple):
    """The stream was busy for so many seconds."""

    stream: str
    seconds: float


class Sent(NamedTuple):
    stream: str
    target: int
    what: Any
    bytes: float


class Received(NamedTuple):
    stream: str
    source: int
    what: Any


class WaitedForStream(NamedTuple):
    """The stream waited until another one had done this entry."""

    stream: str
    entry: int


class WaitedForMessage(NamedTuple):
    """The stream waited for the message that another one received in this entry."""

    stream: str
    entry: int


Action = Computed | Sent | Received | WaitedForStream | WaitedForMessage
Journal = list[Action]


class JournalGPU(GPU):
    """A GPU that keeps a journal beside its events."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.numbers: dict[str, list[int]] = defaultdict(list)  # of the entries of each stream

    def write(self, action: Action) -> None:
        self.numbers[action.stream].append(len(self.journal))
        self.journal.append(action)

    def write_wait(self, stream: str, other: str, follows: int) -> None:
        """Let a stream wait for what is another's among the first `follows` entries."""
        numbers = self.numbers[other]
        if place := bisect_left(numbers, follows):
            self.write(WaitedForStream(stream, numbers[place - 1]))

    def on(self, name: str, waits: bool = True) -> On:
        if waits and name != self.current.name:
            self.write_wait(name, self.current.name, len(self.journal))
        return super().on(name, waits)

    def wait_for(self, handle: Handle) -> None:
        here, there = self.current.name, handle.stream
        if isinstance(handle, Pending):
            self.write(WaitedForMessage(here, self.numbers[there][-1]))
        else:
            self.write_wait(here, there, handle.follows)
        super().wait_for(handle)

    def seconds(self, operation: Operation) -> float:
        seconds = super().seconds(operation)
        self.write(Computed(self.current.name, seconds))
        return seconds

    def send(self, target: int, array: np.ndarray, what: Any) -> None:
        self.write(Sent(self.current.name, target, what, array.nbytes))
        super().send(target, array, what)

    def receive(
        self, source: int, what: Any, into: np.ndarray | None = None, combine: Callable | None = None
    ) -> np.ndarray:
        self.write(Received(self.current.name, source, what))
        return super().receive(source, what, into, combine)
