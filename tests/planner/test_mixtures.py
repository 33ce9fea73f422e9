"""Claims about how rows get to experts and back: dispatchers, what hides them, the products behind them."""

from dataclasses import replace
from typing import Any

import pytest

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.hardware.collective_links import SLOWDOWN
from ndparallel.model import costs
from ndparallel.pipeline.catalog import build
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.layers.pricing import Pricing, UnitSeconds
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.optimizer_kernels import OPTIMIZERS, bytes_of
from ndparallel.planner.prediction import predict, time_step
from ndparallel.planner.software import STACKS
from ndparallel.planner.stack import Stack
from ndparallel.planner.step.framework import FrameworkWorkload, framework_workload
from ndparallel.planner.step.paired import beside, count_pairs, in_pairs, pairs_run, share_in_pairs
from ndparallel.planner.step.parameter_kernels import optimizer_seconds, step_operations
from ndparallel.search.bounds.lower_bound import lower_bound

QWEN = find_model("qwen3-235b-a22b")
EP8 = Plan(pp=8, chunks=3, dp=8, ep=8, zero=1, schedule="interleaved")


def job(
    dtype: str = "bf16", gpu: str = "b200", capacity: float | None = None, **switches: Any
) -> TrainingJob:
    stack: Stack = replace(STACKS["megatron-core"], **switches)
    return TrainingJob(QWEN, find_hardware(gpu), stack, 4096, 512, dtype=dtype, capacity_factor=capacity)


def named(name: str, work: TrainingJob) -> list[Any]:
    lists = Pricing(work, EP8).lists.unit("experts", "none")
    return [item for items in lists for item in items if item.name == name]


def copied(work: TrainingJob) -> float:
    """Bytes that permutations move in a forward pass, in those of the rank's own rows."""
    return max(item.bytes for item in named("permute", work)) / (4096 * QWEN.hidden * 2)


@pytest.mark.parametrize(
    ("dispatcher", "passes"),
    [
        ("alltoall", 2 + 2 * 8 + 4 * 8),
        ("allgather", 2 * 8 * (1 - (7 / 8) ** 8) + 2 * 8),
        ("deepep", 2 * 8 * (1 - (7 / 8) ** 8) + 2 * 8),
        ("hybridep", 2 + 2 * 8 * (1 - (7 / 8) ** 8) + 2 * 8),
    ],
)
def test_a_dispatcher_copies_rows_as_often_as_its_code_does(dispatcher, passes):
    """By hand, of 8 choices on 8 ranks: token_dispatcher.py of Megatron-Core, core_v0.16.0."""
    assert copied(job(dispatcher=dispatcher, fused_permutation=True)) == pytest.approx(passes)
    plain = copied(job(dispatcher=dispatcher))
    assert plain - passes == pytest.approx(0 if dispatcher == "hybridep" else 3 * 8)


@pytest.mark.parametrize("ep", [1, 4])
def test_where_tp_cuts_experts_an_allgather_dispatcher_gathers_the_rows_of_all_ep_ranks_over_tp(ep):
    """4096 tokens of width 4096 in 16 bits of each (MoEAllGatherTokenDispatcher)."""
    stack = replace(STACKS["megatron-core"], dispatcher="allgather", expert_tp=True)
    some = TrainingJob(find_model("mixtral-8x7b"), find_hardware("h100"), stack, 4096, 64)
    plan = Plan(tp=2, dp=8, ep=ep, zero=1, sequence_parallel=True)
    items = LayerLists(some.shape, plan.share(some), stack).layer("experts", "none").forward
    gathers = [
        each.bytes for each in items if isinstance(each, CollectiveOp) and each.name == "tp all_gather"
    ]
    assert gathers == [4096 * 4096 * 2, ep * 4096 * 4096 * 2]  # attention's, and the experts'


@pytest.mark.parametrize(
    ("software", "passes"), [("megatron-core", 2 + 2 * 8 + 4 * 8), ("torchtitan", 2 + 2 * 8)]
)
@pytest.mark.parametrize("dispatcher", ["alltoall", "deepep", "hybridep"])
def test_rows_that_stay_on_their_rank_are_copied_as_for_an_all_to_all(software, passes, dispatcher):
    """Megatron-Core sorts them by expert all the same (sort_chunks_by_idxs in dispatch_postprocess)."""
    work = replace(job(), stack=replace(STACKS[software], dispatcher=dispatcher, fused_permutation=True))
    forward = Pricing(work, Plan(dp=8)).lists.unit("experts", "none").forward
    copied = max(item.bytes for item in forward if item.name == "permute")
    assert copied / (4096 * QWEN.hidden * 2) == pytest.approx(passes)


def test_products_of_8_bits_pad_their_rows_unless_rows_are_dropped_or_the_dispatcher_has_done_so():
    for dispatcher, padded in (("deepep", 4 * 8), ("hybridep", 0)):
        rows = [copied(job(dtype, dispatcher=dispatcher)) for dtype in ("bf16", "mxfp8")]
        assert rows[1] - rows[0] == pytest.approx(padded)
    assert copied(job("mxfp8", capacity=1.0)) == copied(job("bf16"))


def test_what_travels_beside_another_microbatch_costs_what_it_slows_it_by():
    """Behind the forwards that fill the pipeline, in all passes but 25 of 64 * 3 in the mean."""
    shown, hidden = job(hides_dispatch=False), job(hides_dispatch=True)
    share = share_in_pairs(EP8.recipe, EP8.microbatches(hidden), EP8.pp, EP8.chunks)
    assert share == pytest.approx(1 - (7 + 2 * 8 + 1) / (64 * 3))
    passes = (
        FrameworkWorkload(Pricing(shown, EP8)).unit("experts"),
        FrameworkWorkload(Pricing(hidden, EP8)).unit("experts"),
    )
    before, after = (one.forward["ep"] for one in passes)
    assert after == pytest.approx((1 - share + share * SLOWDOWN / (1 + SLOWDOWN)) * before)
    assert time_step(hidden, EP8).seconds < time_step(shown, EP8).seconds


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_passes_that_wait_for_launches_wait_as_long_beside_one_another(share):
    """One CPU launches both microbatches' kernels: four passes of 2 s of launches take 8 s, each once."""
    part = TimeBreakdown(compute=1.0, launch=1.0)
    part.launch_seconds = 2.0
    unit = UnitSeconds(part, part, part, part)
    assert in_pairs(unit, share, SLOWDOWN).total.total == pytest.approx(8)
    busy = part.launched(TimeBreakdown(compute=3.0))
    bound_forward = UnitSeconds(part, busy, busy, busy)  # launched meanwhile: 8 s beside 10 s of compute
    assert in_pairs(bound_forward, share, SLOWDOWN).total.total == pytest.approx(11 - share)


@pytest.mark.parametrize(("launched", "line", "seconds"), [(0, 0, 9), (10, 0, 10), (10, 13, 13), (0, 13, 13)])
def test_a_pair_takes_the_longest_of_its_work_its_launches_and_the_line_of_fsdp(launched, line, seconds):
    """3 s and 5 s of compute. Rows of the forward pass, 5 s, hide in the 5; of the 4 s backward 1 does not,
    whatever else each pass waited for alone."""
    forward, backward = TimeBreakdown(compute=3.0, ep=5.0, launch=0.5), TimeBreakdown(compute=5.0, ep=4.0)
    forward.launch_seconds = backward.launch_seconds = launched / 2
    pair = beside(forward, backward, 0.0, line)
    assert (pair["compute"], pair["ep"], pair.total) == (8, 1, seconds)


def test_beside_a_layer_without_rows_those_of_another_hide():
    rows, dense = TimeBreakdown(compute=0.5, ep=3.0), TimeBreakdown(compute=3.0)
    assert beside(rows, dense, 0.0).total == beside(dense, rows, 0.0).total == 3.5


@pytest.mark.parametrize("rank", range(4))
def test_pairs_of_dualpipev_are_of_a_ranks_two_stages_and_each_round_has_as_many(rank):
    """The figure of DualPipeV (github.com/deepseek-ai/DualPipe): a rank's own two chunks overlap."""
    few, more, most = (build("dualpipev", 4, microbatches) for microbatches in (16, 20, 32))
    assert set(count_pairs(most, rank)) == {(rank, 7 - rank), (7 - rank, rank)}
    assert pairs_run(few, more, 4, rank) == count_pairs(most, rank)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("gpu", ["h100", "gb200"])
def test_a_pair_of_microbatches_launches_its_kernels_once_whatever_is_recomputed(gpu, recompute):
    pricing = Pricing(job(gpu=gpu), replace(EP8, recompute=recompute))
    unit = pricing.unit("experts")
    pair = beside(unit.forward, unit.backward, pricing.slowdown)
    assert in_pairs(unit, 1.0, pricing.slowdown).total.total == pytest.approx(pair.total)
    assert in_pairs(unit, 0.0, pricing.slowdown).total.total == pytest.approx(unit.total.total)


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_a_step_that_launches_bound_is_no_longer_where_all_to_alls_hide(zero):
    """A pair's waits counted in its backward pass alone, which made passes unequal, and ranks wait."""
    shape = replace(
        find_model("qwen3-30b-a3b"), layers=8, hidden=2048, heads=8, kv_heads=4, head_dim=128, vocab=256
    )
    shape = replace(shape, experts=Experts(16, 2, 1024))
    gpu = find_hardware("b200")
    slow = replace(gpu, across=replace(gpu.across, bandwidth_bytes_per_second=4.5e9))
    plan = Plan(pp=2, dp=8, ep=4, zero=zero, schedule="interleaved", chunks=2)
    shown, hidden = (
        TrainingJob(shape, slow, replace(STACKS["megatron-core"], hides_dispatch=hides), 4096, 128)
        for hides in (False, True)
    )
    assert time_step(hidden, plan).seconds < time_step(shown, plan).seconds


@pytest.mark.parametrize("schedule", ["v-half", "v-min", "zb-v", "dualpipev"])
def test_no_schedule_but_the_interleaved_one_takes_megatrons_pairs(schedule):
    """Megatron-Core runs its own schedules so. DualPipeV pairs a rank's two chunks, whatever is asked for."""
    plan = Plan(pp=4, dp=8, ep=8, chunks=2, zero=1, schedule=schedule)
    hidden, shown = job(hides_dispatch=True), job(hides_dispatch=False)
    assert time_step(hidden, plan).seconds == time_step(shown, plan).seconds
    assert lower_bound(hidden, plan).seconds[0] <= time_step(hidden, plan).seconds


def test_nothing_hides_in_a_pipeline_whose_ranks_have_one_chunk_and_the_bound_stays_near():
    one, work = Plan(pp=8, dp=8, ep=8, zero=1), job(hides_dispatch=True)
    assert share_in_pairs(one.recipe, one.microbatches(work), one.pp, one.chunks) == 0
    for plan in (one, EP8):
        ratio = lower_bound(work, plan).seconds[0] / time_step(work, plan).seconds
        assert 0.98 < ratio <= 1


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("plan", [Plan(tp=8, cp=4, dp=2, ep=2, zero=3, sequence_parallel=True), EP8])
def test_a_bound_is_not_above_a_step_of_pairs_that_launches_bound(plan, recompute):
    plan = replace(plan, zero=3, recompute=recompute)
    work = replace(job(hides_dispatch=True), shape=find_model("qwen3-30b-a3b"), sequence=2048)
    assert 0.98 < lower_bound(work, plan).seconds[0] / time_step(work, plan).seconds <= 1 + 1e-9


@pytest.mark.parametrize("plan", [Plan(tp=8, dp=8), replace(EP8, ep=1), replace(EP8, ep=1, zero=3)])
def test_without_expert_parallelism_no_rows_travel_and_nothing_is_paired(plan):
    """So --overlap-moe-expert-parallel-comm is not written for such a plan."""
    without, asked = (job(hides_dispatch=hides) for hides in (False, True))
    assert predict(asked, plan).as_dict() == predict(without, plan).as_dict()
    bounds = [lower_bound(work, plan) for work in (without, asked)]
    assert bounds[0] == bounds[1]


def test_fused_experts_neither_activate_nor_cast_between_their_products():
    plain, fused = job("mxfp8"), job("mxfp8", fused_experts=True)
    assert len(named("swiglu", plain)) == 2 and not named("swiglu", fused)
    assert [len(named("experts cast to mxfp8", one)) for one in (plain, fused)] == [4, 2]


@pytest.mark.parametrize(("experts", "rows", "tflops"), [(8, 4096, 508.77), (16, 2048, 398.81)])
def test_products_of_experts_are_as_fast_as_transformer_engine_measured_on_an_h100(experts, rows, tflops):
    """NVIDIA/TransformerEngine, pull request 2045, TE 2.2, bf16, 768 x 2048: a product each, on four streams,
    which hide nothing of the gaps between them."""
    one = costs.matmul("up", rows, 768, 2048, "bfloat16", experts)._replace(kernels=experts)
    assert one.flops / find_hardware("h100").seconds(one) == pytest.approx(tflops * 1e12, rel=0.1)


# experts, rows of each, outputs, inputs, and the share of 2,250 TFLOP/s that was measured
SWEEP = (
    (256, 128, 7168, 2048, 0.178),
    (160, 154, 3072, 5120, 0.200),
    (128, 256, 7168, 2048, 0.303),
    (64, 512, 4096, 7168, 0.367),
    (64, 512, 7168, 2048, 0.427),
    (40, 616, 5120, 1536, 0.326),
    (32, 1024, 4096, 7168, 0.457),
    (20, 1232, 5120, 1536, 0.397),
    (40, 2460, 5120, 1536, 0.496),
    (40, 9832, 3072, 5120, 0.475),
)


def test_products_of_experts_rise_with_their_rows_as_simumax_measured_on_a_b200():
    """MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json, group_matmul, forward."""
    gpu, errors = find_hardware("b200"), []
    for experts, rows, n, k, share in SWEEP:
        one = costs.matmul("up", rows, n, k, "bfloat16", experts)._replace(kernels=experts)
        errors.append(one.flops / gpu.seconds(one) / (share * 2250e12) - 1)
    assert sum(map(abs, errors)) / len(errors) < 0.13 and max(map(abs, errors)) < 0.25


def test_the_steps_kernels_move_what_is_priced_and_gradients_are_divided_before_they_are_summed():
    assert bytes_of("megatron-core") == 4 + 8 + 28 + 6
    assert all(kernel.source for kernels in OPTIMIZERS.values() for kernel in kernels)
    work = FrameworkWorkload(Pricing(job(), EP8))
    operations = {one.name: one.bytes for one in step_operations(work.pricing, *work.trained(0))}
    assert operations["divide gradients"] == 2 * operations["zero gradients"]
    assert operations["adam"] == pytest.approx(7 * operations["norm"])


@pytest.mark.parametrize(("size", "cast"), [(2, 2 + 4), (4, 0)])
def test_megatrons_step_makes_float32_gradients_of_those_in_16_bits(size, cast):
    work = FrameworkWorkload(Pricing(job(gradient_bytes=size), EP8))
    pricing, held = work.pricing, work.trained(0)
    operations = {one.name: one.bytes for one in step_operations(pricing, *held)}
    assert operations.get("gradients to main", 0) == pytest.approx(cast / 28 * operations["adam"])
    seconds = sum(pricing.seconds(one) for one in step_operations(pricing, *held))
    assert optimizer_seconds(pricing, *held) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
@pytest.mark.parametrize("software", ["megatron-core", "torchtitan", "fsdp-2023", "megatron-2021"])
def test_the_steps_kernels_take_what_a_plan_counts_on_a_gpu_that_was_calibrated_too(software, moments):
    h100: Any = find_hardware("h100")
    gpu = replace(h100, optimizer_fraction=0.5)
    work = framework_workload(
        TrainingJob(find_model("gpt2-xl"), gpu, STACKS[software], 1024, 8, moments=moments), Plan(dp=2)
    )
    kernels = step_operations(work.pricing, *work.trained(0))
    counted = optimizer_seconds(work.pricing, *work.trained(0))
    assert sum(map(work.pricing.seconds, kernels)) == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize(
    ("dispatcher", "switches", "waits"),
    [
        ("alltoall", {}, 1),
        ("allgather", {}, 1),
        ("hybridep", {}, 1),
        ("deepep", {}, 2),
        ("deepep", {"fused_mask": True}, 1),
    ],
)
def test_the_cpu_waits_for_counts_in_a_forward_pass_alone_and_for_none_where_rows_are_dropped(
    dispatcher, switches, waits
):
    """Megatron-Core, token_dispatcher.py: before_ep_alltoall; DeepEP's moe_recv_counter; indices[mask]."""
    work = job(dispatcher=dispatcher, **switches)
    lists = Pricing(work, EP8).lists.unit("experts", "none")
    held = [sum(getattr(item, "kind", "") == "wait" for item in items) for items in lists]
    assert held == [waits, 0, 0, 0]
    dropping = Pricing(replace(work, capacity_factor=1.0), EP8).lists.unit("experts", "none")
    assert not any(getattr(item, "kind", "") == "wait" for items in dropping for item in items)


def test_a_gpu_stands_still_while_what_follows_a_wait_is_launched_but_in_a_graph_of_the_step():
    launch = {
        graphs: Pricing(job(graphs=graphs), EP8).unit("experts").forward["launch"]
        for graphs in ("", "router", "step")
    }
    assert launch[""] > launch["router"] > launch["step"] == 0


def test_megatrons_messages_stand_in_the_way_of_1f1b_and_not_of_several_chunks():
    """megatron/training/arguments.py turns overlap_p2p_comm off without virtual stages: two messages for each
    microbatch, and what they add to the first one's way."""
    plain = replace(EP8, chunks=1, schedule="1f1b")
    for plan, messages in ((plain, 64 * 2), (EP8, 0)):
        standing, hidden = (time_step(job(pp_overlaps_chunks=alone), plan).seconds for alone in (True, False))
        wire = sum(framework_workload(job(), plan).messages())
        assert standing - hidden == pytest.approx(messages * wire, rel=0.2)


@pytest.mark.parametrize(
    ("software", "sums"), [("megatron-core", 1), ("torchtitan", 1), ("pytorch-compiled", 0)]
)
@pytest.mark.parametrize(("model", "shared"), [("deepseek-v3", 1), ("qwen3-235b-a22b", 0)])
def test_shared_experts_activate_are_added_to_the_others_and_give_the_norm_a_gradient_more(
    software, sums, model, shared
):
    """By hand, in elements of a token: of DeepSeek-V3's shared expert 2048, of its 8 chosen ones as many
    each. Three arrays: read, read, written."""
    shape: Any = find_model(model)
    work = replace(job(), shape=shape, stack=STACKS[software])
    layer = Pricing(work, Plan(dp=8, ep=8)).lists.unit("experts", "none")
    widths = [item.shape[0] / 4096 for item in layer.forward if item.name == "swiglu"]
    assert sorted(widths) == [2048] * shared + [8 * shape.experts.ffn]
    added = [item for item in layer.forward if item.name == "add shared experts"]
    joined = [item for item in layer.backward_input if item.name == "add gradients of rows"]
    assert (len(added), len(joined)) == (sums * shared, sums * (1 + shared))
    assert {item.bytes for item in added + joined} <= {3 * 4096 * shape.hidden * 2}


def test_a_router_in_32_bits_multiplies_gradients_in_them_and_casts_its_input_and_that_inputs_gradient():
    """By hand, of RouterGatingLinearFunction in megatron/core/transformer/moe/moe_utils.py: three products,
    of which those of gradients take TF32, and two casts of 2 and 4 bytes."""
    half, single = (Pricing(job(fp32_router=on), EP8).lists.unit("experts", "none") for on in (False, True))
    scores, rows = 4096 * 128, 4096 * QWEN.hidden
    products = [item for items in single for item in items if item.name in ROUTERS]
    assert [item.dtype for item in products] == ["bfloat16", "float32", "float32"]
    assert [item.flops for item in products] == [2 * 128 * rows] * 3
    (before,) = (item for item in half.forward if item.name == "router forward")
    assert products[0].bytes - before.bytes == 2 * scores
    casts = [[item.bytes for item in items if item.name == "router cast"] for items in single]
    assert casts == [[], [], [6 * rows], [6 * rows]]


ROUTERS = ("router forward", "router dgrad", "router wgrad")


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "deepep", "hybridep"])
@pytest.mark.parametrize("on", [False, True])
def test_what_deepep_and_hybridep_take_in_32_bits_alone_is_cast_unless_the_router_gives_it(dispatcher, on):
    """_DeepepManager.dispatch and _HybridEPManager.dispatch in token_dispatcher.py: token_probs.float()."""
    casts = named("layout, cast", job(dispatcher=dispatcher, fp32_router=on))
    assert len(casts) == 2 * (dispatcher in ("deepep", "hybridep") and not on)
