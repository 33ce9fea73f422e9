"""Ports that groups share: what is added, in seconds that can be reckoned by hand."""

import pytest

from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.ports import Piece, PortUse, rounds_of, seconds_added
from ndparallel.planner.software import find_stack
from ndparallel.planner.step.framework import framework_workload
from ndparallel.planner.step.journal import JournalClock
from ndparallel.planner.step.pipeline_journal import framework_journals, sharing_seconds
from tests.support.accelerators import accelerator


class OnePort:
    """A machine whose collectives use the port to other nodes for as many seconds as they have bytes."""

    alike, slowdown, use = True, 0.0, PortUse(0.0, 1.0)

    def seconds(self, operation):
        return operation.flops

    def arrival(self, exchange, start):
        return start + exchange.bytes

    def rounds(self, exchange):
        return rounds_of(exchange.bytes, 0.0, self.use)


def gradients(seconds, group="dp"):
    return CollectiveOp("gradients", "all_reduce", group, seconds)


def two_layers(streams):
    """2 s each, and a sum over tp of 1 s behind it."""
    for _ in range(2):
        streams.run([TimeBreakdown(compute=2.0), CollectiveOp("sum", "all_reduce", "tp", 1.0)])


@pytest.mark.parametrize(("reduce", "longer"), [(6.0, 2.0), (3.0, 1.0), (0.0, 0.0)])
def test_of_two_collectives_by_one_port_each_ends_later_by_the_shorter_ones_seconds(reduce, longer):
    streams = JournalClock(OnePort())
    streams.start(gradients(reduce))
    two_layers(streams)
    streams.wait_for_all()
    assert seconds_added([streams.journal]) == longer


@pytest.mark.parametrize(("share", "longer"), [(0.5, 0.0), (0.75, 0.5)])
def test_of_two_that_do_not_fill_a_port_none_is_slower(share, longer):
    """Two of 0.75 have half each, and take 1.5 times as long while both are under way: 1 s of 1."""
    machine = OnePort()
    machine.use = PortUse(0.0, share)
    streams = JournalClock(machine)
    streams.start(gradients(1.0))
    streams.run([CollectiveOp("sum", "all_reduce", "tp", 1.0)])
    streams.wait_for_all()
    assert seconds_added([streams.journal]) == pytest.approx(longer)


def test_collectives_of_one_line_come_one_after_another():
    streams = JournalClock(OnePort())
    for _ in range(3):
        streams.start(gradients(1.0))
    streams.wait_for_all()
    assert seconds_added([streams.journal]) == 0.0


def test_a_message_to_the_next_stage_shares_the_senders_port_and_the_receivers():
    """All begin at 1. A message of 2 s shares a port with the sender's sum of 1 s until 3, and one with the
    receiver's sum of 4 s until it is there, at 5; that sum has half of its way before it then, and ends at 7
    in place of 5."""
    message = Piece("across", 2.0, name=("F", 0, 0))
    first, second = JournalClock(OnePort()), JournalClock(OnePort(), rank=1)
    first.compute(1.0)
    first.send(message, 1)
    first.run([CollectiveOp("sum", "all_reduce", "tp", 1.0)])
    second.compute(1.0)
    second.start(gradients(4.0))
    second.receive(message, 0)
    second.wait_for_all()
    assert seconds_added([first.journal, second.journal]) == 2.0


def test_what_leaves_by_another_port_is_not_slower():
    message = Piece("inside", 2.0, name=("F", 0, 0))
    first, second = JournalClock(OnePort()), JournalClock(OnePort(), rank=1)
    first.compute(1.0)
    first.send(message, 1)
    first.run([CollectiveOp("sum", "all_reduce", "tp", 4.0)])
    second.receive(message, 0)
    assert seconds_added([first.journal, second.journal]) == 0.0


@pytest.mark.parametrize(
    ("plan", "short_steps"), [(Plan(tp=8, cp=8, zero=2), [3, 4]), (Plan(tp=8, pp=4, dp=2), [12, 16])]
)
def test_of_many_microbatches_those_of_two_short_steps_are_replayed(plan, short_steps):
    """A replay of all 256 would take a minute and more."""
    written = []

    def journals(work, schedule):
        written.append(schedule.microbatches)
        return framework_journals(work, schedule)

    job = TrainingJob(
        find_model("llama-3-8b"), accelerator("h100"), find_stack("megatron-core"), 8192, 256 * plan.dp
    )
    sharing_seconds(framework_workload(job, plan), journals)
    assert written == short_steps
