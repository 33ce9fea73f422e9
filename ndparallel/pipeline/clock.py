"""How time moves while the lists of a schedule run.

Idea   Every rank runs its list in order, each step at once when its inputs are there. That fixes all times;
       nothing is estimated.
Cost   A few microseconds of the computer that runs this, for every action.
Limit  Messages do not slow compute down; gradients that are reduced beside it (ZeRO-2) do. Every rank has
       four lines, to send and to receive, forward and backward; messages on one line follow one another,
       those on different lines do not slow one another, even where they share a cable.

Glossary: see `ndparallel.pipeline.actions`, and `ndparallel.pipeline.work` for latency and wire.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ndparallel.base.sums import sum_of
from ndparallel.pipeline.actions import ONWARD, Action, Layout
from ndparallel.pipeline.checker import GIVES, waits_for
from ndparallel.pipeline.work import Reduction, Work, checked_seconds


class Line:
    """One of the four lines of a rank. It carries one message at a time."""

    __slots__ = ("free_at",)

    def __init__(self) -> None:
        self.free_at = 0.0

    def reserve(self, earliest: float, seconds: float) -> float:
        """Take the line for `seconds` once it is free, not before `earliest`; return from when on."""
        start = earliest if earliest > self.free_at else self.free_at
        self.free_at = start + seconds
        return start


class Incoming(NamedTuple):
    """The way in of the message for an op on a stage: from which stage, on which line."""

    kind: str
    sender_stage: int
    line: Line
    wire: float

    def receive(self, first_byte: float) -> float:
        return self.line.reserve(first_byte, self.wire) + self.wire


class Outgoing(NamedTuple):
    """The way out of the message of an op on a stage."""

    line: Line
    latency: float
    wire: float

    def send(self, end: float) -> float:
        """Return the moment at which the first byte is there."""
        return self.line.reserve(end, self.wire) + self.latency


class ReducingLines:
    """Gradients that are reduced after every microbatch (ZeRO-2), on a line of each rank: a stage's backward
    pass waits until its last ones are, and compute beside them is slower."""

    def __init__(self, layout: Layout, reductions: Sequence[Reduction]) -> None:
        self.reductions = reductions
        self.slowdown = max((each.slowdown for each in reductions), default=0.0)
        self.by_rank, self.by_stage = [0.0] * layout.ranks, [0.0] * layout.stages

    def reduced(self, step: Sequence[Action]) -> float:
        """When the last gradients of the stage that `step` passes backward are reduced."""
        return max((self.by_stage[stage] for op, stage, _ in step if op != "F"), default=0.0)

    def lost(self, rank: int, start: float, seconds: float) -> float:
        """Seconds that compute from `start` on, of so many seconds, takes longer."""
        beside = max(0.0, self.by_rank[rank] - start) / (1 + self.slowdown)
        return self.slowdown * min(beside, seconds)

    def begin(self, rank: int, step: Sequence[Action], end: float) -> None:
        """Reduce what `step`, which ends then, has made."""
        for op, stage, _ in step:
            if op in "BW":
                line, tail, _ = self.reductions[stage]
                done = max(end + tail, self.by_rank[rank] + line)
                self.by_rank[rank] = self.by_stage[stage] = done


class Clock:
    """The times of all ranks. `done` holds every finished action, with the first moment at which its message
    can come in elsewhere."""

    def __init__(self, layout: Layout, work: Work):
        ranks, stages = range(layout.ranks), range(layout.stages)
        self.layout, self.work, self.last_stage = layout, work, layout.stages - 1
        self.seconds = work.seconds_by_stage(layout.stages)
        self.latency, self.wire = (
            checked_seconds(given, (layout.ranks,) * 2, "seconds of a message")
            for given in (work.latency, work.wire)
        )
        self.now, self.busy = [0.0 for _ in ranks], [0.0 for _ in ranks]
        self.reducing = ReducingLines(layout, work.reductions)
        self.start: list[list[float]] = [[] for _ in ranks]
        self.end: list[list[float]] = [[] for _ in ranks]
        self.done: dict[tuple[str, int, int], float] = {}
        self._lines: dict[tuple[str, str, int], Line] = defaultdict(Line)
        self._incoming = {op: [self._way_in(op, stage) for stage in stages] for op in ONWARD}
        self._outgoing = {op: [self._way_out(op, stage) for stage in stages] for op in ONWARD}

    def program(self, rank: int, steps: Iterable[list[Action]]) -> Iterator[Action]:
        """Run `steps` on `rank`; while a step waits, yield what it waits for."""
        for step in steps:
            start = max(self.now[rank], self.reducing.reduced(step))
            for action in step:
                while need := waits_for(action, self.done, self.last_stage):
                    yield need
                start = max(start, self.arrival(action))
            self.run(rank, step, start)

    def arrival(self, action: Action) -> float:
        """Take in the message that `action` needs, which has been sent; return when it is there, 0 where
        there is none."""
        incoming = self._incoming[action.op][action.stage]
        if incoming is None:
            return 0.0
        return incoming.receive(self.done[incoming.kind, incoming.sender_stage, action.microbatch])

    def run(self, rank: int, step: list[Action], start: float) -> None:
        """Do `step` on `rank` from `start` on, and let its messages leave."""
        seconds = self.seconds_of_step(step)
        end = start + seconds
        if self.reducing.reductions:
            end += self.reducing.lost(rank, start, seconds)
            self.reducing.begin(rank, step, end)
        self.now[rank] = end
        self.busy[rank] += seconds
        for op, stage, microbatch in step:
            self.start[rank].append(start)
            self.end[rank].append(end)
            outgoing = self._outgoing[op][stage]
            self.done[GIVES[op], stage, microbatch] = outgoing.send(end) if outgoing else end

    def seconds_of_step(self, step: list[Action]) -> float:
        if len(step) == 1:
            op, stage, _ = step[0]
            return self.seconds[op][stage]
        fused = self.work.fused_seconds(step[0].stage, step[1].stage)
        return sum_of(self.seconds[op][stage] for op, stage, _ in step) if fused is None else fused

    def _way_in(self, op: str, stage: int) -> Incoming | None:
        rank, sender_stage = self.layout.rank(stage), stage - ONWARD[op]
        sender = self.layout.other_rank(rank, sender_stage)
        if sender is None:
            return None
        return Incoming(
            GIVES[op], sender_stage, self._lines["receive", GIVES[op], rank], self.wire[sender][rank]
        )

    def _way_out(self, op: str, stage: int) -> Outgoing | None:
        rank = self.layout.rank(stage)
        receiver = self.layout.other_rank(rank, stage + ONWARD[op])
        if receiver is None:
            return None
        return Outgoing(
            self._lines["send", GIVES[op], rank], self.latency[rank][receiver], self.wire[rank][receiver]
        )
