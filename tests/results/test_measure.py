"""Where every second of a step went, what was sent, what was held: held against counting instants, and
against the blackboard."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Group, all_to_all
from gpu import (
    CLASSROOM,
    COLLECTIVE,
    COMPUTE,
    GPU,
    RECEIVE,
    SEND,
    WAIT,
    Mailboxes,
    Operation,
    four_gpus,
    pass_on_whole,
    ring,
)
from ndparallel.engines.launch import launch
from ndparallel.results.by_axis import hierarchy
from ndparallel.results.event_sums import Breakdown, EventSums
from ndparallel.results.measure import (
    breakdown,
    bytes_sent,
    link_demands,
    measure,
    minus,
    most_at_once,
    overload,
    union,
)
from tests.support.synthetic import (
    ACTIVATION_BYTES,
    GRADIENT,
    HARDWARE,
    OPERATIONS,
    UNITS,
    Run,
    data_parallel,
    finished,
    pipeline,
)


@pytest.fixture(scope="module")
def synthetic() -> dict[str, list[Run]]:
    return {
        "blocking": data_parallel(overlapped=False),
        "overlapped": data_parallel(),
        "pipeline": pipeline(),
    }


def step(runs):
    return max(run.end_seconds for run in runs)


@pytest.mark.parametrize("name", ["blocking", "overlapped", "pipeline"])
def test_compute_exposed_and_bubble_are_the_step_on_every_gpu(name, synthetic):
    runs = synthetic[name]
    for run in runs:
        part = breakdown(run.events, step(runs))
        assert part.compute + part.exposed + part.bubble == pytest.approx(step(runs), rel=1e-12)
        assert min(part) >= 0


def test_a_blocking_collective_hides_nothing_and_exposes_all_of_itself(synthetic):
    for run in synthetic["blocking"]:
        part = breakdown(run.events, step(synthetic["blocking"]))
        collectives = sum(event[5] - event[4] for event in run.events if event[2] == COLLECTIVE)
        assert part.hidden == 0
        assert part.exposed == pytest.approx(collectives, rel=1e-12)


def test_an_overlapped_collective_hides_all_but_the_last(synthetic):
    for run in synthetic["overlapped"]:
        part = breakdown(run.events, step(synthetic["overlapped"]))
        *first, last = [event[5] - event[4] for event in run.events if event[2] == COLLECTIVE]
        assert part.hidden == pytest.approx(sum(first), rel=1e-9)
        assert part.exposed == pytest.approx(last, rel=1e-9)


def test_waiting_for_a_message_is_exposed_while_it_is_on_the_wire_and_bubble_before(synthetic):
    first, last = synthetic["pipeline"]
    part = breakdown(last.events, last.end_seconds)
    departure = HARDWARE.seconds(Operation("", flops=30_000))
    wire = HARDWARE.inside.latency_seconds + 20_000 / HARDWARE.inside.bandwidth_bytes_per_second
    assert (part.bubble, part.exposed) == pytest.approx((departure, wire), rel=1e-12)


def late_by(seconds: float, meet: Callable[[GPU], Any]) -> Breakdown:
    """Where the time of GPU 0 went that meets another, which comes so much later."""

    def program(gpu: GPU) -> None:
        gpu.compute(Operation("work", flops=10 * (1 + seconds * gpu.rank)))
        meet(gpu)

    runs = launch(program, 2, CLASSROOM, engine="inline")
    return breakdown(runs[0].events, step(runs))


def test_a_late_sender_is_bubble_to_who_waits_for_its_message_and_exposed_inside_a_collective():
    both, message = Group("both", (0, 1)), np.zeros(4, np.uint8)

    def hand_over(gpu: GPU) -> None:
        gpu.send(0, message, "it") if gpu.rank else gpu.receive(1, "it")

    def exchange(gpu: GPU) -> None:
        all_to_all(gpu, np.zeros(8, np.uint8), np.zeros(8, np.uint8), both)

    wire = 0.05 + 0.01
    assert late_by(5, hand_over) == pytest.approx((1, wire, 0, 5))
    assert late_by(5, exchange) == pytest.approx((1, 5 + wire, 0, 0))


@pytest.mark.parametrize("name", ["blocking", "overlapped", "pipeline"])
def test_events_that_are_only_added_up_give_what_those_that_are_kept_give(name, synthetic):
    for run in synthetic[name]:
        sums = EventSums()
        for event in run.events:
            sums.append(event)
        found, kept = (breakdown(events, step(synthetic[name])) for events in (sums, run.events))
        assert (found.compute, found.exposed, found.bubble) == pytest.approx(
            (kept.compute, kept.exposed, kept.bubble), rel=1e-9, abs=1e-15
        )
        assert math.isnan(found.hidden) and bytes_sent(sums) == bytes_sent(run.events)


@pytest.mark.parametrize(
    ("name", "axis", "calls", "sent"),
    [("blocking", "dp", 5, 240_000), ("overlapped", "dp", 5, 240_000), ("pipeline", "pp", 1.5, 30_000)],
)
def test_an_axis_has_its_calls_and_bytes_as_means_over_gpus_and_steps(name, axis, calls, sent, synthetic):
    """A ring of four sends six quarters of 160 kB in five calls; the first of two stages 20 kB thrice."""
    (row,), (half,) = hierarchy(synthetic[name], HARDWARE), hierarchy(synthetic[name], HARDWARE, steps=2)
    assert (row["axis"], row["calls"], row["sent_bytes"]) == (axis, calls, sent)
    assert (half["calls"], half["sent_bytes"]) == (round(calls / 2, 1), sent / 2)
    for each in (row, half):
        assert each["sent per call_bytes"] == sent / calls
        assert each["between calls_seconds"] == pytest.approx(step(synthetic[name]) / calls)


def test_the_hidden_share_of_an_axis_is_what_no_gpu_waits_for(synthetic):
    (blocking,), (overlapped,) = (hierarchy(synthetic[name], HARDWARE) for name in ("blocking", "overlapped"))
    spans = [
        [event[5] - event[4] for event in run.events if event[2] == COLLECTIVE]
        for run in synthetic["overlapped"]
    ]
    waited = sum(span[-1] for span in spans) / sum(map(sum, spans))
    assert (blocking["hidden share"], overlapped["hidden share"]) == pytest.approx((0, 1 - waited))


@pytest.mark.parametrize(("per_node", "links"), [(4, "inside"), (2, "both"), (1, "across")])
def test_an_axis_uses_the_links_that_its_messages_take(per_node, links, synthetic):
    (row,) = hierarchy(synthetic["overlapped"], replace(HARDWARE, gpus_per_node=per_node))
    assert row["links"] == links


def test_the_tail_after_a_gpus_last_event_is_bubble():
    run = data_parallel(1)[0]
    assert breakdown(run.events, run.end_seconds).bubble == 0
    assert breakdown(run.events, run.end_seconds + 1).bubble == pytest.approx(1)


lengths = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.sampled_from([COMPUTE, WAIT, SEND, RECEIVE])),
    max_size=8,
)


def laid_out(steps, stream):
    """Events one after another: a gap, a length, a kind; other streams compute nothing."""
    now, events = 0, []
    for gap, long, kind in steps:
        kind = WAIT if stream != COMPUTE and kind == COMPUTE else kind
        events.append((0, stream, kind, "x", float(now + gap), float(now + gap + long), 0, 0, None))
        now += gap + long
    return events


@given(lengths, lengths, lengths)
def test_the_breakdown_equals_counting_instants(compute, one, other):
    events = laid_out(compute, COMPUTE) + laid_out(one, "dp") + laid_out(other, "tp")
    end = int(max((event[5] for event in events), default=0)) + 2
    counted = dict.fromkeys(Breakdown._fields, 0)
    for instant in range(end):
        under_way = [event for event in events if event[4] <= instant < event[5]]
        here = [event[2] for event in under_way if event[1] == COMPUTE]
        counted["compute"] += COMPUTE in here
        counted["exposed"] += bool(here) and COMPUTE not in here
        counted["bubble"] += not here
        counted["hidden"] += any(event[2] != COMPUTE for event in under_way) and not (
            here and COMPUTE not in here
        )
    assert breakdown(events, end)._asdict() == counted


points = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=8).map(
    lambda pairs: [(a, a + length) for a, length in pairs]
)


@given(points, points)
def test_interval_arithmetic_equals_sets_of_instants(these, those):
    def instants(intervals):
        return {point for start, end in intervals for point in range(start, end)}

    assert instants(minus(union(these), union(those))) == instants(these) - instants(those)
    assert instants(union(these)) == instants(these)
    assert all(before[1] < after[0] for before, after in zip(union(these), union(these)[1:]))


def test_a_ring_of_four_sends_one_and_a_half_times_the_gradient_per_gpu(synthetic):
    row = measure("ring", synthetic["overlapped"], HARDWARE)
    assert row.bytes_sent_per_gpu == row.bytes_sent_max == 1.5 * 4 * GRADIENT


def test_bytes_sent_are_the_mean_and_the_maximum_over_gpus(synthetic):
    row = measure("pipeline", synthetic["pipeline"], HARDWARE)
    assert (row.bytes_sent_per_gpu, row.bytes_sent_max) == (30_000, 60_000)
    assert bytes_sent(synthetic["pipeline"][1].events) == 0


def test_several_steps_are_measured_per_step(synthetic):
    once, thrice = (
        measure("x", synthetic["overlapped"], HARDWARE),
        measure("x", synthetic["overlapped"], HARDWARE, steps=3),
    )
    for name in (
        "step_seconds",
        "compute_seconds",
        "bubble_seconds",
        "hidden_communication_seconds",
        "bytes_sent_max",
    ):
        assert getattr(thrice, name) == pytest.approx(getattr(once, name) / 3)
    assert thrice.peak_memory_bytes == once.peak_memory_bytes


def test_peak_memory_is_one_gpus_breakdown_at_one_instant():
    empty, full = Run(0, (), 1.0, {"weights": 9, "buffers": 0}), Run(1, (), 1.0, {"weights": 4, "buffers": 6})
    peak = measure("x", [empty, full], HARDWARE).peak_memory_bytes
    assert peak == {"total": 10, "weights": 4, "buffers": 6}


def test_the_counted_peak_is_weights_gradients_and_what_is_left_of_activations(synthetic):
    peak = measure("x", synthetic["overlapped"], HARDWARE).peak_memory_bytes or {}
    per_unit = (ACTIVATION_BYTES, 4 * GRADIENT / len(UNITS))
    expected = 4 * GRADIENT + max(
        (len(UNITS) - k) * per_unit[0] + k * per_unit[1] for k in range(len(UNITS) + 1)
    )
    assert peak["total"] == sum(size for kind, size in peak.items() if kind != "total") == expected
    assert len(OPERATIONS) == 10


@pytest.mark.parametrize("all_reduce, speedup", [(pass_on_whole, 0.84), (ring, 2.03)])
def test_four_classroom_gpus_are_slower_than_one_until_they_form_a_ring(all_reduce, speedup):
    boxes = Mailboxes()
    gpus = [GPU(rank, CLASSROOM, boxes.of(rank)) for rank in range(4)]
    for gpu in gpus:
        gpu.compute(Operation("forward items", flops=80))
    all_reduce(gpus, [np.full(500, rank, np.float32) for rank in range(4)])
    row: Any = measure("four", [finished(gpu) for gpu in gpus], CLASSROOM)
    assert 32 / row.step_seconds == pytest.approx(speedup, abs=0.005)
    assert row.step_seconds == pytest.approx(four_gpus(all_reduce))
    assert row.compute_seconds == 8
    assert row.exposed_communication_seconds + row.bubble_seconds == pytest.approx(row.step_seconds - 8)


# ------------------------------------------------------------------------------------------- the stated limit


def sender(*streams, target=1):
    """A GPU that sends 1000 bytes on each stream, all started at once."""
    gpu = GPU(0, HARDWARE, Mailboxes().of(0))
    for stream in streams:
        gpu.isend(target, np.zeros(1000, np.uint8), stream, stream)
    return gpu


def test_sends_at_once_on_two_streams_ask_twice_the_link():
    demand = overload([finished(sender("a", "b"))], HARDWARE)
    assert demand is not None
    assert (demand.streams, demand.asked_bytes_per_second) == (
        2,
        2 * HARDWARE.inside.bandwidth_bytes_per_second,
    )
    assert "GPU 0 asks 2.00 GB/s of a link of 1.00 GB/s" in str(demand)


def test_sends_one_after_another_never_ask_more_than_the_link():
    one = finished(sender("a", "a", "a"))
    assert overload([one], HARDWARE) is None
    assert [(demand.streams, demand.seconds) for demand in link_demands(one, HARDWARE)] == [(1, 0)]
    waiting = sender("a")
    for stream in ("b", "c"):
        waiting.isend(1, np.zeros(1000, np.uint8), stream, "a").wait()
        waiting.isend(1, np.zeros(1000, np.uint8), stream, stream)
        waiting.compute(Operation("forward", flops=1e4))
    assert overload([finished(waiting)], HARDWARE) is None


@pytest.mark.parametrize(("overlap", "streams"), [(1e-12, 1), (1e-6, 2)])
def test_sends_that_overlap_by_no_more_than_rounding_touch(overlap, streams):
    events = [
        (0, name, SEND, name, start, start + 1.0, 1000, 0, 1)
        for name, start in (("a", 0.0), ("b", 1.0 - overlap))
    ]
    (demand,) = link_demands(Run(0, tuple(events), 2.0, {}), HARDWARE)
    assert demand.streams == streams


def test_sends_on_different_links_do_not_meet():
    gpu = sender("a", target=1)
    gpu.isend(5, np.zeros(1000, np.uint8), "b", "b")
    assert overload([finished(gpu)], HARDWARE) is None
    demand = overload([finished(gpu)], replace(HARDWARE, gpus_per_node=8))
    assert demand and demand.streams == 2


def test_without_communication_everything_is_compute():
    part = breakdown(data_parallel(1)[0].events, step(data_parallel(1)))
    assert (part.exposed, part.hidden, part.bubble) == (0, 0, 0)
    assert math.isclose(part.compute, step(data_parallel(1)))


def test_sends_that_touch_but_for_rounding_are_one_after_another_from_the_first_on():
    """Clocks of different streams round differently."""
    for second, third, most, since in (
        (6.0 - 1e-12, 7.0, 1, 5.0),
        (6.0, 7.0, 1, 5.0),
        (5.5, 5.75, 3, 5.75),
    ):
        found, first = most_at_once([(5.0, 6.0), (second, 7.0), (third, 8.0)])
        assert found == most and first == pytest.approx(since)
    assert most_at_once([(0.0, 2.0), (1.0, 2.0), (5.0, 7.0), (6.0, 7.0)])[1] == pytest.approx(1.0)
