"""Ports that groups share: what is added, in seconds that can be reckoned by hand."""

from dataclasses import replace

import pytest

from ndparallel.engines.journal import Computed, Journal, Sent
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.ports import Piece, PortUse, rounds_of, seconds_added
from ndparallel.planner.software import find_stack
from ndparallel.planner.step.framework import FrameworkWorkload, framework_workload
from ndparallel.planner.step.journal import JournalClock
from ndparallel.planner.step.pipeline import PipelineTimer, schedule_of
from ndparallel.planner.step.pipeline_journal import (
    OrderedWorkload,
    framework_journals,
    framework_sharing,
    in_order,
    sharing_seconds,
)
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


def job_of(plan: Plan, microbatches: int, model: str = "llama-3-8b") -> TrainingJob:
    batch = microbatches * plan.dp
    return TrainingJob(find_model(model), accelerator("h100"), find_stack("megatron-core"), 8192, batch)


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


def test_what_takes_no_time_or_uses_no_port_has_no_rounds():
    assert rounds_of(0.0, 0.0, PortUse(0.0, 1.0)) == rounds_of(1.0, 0.0, PortUse(0.0, 0.0)) == []
    assert rounds_of(1.0, 0.25, PortUse(0.0, 1.0)) == [[Piece("across", 0.75, latency_seconds=0.25)]]


def test_a_collective_alone_on_its_line_needs_no_stream_of_its_own():
    """Nor does one behind others that were waited for."""
    streams = JournalClock(OnePort())
    streams.run([gradients(1.0)])
    assert {entry.stream for entry in streams.journal} == {"compute"}
    streams.start(gradients(1.0))
    streams.wait_for_all()
    before = len(streams.journal)
    streams.run([gradients(1.0)])
    assert {entry.stream for entry in streams.journal[before:]} == {"compute"}


def test_beside_another_line_a_collective_needs_no_stream_and_on_its_own_it_comes_behind():
    streams = JournalClock(OnePort())
    streams.start(gradients(2.0))
    before = len(streams.journal)
    streams.run([CollectiveOp("sum", "all_reduce", "tp", 1.0)])
    assert {entry.stream for entry in streams.journal[before:]} == {"compute"}
    streams = JournalClock(OnePort())
    streams.start(gradients(2.0))
    streams.run([gradients(1.0)])
    assert seconds_added([streams.journal]) == 0.0


def test_what_follows_a_wait_for_all_shares_nothing_with_what_was_waited_for():
    streams = JournalClock(OnePort())
    streams.start(gradients(2.0))
    streams.wait_for_all()
    streams.run([CollectiveOp("sum", "all_reduce", "tp", 1.0)])
    assert seconds_added([streams.journal]) == 0.0


@pytest.mark.parametrize(("waits", "longer"), [(False, 1.0), (True, 0.0)])
def test_a_sender_that_waits_until_its_message_has_left_shares_no_port_with_it(waits, longer):
    message = Piece("across", 2.0, name=("F", 0, 0))
    first, second = JournalClock(OnePort()), JournalClock(OnePort(), rank=1)
    first.compute(1.0)
    first.send(message, 1, waits)
    first.run([CollectiveOp("sum", "all_reduce", "tp", 1.0)])
    second.receive(message, 0)
    assert seconds_added([first.journal, second.journal]) == longer


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
def test_of_many_microbatches_those_of_two_short_steps_are_replayed(plan, short_steps, monkeypatch):
    """A replay of all 256 would take a minute and more."""
    monkeypatch.setattr("ndparallel.engines.forking.usable_cores", lambda: [0])  # a fork's list is its own
    written = []

    def journals(work, schedule):
        written.append(schedule.microbatches)
        return framework_journals(work, schedule)

    sharing_seconds(framework_workload(job_of(plan, 256), plan), journals)
    assert written == short_steps


@pytest.mark.parametrize("plan", [Plan(tp=8, cp=8, zero=2), Plan(tp=8, pp=4, dp=2, zero=2)], ids=str)
def test_what_rounds_of_24_microbatches_add_is_what_a_replay_of_all_of_them_finds(plan):
    work = framework_workload(job_of(plan, 24), plan)
    whole = PipelineTimer(work).whole.schedule
    assert PipelineTimer(work).short_steps[0].schedule.microbatches < 24
    assert sharing_seconds(work, framework_journals) == pytest.approx(
        seconds_added(framework_journals(work, whole)), rel=1e-9
    )


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_the_items_of_a_pass_in_order_take_its_seconds_where_dispatch_hides_in_part(name):
    """Bytes that do not show are taken off; all of the latency stays."""
    plan = Plan(pp=2, dp=8, ep=8, chunks=2, schedule="interleaved", zero=1)
    job = job_of(plan, 8, "mixtral-8x7b")
    work = framework_workload(replace(job, stack=replace(job.stack, hides_dispatch=True)), plan)
    whole = float(getattr(work.unit("experts"), name).total)
    assert float(getattr(work.pricing.unit("experts"), name).total) > 1.01 * whole
    items = in_order(OrderedWorkload(work.pricing, work.layers), "experts", name)
    seconds = [
        each.total if isinstance(each, TimeBreakdown) else work.pricing.price_of(each)[1] for each in items
    ]
    assert sum(map(float, seconds)) == pytest.approx(whole, rel=4e-3)


def test_groups_that_share_no_port_add_nothing():
    plan = Plan(tp=8, dp=4, zero=1)
    assert framework_sharing(framework_workload(job_of(plan, 4), plan)) == 0.0


def test_only_ranks_that_hold_tied_embeddings_send_their_sum_and_as_long_as_it_takes(monkeypatch):
    plan = Plan(pp=4, dp=2, zero=1)
    work = framework_workload(job_of(plan, 4, "gpt2-xl"), plan)
    (embeddings,) = work.stage_collectives
    seconds = max(embeddings.seconds([0.0, 0.0]))
    journals = framework_journals(work, schedule_of(work))
    monkeypatch.setattr(FrameworkWorkload, "stage_collectives", ())
    without = framework_journals(work, schedule_of(work))
    more = [sending(one) - sending(other) for one, other in zip(journals, without)]
    assert more == pytest.approx([seconds, 0.0, 0.0, seconds]) and seconds > 1e-5
    assert [computed(one) - computed(other) for one, other in zip(journals, without)] == [0.0] * 4


def sending(journal: Journal) -> float:
    """Seconds of all that is sent, one message after another on ports of its own."""
    return sum(
        entry.what.seconds + entry.what.latency_seconds for entry in journal if isinstance(entry, Sent)
    )


def computed(journal: Journal) -> float:
    return sum(entry.seconds for entry in journal if isinstance(entry, Computed))
