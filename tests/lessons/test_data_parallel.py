"""1D: every strategy computes what one GPU computes, in the time, bytes and memory that its idea promises."""

import re
from dataclasses import replace

import numpy as np
import pytest

from gpu import COMPUTE, GPU, MEMORY, Event
from ndparallel.base.errors import UserError
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.lesson import Strategy
from ndparallel.lessons.main import main
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import Runner
from ndparallel.parallel.mesh import Mesh
from ndparallel.results.measure import breakdown
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica
from tests.support.common import (
    SMALL,
    loss_and_gradient_difference,
    measured,
    names,
    reference,
    run,
    strategy,
)

LESSON = "1d_data_parallel"
STRATEGIES = names(LESSON)
JOB = Job(model=SMALL, batch=16)
DEFAULT = Job()


def forgets_one_wait(gpu: GPU, job: Job) -> Outcome:
    replica = Replica(gpu, job, bucket_mb=0)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        handles = [bucket.all_reduce(async_op=True) for bucket in replica.buckets]
        for handle in handles[1:]:
            handle.wait()
        replica.optimizer_step()
    return replica.outcome


def test_a_forgotten_wait_is_a_wrong_gradient():
    forgetful = Strategy("forgetful", forgets_one_wait, lambda gpus: Mesh(dp=gpus))
    assert loss_and_gradient_difference(run(forgetful, JOB, 4), JOB)[1] > 0.01


@pytest.mark.parametrize("gpus", [4, 8])
@pytest.mark.parametrize("name", STRATEGIES)
def test_compute_exposed_and_bubble_add_up_to_the_step_on_every_gpu(name, gpus):
    results = run(strategy(LESSON, name), DEFAULT.replace(model=SMALL), gpus)
    step = max(result.end_seconds for result in results)
    for result in results:
        parts = breakdown(result.events, step)
        assert parts.compute + parts.exposed + parts.bubble == pytest.approx(step, rel=1e-9)


def test_ring_ddp_is_slower_across_nodes_than_within_one():
    across = measured(LESSON, "DDP ring", DEFAULT, 4, replace(POCKET, gpus_per_node=1))
    assert across.step_seconds > measured(LESSON, "DDP ring", DEFAULT, 4).step_seconds


def test_four_gpus_are_slower_than_one_where_the_model_is_small_for_its_gpu():
    from ndparallel.hardware.accelerator import find_hardware

    h100 = find_hardware("h100")
    single = run(strategy("0d_single_gpu", "single GPU"), DEFAULT, 1, h100)[0].end_seconds
    assert measured(LESSON, "FSDP", DEFAULT, 4, h100).step_seconds > single


def states_before_the_optimizer_step(results) -> dict[str, float]:
    """Bytes held by kind on rank 0 when the first optimizer step begins."""
    held = {}
    for event in map(Event._make, results[0].events):
        if event.kind == COMPUTE and event.what.startswith("optimizer"):
            break
        if event.kind == MEMORY:
            held[event.what] = event.bytes
    return held


@pytest.mark.parametrize(
    ("name", "weights", "gradients", "optimizer"),
    [
        ("DDP naive", 4, 4, 8),
        ("DDP ring", 4, 4, 8),
        ("DDP overlapped", 4, 4, 8),
        ("ZeRO-1", 4, 4, 8 / 4),
        ("ZeRO-2", 4, 4 / 4, 8 / 4),
        ("FSDP", 4 / 4, 4 / 4, 8 / 4),
        ("FSDP prefetch", 4 / 4, 4 / 4, 8 / 4),
        ("FSDP no reshard", 4 / 4, 4 / 4, 8 / 4),
    ],
)
def test_states_take_4_and_4_and_8_bytes_a_parameter_divided_where_sharded(
    name, weights, gradients, optimizer
):
    parameters = sum(holding.array.size for holding in reference(DEFAULT).value.weights)
    held = states_before_the_optimizer_step(run(strategy(LESSON, name), DEFAULT, 4))
    assert held["weights"] == weights * parameters
    assert held["gradients"] == gradients * parameters
    assert held["optimizer"] == optimizer * parameters
    assert held["activations"] == 0 and held.get("buffers", 0) in (
        0,
        4 * parameters if name == "FSDP no reshard" else 0,
    )


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("DDP naive", 1.0),
        ("DDP ring", 1.0),
        ("DDP overlapped", 1.0),
        ("ZeRO-1", 1.0),
        ("ZeRO-2", 1.0),
        ("FSDP", 1.5),
        ("FSDP prefetch", 1.5),
        ("FSDP no reshard", 1.0),
    ],
)
def test_bytes_sent_are_a_multiple_of_a_rings(name, times):
    parameters = sum(holding.array.size for holding in reference(DEFAULT).value.weights)
    assert measured(LESSON, name, DEFAULT, 4).bytes_sent_per_gpu == times * 2 * (4 - 1) / 4 * 4 * parameters


def test_zero_2_reduces_after_every_microbatch_and_ddp_once():
    bytes_sent = {
        name: measured(LESSON, name, DEFAULT.replace(microbatches=2), 4).bytes_sent_per_gpu
        for name in ("DDP ring", "ZeRO-2", "FSDP")
    }
    once = measured(LESSON, "DDP ring", DEFAULT, 4).bytes_sent_per_gpu
    assert bytes_sent == {"DDP ring": once, "ZeRO-2": 1.5 * once, "FSDP": 3 * once}


def test_the_loss_falls_over_fifty_steps():
    losses = run(strategy("0d_single_gpu", "single GPU"), Job(steps=50), 1)[0].value.losses
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])


def test_total_compute_is_the_same_with_and_without_accumulation_but_for_the_overhead_of_more_kernels():
    whole, parts = (measured("0d_single_gpu", name, DEFAULT, 1) for name in ("single GPU", "4 microbatches"))
    assert whole.compute_seconds < parts.compute_seconds < 1.002 * whole.compute_seconds
    assert parts.peak_memory_bytes["activations"] == whole.peak_memory_bytes["activations"] / 4


@pytest.mark.parametrize(
    "case",
    [
        (8, 3, Mesh(), "3 microbatches", "9 batch", "2 microbatches"),
        (8, 1, Mesh(dp=5), "5 data-parallel parts", "10 batch", "4 or 8 GPUs"),
        (8, 1, Mesh(dp=16), "16 data-parallel parts", "16 batch", "8 GPUs"),
        (8, 2, Mesh(dp=3), "3 data-parallel parts of 2 microbatches", "6 batch", "2 or 4 GPUs"),
        (8, 4, Mesh(dp=4), "4 data-parallel parts of 4 microbatches", "16 batch", "2 microbatches", "2 GPUs"),
        (8, 1, Mesh(tp=2, dp=3), "3 data-parallel parts", "9 batch", "4 or 8 GPUs"),
    ],
)
def test_a_batch_that_cannot_be_cut_names_each_thing_that_could_be_changed(case):
    batch, microbatches, mesh, into, *near = case
    with pytest.raises(UserError) as refused:
        Job(batch=batch, microbatches=microbatches, mesh=mesh)
    told = str(refused.value)
    assert told.startswith(f"a batch of {batch} sequences cannot be cut into {into}; the nearest ")
    found = re.findall(
        r"the nearest (?:number of )?(\w+)(?: that can)? is ([\d or]+) \(--\w+ \d+\)[;.]", told
    )
    assert [f"{number} {what}" for what, number in found] == near


# ------------------------------------------------------------------------------------ one cause after another


def test_over_nodes_two_levels_are_worth_more_than_hiding_and_both_together_most():
    """Each of the four changes one thing alone: the algorithm, or when it runs."""
    names = ("DDP ring", "DDP ring overlapped", "DDP hierarchical", "DDP overlapped")
    waits = [measured(LESSON, name, Job(), 8).exposed_communication_seconds for name in names]
    assert waits == sorted(waits, reverse=True)
    shares = [wait / waits[0] for wait in waits]
    assert shares == pytest.approx([1, 0.41, 0.25, 0.10], abs=0.005)


def test_on_one_node_two_levels_are_the_ring():
    one, other = (run(strategy(LESSON, name), Job(), 4) for name in ("DDP ring", "DDP hierarchical"))
    assert [rank.events for rank in one] == [rank.events for rank in other]


def test_zero1_that_gathers_beside_the_forward_pass_waits_for_its_first_two_buckets_alone():
    """The embedding's weights come before anything is computed, the first layer's beside a short lookup; all
    other layers' hide."""
    at_the_end, beside = (
        measured(LESSON, name, Job(bucket_mb=0), 4) for name in ("ZeRO-1", "ZeRO-1 overlapped")
    )
    sizes = [
        held.array.nbytes
        for held in run(strategy(LESSON, "DDP overlapped"), Job(bucket_mb=0), 4)[0].value.weights
    ]
    gathers = [
        3 * (POCKET.inside.latency_seconds + size / 4 / POCKET.inside.bandwidth_bytes_per_second)
        for size in sizes
    ]
    model, tokens = Job().model, Job().batch * Job().model.sequence / 4
    lookup = 2 * tokens * model.hidden * 4 / POCKET.memory_bandwidth_bytes_per_second
    saved = at_the_end.exposed_communication_seconds - beside.exposed_communication_seconds
    assert saved == pytest.approx(sum(gathers[:-2]) + lookup, rel=1e-2)
    assert beside.bytes_sent_per_gpu == at_the_end.bytes_sent_per_gpu


def test_what_fsdp_gains_over_ddp_is_mostly_the_optimizers_shard_which_zero1_has_too():
    lesson = load(LESSON)
    with Runner(POCKET, "inline") as runner:
        rows = {row["strategy"]: row for row in lesson.sweep("causes", runner, Job()).rows}
    ddp, zero1, fsdp = (rows[name] for name in ("DDP overlapped", "ZeRO-1 overlapped", "FSDP prefetch"))
    gain, optimizer = (ddp[key] - fsdp[key] for key in ("step_seconds", "optimizer_seconds"))
    assert optimizer > 0.65 * gain
    assert ddp["optimizer_seconds"] == pytest.approx(4 * zero1["optimizer_seconds"], rel=1e-2)
    parts = [row["compute_seconds"] + row["exposed_communication_seconds"] for row in rows.values()]
    assert parts == pytest.approx([row["step_seconds"] for row in rows.values()], rel=1e-9)


def test_on_the_classrooms_hardware_the_many_seconds_are_explained_and_waiting_too_short_to_show_is_not_told(
    capsys,
):
    assert main(load(LESSON), ["--hardware", "classroom", "--engine", "inline"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "classroom has round numbers for sums by hand: 10 FLOP/s, and 400 B/s over a link." in told
    assert "of what the ring exposes" not in told and "FSDP with prefetch sends 1.5x" in told
