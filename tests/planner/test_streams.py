"""Claims about streams that share a GPU's ports, against a simulation that shares them at every moment."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.step.streams import OnTheWay, StreamClock


@dataclass
class Ports:
    """A machine whose collectives take as many seconds alone as they have bytes, and beside each other the
    paces of their lines. The neighbour that a shift brings something from begins it so much later."""

    pace: dict[str, float] = field(default_factory=dict)
    slowdown: float = 0.0
    later: float = -1.0
    alike, shares_ports = True, True

    def paces(self, line, other):
        return self.pace[line], self.pace[other]

    def seconds(self, operation):
        return operation.flops

    def arrival(self, exchange, start):
        end = start + exchange.bytes
        if exchange.collective != "shift":
            return end
        return OnTheWay(end, start + self.later, exchange.bytes)


class Shared:
    """The same step by step: whatever is under way goes on at its pace until the next thing is done."""

    def __init__(self, machine):
        self.machine, self.now, self.left = machine, 0.0, {}

    def go_on(self, is_done, compute=0.0):
        """Until something is done; returns what is left of the compute."""
        while not is_done(compute):
            speeds = {line: self.machine.pace[line] if len(self.left) > 1 else 1.0 for line in self.left}
            slow = 1 + self.machine.slowdown * bool(self.left)
            ends = [self.left[line] / speed for line, speed in speeds.items()]
            seconds = min([*ends, *[compute * slow] * (compute > 0)])
            self.now, compute = self.now + seconds, max(0.0, compute - seconds / slow)
            self.left = {line: left - seconds * speeds[line] for line, left in self.left.items()}
            self.left = {line: left for line, left in self.left.items() if left > 1e-12}
            compute = compute if compute > 1e-12 else 0.0

    def start(self, line, seconds):
        self.left |= {line: seconds} if seconds else {}

    def compute(self, seconds):
        self.go_on(lambda left: not left, seconds)

    def wait(self, line):
        self.go_on(lambda _: line not in self.left)


eighths = st.integers(0, 40).map(lambda number: number / 8)
paces = st.sampled_from([0.5, 0.625, 0.75, 1.0])


@given(*[eighths] * 5, paces, paces, st.sampled_from([("sum", 0.0), ("sum", 0.25), ("shift", 0.0)]))
def test_two_collectives_on_shared_ports_and_compute_end_as_in_a_simulation(
    gather, before, other, between, after, pace, others_pace, kind_and_slowdown
):
    """A gather begins, later another collective beside it; both are waited for."""
    kind, slowdown = kind_and_slowdown
    machine = Ports({"dp": pace, "cp": others_pace}, slowdown)
    clock, shared = StreamClock(machine), Shared(machine)
    first, second = CollectiveOp("g", "all_gather", "dp", gather), CollectiveOp("c", kind, "cp", other)
    clock.start(first)
    shared.start("dp", gather)
    clock.compute(before)
    shared.compute(before)
    clock.start(second)
    shared.start("cp", other)
    clock.compute(between)
    shared.compute(between)
    clock.wait(second)
    shared.wait("cp")
    clock.compute(after)
    shared.compute(after)
    clock.wait(first)
    shared.wait("dp")
    assert clock.now == pytest.approx(shared.now)
    assert clock.now == pytest.approx(sum(clock.spent.values()))


@given(eighths, eighths, eighths, paces, paces, st.sampled_from(["collective", "listed", "counted"]))
def test_a_sum_that_is_waited_for_loses_as_much_however_it_is_given(
    gather, exchanged, compute, pace, others_pace, given_as
):
    """As a collective, as seconds of a list, or as a share of work that has been counted already."""
    machine = Ports({"dp": pace, "tp": others_pace})
    clock, shared = StreamClock(machine), Shared(machine)
    clock.start(CollectiveOp("g", "all_gather", "dp", gather))
    shared.start("dp", gather)
    shared.start("tp", exchanged)
    shared.wait("tp")
    shared.compute(compute)
    if given_as == "counted":
        seconds = exchanged + compute
        clock.advance(seconds, {"tp": exchanged / seconds} if exchanged else {})
    else:
        listed = TimeBreakdown(tp=exchanged), CollectiveOp("s", "all_reduce", "tp", exchanged)
        clock.run([listed[given_as == "collective"], TimeBreakdown(compute=compute)])
    assert clock.now == pytest.approx(shared.now)
    shared.wait("dp")
    clock.wait_for_all()
    assert clock.now == pytest.approx(shared.now)


def test_what_a_shift_brings_comes_as_much_later_as_what_it_hands_on_leaves():
    clock, shift = (
        StreamClock(Ports({"dp": 0.5, "cp": 0.5}, later=3.0)),
        CollectiveOp("c", "shift", "cp", 4.0),
    )
    clock.start(CollectiveOp("g", "all_gather", "dp", 100.0))
    clock.start(shift)
    clock.wait(shift)
    assert clock.now == 3.0 + 2 * 4.0


def test_a_loop_in_its_stride_is_left_although_a_collective_is_always_under_way():
    clock, exchange, passes = StreamClock(Ports()), CollectiveOp("g", "all_gather", "dp", 5.0), 0
    clock.start(exchange)
    for _ in clock.repeats(100):
        clock.compute(2.0)
        clock.wait(exchange)
        clock.start(exchange)
        passes += 1
    clock.wait(exchange)
    assert (passes, clock.now) == (1, 101 * 5.0)
