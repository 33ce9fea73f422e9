"""A GPU's compute stream, its communication streams and its memory, moved on by lists: the planner's twin of
gpu.GPU.

Idea   The patterns in which communication hides (ndparallel.planner.step.overlap) are loops over a
       StreamClock, as the lessons' are over a GPU. Time is a number where all GPUs do the same, or an array:
       of many GPUs that do not, or of many plans.
Cost   about a microsecond for every item of a list.
Limit  Streams slow compute by the machine's share, whatever they do; on the executed clock not at all. They
       do not slow one another: ndparallel.planner.step.journal says what shared ports would add.

Glossary
    spent     seconds by what they were spent on: compute, optimizer, and waiting for a kind of collective, or
              being slowed by it
    machine   prices operations, and says when a collective ends that starts at some time
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from math import isclose
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpu import Operation
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.operations import CollectiveOp, Hold, Start, Wait
from ndparallel.planner.ports import Round

DATA = ("experts_dp", "shards", "replicas", "to_host", "ends", "dp_cp", "expert_dp")
SHARDS = ("shards", "experts_dp")
# what these have summed, replicas sum, and the host takes
BEFORE = {"replicas": SHARDS, "to_host": (*SHARDS, "replicas")}
# groups whose waiting counts as another's
SAME_KIND = dict.fromkeys(DATA, "dp") | {"tp_cp": "ep", "tied": "pp"}
COMPUTING = ("compute", "launch")

Item = Operation | CollectiveOp | Start | Wait | Hold | TimeBreakdown


class OnTheWay(NamedTuple):
    """A shift that has begun: when what a GPU hands on has left, and when what it gets begins to arrive, for
    `wire` seconds."""

    left: Any
    first_byte: Any
    wire: Any


@lru_cache(maxsize=64)
def line_of(group: str) -> tuple[str, str]:
    """The communication stream of a group, and what waiting for it counts as."""
    line = group.partition("/")[0]
    return line, SAME_KIND.get(line, line)


def longest(seconds: Any) -> float:
    """The most seconds of any GPU; where all are alike, those of each."""
    return seconds if isinstance(seconds, float) else float(np.max(seconds))


class Machine(Protocol):
    alike: bool  # whether all GPUs do the same, and the time is one for all

    @property
    def slowdown(self) -> float: ...  # of compute beside a collective

    def seconds(self, operation: Operation) -> Any: ...
    def arrival(self, exchange: CollectiveOp, start: Any) -> Any: ...
    def rounds(self, exchange: CollectiveOp) -> list[Round]: ...  # messages, see ndparallel.planner.ports


class MemoryCounter:
    """Bytes held by kind, and what was held when it was most."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = defaultdict(float)
        self.total: Any = 0.0
        self.most: Any = 0.0
        self.peak: dict[str, Any] = {}

    def hold(self, kind: str, nbytes: float) -> None:
        if not nbytes:
            return
        self.held[kind] += nbytes
        self.total += nbytes
        if self.total > self.most:
            self.most, self.peak = self.total, dict(self.held)

    def run(self, items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item, Hold):
                self.hold(*item)

    @property
    def fullest(self) -> dict[str, float]:
        """The peak of the GPU that holds most."""
        return self.peak


class MemoryCounters(MemoryCounter):
    """The bytes of many GPUs, which do not hold the same and are fullest at different moments: arrays in
    place of numbers."""

    def hold(self, kind: str, nbytes: Any) -> None:
        self.held[kind], self.total = self.held[kind] + nbytes, self.total + nbytes
        higher = self.total > self.most
        if np.any(higher):
            self.most = np.where(higher, self.total, self.most)
            self.peak = {
                kind: np.where(higher, held, self.peak.get(kind, 0.0)) for kind, held in self.held.items()
            }

    @property
    def fullest(self) -> dict[str, float]:
        place = np.argmax(self.most)  # a pipeline rank without experts holds numbers: its GPUs are alike
        return {kind: float(np.ravel(held)[place]) for kind, held in self.peak.items()}


class StreamClock:
    """One GPU, or all at once. `now` is the compute stream's time."""

    def __init__(self, machine: Machine, now: Any = 0.0) -> None:
        self.machine, self.now, self.memory = machine, now, MemoryCounter()
        self.slowdown = machine.slowdown
        self.later: Callable[[Any, Any], Any] = max if machine.alike else np.maximum
        self.spent = TimeBreakdown()
        self.phase = "compute"  # what compute counts as in a picture: forward, backward
        # if it is a list: (stream, start, end, what)
        self.trace: list[tuple[str, float, float, str]] | None = None
        self.lines: dict[str, Any] = {}  # when each communication stream is free
        # until when a collective slows compute, and what it counts as
        self.under_way, self.slowed_by = 0.0, ""
        self.incoming: dict[str, Any] = {}  # when the incoming line of each is, where blocks are shifted
        # of what was started and not yet waited for, by stream and name
        self.ends: dict[tuple[str, str], deque] = defaultdict(deque)

    def run(self, items: Iterable[Item], kind: str = "compute") -> None:
        """Do what a list says; its operations count as `kind`."""
        for item in items:
            match item:
                case TimeBreakdown():
                    self.spent.launch_seconds += item.launch_seconds
                    for part, seconds in item.items():
                        if part == "compute":
                            self.compute(seconds)
                        else:
                            self.spend(part, seconds)
                case Operation():
                    self.spend(kind, self.machine.seconds(item))
                case CollectiveOp():
                    self.start(item)
                    self.wait(item)
                case Start():
                    self.start(item.exchange)
                case Wait():
                    self.wait(item.exchange)
                case Hold():
                    self.memory.hold(*item)

    def compute(self, seconds: Any) -> None:
        """Compute, slower for as long as a collective is under way; what is lost counts as its."""
        self.lose(seconds)
        self.spend("compute", seconds)

    def advance(self, seconds: Any) -> None:
        """Work that has been counted already: only what it loses to collectives beside it is spent."""
        self.lose(seconds)
        self.now = self.now + seconds

    def lose(self, seconds: Any) -> None:
        # as collective_time.lost_to, of numbers, in a third of the time
        if self.slowdown and self.under_way > self.now:
            self.spend(
                self.slowed_by,
                self.slowdown * min((self.under_way - self.now) / (1 + self.slowdown), seconds),
            )

    def spend(self, kind: str, seconds: Any) -> None:
        end = self.now + seconds
        if self.trace is not None:
            self.note("compute", self.now, end, self.phase if kind in COMPUTING else kind)
        self.now = end
        self.spent[kind] = self.spent[kind] + seconds

    def note(self, stream: str, start: Any, end: Any, what: str) -> None:
        if self.trace is not None:
            self.trace.append((stream, longest(start), longest(end), what))

    def start(self, exchange: CollectiveOp) -> None:
        begin = self.ready(exchange)
        end = self.machine.arrival(exchange, begin)
        self.begin(exchange, begin, end)

    def ready(self, exchange: CollectiveOp) -> Any:
        """When a collective can start: now, once its stream is free; over replicas, once the shards that they
        sum are reduced; a copy to the host once its gradients are summed."""
        line, moment = line_of(exchange.group)[0], self.now
        for before in (line, *BEFORE.get(line, ())):
            moment = self.later(moment, self.lines.get(before, 0.0))
        return moment

    def begin(self, exchange: CollectiveOp, begin: Any, end: Any) -> None:
        """Let a collective be under way from one moment to another."""
        line, kind = line_of(exchange.group)
        self.ends[line, exchange.name].append(end)
        self.lines[line] = end.left if isinstance(end, OnTheWay) else end
        if self.slowdown and end > self.under_way:
            self.under_way, self.slowed_by = end, kind
        if self.trace is not None:
            self.note(kind, begin, self.lines[line], exchange.name)

    def wait(self, exchange: CollectiveOp) -> None:
        line, kind = line_of(exchange.group)
        end = self.ends[line, exchange.name].popleft()
        if isinstance(end, OnTheWay):
            end = self.take_in(line, end)
        self.spend(kind, self.later(end - self.now, 0.0))

    def wait_for_all(self) -> None:
        """Wait for every collective that was started: for the last one of each line."""
        for line, free in self.lines.items():
            self.spend(line_of(line)[1], self.later(free - self.now, 0.0))
        self.ends.clear()

    def take_in(self, line: str, coming: OnTheWay) -> Any:
        """Receive a shift, as gpu.receive does: behind what came in before it."""
        free = self.incoming.get(line, 0.0)
        there = self.incoming[line] = np.maximum(free, coming.first_byte) + coming.wire
        self.lines[line] = np.maximum(self.lines[line], there)
        return np.maximum(there, coming.left)

    def repeats(self, times: int) -> Iterator[None]:
        """Yield so many times to a loop whose body leaves the memory as it was. Where all GPUs are alike, and
        nobody looks, only until the body leaves under way what it has found: from then on it takes as long
        every time."""
        for left in range(times - 1, -1, -1):
            found, start, before = self.in_flight(), self.now, self.spent
            self.spent = TimeBreakdown()
            yield
            if self.machine.alike and self.trace is None and same(found, self.in_flight()):
                self.let_pass(left * (self.now - start))
                self.spent = before + self.spent.times(1 + left)
                return
            self.spent = before + self.spent

    def in_flight(self) -> dict[Any, float]:
        """How long each collective under way still takes, where it is one number."""
        if not self.machine.alike:
            return {}
        waited_for = {
            (name, place): end for name, ends in self.ends.items() for place, end in enumerate(ends)
        }
        moments = self.lines | waited_for | {("slowed", self.slowed_by): self.under_way}
        return {what: moment - self.now for what, moment in moments.items() if moment > self.now}

    def let_pass(self, seconds: float) -> None:
        """Let time pass in which nothing changes: what is under way goes on to be."""
        self.now, self.under_way = self.now + seconds, self.under_way + seconds
        self.lines = {line: free + seconds for line, free in self.lines.items()}
        self.ends = defaultdict(
            deque, {name: deque(end + seconds for end in ends) for name, ends in self.ends.items()}
        )


def same(before: dict[Any, float], after: dict[Any, float]) -> bool:
    return before.keys() == after.keys() and all(
        isclose(seconds, after[what]) for what, seconds in before.items()
    )
