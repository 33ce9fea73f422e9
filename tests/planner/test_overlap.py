"""Claims about how communication hides behind compute, with round numbers that can be followed by hand."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import Link
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers import pricing as pricing_module
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.ports import Piece
from ndparallel.planner.prediction import time_step
from ndparallel.planner.software import find_stack
from ndparallel.planner.step.action_seconds import ActionSeconds
from ndparallel.planner.step.framework import FrameworkWorkload, framework_workload, slowest_of
from ndparallel.planner.step.overlap import BucketCost, UnitCost, fully_sharded, replicated, sharded_gradients
from ndparallel.planner.step.streams import MemoryCounter, MemoryCounters, StreamClock
from ndparallel.planner.step.tail import gradients_tail, reduce_in_slack, step_tail

FORWARD, BACKWARD = 1.0, 2.0


@dataclass
class Round:
    """A machine whose collectives take as many seconds as they have bytes."""

    alike: bool = True
    slowdown: float = 0.0

    def seconds(self, operation):
        return operation.flops

    def arrival(self, exchange, start):
        return start + exchange.bytes

    def rounds(self, exchange):
        return [[Piece("across", exchange.bytes)]]


def buckets(units=4, reduce=1.0, gather=0.5):
    unit = UnitCost([TimeBreakdown(compute=FORWARD)], [TimeBreakdown(compute=BACKWARD)])
    sent = [
        (
            CollectiveOp(f"r{n}", "reduce_scatter", "dp", reduce),
            CollectiveOp(f"g{n}", "all_gather", "dp", gather),
        )
        for n in range(units)
    ]
    return [BucketCost([unit], [to_owner], [to_all], whole_bytes=(10, 7)) for to_owner, to_all in sent]


def dp_seconds(pattern, *arguments, alike=True):
    streams = StreamClock(Round(alike))
    pattern(streams, *arguments)
    return streams.spent.get("dp", 0.0)


def test_gradients_that_are_quicker_than_a_unit_cost_the_last_buckets_alone():
    assert dp_seconds(replicated, buckets(reduce=1.0), 3, True) == 1.0
    assert dp_seconds(replicated, buckets(reduce=1.0), 3, False) == 4.0


def test_gradients_that_are_slower_cost_what_the_last_backward_pass_does_not_hide():
    assert dp_seconds(replicated, buckets(reduce=5.0), 3, True) == 4 * 5.0 - 3 * BACKWARD


def test_weights_before_the_first_forward_pass_cost_the_first_bucket_or_what_it_does_not_hide():
    assert dp_seconds(replicated, buckets(reduce=0.0, gather=0.5), 1, True, True) == 0.5
    assert dp_seconds(replicated, buckets(reduce=0.0, gather=3.0), 1, True, True) == 4 * 3.0 - 3 * FORWARD


@pytest.mark.parametrize(
    ("reduce", "exposed"),
    [(1.2, 3 * 0.2 + 1.2), (2.1, 3 * 0.2 * 2.1 / 1.2 + 2.1), (5.0, 4 * 5.0 - 3 * BACKWARD)],
)
def test_compute_is_slower_while_gradients_travel_and_what_waits_anyway_loses_nothing(reduce, exposed):
    streams = StreamClock(Round(slowdown=0.2))
    replicated(streams, buckets(reduce=reduce), 1, True)
    assert streams.spent["dp"] == pytest.approx(exposed)
    assert streams.now == pytest.approx(4 * (FORWARD + BACKWARD) + exposed)


def test_what_a_collective_slows_does_not_depend_on_how_compute_is_cut():
    """In 6 s beside a collective 5 s of compute are done, be it one operation or fifty."""
    for parts in (1, 5, 50):
        streams = StreamClock(Round(slowdown=0.2))
        streams.start(CollectiveOp("gradients", "all_reduce", "dp", 6.0))
        streams.run([TimeBreakdown(compute=8.0 / parts)] * parts)
        assert streams.now == pytest.approx(9.0) and streams.spent["dp"] == pytest.approx(1.0)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_gradients_beside_a_pipelines_last_backward_pass_slow_the_first_rank(schedule, monkeypatch):
    """Every layer's travel beside the next; the last one's are waited for, with or without the embedding."""
    job = TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), find_stack("megatron-core"), 4096, 64)
    plan = Plan(tp=2, pp=4, dp=8, micro_batch=2, schedule=schedule)
    pricing = Pricing(replace(job, hardware=slowest_of(job.hardware, plan.gpus)), plan)
    reduce = pricing.seconds_alone(FrameworkWorkload(pricing).bucket("dense").reduce[0])
    layer, embedding = (pricing.unit(kind).backward.total for kind in ("dense", "embedding"))
    assert embedding < reduce < layer
    slowed = time_step(job, plan).breakdown["dp"]
    monkeypatch.setattr(pricing_module, "slowdown_of", lambda hardware: 0.0)
    assert slowed - time_step(job, plan).breakdown["dp"] == pytest.approx(
        7 * 0.189 / 1.189 * reduce, rel=1e-9
    )


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("zb-v", 2), ("dualpipev", 2), ("interleaved", 2), ("1f1b", 1)]
)
def test_time_never_runs_backwards_behind_a_pipelines_last_actions(schedule, chunks, monkeypatch):
    passed, advance = [], StreamClock.advance

    def watched(streams, seconds):
        passed.append(seconds)
        advance(streams, seconds)

    monkeypatch.setattr(StreamClock, "advance", watched)
    job = TrainingJob(
        find_model("llama-2-70b"), find_hardware("h100"), find_stack("megatron-core"), 4096, 512
    )
    time_step(job, Plan(tp=4, pp=4, dp=16, micro_batch=2, zero=1, schedule=schedule, chunks=chunks))
    assert passed and min(passed) >= 0


def test_a_pair_of_microbatches_takes_no_less_than_what_fsdp_gathers_and_reduces_meanwhile():
    """Launches bound both passes, and what a pair saves of them hides nothing any more."""
    gpu = find_hardware("h100")
    slow = replace(gpu, across=replace(gpu.across, bandwidth_bytes_per_second=1e9))
    sizes: dict[str, Any] = {"layers": 16, "hidden": 1024, "heads": 8, "head_dim": 128, "ffn": 4096}
    shape = replace(find_model("mixtral-8x7b"), experts=Experts(16, 2, 512), **sizes)
    job = TrainingJob(shape, slow, find_stack("megatron-core"), 256, 512)
    work = framework_workload(job, Plan(pp=4, dp=32, ep=8, schedule="dualpipev", chunks=2, zero=3))
    layer, layers = work.bucket("experts"), len(work.kinds[2])
    gather, reduce = (
        sum(work.pricing.seconds_alone(each) for each in sent if each.group == "experts_dp")
        for sent in (layer.gather, layer.reduce)
    )
    pair = ActionSeconds(work).silent.fused_seconds(2, 5)
    assert pair and pair >= layers * (2 * gather + reduce) * (1 - 1e-12)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_pair_stands_still_for_two_messages_and_loses_to_gradients_what_its_backward_pass_does(overlaps):
    stack = replace(find_stack("megatron-core"), pp_overlap=overlaps)
    job = TrainingJob(find_model("mixtral-8x7b"), find_hardware("h100"), stack, 1024, 512)
    work = framework_workload(job, Plan(pp=4, dp=32, ep=8, schedule="dualpipev", chunks=2, zero=2))
    actions, message = ActionSeconds(work), sum(work.messages())
    for pair in ((0, 7), (7, 0), (2, 5)):
        silent, unreduced, whole = (
            each.fused_seconds(*pair) or 0.0
            for each in (actions.silent, actions.unreduced, actions.durations)
        )
        assert unreduced - silent == pytest.approx(0 if overlaps else 2 * message)
        alone = [each.seconds_by_stage(8)["W"][pair[1]] for each in (actions.unreduced, actions.durations)]
        assert whole - unreduced == pytest.approx(alone[1] - alone[0]) and whole > unreduced


def test_fsdp_without_prefetch_waits_for_every_collective_and_with_it_for_the_first_and_the_last():
    waits = 4 * 0.5 * 2 + 4 * 1.0
    assert dp_seconds(fully_sharded, buckets(), False, False) == waits
    assert dp_seconds(fully_sharded, buckets(), True, True) == 2 * 0.5 + 1.0


@pytest.mark.parametrize("prefetch", [False, True])
def test_fsdp_holds_two_units_and_their_gradients_at_most_and_gives_all_back(prefetch):
    streams = StreamClock(Round())
    fully_sharded(streams, buckets(), prefetch, prefetch)
    assert streams.memory.peak["buffers"] == (10 + 7 + 10 + 7 if prefetch else 10 + 7)
    assert streams.memory.held["buffers"] == 0


@pytest.mark.parametrize(("overlap", "held", "waited"), [(True, 7 + 7, 1.0), (False, 7, 4 * 1.0)])
def test_zero_2_holds_the_gradients_of_one_bucket_and_with_overlap_of_the_one_on_its_way(
    overlap, held, waited
):
    streams = StreamClock(Round())
    sharded_gradients(streams, buckets(), overlap)
    assert streams.memory.peak["buffers"] == held and streams.memory.held["buffers"] == 0
    assert streams.spent["dp"] == waited


@pytest.mark.parametrize("pattern", [fully_sharded, replicated])
def test_microbatches_that_are_alike_may_be_timed_once(pattern):
    def step(streams):
        if pattern is replicated:
            replicated(streams, buckets(reduce=5.0), 7, True)
        else:
            for _ in streams.repeats(7):
                fully_sharded(streams, buckets(reduce=5.0), True, True)

    once, each = StreamClock(Round(alike=True)), StreamClock(Round(alike=False))
    step(once), step(each)
    assert once.now == pytest.approx(each.now) and once.spent == pytest.approx(each.spent)


RUNS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 9, 30])), min_size=1, max_size=4)


@given(*[st.floats(0.01, 5)] * 2, st.floats(0, 0.3), *[st.booleans()] * 3, RUNS)
def test_units_that_are_alike_may_be_timed_until_they_are_in_their_stride(
    reduce, gather, slowdown, prefetch, overlap, reshards, runs
):
    (middle,), (_, first, last) = buckets(1, reduce, gather), buckets(3, 3.0, 4.0)
    units = [(first, middle, last)[which] for which, times in runs for _ in range(times)]

    def step(streams):
        fully_sharded(streams, units, prefetch, overlap, reshards)
        sharded_gradients(streams, units, overlap)
        return streams

    once, each = (step(StreamClock(Round(alike, slowdown))) for alike in (True, False))
    assert once.now == pytest.approx(each.now, rel=1e-9) and once.spent == pytest.approx(each.spent, rel=1e-9)


@pytest.mark.parametrize(
    ("schedule", "chunks", "apart"), [("1f1b", 1, True), ("interleaved", 2, True), ("zb-v", 2, False)]
)
def test_a_table_that_is_both_ends_of_a_pipeline_is_summed_unless_one_rank_has_both(schedule, chunks, apart):
    """Two ranks on two nodes: each sends and gets half of it twice."""
    job = TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), find_stack("megatron-core"), 4096, 64)
    tied = replace(job, shape=replace(job.shape, tied_embeddings=True))
    plan = Plan(tp=2, pp=4, dp=8, chunks=chunks, schedule=schedule)
    longer = time_step(tied, plan).seconds - time_step(job, plan).seconds
    table = 128256 * 4096 * 4 / 2
    assert longer == (
        pytest.approx(table / job.hardware.across.bandwidth_bytes_per_second, rel=0.01) if apart else 0
    )


def test_in_a_pipeline_of_torch_fsdp_gathers_once_a_step_and_reduces_behind_the_last_action():
    """torchtitan does not reshard there, and gradients are reduced by run_post_backward alone."""
    job = TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), find_stack("torchtitan"), 4096, 64)
    work = framework_workload(job, Plan(pp=2, dp=8, zero=3))
    reduced = sum(work.machine.seconds_alone(one) for bucket in work.buckets(0) for one in bucket.reduce)
    assert gradients_tail(work, {0: 0.0}).spent["dp"] == pytest.approx(reduced)
    few, many = (time_step(replace(job, global_batch=batch), work.plan).breakdown for batch in (64, 256))
    assert reduced < few["dp"] == pytest.approx(many["dp"])
    other = framework_workload(replace(job, stack=find_stack("megatron-core")), work.plan)
    assert {*step_tail(other, 0, gradients_tail(other, {0: 0.0}))} == {
        "optimizer"
    }  # its backward passes have reduced them


def test_gradients_that_stay_from_one_microbatch_to_the_next_are_reduced_once():
    """On links where nothing hides: set_requires_gradient_sync(False) in all microbatches but the last."""
    slow = replace(find_hardware("h100"), across=Link(0.0, 1e6))
    job = TrainingJob(find_model("llama-3-8b"), slow, find_stack("pytorch"), 4096, 64 * 4)
    plan = Plan(dp=64, zero=3)
    whole, each = (
        time_step(replace(job, stack=replace(job.stack, whole_between=stay)), plan).breakdown["dp"]
        for stay in (True, False)
    )
    # a microbatch gathers twice, in 2 bytes a number each, and reduces in 4
    assert whole / each == pytest.approx((4 * 2 * 2 + 4) / (4 * (2 * 2 + 4)), rel=0.01)


def test_replicas_of_shards_sum_once_a_step_in_megatron_and_in_torch_behind_every_microbatch():
    """On links between nodes where nothing hides, which replicas of a node's shards alone send over:
    outer_fsdp_group_grad_reduce in Megatron's megatron_fsdp.py is true of the last microbatch."""
    slow = replace(find_hardware("h100"), across=Link(0.0, 1e6))

    def seconds(software, microbatches):
        job = TrainingJob(find_model("llama-3-8b"), slow, find_stack(software), 4096, 64 * microbatches)
        return time_step(job, Plan(dp=64, zero=3, shards=8)).seconds

    ratios = [seconds(software, 4) / seconds(software, 1) for software in ("megatron-core", "torchtitan")]
    assert ratios == pytest.approx([1, 4], rel=0.01)


def test_gradients_are_sent_once_those_of_the_bucket_before_have_arrived():
    """On lines of different groups the second could otherwise travel beside the first."""
    unit = UnitCost([TimeBreakdown(compute=FORWARD)], [TimeBreakdown(compute=BACKWARD)])
    lines = [CollectiveOp(name, "reduce_scatter", name, 5.0) for name in ("dp", "expert_dp")]
    pair = [BucketCost([unit], [line]) for line in lines]
    for pattern in (sharded_gradients, partial(fully_sharded, prefetch=True)):
        streams = StreamClock(Round())
        pattern(streams, pair, overlap=True)
        assert streams.now == 2 * FORWARD + BACKWARD + 5.0 + 5.0


def test_what_is_under_way_behind_microbatches_that_were_timed_once_ends_as_if_each_had_been():
    exchange = CollectiveOp("weights", "all_gather", "dp", 5.0)

    def end(alike):
        streams = StreamClock(Round(alike))
        streams.start(exchange)
        for _ in streams.repeats(9):
            streams.wait(exchange)
            streams.start(exchange)
            streams.compute(3.0)
        streams.wait(exchange)
        return streams.now, streams.spent["dp"]

    assert end(alike=True) == end(alike=False) == (10 * 5.0, 10 * 5.0 - 9 * 3.0)


@pytest.mark.parametrize(("reduce", "waited"), [(1.0, 1.0), (3.0, 9.0 - 4.0)])
def test_gradients_start_when_the_last_pass_of_their_stage_has_passed_them(reduce, waited):
    """4 and 2 seconds before the rank's end, and at its end."""
    streams, passed = StreamClock(Round()), list(zip(buckets(3, reduce), (4.0, 2.0, 0.0)))
    reduce_in_slack(streams, passed, overlap=True)
    assert (streams.now, streams.spent["dp"]) == (4.0 + waited, waited)
    late = StreamClock(Round())
    reduce_in_slack(late, passed, overlap=False)
    assert (late.now, late.spent["dp"]) == (4.0 + 3 * reduce, 3 * reduce)


def test_memory_that_holds_a_byte_has_a_peak():
    memory = MemoryCounter()
    memory.hold("buffers", 1)
    memory.hold("buffers", -1)
    assert (memory.peak, memory.total) == ({"buffers": 1}, 0)


@pytest.mark.parametrize(("counter", "one"), [(MemoryCounter, 1), (MemoryCounters, np.ones(2))])
def test_of_equal_peaks_the_first_is_kept(counter, one):
    memory = counter()
    for kind in ("activations", "buffers"):
        memory.hold(kind, one)
        memory.hold(kind, -one)
    assert memory.fullest.get("buffers", 0) == 0 and memory.fullest["activations"] == 1


@pytest.mark.parametrize("pp", [1, 4])
def test_weights_beside_the_next_forward_pass_cost_less_than_at_the_end(pp):
    stack, plan = find_stack("megatron-core"), Plan(pp=pp, dp=16, zero=1)
    beside, behind = (
        time_step(
            TrainingJob(
                find_model("llama-3-8b"),
                find_hardware("h100"),
                replace(stack, gathers_first=first),
                4096,
                256,
            ),
            plan,
        ).seconds
        for first in (True, False)
    )
    assert beside < behind


def test_of_two_collectives_that_end_together_the_first_is_what_compute_lost_to():
    streams = StreamClock(Round(slowdown=0.5))
    for group in ("dp", "tp"):
        streams.start(CollectiveOp(group, "all_reduce", group, 3.0))
    streams.compute(1.0)
    assert streams.spent == {"dp": 0.5, "compute": 1.0}


def test_a_clock_that_is_looked_at_goes_through_every_repeat():
    """So that a picture has all of them; else it stops when nothing new happens."""
    for trace, times in ((None, 1), ([], 5)):
        streams = StreamClock(Round())
        streams.trace = trace
        passes = 0
        for _ in streams.repeats(5):
            streams.compute(FORWARD)
            passes += 1
        assert (passes, streams.now) == (times, 5 * FORWARD)
    assert streams.trace == [("compute", at, at + FORWARD, "compute") for at in range(5)]


def test_what_all_were_waited_for_is_not_waited_for_again():
    streams, exchange = StreamClock(Round()), CollectiveOp("weights", "all_gather", "dp", 5.0)
    for wait in (streams.wait_for_all, partial(streams.wait, exchange)):
        streams.start(exchange)
        wait()
    assert streams.now == 2 * 5.0


def test_a_loop_in_its_stride_is_left_although_a_collective_is_always_under_way():
    clock, exchange, passes = StreamClock(Round()), CollectiveOp("g", "all_gather", "dp", 5.0), 0
    clock.start(exchange)
    for _ in clock.repeats(100):
        clock.compute(2.0)
        clock.wait(exchange)
        clock.start(exchange)
        passes += 1
    clock.wait(exchange)
    assert (passes, clock.now) == (1, 101 * 5.0)
