"""A schedule timed again and again: in which order steps can run is found out once, and then only seconds are added up.

Idea   Which step comes after which does not depend on how long anything takes. So the steps of all ranks are put in one order that can
       run, with their messages, lines and prices by number; to time them is one loop over that list.
Cost   About half a microsecond a step, a quarter of `ndparallel.pipeline.timing`, whose times it gives to the last digit (a test holds the
       two together).
Limit  It says when steps end, and no more.

Glossary
    step       what a rank runs at once: one action, or a fused pair
    slot       a place for the moment at which a message's first byte is there
    line       one of the four lines of a rank, as in `ndparallel.pipeline.clock`
    link       from which rank to which, as one number
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

from ndparallel.errors import UserError
from ndparallel.pipeline.actions import Action, Schedule
from ndparallel.pipeline.catalog import build
from ndparallel.pipeline.checker import GIVES, explain, run_ranks, waits_for
from ndparallel.pipeline.clock import ONWARD
from ndparallel.pipeline.timing import peak_activations
from ndparallel.pipeline.work import Work, seconds_of

Move = tuple[int, int, int]  # a message's slot, line and link
Done = dict[tuple[str, int, int], int]  # what has been done, with the slot of its message
LINES = {("send", "F"): 0, ("send", "I"): 1, ("receive", "F"): 2, ("receive", "I"): 3}


class Step(NamedTuple):
    rank: int
    price: int  # place in the list of all prices
    arrivals: tuple[Move, ...]
    departures: tuple[Move, ...]


class Ends(NamedTuple):
    """Seconds: when each rank starts its first and ends its last step, and when each stage's weights have all their gradients."""

    start: list[float]
    end: list[float]
    complete: list[float]


@dataclass(frozen=True, eq=False)
class Replay:
    """One schedule. Raises UserError, with the reason, if its ranks get stuck."""

    schedule: Schedule

    def ends(self, work: Work) -> Ends:
        """Time the schedule on the seconds of `work`."""
        layout = self.schedule.layout
        latency, wire = ([*chain(*seconds_of(given, (layout.ranks,) * 2, "seconds of a message"))] for given in (work.latency, work.wire))
        prices = self.prices(work)
        ends = run(self.steps, prices, latency, wire, layout.ranks)
        first, last, complete = self.places
        start = [ends[place] - prices[self.steps[place].price] for place in first]
        return Ends(start, [ends[place] for place in last], [ends[place] for place in complete])

    @cached_property
    def steps(self) -> list[Step]:
        """In an order that can run."""
        order: list[Step] = []
        done: Done = {}
        waits = run_ranks([self._program(rank, order, done) for rank in range(self.schedule.ranks)], done)
        if any(waits):
            raise UserError(f"{self.schedule.name} cannot run: {explain(self.schedule)}")
        return order

    def busiest_round(self, work: Work) -> float:
        """Seconds that as many microbatches as there are ranks take on the rank that has most to do."""
        layout, seconds = self.schedule.layout, work.seconds_by_stage(self.schedule.layout.stages)
        both = [forward + backward for forward, backward in zip(seconds["F"], seconds["B"])]
        return layout.ranks * max(sum(both[stage] for stage in layout.stages_of(rank)) for rank in range(layout.ranks))

    @cached_property
    def peaks(self) -> list[float]:
        """The most activations that each rank keeps."""
        return peak_activations(self.schedule)

    def prices(self, work: Work) -> list[float]:
        """Seconds of every kind of step: of one action on one stage, or of a pair."""
        seconds = work.seconds_by_stage(self.schedule.layout.stages)
        return [price(work, seconds, kind) for kind in self._kinds]

    @cached_property
    def _kinds(self) -> dict[tuple[tuple[str, int], ...], int]:
        """Kinds of steps, and their places in the list of prices."""
        ranks = range(self.schedule.ranks)
        kinds = dict.fromkeys(tuple((op, stage) for op, stage, _ in step) for rank in ranks for step in self.schedule.steps(rank))
        return {kind: place for place, kind in enumerate(kinds)}

    @cached_property
    def places(self) -> tuple[list[int], list[int], list[int]]:
        """In the order of steps: every rank's first and last, and the one that completes each stage."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        complete: dict[int, int] = {}
        kinds = list(self._kinds)
        for place, step in enumerate(self.steps):
            first.setdefault(step.rank, place)
            last[step.rank] = place
            complete |= {stage: place for op, stage in kinds[step.price] if op in "BW"}
        ranks, stages = range(self.schedule.ranks), range(self.schedule.layout.stages)
        return [first[rank] for rank in ranks], [last[rank] for rank in ranks], [complete[stage] for stage in stages]

    def _program(self, rank: int, order: list[Step], done: Done) -> Iterator[Action]:
        for actions in self.schedule.steps(rank):
            for action in actions:
                while need := waits_for(action, done, self.schedule.layout.stages - 1):
                    yield need
            arrivals = [self._arrival(action, done) for action in actions]
            for op, stage, microbatch in actions:
                done[GIVES[op], stage, microbatch] = len(done)
            departures = [self._departure(action, done) for action in actions]
            kind = tuple((op, stage) for op, stage, _ in actions)
            order.append(Step(rank, self._kinds[kind], tuple(filter(None, arrivals)), tuple(filter(None, departures))))

    def _arrival(self, action: Action, done: Done) -> Move | None:
        """The message that an action needs from another rank."""
        op, stage, microbatch = action
        here, there = self.schedule.layout.rank(stage), self._rank(stage - ONWARD[op], stage)
        if there == here:
            return None
        return done[GIVES[op], stage - ONWARD[op], microbatch], 4 * here + LINES["receive", GIVES[op]], there * self.schedule.ranks + here

    def _departure(self, action: Action, done: Done) -> Move | None:
        """The message that it sends to another rank."""
        op, stage, microbatch = action
        here, there = self.schedule.layout.rank(stage), self._rank(stage + ONWARD[op], stage)
        if there == here:
            return None
        return done[GIVES[op], stage, microbatch], 4 * here + LINES["send", GIVES[op]], here * self.schedule.ranks + there

    def _rank(self, other_stage: int, stage: int) -> int:
        """The rank of another stage; where there is none, that of this one."""
        layout = self.schedule.layout
        return layout.rank(other_stage if 0 <= other_stage < layout.stages else stage)


def price(work: Work, seconds: dict[str, list[float]], kind: tuple[tuple[str, int], ...]) -> float:
    """Seconds of one kind of step."""
    fused = work.fused_seconds(kind[0][1], kind[1][1]) if len(kind) == 2 else None
    return sum(seconds[op][stage] for op, stage in kind) if fused is None else fused


def run(steps: list[Step], prices: list[float], latency: list[float], wire: list[float], ranks: int) -> list[float]:
    """When every step ends."""
    now, lines, first_byte = [0.0] * ranks, [0.0] * 4 * ranks, [0.0] * 2 * len(steps)
    ends = []
    for rank, place, arrivals, departures in steps:
        start = now[rank]
        for slot, line, link in arrivals:
            free, first = lines[line], first_byte[slot]
            lines[line] = there = (first if first > free else free) + wire[link]
            if there > start:
                start = there
        now[rank] = end = start + prices[place]
        for slot, line, link in departures:
            free = lines[line]
            leaves = end if end > free else free
            lines[line] = leaves + wire[link]
            first_byte[slot] = leaves + latency[link]
        ends.append(end)
    return ends


@lru_cache(maxsize=32)
def replay_of(name: str, ranks: int, microbatches: int, chunks: int | None) -> Replay:
    """Build a schedule, and put its steps in order, once in a process."""
    return Replay(build(name, ranks, microbatches, chunks))
