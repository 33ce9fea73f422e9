"""What is to happen when: the heart of an event-driven simulation.

Idea   A stream is an iterator that yields the moments it waits for. It goes on as soon as a moment has come,
       and time jumps from one appointment of the agenda to the next.

Glossary
    moment   a point in time that others can wait for before anybody knows when it will be
"""

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import count


class Moment:
    __slots__ = ("has_come", "waiting")

    def __init__(self) -> None:
        self.has_come = False
        self.waiting: list[Callable[[], None]] = []

    def come(self) -> None:
        """Let all go on that wait for it."""
        self.has_come = True
        for go_on in self.waiting:
            go_on()


def go_on(steps: Iterator[Moment]) -> None:
    """Let a stream go on until it has to wait."""
    for moment in steps:
        if not moment.has_come:
            moment.waiting.append(partial(go_on, steps))
            return


class Agenda:
    """Actions in the order of their seconds; of those at the same time the lowest `order` is first, then the
    one that was put down first."""

    def __init__(self) -> None:
        self.now = 0.0
        self.entries: list[tuple[float, float, int, Callable[[], None]]] = []
        self.number = count()

    def at(self, seconds: float, action: Callable[[], None], order: float = 0) -> None:
        heappush(self.entries, (seconds, order, next(self.number), action))

    def after(self, seconds: float) -> Moment:
        moment = Moment()
        self.at(self.now + seconds, moment.come)
        return moment

    def run(self) -> None:
        while self.entries:
            self.now, _, _, action = heappop(self.entries)
            action()
