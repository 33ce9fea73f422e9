"""The bytes of real models on one GPU, counted by hand: Llama-3-8B and Mixtral 8x7B, a microbatch of one
sequence of 4,096 tokens."""

from dataclasses import replace

import pytest

from gpu import Operation
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, Share, TrainingJob
from ndparallel.planner.layers.kept import experts_bytes, kept_bytes, normed_bytes
from ndparallel.planner.layers.layer import LayerLists, lists_of
from ndparallel.planner.memory.states import checkpoint_bytes, passing_bytes
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.number_types import NUMBER_TYPES
from ndparallel.planner.options import overlapping
from ndparallel.planner.prediction import in_flight, memory_of, peak_memory
from ndparallel.planner.software import find_stack
from ndparallel.planner.stages import elements_of
from ndparallel.planner.step.framework import framework_workload

S, H, F, KV, VOCAB = 4096, 4096, 14336, 1024, 128256
LAYER, TABLE = 218_112_000, 525_336_576  # parameters of Llama-3-8B: of a layer; of embedding, and of head
CORE = 0.5e9 + 3 * 32 * 2**20  # CUDA's context, and cuBLAS's workspaces
RINGS = 24 * (4 * 2**20 + 512 * 2**10 + 4800 * 2**10)  # of one axis: channels, and NCCL's three protocols
AT_HEAD = 2 * 2 * S * H + 2 * VOCAB * H  # the last norm's input and output, and a gradient that nobody reads
EXPERT, MOE_SHARED = (
    3 * H * F,
    2 * H * H + 2 * H * KV + 8 * H + 2 * H,
)  # Mixtral: q and out, k and v, router, norms
MIXTRAL_ENDS = 2 * 32000 * H + H


def job(model="llama-3-8b", stack="megatron-core", **changes):
    return TrainingJob(find_model(model), find_hardware("h100"), find_stack(stack), S, 64, **changes)


def states(memory):
    return memory.weights, memory.gradients, memory.optimizer


def test_llama_3_8b_has_8_03_billion_parameters():
    assert 32 * LAYER + 2 * TABLE + H == 8_030_261_248


def test_zero_1_shards_the_optimizer_alone_and_zero_2_the_gradients_too():
    parameters = 8_030_261_248
    expected = [(2, 4, 12), (2, 4, 12 / 8), (2, 4 / 8, 12 / 8)]
    for zero, bytes_each in enumerate(expected):
        memory = peak_memory(job(), Plan(dp=8, zero=zero))
        assert states(memory) == tuple(each * parameters for each in bytes_each)
        assert memory.buffers == 2 * LAYER + CORE + RINGS  # the first: gradients that nobody reads


def test_context_parallel_ranks_share_the_shards():
    for zero in (1, 2, 3):
        eight = states(peak_memory(job(), Plan(dp=8, zero=zero)))
        for dp, cp in ((4, 2), (1, 8)):
            assert states(peak_memory(job(), Plan(dp=dp, cp=cp, zero=zero))) == eight


def test_fsdp_gathers_two_layers_both_ends_and_one_layers_gradients():
    memory = peak_memory(job(), Plan(dp=8, zero=3))
    assert memory.buffers == 2 * (2 * LAYER + 2 * TABLE + H) + (4 + 2) * LAYER + CORE + RINGS


def test_fsdp_with_replicas_shards_over_fewer_ranks():
    assert peak_memory(job(), Plan(dp=8, zero=3, shards=4)).weights == 2 * 8_030_261_248 / 4


def test_fsdp_on_one_rank_shards_nothing():
    assert peak_memory(job(), Plan(zero=3)) == peak_memory(job(), Plan())


def test_16_bits_for_everything_take_2_bytes_for_weight_gradient_and_each_moment():
    for zero, shards in ((0, 1), (3, 8)):
        memory = peak_memory(job(half=True), Plan(dp=8, zero=zero))
        assert states(memory) == tuple(each * 8_030_261_248 / shards for each in (2, 2, 4))


# ----------------------------------------------------------------------------------------------- with experts


@pytest.mark.parametrize(("tp", "cp", "dp", "ep"), [(1, 1, 8, 4), (2, 2, 4, 2), (4, 1, 2, 2)])
def test_all_gpus_together_keep_the_optimizer_of_each_expert_once_and_of_what_tp_cuts_once(tp, cp, dp, ep):
    """Router and norms are whole on every tp rank, so their optimizer is there tp times; 32000 rows of the
    vocabulary are padded to a multiple of 128 tp."""
    plan = Plan(tp=tp, cp=cp, dp=dp, ep=ep, zero=1)
    experts, cut, copied = (
        32 * 8 * EXPERT,
        32 * (2 * H * H + 2 * H * KV) + 2 * {1: 32000, 2: 32000, 4: 32256}[tp] * H,
        32 * (8 * H + 2 * H) + H,
    )
    everywhere = peak_memory(job("mixtral-8x7b"), plan).optimizer * plan.gpus
    assert everywhere == pytest.approx(12 * (experts + cut + tp * copied), rel=1e-12)


def test_a_rank_holds_the_weights_of_its_experts_and_of_all_that_is_shared():
    memory = peak_memory(job("mixtral-8x7b"), Plan(dp=8, ep=2))
    assert memory.weights == 2 * (32 * (MOE_SHARED + 4 * EXPERT) + MIXTRAL_ENDS)


def test_fsdp_on_all_axes_keeps_each_expert_once_and_what_tp_copies_on_its_ranks():
    plan = Plan(tp=2, cp=2, dp=4, ep=2, zero=3)
    copied, cut = 32 * (8 * H + 2 * H) + H, 32 * (2 * H * H + 2 * H * KV) + 2 * 32000 * H
    everywhere = peak_memory(job("mixtral-8x7b"), plan).weights * plan.gpus
    assert everywhere == pytest.approx(2 * (32 * 8 * EXPERT + cut + 2 * copied), rel=1e-12)


def test_each_replica_keeps_each_expert_once():
    plan = Plan(dp=16, ep=4, zero=3, shards=8)
    shared = 32 * MOE_SHARED + MIXTRAL_ENDS
    everywhere = peak_memory(job("mixtral-8x7b"), plan).weights * plan.gpus
    assert everywhere == pytest.approx(2 * 2 * (32 * 8 * EXPERT + shared), rel=1e-12)


def test_fsdp_keeps_each_expert_once_and_gathers_those_of_two_layers():
    memory = peak_memory(job("mixtral-8x7b"), Plan(dp=8, ep=2, zero=3))
    mine = (32 * MOE_SHARED + MIXTRAL_ENDS) / 8 + 32 * 8 * EXPERT / 8
    layer = MOE_SHARED + 4 * EXPERT
    assert states(memory) == pytest.approx((2 * mine, 4 * mine, 12 * mine), rel=1e-12)
    unread = 2 * (MOE_SHARED + EXPERT)
    assert memory.buffers == 2 * (2 * layer + MIXTRAL_ENDS) + 4 * layer + unread + CORE + 2 * RINGS


def test_experts_keep_their_rows_before_between_and_after_their_matrices():
    """2 of 8 experts take every token; the gates are applied between the matrices."""
    attention, gates = 2 * H + H + 2 * KV + H, replace(find_stack("megatron-core"), early_gates=False)
    mixtral = find_model("mixtral-8x7b")
    for stack, outside in ((find_stack("megatron-core"), H), (gates, 2 * H)):
        lists = LayerLists(mixtral, Share(1, S), stack)
        assert kept_bytes(lists, "experts", "none") == 2 * S * (attention + 2 * H + 2 * (outside + 3 * F))


def test_activations_of_experts_that_run_again_go():
    mixtral, lists = find_model("mixtral-8x7b"), {}
    for again in ("moe_act", "moe"):
        stack = replace(find_stack("megatron-core"), selective=(again,))
        lists[again] = LayerLists(mixtral, Share(1, S), stack)
    all_kept = kept_bytes(lists["moe"], "experts", "none")
    assert all_kept - kept_bytes(lists["moe_act"], "experts", "selective") == 2 * S * 2 * F
    assert all_kept - kept_bytes(lists["moe"], "experts", "selective") == 2 * S * 2 * (H + 3 * F)


@pytest.mark.parametrize("tp", [1, 4])
def test_tp_cuts_what_shared_experts_keep_and_their_gate_keeps_what_they_give(tp):
    qwen, stack = find_model("qwen2-57b-a14b"), find_stack("megatron-core")
    share, alone = Share(1, S, tp=tp, sequence_parallel=True), replace(stack, selective=("moe",))
    assert qwen.experts
    without = replace(qwen, experts=replace(qwen.experts, shared_experts=0, shared_gate=False))
    kept, routed = (
        kept_bytes(LayerLists(shape, share, stack), "experts", "none") for shape in (qwen, without)
    )
    assert kept - routed == 2 * S * (3 * 20480 + qwen.hidden) / tp
    again = (kept_bytes(LayerLists(shape, share, alone), "experts", "selective") for shape in (qwen, without))
    assert len({*again}) == 1


def test_the_busiest_rank_keeps_more_rows_of_its_experts():
    even, uneven = (
        peak_memory(job("mixtral-8x7b", routing_imbalance=factor), Plan(dp=8, ep=8)).activations
        for factor in (1.0, 1.5)
    )
    assert uneven - even == 32 * 0.5 * 2 * S * 2 * (H + 3 * F)


def test_dense_layers_and_mixtures_keep_what_is_theirs():
    deepseek, share, stack = find_model("deepseek-v3"), Share(1, S), find_stack("megatron-core")
    h, heads, rows = 7168, 128, 8
    attention = 2 * h + heads * (192 + 192 + 128 + 128)
    dense, experts = 2 * h + 3 * 18432, 2 * h + rows * (h + 3 * 2048) + 3 * 2048  # the last: shared
    kept = [kept_bytes(LayerLists(deepseek, share, stack), kind, "none") for kind in ("dense", "experts")]
    assert kept == pytest.approx([2 * S * (attention + each) for each in (dense, experts)], rel=1e-12)


@pytest.mark.parametrize("tp", [1, 4])
def test_latent_attention_that_comes_again_from_its_ranks_keeps_these_whole_on_every_tp_rank(tp):
    deepseek, stack = find_model("deepseek-v3"), find_stack("megatron-core")
    kept, kept_ranks = (
        kept_bytes(
            LayerLists(deepseek, Share(1, S, tp=tp), replace(stack, selective=modules)),
            "experts",
            "selective",
        )
        for modules in ((), ("mla_up_proj",))
    )
    assert kept - kept_ranks == pytest.approx(2 * S * (128 * (192 + 192 + 128) / tp - 1536 - 512 - 64))


def test_what_goes_into_the_router_stays_in_16_bits_where_the_experts_take_8():
    types = ("bf16", "fp8")
    shares = (Share(1, S, number_type=NUMBER_TYPES[name]) for name in types)
    lists = (LayerLists(find_model("mixtral-8x7b"), share, find_stack("megatron-core")) for share in shares)
    assert [experts_bytes(each, ("moe",)) for each in lists] == [2 * S * (H + H)] * len(types)


# ------------------------------------------------------------------------------------------------ activations

ATTENTION, MLP = 4 * H + 2 * KV, 2 * H + 3 * F  # numbers for a token: input, norm, q and output, k, v; ...


def test_a_dense_layer_keeps_every_matrixs_input_and_what_attention_needs():
    memory = peak_memory(job(), Plan())
    assert memory.activations == 32 * 2 * S * (ATTENTION + MLP)
    assert memory.logits == 6 * S * VOCAB + AT_HEAD


@pytest.mark.parametrize(
    ("stack", "kept", "whole", "unread"), [("megatron-core", 6, 6, VOCAB), ("torchtitan", 2 + 4 * 4, 14, 0)]
)
def test_logits_are_cut_by_tp_where_the_loss_is(stack, kept, whole, unread):
    """DTensor's loss makes its own four arrays of the cut logits in 32 bits, torch's own three."""
    beside = 2 * 2 * S * H + unread * H
    assert peak_memory(job(stack=stack), Plan(tp=2)).logits == kept * S * VOCAB / 2 + beside
    alone = replace(job(stack=stack), stack=replace(find_stack(stack), parallel_loss=False))
    assert peak_memory(alone, Plan(tp=2)).logits == whole * S * VOCAB + beside


@pytest.mark.parametrize(("stack", "rows"), [("megatron-core", 129_024), ("torchtitan", 128_256)])
def test_megatron_pads_the_vocabulary_to_a_multiple_of_128_for_each_tp_rank_and_torch_does_not(stack, rows):
    """Of 1002 * 128 rows 8 ranks have 126 * 128 each; table, logits and their product alike."""
    llama, plan = job(stack=stack), Plan(tp=8)
    assert elements_of(llama, plan, "embedding")[0] == rows * H / 8
    assert elements_of(llama, plan, "head")[0] == rows * H / 8 + H
    forward = lists_of(llama, plan).ends.head().forward
    product = next(item for item in forward if item.name == "logits forward")
    assert product.flops == 2 * S * H * rows / 8
    per_row = peak_memory(job(stack=stack), Plan()).logits - 2 * 2 * S * H
    per_row = per_row / VOCAB if stack == "megatron-core" else (2 + 4 * 4) * S
    assert peak_memory(llama, plan).logits == per_row * rows / 8 + 2 * 2 * S * H


@pytest.mark.parametrize(("sequences", "copies"), [(1, 1), (2, 2)])
def test_torchtitans_head_copies_what_it_gathered_of_several_sequences_async_tp_or_not(sequences, copies):
    for overlap in ("backward", "all"):
        titan = job(stack="torchtitan")
        titan = replace(titan, stack=replace(titan.stack, tp_overlap=overlap))
        memory = peak_memory(titan, Plan(tp=2, micro_batch=sequences, sequence_parallel=True))
        rows = sequences * S
        assert memory.logits == 18 * rows * VOCAB / 2 + 2 * H * (rows / 2 + rows * copies)


def test_tp_cuts_what_lies_between_its_collectives_and_sequence_parallelism_the_rest():
    inside = (2 * H + 2 * KV + 3 * F) / 2
    without = peak_memory(job(), Plan(tp=2)).activations
    assert without == 32 * 2 * S * (4 * H + inside)
    assert peak_memory(job(), Plan(tp=2, sequence_parallel=True)).activations == 32 * 2 * S * (2 * H + inside)
    titan = job(stack="torchtitan")  # keeps the gathered norms
    gathered = peak_memory(titan, Plan(tp=2, sequence_parallel=True)).activations
    assert gathered == 32 * 2 * S * (3 * H + inside)


def test_megatrons_matrices_keep_the_shard_of_their_input_whether_gathering_it_again_is_hidden_or_not():
    """LinearWithGradAccumulationAndAsyncCommunication.forward saves its input, which is the shard."""
    usual, plan = job(), Plan(tp=2, sequence_parallel=True)
    bare = replace(usual, stack=overlapping(usual.stack, "dp,pp"))
    assert peak_memory(bare, plan) == peak_memory(usual, plan)

    def gathered(job):
        backward = LayerLists(job.shape, plan.share(job), job.stack).attention.backward
        return [item.beside is None for item in backward if getattr(item, "collective", "") == "all_gather"]

    assert gathered(usual) == [True, False] and gathered(bare) == [True, True]


def test_full_recomputation_keeps_the_inputs_of_layers_and_one_layer_whole():
    """Its input is the one that was kept: checkpoint gives the layer a view of it (detach_variable in
    torch/utils/checkpoint.py)."""
    memory = peak_memory(job(), Plan(recompute="full"))
    assert memory.activations == 2 * S * (31 * H + ATTENTION + MLP)
    some = peak_memory(job(), Plan(recompute="full", recompute_layers=20))
    assert some.activations == 2 * S * (19 * H + 13 * (ATTENTION + MLP))


def test_a_stage_without_layers_computes_none_again():
    """The head's stage of a pipeline of 34 for 32 layers."""
    plans = [Plan(pp=34, recompute=recompute) for recompute in ("none", "full")]
    none, full = (memory_of(framework_workload(job(), plan))[-1] for plan in plans)
    assert none == full and full.activations == 0


@pytest.mark.parametrize(
    ("changes", "attention", "mlp"),
    [
        ({}, 2, 2),
        ({"parallel": True}, 2, 1),  # both halves read the same input
        ({"parallel": True, "norms": "shared"}, 2, 0),  # and its norm
        ({"norms": "both"}, 3, 3),  # what a half adds is normed too
    ],
)
def test_halves_that_share_an_input_or_a_norm_keep_it_once(changes, attention, mlp):
    shape = replace(find_model("llama-3-8b"), **changes)
    lists = LayerLists(shape, Share(1, S), find_stack("megatron-core"))
    assert (normed_bytes(lists, 0), normed_bytes(lists, 1)) == (attention * 2 * S * H, mlp * 2 * S * H)


@pytest.mark.parametrize(
    ("module", "saved"),
    [("core_attn", 0), ("mlp", 3 * F), ("layernorm", 0), ("moe", 0), ("mla_up_proj", 0)],
)
def test_what_a_module_that_runs_again_need_not_keep(module, saved):
    stack = replace(find_stack("megatron-core"), selective=(module,))
    lists = LayerLists(find_model("llama-3-8b"), Share(1, S), stack)
    assert kept_bytes(lists, "dense", "none") - kept_bytes(lists, "dense", "selective") == 2 * S * saved


@pytest.mark.parametrize(
    ("model", "kind", "norms"),
    [
        ("llama-3-8b", "dense", 0),
        ("mixtral-8x7b", "experts", 1),
        ("deepseek-v3", "dense", 1),
        ("deepseek-v3", "experts", 2),
    ],
)
def test_norms_run_again_where_they_are_no_part_of_the_product_behind_them(model, kind, norms):
    """Transformer Engine's TELayerNormColumnParallelLinear has the others."""
    shape, stack = find_model(model), replace(find_stack("megatron-core"), selective=("layernorm",))
    lists = LayerLists(shape, Share(1, S), stack)
    freed = kept_bytes(lists, kind, "none") - kept_bytes(lists, kind, "selective")
    assert freed == norms * 2 * S * shape.hidden
    assert [item.name for item in lists.unit(kind, "selective").recompute] == ["norm"] * norms


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(("software", "unread"), [("torchtitan", H), ("torchtitan-compiled", 0)])
def test_torchtitan_keeps_a_layers_input_every_second_products_output_and_attentions(software, unread, tp):
    """Queries, values, gate; eager code keeps the last product's too, the seventh, which nobody reads."""
    lists = LayerLists(find_model("llama-3-8b"), Share(1, S, tp=tp), find_stack(software))
    assert kept_bytes(lists, "dense", "selective") == 2 * S * (H + (H + KV + F + unread + H) / tp)


def test_torchtitan_runs_keys_output_and_up_again_and_in_8_bits_all_but_down():
    """Its save list has aten.mm, and not the product of fewer bits."""
    again = {}
    for number_type in ("bf16", "fp8-current"):
        share = Share(1, S, number_type=NUMBER_TYPES[number_type])
        lists = LayerLists(find_model("llama-3-8b"), share, find_stack("torchtitan-compiled"))
        products = [item for item in lists.layer("dense", "selective").recompute if item.kind == "matmul"]
        again[number_type] = sum(item.flops for item in products) / (2 * S * H)
        if number_type != "bf16":
            assert kept_bytes(lists, "dense", "selective") == 2 * S * (H + H)
    assert again == {"bf16": KV + H + F, "fp8-current": H + 2 * KV + H + 2 * F}


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_torchtitan_keeps_of_experts_the_rows_that_came_over_ep_and_of_shared_ones_every_second(ep):
    """Its save list has the all-to-alls, and neither grouped products nor the router. Every layer here
    is one of experts, and no dense MLP is counted."""
    experts = Experts(experts=8, top_k=2, ffn=F // 4, shared_experts=1, shared_ffn=F // 2)
    shape = replace(find_model("llama-3-8b"), experts=experts)
    lists = LayerLists(shape, Share(1, S, ep=ep), find_stack("torchtitan"))
    outputs, exchanged = (H + KV) + (F // 2 + H), 2 * 2 * H * (ep > 1)
    assert kept_bytes(lists, "experts", "selective") == 2 * S * (H + outputs + H + exchanged)
    forward, again, _, _ = lists.layer("experts", "selective")
    matmuls = [
        {item.name: item.flops for item in items if isinstance(item, Operation) and item.kind == "matmul"}
        for items in (forward, again)
    ]
    share = {"qkv": KV / (H + 2 * KV), "attention_output": 1, "router": 1, "gate_up": 1 / 2}
    share |= {"experts gate_up": 1, "experts down": 1}
    assert matmuls[1] == {
        f"{name} forward": part * matmuls[0][f"{name} forward"] for name, part in share.items()
    }


def test_dropout_keeps_a_byte_for_each_number_of_a_mask():
    gpt, stack = find_model("gpt3-175b"), replace(find_stack("megatron-2022"), dropout=False)
    share = Share(1, 2048, tp=8)
    with_masks, without = (
        kept_bytes(LayerLists(gpt, share, each), "dense", "none")
        for each in (find_stack("megatron-2022"), stack)
    )
    scores = 96 / 8 * 2048 * 2048
    assert (
        with_masks - without == 2 * 2048 * 12288 + 3 * scores
    )  # two masks; of scores a mask, and what it leaves


# -------------------------------------------------------------------------------------------- in a pipeline


def test_every_rank_holds_its_layers_and_the_first_and_the_last_the_ends():
    ranks = memory_of(framework_workload(job(), Plan(pp=4)))
    assert [memory.weights for memory in ranks] == [
        2 * (8 * LAYER + ends) for ends in (TABLE, 0, 0, TABLE + H)
    ]
    layer = 2 * S * (ATTENTION + MLP)
    assert [memory.activations for memory in ranks] == [8 * layer * count for count in (4, 3, 2, 1)]
    assert [memory.logits for memory in ranks] == [0, 0, 0, 6 * S * VOCAB + AT_HEAD]


def test_a_v_has_both_ends_on_the_first_rank_and_chunks_are_parts_of_a_rank():
    ranks = memory_of(framework_workload(job(), Plan(pp=4, chunks=2, schedule="zb-v")))
    assert [memory.weights for memory in ranks] == [
        2 * (8 * LAYER + ends) for ends in (2 * TABLE + H, 0, 0, 0)
    ]
    assert {memory.activations for memory in ranks} == {8 * 4 * 2 * S * (ATTENTION + MLP)}


def test_in_a_pipeline_recomputation_keeps_inputs_of_all_in_flight_and_one_layer_whole():
    ranks = memory_of(framework_workload(job(), Plan(pp=4, recompute="full")))
    assert [memory.activations for memory in ranks] == [
        2 * S * ((8 * count - 1) * H + ATTENTION + MLP) for count in (4, 3, 2, 1)
    ]


@pytest.mark.parametrize(
    ("schedule", "microbatches", "held"),
    [
        ("gpipe", 16, [16, 16, 16, 16]),
        ("1f1b", 16, [4, 3, 2, 1]),
        ("1f1b", 2, [2, 2, 2, 1]),
        ("eager-1f1b", 16, [7, 5, 3, 1]),
        ("zb-h2", 16, [7, 7, 7, 7]),
    ],
)
def test_microbatches_that_the_ranks_of_a_schedule_keep(schedule, microbatches, held):
    short = replace(job(), global_batch=microbatches)
    assert in_flight(framework_workload(short, Plan(pp=4, schedule=schedule))) == held


def test_a_searched_order_keeps_what_its_list_keeps():
    short = replace(job(), global_batch=8)
    for schedule, most in (("zb-1p", 4), ("zb-2p", 8)):
        assert max(in_flight(framework_workload(short, Plan(pp=4, schedule=schedule)))) == most


def test_all_kinds_add_up():
    memory = peak_memory(job(), Plan())
    kept = 32 * 2 * S * (ATTENTION + MLP) + 6 * S * VOCAB
    assert memory.total == 18 * 8_030_261_248 + kept + AT_HEAD + 2 * LAYER + CORE


def test_what_fsdp_needs_only_on_its_way_is_two_layers_the_ends_a_layers_gradients_and_scattered_ones():
    parameters = 8_030_261_248
    passing = passing_bytes(job(), Plan(dp=8, zero=3), (parameters, 0.0))
    assert passing == 2 * (2 * LAYER + 2 * TABLE + H) + 4 * LAYER + 4 * parameters / 8


def test_a_checkpoint_keeps_14_bytes_of_each_parameter():
    assert checkpoint_bytes(job()) == 14 * 8_030_261_248


def test_a_stage_of_llama_4_maverick_holds_as_many_dense_layers_as_mixtures():
    """Twelve layers of 48 on TP4 x PP4 x EP32: each rank has 4 of 128 experts, whole, and a quarter of
    the rest but norms and routers."""
    attention = 5120 * (40 + 2 * 8) * 128 + 40 * 128 * 5120
    dense, expert = 3 * 5120 * 16384, 3 * 5120 * 8192
    both = 2 * (attention / 4 + 2 * 5120) + dense / 4 + expert / 4 + 4 * expert + 5120 * 128
    table = 202240 * 5120 / 4  # Megatron pads the vocabulary
    plan = Plan(tp=4, pp=4, dp=32, ep=32, zero=1, sequence_parallel=True)
    weights = [memory.weights for memory in memory_of(framework_workload(job("llama-4-maverick"), plan))]
    assert weights == [2 * (6 * both + ends) for ends in (table, 0, 0, table + 5120)]
