"""Adapters of Megatron-Bridge (src/megatron/bridge/peft: lora.py, canonical_lora.py, ParallelLinearAdapter in
utils.py), held against the shapes of its modules, and their messages against what those modules send."""

from collections import Counter
from dataclasses import replace

import pytest

from gpu import Operation
from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.adapters import Adapters, adapted_names
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.flops import adapter_flops
from ndparallel.planner.layers.kept import kept_bytes
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.legality import check
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import STACKS, find_stack
from ndparallel.planner.stages import trained_of

S, RANK = 4096, 32
H, Q, KV, FFN = 4096, 4096, 1024, 14336  # Llama 3 8B's
MODULES = {  # inputs and outputs of its four matrices of a layer, and whether it is cut by rows
    "linear_qkv": (H, Q + 2 * KV, False),
    "linear_proj": (Q, H, True),
    "linear_fc1": (H, 2 * FFN, False),
    "linear_fc2": (FFN, H, True),
}


def job(model="llama-3-8b", software="megatron-core", rank=RANK, matrices=(), **changes):
    stack = find_stack(software)
    adapters = Adapters(rank, matrices)
    return TrainingJob(find_model(model), find_hardware("h100"), stack, S, 64, adapters=adapters, **changes)


def lists(one, plan):
    return LayerLists(one.shape, plan.share(one), one.stack)


def sides(one, plan, kind="dense"):
    layer = lists(one, plan).layer(kind, "none")
    return layer.forward, layer.backward_input, layer.backward_weight


def adapters_products(items):
    return [item for item in items if isinstance(item, Operation) and item.name.startswith("adapter of")]


def messages_beside(one, plan, kind="dense"):
    """The collectives of each side that a model without adapters does not have, by name and bytes."""
    found = []
    for tuned, whole in zip(sides(one, plan, kind), sides(replace(one, adapters=None), plan, kind)):
        counts = [
            Counter((item.collective, item.group, float(item.bytes)) for item in side if is_message(item))
            for side in (tuned, whole)
        ]
        found.append(counts[0] - counts[1])
    return found


def is_message(item):
    return isinstance(item, CollectiveOp)


# ------------------------------------------------------------------------------------------ what is trained


@pytest.mark.parametrize("software", ["megatron-core", "nemo"])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_adapters_of_megatron_bridge_are_on_fused_matrices_and_tp_cuts_both_of_a_pair(software, tp):
    """linear_in and linear_out are a ColumnParallelLinear or a RowParallelLinear each; at rank 32 the model
    has 71,303,168 parameters in them, and PEFT's on the seven matrices 83,886,080."""
    of_modules = sum(RANK * inputs // tp + RANK * outputs // tp for inputs, outputs, _ in MODULES.values())
    assert trained_of(job(software=software), Plan(tp=tp), "dense") == (of_modules, 0)
    if tp == 1:
        assert 32 * of_modules == 71_303_168
        assert 32 * trained_of(job(software="torchtitan"), Plan(), "dense")[0] == 83_886_080


def test_other_software_has_an_adapter_for_each_of_hugging_faces_matrices():
    fused = {name for name, stack in STACKS.items() if stack.bridge_adapters}
    assert fused == {"megatron-core", "nemo"}


def test_matrices_that_are_named_have_an_adapter_each_as_in_canonical_lora():
    """linear_q and linear_v of CanonicalLoRA: two outputs of their own, cut over tp as all others."""
    named = job(matrices=("q_proj", "v_proj"))
    assert trained_of(named, Plan(tp=2), "dense") == (RANK * (H + Q + H + KV) / 2, 0)


def test_an_adapter_stands_on_one_fused_matrix_where_it_is_named_as_nemos_recipes_do():
    """target_modules = ["linear_qkv"] of llama3_70b_peft_8gpu_h100_bf16_config, in
    src/megatron/bridge/perf_recipes/llama/h100/llama3.py. PEFT has one on each of its parts."""
    fused = ("linear_qkv",)
    assert trained_of(job(matrices=fused), Plan(), "dense")[0] == RANK * (H + Q + 2 * KV)
    peft = job(software="torchtitan", matrices=fused)
    assert trained_of(peft, Plan(), "dense")[0] == RANK * (3 * H + Q + 2 * KV)
    both = job(matrices=("linear_fc1", "linear_fc2"))
    assert trained_of(both, Plan(), "dense")[0] == RANK * (H + 2 * FFN + FFN + H)


def test_a_model_is_told_the_fused_matrices_that_it_has():
    assert {*MODULES} < {*adapted_names(find_model("llama-3-8b"))}
    assert "linear_qkv" not in adapted_names(find_model("deepseek-v3"))


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (1, 8), (2, 4)])
def test_all_experts_share_one_pair_which_ep_does_not_cut(tp, ep):
    """share_expert_adapters. Of Mixtral's 8 experts none has an adapter of its own, and tp cuts none."""
    mixtral, rank = job("mixtral-8x7b"), RANK
    shared = rank * sum(sum(MODULES[name][:2]) for name in ("linear_qkv", "linear_proj")) / tp
    experts = rank * (H + 2 * FFN + FFN + H)
    assert trained_of(mixtral, Plan(tp=tp, dp=8, ep=ep), "experts") == (shared, experts)


def test_a_token_goes_through_the_experts_pair_once_for_each_of_its_experts():
    mixtral, layers = job("mixtral-8x7b"), 32
    attention, experts = trained_of(mixtral, Plan(), "experts")
    assert adapter_flops(mixtral) == 6 * 64 * S * layers * (attention + 2 * experts)


# --------------------------------------------------------------------------------------- what is multiplied


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_ranks_of_tp_multiply_as_many_numbers_as_their_adapters_have_and_each_three_times(tp):
    tuned, plan = job(), Plan(tp=tp)
    products = adapters_products(sum(sides(tuned, plan), []))
    each, _ = trained_of(tuned, plan, "dense")
    assert sum(item.flops for item in products) == pytest.approx(6 * S * each)
    assert len(products) == 4 * 2 * 3  # 7 pairs would be 42


def test_one_pair_multiplies_the_rows_of_all_experts_in_one_launch():
    """Of Qwen3-30B-A3B's 128 experts ep=8 leaves 16 on a rank, with 8 rows of each token."""
    tuned, plan = job("qwen3-30b-a3b"), Plan(dp=8, ep=8)
    forward = [item for item in adapters_products(sides(tuned, plan, "experts")[0]) if "experts" in item.name]
    assert [item.shape for item in forward] == [
        *((8 * S, RANK, 2048), (8 * S, 2 * 768, RANK)),
        *((8 * S, RANK, 768), (8 * S, 2048, RANK)),
    ]
    assert {item.kernels for item in forward} == {1}


def test_gradients_of_the_experts_pair_are_summed_over_ep_in_the_backward_pass():
    """_allreduce_shared_expert_grad, a hook of each of the four weights."""
    _, _, weights = messages_beside(job("qwen3-30b-a3b"), Plan(dp=8, ep=8), "experts")
    sizes = [2 * RANK * width for width in (2048, 2 * 768, 768, 2048)]
    assert weights == Counter(("all_reduce", "ep", float(size)) for size in sizes)
    assert messages_beside(job("qwen3-30b-a3b"), Plan(dp=8), "experts")[2] == {}


# --------------------------------------------------------------------------------------------- what is sent


def test_without_sequence_parallelism_adapters_send_rows_as_wide_as_the_model_both_ways():
    """A of a column matrix gathers, of a row matrix sums, as narrow as the rank. B of a row matrix gathers
    what it gives (gather_output). Backward each B sums its input's gradient, and A of a column matrix too."""
    narrow, wide = 2.0 * S * RANK, 2.0 * S * H
    forward, backward, weights = messages_beside(job(), Plan(tp=4))
    assert forward == {
        ("all_gather", "tp", narrow): 2,
        ("all_reduce", "tp", narrow): 2,
        ("all_gather", "tp", wide): 2,
    }
    assert backward == {("all_reduce", "tp", narrow): 4, ("all_reduce", "tp", wide): 2}
    assert weights == {}


def test_with_sequence_parallelism_rows_are_gathered_beside_row_matrices_alone():
    """disable_sequence_parallel_comm: Transformer Engine hands over the rows that it gathered, and scatters
    their gradients with its own. scatter_to_sequence_parallel_region gathers gradients."""
    narrow, wide = 2.0 * S * RANK, 2.0 * S * H
    tuned = job()
    tuned = replace(tuned, stack=replace(tuned.stack, tp_overlap="none", keeps_shards=False))
    forward, backward, _ = messages_beside(tuned, Plan(tp=4, sequence_parallel=True))
    assert forward[("all_gather", "tp", wide)] == 2
    assert backward == {("all_reduce", "tp", narrow): 4, ("all_gather", "tp", wide): 2}


def test_where_products_gather_in_chunks_adapters_gather_and_scatter_their_rows_themselves():
    """gather_from_sequence_parallel_region, where linear_qkv and linear_fc1 have ub_overlap_ag."""
    wide, plan = 2.0 * S * H, Plan(tp=4, sequence_parallel=True)
    both = [messages_beside(job(software=name), plan) for name in ("nemo", "megatron-core")]
    more = [one - other for one, other in zip(*both)]
    assert more == [{("all_gather", "tp", wide): 2}, {("reduce_scatter", "tp", wide): 2}, {}]


def test_no_tp_no_messages():
    assert messages_beside(job(), Plan()) == [{}, {}, {}]


def test_adapters_over_tp_take_longer_than_those_that_send_nothing():
    """The same job with PEFT's adapters."""
    plan = Plan(tp=8, dp=1, sequence_parallel=True)
    tuned = job()
    peft = replace(tuned, stack=replace(tuned.stack, bridge_adapters=False))
    assert predict(tuned, plan).seconds > 1.05 * predict(peft, plan).seconds
    assert predict(tuned, Plan()).seconds < predict(peft, Plan()).seconds


# --------------------------------------------------------------------------------------------- what is kept


def test_four_adapters_keep_what_lies_between_their_matrices():
    tuned, plan = job(), Plan()
    whole = replace(tuned, adapters=None)
    added = [kept_bytes(lists(one, plan), "dense", "none") for one in (tuned, whole)]
    assert added[0] - added[1] == S * 4 * RANK * 2


def test_adapters_of_column_matrices_keep_all_rows_of_their_input_and_not_a_shard():
    """return_layernorm_output_gathered; what sequence_parallel_input_regather is there to save."""
    tuned, plan = job(), Plan(tp=8, sequence_parallel=True)
    none, all_four, row = (
        kept_bytes(lists(one, plan), "dense", "none")
        for one in (replace(tuned, adapters=None), tuned, job(matrices=("o_proj", "down_proj")))
    )
    between = S * RANK * 2
    assert row - none == 2 * between
    assert all_four - none == 4 * between + 2 * (S - S / 8) * H * 2


# ------------------------------------------------------------------------------------------ what is refused


def test_tp_that_does_not_divide_the_rank_is_refused_where_it_cuts_it():
    """ColumnParallelLinear divides its outputs, which are the rank; RowParallelLinear divides its inputs."""
    with pytest.raises(UserError, match="tp=8 cannot cut adapters of rank 12 evenly; nearest: 4"):
        check(job(rank=12), Plan(tp=8, dp=1))
    check(job(rank=12, matrices=("o_proj", "down_proj")), Plan(tp=8, dp=1))
    check(job(rank=12), Plan(tp=4, dp=1))
    check(job(software="torchtitan", rank=12), Plan(tp=8, dp=1))
