"""Claims about the bytes on a stage's GPUs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.base.quantities import si
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.describe import room_words
from ndparallel.planner.job import Plan, Share, TrainingJob
from ndparallel.planner.layers.kept import kept_bytes
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.memory.outside import channels_of, context_bytes
from ndparallel.planner.memory.states import is_fully_sharded
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.number_types import NUMBER_TYPES
from ndparallel.planner.prediction import in_flight, memory_of, peak_memory, predict
from ndparallel.planner.software import find_stack
from ndparallel.planner.step.framework import framework_workload
from ndparallel.search.bounds.lower_bound import lower_bound

BIASES = ("qkv", "output", "mlp", "norm")
GPT = ModelShape(
    "gpt",
    24,
    2304,
    24,
    24,
    96,
    9216,
    51200,
    "gelu",
    "layernorm",
    "learned",
    1024,
    BIASES,
    tied_embeddings=True,
)
S, B, H, A = 1024, 4, 2304, 24


def job(name="megatron-2022", **changes):
    return replace(TrainingJob(GPT, find_hardware("a100-80"), find_stack(name), S, 64), **changes)


def kept(recompute="none", **share):
    return kept_bytes(
        LayerLists(GPT, Share(**({"micro_batch": B, "sequence": S} | share)), find_stack("megatron-2022")),
        "dense",
        recompute,
    )


def test_a_layer_keeps_what_korthikanti_equation_1_says():
    assert kept() == pytest.approx(S * B * H * (34 + 5 * A * S / H))


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_with_sequence_parallelism_a_layer_keeps_equation_1_over_t(tp):
    # equation 4
    assert kept(tp=tp, sequence_parallel=True) == pytest.approx(S * B * H * (34 + 5 * A * S / H) / tp)


def test_selective_recomputation_keeps_34_and_full_keeps_2():
    assert kept("selective") == 34 * S * B * H
    assert kept("full") == 2 * S * B * H


@pytest.mark.parametrize("tp", [1, 4])
def test_selective_recomputation_holds_the_scores_of_the_one_layer_that_runs_again(tp):
    """Korthikanti et al., equation 2: scores, probabilities after dropout, and the mask are 5 a s / h of a
    layer."""
    job = TrainingJob(GPT, find_hardware("a100-80"), find_stack("megatron-2022"), S, B)
    none, selective = (
        peak_memory(
            job, Plan(tp=tp, micro_batch=B, sequence_parallel=tp > 1, recompute=recompute)
        ).activations
        for recompute in ("none", "selective")
    )
    assert none - selective == pytest.approx((GPT.layers - 1) * 5 * A * S * S * B / tp)


def test_gates_within_the_experts_save_one_array_of_every_tokens_k_outputs():
    mixtral, share, early = (
        find_model("mixtral-8x7b"),
        Share(micro_batch=B, sequence=S),
        find_stack("megatron-core"),
    )
    stacks = early, replace(early, early_gates=False)
    inside, outside = (kept_bytes(LayerLists(mixtral, share, stack), "experts", "none") for stack in stacks)
    assert outside - inside == 2 * (2 * S * B) * 4096  # bytes, rows, hidden


def test_mixed_precision_takes_16_bytes_for_a_parameter_and_18_with_gradients_in_float32():
    parameters = GPT.parameters().total
    for stack, expected in (("megatron-2022", 16), ("megatron-core", 18)):
        memory = peak_memory(job(stack), Plan())
        assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(expected * parameters)


@pytest.mark.parametrize(("gpu", "channels"), [("a100-80", 24), ("h100", 24), ("b200", 32), ("gb300", 32)])
def test_a_communicator_has_the_channels_of_the_rings_that_nccl_finds_on_the_hardwares_nvlink(gpu, channels):
    assert channels_of(find_hardware(gpu)) == channels


def test_zero_shards_optimizer_then_gradients_then_weights():
    none, one, two, three = (peak_memory(job(), Plan(dp=8, zero=zero)) for zero in range(4))
    assert one.optimizer == none.optimizer / 8
    assert two.gradients == none.gradients / 8
    assert three.weights == none.weights / 8
    assert none.buffers == context_bytes(job(), Plan(dp=8))


def test_1f1b_keeps_p_minus_i_microbatches_on_rank_i_and_interleaving_more():
    looped = Plan(pp=4, chunks=2, schedule="interleaved")
    assert in_flight(framework_workload(job(), Plan(pp=4))) == [4, 3, 2, 1]
    assert in_flight(framework_workload(job(), looped))[0] == 4 * 2 + 4 - 1


def test_only_the_last_rank_holds_logits():
    ranks = memory_of(framework_workload(job(), Plan(pp=4)))
    assert [memory.logits > 0 for memory in ranks] == [False, False, False, True]


@given(
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.integers(0, 3),
)
def test_half_the_microbatch_never_needs_more_memory(recompute, micro_batch, tp, zero):
    plan = Plan(dp=4, tp=tp, micro_batch=2 * micro_batch, recompute=recompute, zero=zero)
    assert peak_memory(job(), replace(plan, micro_batch=micro_batch)).total <= peak_memory(job(), plan).total


LLAMA = find_model("llama-3-8b")


def fsdp(name, **changes):
    return replace(TrainingJob(LLAMA, find_hardware("h200"), find_stack(name), 4096, 32), **changes)


def test_in_16_bits_fsdp_keeps_6_bytes_of_a_shard_at_the_loss_and_8_at_the_end():
    # torch.optim.AdamW in the weights' type: a weight and two moments; the gradient comes with the backward
    memory = peak_memory(fsdp("pytorch", half=True), Plan(dp=4, micro_batch=8, zero=3, recompute="full"))
    shards = LLAMA.parameters().total / 4
    assert memory.weights + memory.optimizer == pytest.approx(6 * shards)
    assert memory.gradients == pytest.approx(2 * shards)
    assert memory.free_blocks > memory.gradients  # which are not there while the loss turns


def test_gradients_of_fsdp_stay_whole_in_float32_between_microbatches_where_the_loop_says_so():
    once, twice = (
        peak_memory(fsdp("pytorch", half=True), Plan(dp=4, micro_batch=size, zero=3)) for size in (8, 4)
    )
    # of all, beside the layer that is scattered
    assert twice.buffers - once.buffers == pytest.approx(4 * LLAMA.parameters().total)
    titan = [peak_memory(fsdp("torchtitan"), Plan(dp=4, micro_batch=size, zero=3)) for size in (8, 4)]
    assert titan[0].buffers == titan[1].buffers


@pytest.mark.parametrize("name", ["torchtitan", "accelerate-sync-each-batch", "fsdp-2023"])
def test_fsdps_zero_2_holds_what_zero_3_does_that_frees_no_weights_behind_the_forward_pass(name):
    """One setting, reshard_after_forward=False: the same gathers into the same buffers."""
    job = fsdp(name, sequence=1024)
    keeps = replace(job, stack=replace(job.stack, reshards=False))
    two, three = (peak_memory(*each) for each in ((job, Plan(dp=4, zero=2)), (keeps, Plan(dp=4, zero=3))))
    assert two == three
    assert two.weights == pytest.approx(LLAMA.parameters().total) and two.buffers > 2 * two.weights


@pytest.mark.parametrize("tp", [2, 4])
def test_fsdp_over_one_rank_keeps_whole_gradients_beside_what_tp_cuts(tp):
    """KempnerForge's mesh has dp_shard=1 beside tp: 4 bytes of a gradient wait for the last microbatch while
    the loss turns, and not the 2 that AdamW reads."""
    plan = Plan(tp=tp, micro_batch=16, zero=3, recompute="full")
    some = fsdp("pytorch-compiled", half=True)
    alone = replace(some, stack=replace(some.stack, shards_over_one=""))
    more = peak_memory(some, plan).allocated - peak_memory(alone, plan).allocated
    assert more == pytest.approx(peak_memory(some, plan).weights, rel=0.02)
    assert not is_fully_sharded(some, Plan(zero=3))  # nothing to shard, and no mesh


def test_torchtitan_shards_over_one_rank_as_over_several():
    """_mesh_exist in parallel_dims.py: there is always a mesh for fully_shard. A rank of ep=4 that tp alone
    makes keeps float32 weights and gradients, and makes those of two layers whole in 16 bits."""
    mixture = fsdp("torchtitan", shape=find_model("mixtral-8x7b"), global_batch=1)
    plan = Plan(tp=4, ep=4, micro_batch=1, zero=3, sequence_parallel=True)
    memory, own = peak_memory(mixture, plan), sum(framework_workload(mixture, plan).trained(0))
    assert is_fully_sharded(mixture, plan) and is_fully_sharded(mixture, Plan(zero=3))
    assert memory.weights == pytest.approx(4 * own)
    assert memory.weights + memory.optimizer == pytest.approx(12 * own)
    whole = replace(mixture, stack=replace(mixture.stack, shards_over_one=""))
    assert peak_memory(whole, plan).weights == pytest.approx(2 * own)


def test_a_pipelines_last_rank_of_pytorch_holds_the_logits_of_all_microbatches_twice():
    plan = Plan(pp=2, dp=4, micro_batch=1, zero=3)
    kept, freed = (
        memory_of(framework_workload(fsdp("torchtitan", stack=stack), plan))[-1].logits
        for stack in (find_stack("torchtitan"), replace(find_stack("torchtitan"), keeps_outputs=False))
    )
    assert kept - freed == 2 * (7 + 8) * 4096 * LLAMA.vocab  # bytes, others and all joined, logits


def test_deepspeeds_pipeline_keeps_the_losses_of_microbatches_and_sends_in_turn():
    """_exec_forward_pass in deepspeed/runtime/pipe/engine.py: fwd_outputs are losses."""
    few, many = (
        memory_of(framework_workload(fsdp("deepspeed", global_batch=batch), Plan(pp=4, dp=4, zero=1)))
        for batch in (32, 256)
    )
    assert few == many
    assert find_stack("deepspeed").pp_in_turn and not find_stack("deepspeed").pp_overlap


def ranks_of(plan, **stack):
    some = fsdp("torchtitan", stack=replace(find_stack("torchtitan"), **stack))
    return memory_of(framework_workload(some, plan))


def test_a_stage_of_pytorch_keeps_a_buffer_for_each_microbatchs_messages():
    """With 2 and 1 of 8 microbatches in flight, rank 0 has 2 outputs, and the gradients of its 8, rank 1 7
    inputs beside the one in flight, and their gradients."""
    plan, message = Plan(pp=2, dp=4, micro_batch=1, zero=3), 2 * 4096 * LLAMA.hidden
    kept, freed = (ranks_of(plan, keeps_outputs=keeps) for keeps in (True, False))
    more = [one.activations - other.activations for one, other in zip(kept, freed)]
    assert more == [(2 + 8) * message, 2 * 7 * message]


def test_gradients_of_one_chunk_wait_where_its_microbatches_all_come_before_the_next_chunks():
    """Interleaved with as many microbatches as ranks: 4 bytes for each weight of one chunk of two, and for
    those of the layer that is scattered. Beside them whole weights, and the blocks that the largest unit, the
    head, and a layer were gathered into."""
    counted = LLAMA.parameters()
    head = counted.token_embedding + counted.final_norm
    layer = counted.attention + counted.dense_mlp + counted.layer_norms
    for ranks, begun in ((8, 1 / 2), (2, 1)):
        plan = Plan(pp=ranks, dp=2, micro_batch=2, zero=3, chunks=2, schedule="interleaved")
        memory = ranks_of(plan)[-1]
        parameters = memory.weights * 2 / 4
        whole = 2 * parameters + 2 * (head + layer) + 4 * layer + context_bytes(fsdp("torchtitan"), plan)
        assert memory.buffers == pytest.approx(whole + 4 * begun * parameters)


def test_torchtitan_gathers_keys_and_values_of_all_cp_ranks_at_once():
    plan = Plan(cp=4, dp=1, zero=3, recompute="full")
    gathers, rings = (ranks_of(plan, context_parallel=way)[0].activations for way in ("all-gather", "ring"))
    assert gathers - rings == 2 * 4096 * 2 * LLAMA.hidden


def test_megatron_core_keeps_a_gradient_that_nobody_reads_of_each_shape_of_weights():
    some = replace(fsdp("megatron-core"), stack=replace(find_stack("megatron-core"), dummy_gradients=False))
    with_them, without = (peak_memory(each, Plan(tp=2, dp=2)) for each in (fsdp("megatron-core"), some))
    layer = (LLAMA.parameters().attention + LLAMA.parameters().dense_mlp) / 2 + LLAMA.parameters().layer_norms
    head = LLAMA.vocab * LLAMA.hidden / 2
    assert with_them.total - without.total == pytest.approx(2 * (layer + head))


def test_what_the_loss_and_what_the_backward_pass_need_is_reserved_for_both_and_allocated_for_one():
    memory = peak_memory(fsdp("torchtitan"), Plan(dp=4, micro_batch=2, zero=3, recompute="full"))
    gathered = 2 * (2 * LLAMA.parameters().token_embedding + LLAMA.parameters().final_norm)  # both ends
    assert memory.reserved - memory.allocated == memory.free_blocks < memory.logits + gathered
    assert memory.total - memory.reserved == memory.outside
    nothing_whole = peak_memory(replace(fsdp("torchtitan"), stack=find_stack("pytorch")), Plan(dp=4, zero=1))
    assert nothing_whole.logits > 0 == nothing_whole.free_blocks


@pytest.mark.parametrize("dtype", ["fp8", "nvfp4"])
def test_what_goes_into_matrices_is_kept_in_the_type_that_it_was_cast_to(dtype):
    lists, cast = (
        LayerLists(LLAMA, Share(1, 4096, number_type=NUMBER_TYPES[name]), find_stack("megatron-core"))
        for name in ("bf16", dtype)
    )
    size, ffn, hidden = NUMBER_TYPES[dtype].copy, LLAMA.ffn, LLAMA.hidden
    # both norms' outputs and what goes into the second matrix; what attention gives is kept in both types by
    # delayed scaling, and else as it is (set_save_original_input in megatron/core/transformer/attention.py)
    saved = 4096 * ((2 - size) * (2 * hidden + ffn) - (dtype == "fp8") * size * hidden)
    assert kept_bytes(lists, "dense", "none") - kept_bytes(cast, "dense", "none") == pytest.approx(saved)


def test_a_plan_is_tight_where_the_bar_of_its_memory_crosses_what_a_gpu_has():
    some, plan = fsdp("megatron-core"), Plan(tp=2, dp=2)
    need, bar = peak_memory(some, plan).total, predict(some, plan).memory_bar.fraction
    found = [
        predict(replace(some, hardware=replace(some.hardware, memory_bytes=need * (1 + share * bar))), plan)
        for share in (-0.1, 0.9, 1.1)
    ]
    assert [one.is_tight for one in found] == [False, True, False]
    assert [one.as_dict()["tight"] for one in found] == [False, True, False]
    assert f"is tight: {si(0.9 * bar * need, 'B')} of" in room_words(found[1])


@pytest.mark.parametrize(
    ("name", "dtype", "hardware", "each"),
    [
        ("megatron-core", "bf16", "h100", 2),
        ("megatron-core", "fp8", "h100", 2 + 1 + 1),  # Hopper needs a transposed copy
        ("megatron-core", "fp8", "b200", 2 + 1),
        ("megatron-core", "mxfp8", "b200", 2 + 2 * (1 + 1 / 32)),
        ("nemo", "fp8", "h100", 1 + 1),  # fp8_param_gather
        ("nemo", "fp8-block", "h100", 2 + 2 * (1 + 4 / 128)),
        ("torchtitan", "fp8-current", "h100", 2),  # torchao casts for every product
    ],
)
def test_transformer_engine_keeps_weights_of_layers_cast_beside_or_instead_of_those_in_16_bits(
    name, dtype, hardware, each
):
    some = replace(fsdp(name, dtype=dtype), hardware=find_hardware(hardware))
    counted, layers = LLAMA.parameters(), 32
    matrices = layers * (counted.attention + counted.dense_mlp)
    found = peak_memory(some, Plan(tp=2, zero=1)).weights
    rest = 2 * (2 * counted.token_embedding / 2 + layers * counted.layer_norms + counted.final_norm)
    assert found == pytest.approx(each * matrices / 2 + rest)


def test_weights_are_kept_cast_alone_where_an_optimizer_is_sharded():
    """--fp8-param-gather needs --use-distributed-optimizer: without it two bytes stay."""
    some, matrices = (
        fsdp("nemo", dtype="fp8"),
        32 * (LLAMA.parameters().attention + LLAMA.parameters().dense_mlp),
    )
    whole, sharded = (peak_memory(some, Plan(zero=zero)).weights for zero in (0, 1))
    assert whole - sharded == pytest.approx(2 * matrices)


def test_activations_on_their_way_to_the_host_are_no_more_than_there_are():
    """A rank with the embedding alone has none to send, and one with a layer holds that one."""
    some = replace(fsdp("nemo"), global_batch=4)
    plan = Plan(pp=34, dp=4)
    usual, away = (
        memory_of(framework_workload(one, plan)) for one in (some, replace(some, offload=("activations",)))
    )
    assert [one.activations for one in away] == [one.activations for one in usual]
    less, few = replace(some, offload=("activations",)), Plan(pp=2)
    assert peak_memory(less, few).activations < 0.3 * peak_memory(some, few).activations
    for each in (plan, few):
        assert lower_bound(less, each).memory_bytes[0] == pytest.approx(peak_memory(less, each).total)


def test_an_interleaved_schedule_whose_passes_run_as_one_keeps_a_chunk_more():
    """get_pp_rank_microbatches: one microbatch more in the warmup, and never more than there are."""
    stacks = [replace(find_stack("megatron-core"), hides_dispatch=hides) for hides in (False, True)]
    for batch, more in ((128, [1] * 4), (8, [0, 0, 1, 1])):
        plan = Plan(pp=4, dp=2, ep=2, chunks=2, schedule="interleaved", micro_batch=1)
        some = [job(stack=stack, shape=find_model("mixtral-8x7b"), global_batch=batch) for stack in stacks]
        usual, hidden = (in_flight(framework_workload(each, plan)) for each in some)
        assert [b - a for a, b in zip(usual, hidden)] == more
