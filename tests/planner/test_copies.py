"""What the frameworks' code copies, casts and sums beside the products: whole weights and gradients of
ZeRO-3, what tensor parallelism gathers in 8 bits, and the maxima of its scales."""

from dataclasses import replace

import pytest

from gpu import Link
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.collective_time import START_SECONDS
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.models.presets import preset
from ndparallel.planner.optimizer_kernels import SHARDING, bytes_of
from ndparallel.planner.prediction import time_step
from ndparallel.planner.software import find_stack
from ndparallel.planner.stages import elements_of
from ndparallel.planner.step.framework import framework_workload
from ndparallel.planner.step.parameter_kernels import copies_of_shards, step_operations
from ndparallel.planner.step.stage_messages import message_seconds

H100, LLAMA, MEGATRON = find_hardware("h100"), preset("llama-3-70b"), find_stack("megatron-core")


@pytest.mark.parametrize(
    ("software", "size", "moved"),
    [("fsdp1", 4, 4 + 6 + 8), ("fsdp1", 2, 4 + 4), ("fsdp2", 4, 6), ("deepspeed", 2, 4)],
)
def test_bytes_that_each_gradient_moves_before_it_is_reduced(software, size, moved):
    assert SHARDING[software].gradient_bytes(size) == moved


def test_composers_adamw_reads_and_writes_20_arrays_where_a_fused_one_has_7():
    assert bytes_of("composer") - bytes_of("torch") == (20 - 7) * 4


@pytest.mark.parametrize(("dp", "microbatches"), [(1, 1), (8, 1), (8, 4)])
def test_every_microbatch_copies_whole_weights_twice_and_gradients_once(dp, microbatches):
    shape, stack = preset("llama-3-8b"), replace(find_stack("torchtitan-compiled"), selective=())
    seconds = [
        time_step(
            TrainingJob(shape, H100, replace(stack, sharding=sharding), 8192, dp * microbatches),
            Plan(dp=dp, zero=3),
        ).breakdown["compute"]
        for sharding in ("fsdp2", "")
    ]
    moved = shape.parameters().total * (4 + 4 + 6) / H100.memory_bandwidth_bytes_per_second
    launched = (shape.layers + 2) * 3 * H100.kernel_overhead_seconds
    expected = microbatches * (moved + launched) * (dp > 1)
    assert seconds[0] - seconds[1] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("software", "moved", "kernels"), [("torchtitan", 4 + 6, 2), ("deepspeed", 4, 1)])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_zero_2_copies_gradients_of_every_microbatch_and_fsdps_weights_once(
    software, moved, kernels, microbatches
):
    """fully_shard(reshard_after_forward=False), and DeepSpeed's stage_1_and_2.py."""
    shape, stack = preset("llama-3-8b"), find_stack(software)
    job, plan = TrainingJob(shape, H100, stack, 8192, 8 * microbatches), Plan(dp=8, zero=2)
    copies = [item for items in copies_of_shards(Pricing(job, plan), "dense") for item in items]
    layer = shape.parameters()
    each = layer.attention + layer.dense_mlp + layer.layer_norms
    assert len(copies) == kernels
    assert sum(item.bytes for item in copies) == each * moved


@pytest.mark.parametrize(("sharding", "copies"), [("fsdp1", []), ("fsdp2", [4]), ("deepspeed", [4])])
def test_only_what_is_gathered_beside_the_weights_is_copied_out(sharding, copies):
    """FSDP 1 gathers into the flat parameter itself, of which weights are views (flat_param.py)."""
    job = TrainingJob(LLAMA, H100, replace(find_stack("torchtitan"), sharding=sharding), 128, 8)
    gathered, _, _ = copies_of_shards(Pricing(job, Plan(dp=8, zero=3)), "dense")
    assert [item.bytes / item.shape[0] for item in gathered] == copies


@pytest.mark.parametrize("microbatches", [1, 4])
def test_fsdps_zero_2_gathers_weights_for_every_microbatch_and_deepspeeds_once_a_step(microbatches):
    """A slow network shows it: torch reshards behind each backward pass (set_reshard_after_backward)."""
    slow = replace(H100, across=Link(0.0, 1e8))
    fsdp, deepspeed = (
        TrainingJob(LLAMA, slow, replace(find_stack(name), gradient_bytes=0), 128, 64 * microbatches)
        for name in ("torchtitan", "deepspeed")
    )
    gathers = [time_step(job, Plan(dp=64, zero=2)).seconds for job in (fsdp, deepspeed)]
    assert gathers[0] == pytest.approx(microbatches * gathers[1], rel=0.05)


@pytest.mark.parametrize(
    ("dtype", "share"), [("bf16", 1), ("fp8", 1 / 2), ("fp8-row", 1), ("mxfp8", 33 / 64)]
)
def test_what_tensor_parallelism_gathers_travels_cast_and_its_sums_in_16_bits(dtype, share):
    job = TrainingJob(LLAMA, find_hardware("b200"), MEGATRON, 8192, 64, dtype="bf16")
    whole = {item.name: item.bytes for item in collectives(job)}
    short = {item.name: item.bytes for item in collectives(replace(job, dtype=dtype))}
    assert short["tp all_gather"] == pytest.approx(share * whole["tp all_gather"])
    assert short["tp reduce_scatter"] == whole["tp reduce_scatter"]


@pytest.mark.parametrize(
    ("dtype", "gpu", "moved"),
    [
        ("fp8", "h100", 2),  # its tensor cores take a transpose, which is made of the whole; the norm casts
        ("fp8-current", "h100", (2 + 1) / 8 + 2),
        ("fp8-current", "b200", (2 + 1) / 8),
        ("mxfp8", "b200", (2 + 2 * 33 / 32) / 8),
    ],
)
def test_what_tensor_parallelism_gathers_is_cast_in_shards(dtype, gpu, moved):
    """Of the MLP: its input is gathered, that of its second matrix is not."""
    job = TrainingJob(LLAMA, find_hardware(gpu), MEGATRON, 8192, 64, dtype=dtype)
    lists = LayerLists(LLAMA, Plan(tp=8, sequence_parallel=True).share(job), MEGATRON)
    *_, up, down = [item for item in lists.unit("dense", "none").forward if item.name == f"cast to {dtype}"]
    assert up.bytes == pytest.approx(8192 * LLAMA.hidden * moved)
    whole = lists.share.number_type.cast_bytes(gpu == "h100")
    assert down.bytes == pytest.approx(8192 * LLAMA.ffn / 8 * whole)


@pytest.mark.parametrize(("dtype", "sums"), [("fp8-current", 2), ("mxfp8", 0), ("fp8", 0)])
def test_a_scale_of_the_tensor_itself_takes_the_maximum_over_tp_of_what_is_gathered(dtype, sums):
    job = TrainingJob(LLAMA, find_hardware("b200"), MEGATRON, 8192, 64, dtype=dtype)
    layer = LayerLists(LLAMA, Plan(tp=8, sequence_parallel=True).share(job), MEGATRON).unit("dense", "none")
    passes = (layer.forward, layer.backward_input, layer.backward_weight)
    assert [[item.name for item in items].count("tp amax") for items in passes] == [sums, sums, 0]


@pytest.mark.parametrize(("software", "gathers"), [("pytorch-compiled", 1), ("pytorch", 3)])
@pytest.mark.parametrize(("sequences", "joined"), [(1, 0), (4, 1)])
def test_torch_copies_what_tp_gathers_of_several_sequences_and_all_that_it_sums(
    software, gathers, sequences, joined
):
    """Attention's half, as torch 2.13 traces it with a ColwiseParallel each for q, k and v: aten.cat behind
    an all_gather of several sequences, and before every reduce_scatter; compiled, q, k and v gather once."""
    stack = find_stack(software)
    share = Plan(tp=4, sequence_parallel=True, micro_batch=sequences).share(job_of(stack))
    lists = LayerLists(LLAMA, share, stack)
    forward, backward = lists.attention.forward, lists.attention.backward
    copies = [
        sum(item.kernels for item in items if item.name == "join parts") for items in (forward, backward)
    ]
    assert copies == [gathers * joined + 1, joined + 3]
    assert [item.name for item in forward].count("tp all_gather") == gathers


def test_a_gradient_that_stays_is_read_and_written_in_its_own_type():
    bytes_by_size = [
        LayerLists(LLAMA, Plan().share(job_of(stack)), stack).weight(LLAMA.attention()[0])[-1].bytes
        for size in (4, 2)
        for stack in [replace(MEGATRON, gradient_bytes=size)]
    ]
    matrix = LLAMA.attention()[0]
    assert bytes_by_size[0] - bytes_by_size[1] == 2 * 2 * matrix.inputs * matrix.outputs


def test_torchs_async_tp_hides_all_but_the_sums_of_several_products_gradients():
    """Behind those stands an addition, and not a product (fuse_matmul_reduce_scatter)."""
    stack = replace(find_stack("torchtitan-compiled"), tp_overlap="products")
    lists = LayerLists(LLAMA, Plan(tp=4, sequence_parallel=True).share(job_of(stack)), stack)
    shown = [
        [item.collective for item in items if isinstance(item, CollectiveOp) and item.group == "tp"]
        for items in (without_hidden(lists.unit("dense", "none"))[place] for place in (0, 2))
    ]
    assert shown == [[], ["reduce_scatter", "reduce_scatter"]]


def test_deepspeeds_pipeline_stands_still_for_two_messages_where_megatrons_does_for_one():
    """And where tp cuts them for two more, which say where the parts lie, and for three gathers, not two."""
    for tp, parts in ((1, 1), (4, 2)):
        plan = Plan(tp=tp, pp=4, dp=8)
        megatron, deepspeed = (
            Pricing(job_of(replace(find_stack("megatron-2022"), pp_in_turn=in_turn)), plan)
            for in_turn in (False, True)
        )
        size = plan.share(megatron.job).rows * LLAMA.hidden * 2
        gather = megatron.seconds_alone(CollectiveOp("parts", "all_gather", "tp", size))
        (latency, wire), both = message_seconds(megatron), message_seconds(deepspeed)
        assert both[1] == 2 * wire
        assert both[0] == pytest.approx(2 * parts * (latency - gather) + 1.5 * gather)


@pytest.mark.parametrize(
    ("software", "parts"), [("megatron-2022", 4), ("megatron-core", 1), ("torchtitan", 1)]
)
def test_only_megatron_before_core_cuts_what_tp_ranks_send_without_sequence_parallelism(software, parts):
    """p2p_communication.py of v2.6; get_tensor_shapes in megatron/core/pipeline_parallel/schedules.py."""
    stack, plan = find_stack(software), Plan(tp=4, pp=4, dp=8)
    shards = message_seconds(Pricing(job_of(stack), replace(plan, sequence_parallel=True)))
    latency, wire = message_seconds(Pricing(job_of(stack), plan))
    assert wire == pytest.approx(4 / parts * shards[1])
    assert (latency > shards[0]) == (parts > 1)


def without_hidden(lists):
    return [[item for item in items if getattr(item, "beside", None) is None] for items in lists]


def job_of(stack):
    return TrainingJob(LLAMA, H100, stack, 8192, 64)


def collectives(job):
    items = (
        LayerLists(job.shape, Plan(tp=4, sequence_parallel=True).share(job), job.stack)
        .unit("dense", "none")
        .forward
    )
    return [item for item in items if isinstance(item, CollectiveOp)]


def test_after_each_pass_of_a_stage_all_its_ranks_share_the_maxima_of_delayed_scaling():
    job, plan = TrainingJob(LLAMA, H100, MEGATRON, 8192, 64, dtype="fp8"), Plan(tp=4, pp=4, dp=16)
    delayed, current = (
        framework_workload(replace(job, dtype=dtype), plan) for dtype in ("fp8", "fp8-current")
    )
    tree = 2 * (7 * 0.6e-6 + 3 * 5e-6)  # 64 ranks in 8 nodes
    assert delayed.shared_amax.total == pytest.approx(START_SECONDS + tree)
    assert current.shared_amax.total == 0
    assert [column[1]["dp"] for column in delayed.columns[:2]] == [delayed.shared_amax.total] * 2


def test_context_parallelism_of_torch_gathers_every_heads_keys_and_sends_their_gradients_round_in_32_bits():
    forward, gather, gradients = of_context_parallelism("torchtitan")
    keys_and_values = 2 * 32768 * LLAMA.heads / 8 * LLAMA.head_dim
    assert (gather.bytes, gradients.bytes, gradients.hops) == (keys_and_values * 2, keys_and_values * 4, 4)
    attention = next(item for item in forward if item.name == "attention")
    assert (gather.beside, gather.share) == (attention, 1 / 4)  # the first of four blocks


def test_a_compiled_layer_waits_for_each_collective_of_context_parallelism_at_once():
    _, gather, gradients = of_context_parallelism("torchtitan-compiled")
    assert gather.beside is gradients.beside is None


def of_context_parallelism(stack):
    """The forward pass, its last collective over cp, and that of the backward pass."""
    job, plan = TrainingJob(LLAMA, H100, find_stack(stack), 32768, 8), Plan(tp=8, cp=4)
    forward, _, backward, _ = LayerLists(LLAMA, plan.share(job), job.stack).unit("dense", "none")
    last = [[item for item in items if item[2:3] == ("cp",)][-1] for items in (forward, backward)]
    return forward, *last


def test_without_context_parallelism_nothing_is_merged():
    job = TrainingJob(LLAMA, H100, find_stack("torchtitan"), 8192, 8)
    passes = LayerLists(LLAMA, Plan(tp=8).share(job), job.stack).unit("dense", "none")
    assert "merge blocks" not in {item.name for items in passes for item in items}


@pytest.mark.parametrize(
    ("stack", "kernels", "passes"),
    [("torchtitan", (8, 8), (16, 23)), ("torchtitan-compiled", (2, 3), (5, 15))],
)
def test_each_block_but_the_own_is_merged_by_so_many_kernels(stack, kernels, passes):
    """In the backward pass every block's gradients are summed. Counted in _templated_ring_attention and its
    backward (torch/distributed/tensor/experimental/_attention.py); compiled, a chain is one kernel."""
    job, plan = TrainingJob(LLAMA, H100, find_stack(stack), 32768, 8), Plan(tp=8, cp=4)
    forward, _, backward, _ = LayerLists(LLAMA, plan.share(job), job.stack).unit("dense", "none")
    merges = [item for items in (forward, backward) for item in items if item.name == "merge blocks"]
    assert [merge.kernels for merge in merges] == [3 * kernels[0], 4 * kernels[1]]
    assert 3 * merges[1].bytes / (4 * merges[0].bytes) == pytest.approx(passes[1] / passes[0])


@pytest.mark.parametrize(
    ("dtype", "gpu", "normed", "cast"),
    [
        ("fp8", "h100", 2 + 1, 1 + 1),
        ("fp8", "b200", 2 + 1, 0),
        ("fp8-current", "h100", 2 + 2, 2 + 1 + 1),
        ("fp8-current", "b200", 2 + 2, 2 + 1),
        ("mxfp8", "b200", 2 + 2, 2 + 2 * 33 / 32),
    ],
)
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_a_norm_casts_what_its_module_multiplies_or_finds_the_maximum_and_a_mixtures_norm_neither(
    dtype, gpu, normed, cast, kind
):
    """By hand, in bytes of a number, of normalization.cpp in transformer_engine/pytorch/csrc/extensions."""
    shape = preset("qwen3-235b-a22b" if kind == "experts" else "llama-3-70b")
    job = TrainingJob(shape, find_hardware(gpu), MEGATRON, 4096, 64, dtype=dtype)
    items = LayerLists(shape, Plan().share(job), MEGATRON).unit(kind, "none").forward
    first = items[: [item.name for item in items].index("qkv forward")]
    assert sum(item.bytes for item in first if item.name == "norm") == 4096 * shape.hidden * normed
    moved = sum(item.bytes for item in first if item.name.startswith("cast"))
    assert moved == pytest.approx(4096 * shape.hidden * cast)
    of_mlp = [item for item in items if item.name == "norm"][-1]
    assert of_mlp.bytes == 4096 * shape.hidden * (normed if kind == "dense" else 4)


@pytest.mark.parametrize(
    ("dtype", "gpu", "forward", "again"),
    [
        ("fp8", "h100", 2 + 1 + 1, 0),
        ("fp8-current", "h100", 4 + 1, 4 + 2),
        ("fp8-current", "b200", 4 + 1, 4 + 1),
        ("fp8-block", "h100", 2 + 33 / 32, 2 + 33 / 32),
        ("mxfp8", "b200", 2 + 33 / 32, 2 + 33 / 32),
        ("nvfp4", "b200", 4 + 9 / 16, 4 + 9 / 16),
    ],
)
def test_what_attention_gives_is_cast_for_each_product_where_it_is_kept_in_16_bits(
    dtype, gpu, forward, again
):
    """By hand, of save_original_input in transformer_engine/pytorch/module/linear.py."""
    job = TrainingJob(LLAMA, find_hardware(gpu), MEGATRON, 4096, 64, dtype=dtype)
    layer = LayerLists(LLAMA, Plan().share(job), MEGATRON).unit("dense", "none")
    moved = [bytes_before(layer.forward, "attention_output forward")]
    moved += [bytes_before(layer.backward_weight, "attention_output wgrad")]
    assert moved == pytest.approx([4096 * LLAMA.hidden * each for each in (forward, again)])
    assert bytes_before(layer.backward_weight, "down wgrad") == 0


def bytes_before(items, product):
    """Bytes of the cast right before a product."""
    before = items[[item.name for item in items].index(product) - 1]
    return before.bytes if before.name.startswith(("cast", "experts cast")) else 0


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_shared_experts_cast_their_input_again_and_experts_theirs_where_their_activation_runs_again(
    recompute,
):
    """set_save_original_input in megatron/core/transformer/moe, shared_experts.py and experts.py."""
    v3, stack = preset("deepseek-v3"), replace(MEGATRON, selective=("moe_act",))
    job = TrainingJob(v3, find_hardware("b200"), stack, 4096, 64, dtype="mxfp8")
    weights = LayerLists(v3, Plan(ep=8, dp=8).share(job), stack).unit("experts", recompute).backward_weight
    each = 2 + 33 / 32
    assert bytes_before(weights, "gate_up wgrad") == pytest.approx(4096 * v3.hidden * each)
    assert bytes_before(weights, "down wgrad") == bytes_before(weights, "experts gate_up wgrad") == 0
    rows = 4096 * 8 * 2048 * (recompute == "selective")
    assert bytes_before(weights, "experts down wgrad") == pytest.approx(rows * each)


def test_in_a_pipeline_zero_2_copies_gradients_in_every_pass_that_makes_them():
    """DeepSpeed writes and reads each of a stage's 16-bit gradients once more: 4 bytes for each."""
    job = TrainingJob(preset("llama-3-8b"), H100, find_stack("deepspeed"), 4096, 64)
    one, two = (framework_workload(job, Plan(pp=2, dp=4, zero=zero)).columns[2][0] for zero in (1, 2))
    stage = sum(sum(elements_of(job, Plan(pp=2), kind)) for kind in ["embedding", *["dense"] * 16])
    moved = stage * 4 / H100.memory_bandwidth_bytes_per_second
    assert moved < two.total - one.total < 1.1 * moved


def test_from_zero_2_on_a_rank_zeroes_and_divides_its_own_gradients_alone():
    job = TrainingJob(preset("llama-3-8b"), H100, MEGATRON, 4096, 64)
    whole, *shards = (
        step_operations(Pricing(job, Plan(dp=8, zero=zero)), 8e6, 0.0)[0].bytes for zero in (1, 2, 3)
    )
    assert shards == [whole / 8] * 2
