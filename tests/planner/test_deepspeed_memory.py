"""What DeepSpeed's ZeRO holds for a while, by hand, as its code has it (deepspeed/runtime/zero)."""

from dataclasses import replace

import pytest

from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.adapters import Adapters
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.memory.deepspeed import (
    bucket_bytes,
    largest_gradient,
    live_weights,
    step_gradient_bytes,
)
from ndparallel.planner.memory.outside import context_bytes
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import peak_memory
from ndparallel.planner.software import find_stack
from ndparallel.search.bounds.lower_bound import lower_bound

H, FFN, TABLE, P = 4096, 11008, 32000 * 4096, 6_738_415_616  # llama-2-7b
DEEPSPEED = find_stack("deepspeed")


def job(model="llama-2-7b", sequence=4096, batch=64, adapters=None, offload=(), **software):
    stack = replace(DEEPSPEED, **software)
    return TrainingJob(
        find_model(model), find_hardware("h100"), stack, sequence, batch, adapters=adapters, offload=offload
    )


def buffers(plan, **changes):
    """Those of the backward pass, beyond CUDA's and NCCL's; batches that are large keep the peak there."""
    some = job(**{"sequence": 16384} | changes)
    found = peak_memory(some, plan)
    assert found.activations
    return found.buffers - context_bytes(some, plan)


def test_sizes_that_no_config_names_are_deepspeeds():
    """Of DeepSpeedZeroConfig: reduce_bucket_size, sub_group_size, stage3_max_live_parameters and
    stage3_max_reuse_distance (deepspeed/runtime/zero/config.py)."""
    sizes = (DEEPSPEED.reduce_bucket, DEEPSPEED.sub_group, DEEPSPEED.live_weights, DEEPSPEED.reuse_distance)
    assert sizes == (5e8, 1e9, 1e9, 1e9)


# ---------------------------------------------------------------------------------------- gradients that wait


@pytest.mark.parametrize(
    ("plan", "beside", "count"),
    [
        (Plan(dp=8), True, 0),
        (Plan(dp=8, zero=1), True, 2),
        (Plan(dp=8, zero=1), False, 1),
        (Plan(dp=8, zero=2), True, 2),
        (Plan(dp=8, zero=3), True, 1),
        (Plan(pp=2, dp=4, zero=1), True, 1),
    ],
)
def test_gradients_wait_in_one_or_two_buffers_of_reduce_bucket_size(plan, beside, count):
    """setup_buckets and reduce_gradients in stage_1_and_2.py and _setup_for_real_optimizer in stage3.py:
    torch.empty(reduce_bucket_size) in 16 bits, whatever the model's size."""
    assert DEEPSPEED.reduce_bucket == 5e8
    for numbers in (5e8, 2e10):
        assert bucket_bytes(job(dp_overlap=beside, reduce_bucket=numbers), plan) == count * 2 * numbers


@pytest.mark.parametrize(
    ("plan", "beside", "numbers"),
    [
        (Plan(dp=8), True, 0),
        (Plan(dp=8, zero=1), False, 5e8),
        (Plan(dp=8, zero=1), True, 2 * 5e8 + 5e8),
        (Plan(dp=8, zero=2), True, 2 * 5e8 + 5e8 + TABLE),
        (Plan(dp=8, zero=2), False, 5e8 + 5e8 + TABLE),
        (Plan(dp=2, zero=2), True, 2 * 5e8 + 5e8 + TABLE),
        (Plan(cp=2, zero=2), True, 2 * 5e8 + 5e8 + TABLE),
        (Plan(dp=1, zero=2), True, 2 * 5e8 + TABLE),
    ],
)
def test_beside_them_lie_the_copy_that_is_reduced_and_the_last_gradient(plan, beside, numbers):
    """allreduce_bucket joins what a buffer has of several shards: of one shard it needs no copy. ZeRO-1
    reduces without overlap_comm behind the backward pass, and its gradients are counted whole anyway."""
    assert buffers(plan, dp_overlap=beside, model="llama-2-7b") == pytest.approx(2 * numbers)


def test_a_gradient_that_no_buffer_has_room_for_is_reduced_where_it_is():
    """extra_large_param_to_reduce: it is copied where it lies in several shards, and ZeRO-3 copies its
    buffer."""
    small = {"reduce_bucket": 1e6, "dp_overlap": True}
    assert buffers(Plan(dp=8, zero=2), **small) == pytest.approx(2 * (2 * 1e6 + 2 * TABLE))
    more = buffers(Plan(dp=8, zero=3), **small, live_weights=0.0, reuse_distance=0.0)
    assert more == pytest.approx(2 * (2 * 1e6 + TABLE + TABLE))  # the last is the weight itself


@pytest.mark.parametrize(("batch", "beside", "kept"), [(8, True, 1 / 8), (16, True, 1), (8, False, 1)])
def test_zero_1_has_shards_of_gradients_where_its_only_backward_pass_reduces_them(batch, beside, kept):
    """reduce_ready_partitions_and_remove_grads in stage_1_and_2.py: at the boundary, as they come."""
    some = job(sequence=16384, batch=batch, dp_overlap=beside)
    assert peak_memory(some, Plan(dp=8, zero=1)).gradients == pytest.approx(2 * P * kept)


def test_a_buffer_is_not_fuller_than_the_model_has_gradients():
    tuned = {"adapters": Adapters(16), "live_weights": 0.0, "reuse_distance": 0.0}
    trained = 32 * 16 * (4 * 2 * H + 3 * (H + FFN))
    last = 16 * FFN
    found = buffers(Plan(dp=8, zero=3), **tuned)
    assert found == pytest.approx(2 * (5e8 + trained + last + TABLE))


def test_the_largest_gradient_is_the_tables_or_a_matrixs():
    assert largest_gradient(job(), Plan()) == TABLE
    assert largest_gradient(job("llama-3-70b"), Plan()) == 128256 * 8192
    narrow = replace(job(), shape=replace(find_model("llama-2-7b"), vocab=256))
    assert largest_gradient(narrow, Plan()) == H * FFN  # gate and up are two
    assert largest_gradient(narrow, Plan(tp=2)) == H * FFN / 2


# -------------------------------------------------------------------------------------------- weights, whole


@pytest.mark.parametrize(
    ("software", "numbers"),
    [
        ({}, 1e9 + TABLE),
        ({"live_weights": 3e8}, 1e9 / 2 + TABLE),
        ({"live_weights": 3e8, "reuse_distance": 1e8}, 3e8 + TABLE),
        ({"live_weights": 0.0, "reuse_distance": 0.0}, TABLE),
        ({"live_weights": 1e10}, P),
        ({"reuse_distance": 1e12}, P),
    ],
)
def test_zero_3_gathers_ahead_to_max_live_parameters_and_keeps_what_is_used_again(software, numbers):
    """_fetch_sub_module_impl and __params_to_release in partitioned_param_coordinator.py."""
    assert live_weights(job(**software), Plan(dp=8, zero=3)) == numbers
    without = buffers(Plan(dp=8, zero=3), **software | {"live_weights": 0.0, "reuse_distance": 0.0})
    assert buffers(Plan(dp=8, zero=3), **software) - without == pytest.approx(2 * (numbers - TABLE))


def test_no_more_weights_are_whole_than_a_stage_has():
    assert live_weights(job(live_weights=1e10), Plan(pp=2, dp=4, zero=3)) == P / 2


def test_eight_billion_parameters_have_three_gigabytes_of_live_weights():
    assert 2 * live_weights(job("llama-3-8b"), Plan(dp=8, zero=3)) == 2 * (1e9 + 128256 * 4096)


# --------------------------------------------------------------------------------------------------- the step


@pytest.mark.parametrize(
    ("plan", "weights", "gradients", "stays"),
    [
        (Plan(dp=8), 1, 2 + 4, 0),  # cast
        (Plan(dp=2, zero=1), 1, (2 + 2 + 4) / 2, 0),  # joined, and cast
        (Plan(dp=8, zero=2), 1, (2 + 2 + 4) / 8, 0),
        (Plan(dp=8, zero=3), 1 / 8, (2 + 2 + 4) / 8, 5e8),
    ],
)
def test_the_step_makes_gradients_in_float32_when_activations_are_freed(plan, weights, gradients, stays):
    """step in fp16/unfused_optimizer.py, stage_1_and_2.py and stage3.py."""
    some = job(sequence=16, batch=16, reduce_bucket=stays or 1.0, live_weights=0.0, reuse_distance=0.0)
    found = peak_memory(some, plan)
    shards = plan.dp if plan.zero else 1
    assert found.weights == pytest.approx(2 * weights * P)
    assert found.gradients == pytest.approx(gradients * P)
    assert found.optimizer == 12 * P / shards
    assert (found.activations, found.logits) == (0, 0)
    assert found.buffers == pytest.approx(context_bytes(some, plan) + 2 * stays)


def test_zero_3_steps_a_sub_group_at_a_time():
    """_prepare_fp32_grad_for_sub_group in stage3.py."""
    small = {"sequence": 16, "reduce_bucket": 1.0, "live_weights": 0.0, "reuse_distance": 0.0}
    whole, parts = (
        peak_memory(job(**small, sub_group=numbers), Plan(zero=3, dp=2)).gradients for numbers in (1e10, 2e9)
    )
    assert whole == pytest.approx((2 + 2 + 4) * P / 2)
    assert parts == pytest.approx(2 * P / 2 + (2 + 4) * 2e9)


def test_the_step_casts_no_gradients_to_16_bits():
    """Where moments and weights have 16 bits; ZeRO joins them all the same."""
    half = replace(job(), half=True)
    assert [step_gradient_bytes(half, Plan(dp=8, zero=zero)) for zero in (0, 1, 2, 3)] == [0, 2, 2, 2]


def test_an_optimizer_on_the_host_makes_no_gradients_on_the_gpu():
    assert step_gradient_bytes(job(offload=("optimizer",)), Plan(dp=8, zero=2)) == 0
    assert peak_memory(job(sequence=16, offload=("optimizer",)), Plan(dp=8, zero=2)).activations > 0


@pytest.mark.parametrize("sequence", [16, 4096])
def test_the_peak_is_the_larger_of_backward_pass_and_step(sequence):
    plan = Plan(dp=8, zero=2, recompute="full")
    found = peak_memory(job(sequence=sequence), plan)
    backward = peak_memory(job(sequence=sequence, casts_gradients=False), plan)
    assert (found.total > backward.total) == (found.activations == 0) == (sequence == 16)
    assert found.total >= backward.total


def test_a_search_counts_the_same_peak():
    for zero, sub_group in ((0, 1e9), (1, 1e9), (2, 1e9), (3, 1e8), (3, 1e9)):
        for sequence in (16, 4096):
            some, plan = job(sequence=sequence, sub_group=sub_group), Plan(dp=8, zero=zero)
            (bound,) = lower_bound(some, plan).memory_bytes
            assert bound == pytest.approx(peak_memory(some, plan).total, rel=1e-9)


def test_a_plan_says_that_its_memory_peaks_in_the_step(capsys):
    asked = ["--model", "llama-2-7b", "--gpus", "8", "--zero", "2", "--software", "deepspeed"]
    sized = ["--global-batch", "64", "--recompute", "full", "--timeline", "none"]
    for sequence, said in (("64", True), ("4096", False)):
        main(["plan", *asked, *sized, "--sequence", sequence])
        assert ("Memory peaks in the optimizer's step" in capsys.readouterr().out) == said
