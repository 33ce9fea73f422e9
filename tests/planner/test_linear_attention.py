"""Linear attention: what a layer of it multiplies, moves, keeps and sends, against Megatron's own count of
FLOPs and published seconds of its kernels."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.adapters import Adapters
from ndparallel.planner.error_bar import error_bar
from ndparallel.planner.imbalance import held
from ndparallel.planner.job import Plan, Share, TrainingJob
from ndparallel.planner.launches import launches_of
from ndparallel.planner.layers.flops import model_flops
from ndparallel.planner.layers.kept import kept_bytes, linear_bytes
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.legality import check, violations
from ndparallel.planner.memory.deepspeed import largest_weight, smallest_weight
from ndparallel.planner.models.attentions import GatedDeltaNet
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.number_types import NUMBER_TYPES
from ndparallel.planner.prediction import memory_of, workload_of
from ndparallel.planner.software import find_stack
from ndparallel.planner.stages import elements_of, stage_kinds
from ndparallel.search.what_if import changed_plan

QWEN, MIXTURE = find_model("qwen3.5-27b"), find_model("qwen3.5-397b-a17b")
assert QWEN.linear
NET = QWEN.linear
MEGATRON, TORCHTITAN = find_stack("megatron-core"), find_stack("torchtitan")
S, H = 8192, 5120  # tokens; numbers of one in qwen3.5-27b
KEYS, VALUES, HEADS = 16 * 128, 48 * 128, 48  # of its linear attention
INTO = 2 * KEYS + 2 * VALUES + 2 * HEADS


def job(shape=QWEN, software="megatron-core", **fields) -> TrainingJob:
    return TrainingJob(shape, find_hardware("h200"), find_stack(software), S, 64, **fields)


def lists(shape=QWEN, **share) -> LayerLists:
    return LayerLists(shape, Share(1, S, **share), MEGATRON)


def named(items: list, name: str) -> list:
    return [item for item in items if item.name == name]


# ------------------------------------------------------------------------------------------------- the model


def test_every_fourth_layer_has_attention_and_the_others_linear_attention():
    assert [QWEN.kind(layer) for layer in range(4)] == ["linear-dense"] * 3 + ["dense"]
    assert (QWEN.linear_layers, QWEN.layers) == (48, 64)
    assert MIXTURE.layer_kinds == ("linear-experts", "experts")


def test_parameters_of_stages_add_up_to_the_models():
    one, plan = job(), Plan(pp=4)
    kinds = [kind for stage in stage_kinds(one, plan) for kind in stage]
    held_in_all = sum(sum(elements_of(one, plan, kind)) for kind in kinds)
    # the head has its prediction layer besides
    assert held_in_all == QWEN.parameters().total + QWEN.parameters().prediction


def test_a_model_of_more_or_fewer_layers_goes_on_with_their_pattern():
    plan = Plan(tp=2, dp=8)
    for change, layers in (("layers*2", 128), ("layers/2", 32)):
        shape = changed_plan(job(), plan, change)[0].shape
        assert [shape.kind(layer) for layer in range(layers)] == (["linear-dense"] * 3 + ["dense"]) * (
            layers // 4
        )


def test_whole_layers_and_dense_ones_go_on_but_not_dense_ones_that_come_first():
    """Gemma 2: every second layer sees all. Llama 4 Maverick: every second one is dense, every fourth sees
    all. DeepSeek-V3: the first three are dense."""
    gemma, maverick, deepseek = map(find_model, ("gemma-2-9b", "llama-4-maverick", "deepseek-v3"))
    for layers in (20, 84):
        assert list(gemma.with_layers(layers).whole_layers) == list(range(1, layers, 2))
    four = ["window-dense", "window-experts", "window-dense", "experts"]
    for layers in (24, 96):
        found = maverick.with_layers(layers)
        assert [found.kind(layer) for layer in range(layers)] == four * (layers // 4)
    for layers in (30, 122):
        experts = deepseek.with_layers(layers).experts
        assert experts and experts.dense_layers == (0, 1, 2)


def test_heads_of_keys_serve_heads_of_values_evenly():
    with pytest.raises(UserError, match="5 heads of keys cannot serve 32 .* nearest: 4 or 8"):
        GatedDeltaNet(5, 32, 128, 128, 4, (0,))
    with pytest.raises(UserError, match="layer 64 is to be linear, but the last layer is 63"):
        replace(QWEN, linear=replace(NET, layers=(64,)))


@pytest.mark.parametrize("field", ["key_heads", "value_heads", "key_dim", "value_dim", "conv"])
def test_its_sizes_are_at_least_1(field):
    none: dict[str, Any] = {field: 0}
    with pytest.raises(UserError, match=f"{field} is 0; it must be from 1"):
        replace(NET, **none)


# --------------------------------------------------------------------------------------------- FLOPs, seconds


def test_model_flops_are_those_that_megatron_counts():
    """num_floating_point_operations of megatron/training/training.py, in its own terms: three passes of two
    operations, without prediction layers; the small convolution's and norms' parameters are below 1e-4."""
    linear = H * INTO + 4 * (2 * KEYS + VALUES) + HEADS * 128**2 * 4 + H * VALUES
    attention = H * (2 * 24 + 2 * 4) * 256 + 24 * 256 * H + 24 * 256 * S
    mlp, head = 3 * H * 17408, H * 248320
    tokens = 64 * S
    megatron = 3 * 2 * tokens * (48 * linear + 16 * attention + 64 * mlp + head)
    alone = job(replace(QWEN, prediction_layers=0))
    assert model_flops(alone) == pytest.approx(megatron, rel=1e-4)


@pytest.mark.parametrize(
    ("hardware", "heads", "tokens", "forward_ms"),
    [
        ("h200", 64, 4096, 0.417),
        ("h200", 64, 16384, 1.598),
        ("h200", 32, 8192, 0.466),
        ("h200", 16, 16384, 0.614),
        ("h200", 8, 8192, 0.234),
        ("gb200", 64, 8192, 0.761),
        ("gb200", 16, 16384, 0.676),
    ],
)
def test_the_delta_rule_takes_its_published_seconds_at_other_lengths_too(hardware, heads, tokens, forward_ms):
    """QwenLM/FlashQLA, benchmark_results_H200.txt and _GB200.txt, column FLA; the rates are those of 32k
    tokens alone. Replayed from a CUDA graph: without launches' gaps."""
    assert seconds_of("forward", hardware, heads, tokens) == pytest.approx(forward_ms / 1e3, rel=0.06)


@pytest.mark.parametrize(
    ("hardware", "heads", "backward_ms"),
    [
        ("h200", 32, 1.444),
        ("h200", 16, 0.957),
        ("h200", 8, 0.722),
        ("gb200", 32, 1.552),
        ("gb200", 16, 1.088),
    ],
)
def test_its_backward_pass_too(hardware, heads, backward_ms):
    """The same files, 8k tokens in one sequence."""
    assert seconds_of("backward", hardware, heads, 8192) == pytest.approx(backward_ms / 1e3, rel=0.06)


def seconds_of(direction: str, hardware: str, heads: int, tokens: int) -> float:
    shape = replace(QWEN, linear=replace(NET, value_heads=heads, key_heads=heads))
    rule = LayerLists(shape, Share(1, tokens), MEGATRON).linear.delta_rule(direction)
    gpu = find_hardware(hardware)
    return gpu.seconds(rule) - rule.kernels * gpu.kernel_overhead_seconds


def test_a_state_is_as_quick_alone_as_beside_as_many_of_other_sequences():
    """Sequences count like heads: twice the sequences with half of the heads take as long."""
    one, two = (
        LayerLists(QWEN, Share(micro_batch, S, tp=tp), MEGATRON).linear.delta_rule("forward")
        for micro_batch, tp in ((1, 1), (2, 2))
    )
    assert one.shape == two.shape and one.flops == two.flops


# ----------------------------------------------------------------------------------------------- the lists


def test_products_are_those_of_its_matrices_and_tp_cuts_them():
    whole, cut = lists(), lists(tp=4, sequence_parallel=True)
    for side, product in (("forward", "forward"), ("backward_input", "dgrad"), ("backward_weight", "wgrad")):
        for matrix, inputs, outputs in (("linear_in", H, INTO), ("linear_out", VALUES, H)):
            passes = [getattr(one.unit("linear-dense", "none"), side) for one in (whole, cut)]
            flops = [named(items, f"{matrix} {product}")[0].flops for items in passes]
            assert flops == [2 * S * inputs * outputs, 2 * S * inputs * outputs / 4]


def test_tp_gathers_and_scatters_linear_attention_as_often_as_attention():
    one = lists(tp=4, sequence_parallel=True)
    sent = {
        kind: [item.name for item in one.unit(kind, "none").forward if isinstance(item, CollectiveOp)]
        for kind in ("dense", "linear-dense")
    }
    assert sent["dense"] == sent["linear-dense"] == ["tp all_gather", "tp reduce_scatter"] * 2


def test_the_sum_of_its_gradients_hides_behind_the_weights_of_the_same_matrix():
    sums = named(
        lists(tp=4, sequence_parallel=True).unit("linear-dense", "none").backward_input, "tp reduce_scatter"
    )
    assert [one.beside.name for one in sums] == ["gate_up wgrad", "linear_in wgrad"]


@pytest.mark.parametrize("cp", [2, 4])
def test_cp_ranks_exchange_sequences_for_heads_and_back(cp):
    """tensor_a2a_cp2hp and _hp2cp of Megatron-Core: all that one product gives, and the result."""
    unit = lists(cp=cp).unit("linear-dense", "none")
    for items, order in ((unit.forward, (INTO, VALUES)), (unit.backward_input, (VALUES, INTO))):
        assert [one.bytes for one in named(items, "cp heads")] == [S / cp * width * 2 for width in order]
    copies = [
        [(one.bytes * cp / S / 2, one.kernels) for one in named(items, "order heads")]
        for items in (unit.forward, unit.backward_input)
    ]
    assert copies == [[(6 * INTO, 3), (4 * VALUES, 2)], [(4 * VALUES, 2), (8 * INTO, 4)]]
    rule = named(unit.forward, "linear attention")[0]
    assert rule.shape[:2] == (S / cp * HEADS, HEADS / cp)  # tokens x heads, and states at once


def moved(items: list, name: str) -> tuple[float, float]:
    """Numbers that the kernels of this name move for each token, and how many kernels there are."""
    found = named(items, name)
    return sum(item.bytes for item in found) / 2 / S, sum(item.kernels for item in found)


def test_its_small_kernels_move_what_their_code_reads_and_writes():
    """Megatron-Core with flash-linear-attention 0.5.1, by hand. Forward: the convolution reads a view; norms
    of queries and keys read a copy. Backward: the convolution runs again and reads its result (2 + 4), its
    gradient is joined of three parts before and of four behind it. The norm behind the rule and its gate are
    two kernels: 2 + 3 arrays, and 3 + 5."""
    unit, copied, mixed = lists().unit("linear-dense", "none"), 2 * HEADS * 128, 2 * KEYS + VALUES
    assert {
        name: moved(unit.forward, name)
        for name in ("convolution", "norms of heads", "heads of keys", "values apart", "gated norm")
    } == {
        "convolution": (2 * mixed, 1),
        "norms of heads": (4 * 2 * KEYS, 2),
        "heads of keys": (2 * KEYS + copied, 2),
        "values apart": (4 * VALUES, 2),
        "gated norm": (5 * VALUES, 2),
    }
    assert {
        name: moved(unit.backward_input, name)
        for name in (
            "gated norm",
            "heads of keys",
            "norms of heads",
            "join q, k, v",
            "convolution",
            "join heads",
        )
    } == {
        "gated norm": (8 * VALUES, 2),
        "heads of keys": (2 * KEYS + copied, 2),
        "norms of heads": (3 * 2 * KEYS, 1),
        "join q, k, v": (2 * mixed, 1),
        "convolution": (6 * mixed, 2),
        "join heads": (2 * INTO, 1),
    }


def test_several_sequences_are_put_token_by_token_again():
    assert moved(lists().unit("linear-dense", "none").forward, "heads to rows") == (0, 0)
    two = LayerLists(QWEN, Share(2, S), MEGATRON).unit("linear-dense", "none")
    for items in (two.forward, two.backward_input):
        assert moved(items, "heads to rows") == (2 * 2 * VALUES, 1)


def test_the_rule_multiplies_and_moves_what_its_kernels_do():
    """By hand, for each token and head. Forward: keys with keys, a chunk's inverse with keys and with values,
    keys and queries with the state, and so on; backward the same and more. Keys and values of other widths
    tell the counts apart."""
    key, value, chunk = 64, 256, 64
    shape = replace(QWEN, linear=replace(NET, key_dim=key, value_dim=value))
    state = key * value
    hand = {
        "forward": (3 * key + 2 * value, 3, 7 * key + 6 * value + 3 * chunk + 2 * state / chunk, 6),
        "backward": (9 * key + 5 * value, 8, 21 * key + 15 * value + 2 * chunk + 4 * state / chunk, 10),
    }
    for direction, (inside, with_states, arrays, kernels) in hand.items():
        rule = LayerLists(shape, Share(1, S), MEGATRON).linear.delta_rule(direction)
        assert rule.flops == 2 * S * HEADS * (chunk * inside + with_states * state)
        assert (rule.bytes, rule.kernels) == (2 * S * HEADS * arrays, kernels)


def test_plain_pytorch_launches_a_kernel_for_every_operator():
    """torchtitan's RMSNormGated: 13 operators, and 23 backward, beside them those of the layer's norm; three
    convolutions, which backward are two kernels, a sum and a cast each."""
    unit = LayerLists(QWEN, Share(1, S), find_stack("torchtitan")).unit("linear-dense", "none")
    for items, norm, convolutions in ((unit.forward, 13, 3), (unit.backward_input, 23, 12)):
        assert sum(moved(items, name)[1] for name in ("gated norm", "rest of the gated norm")) == norm
        assert sum(moved(items, name)[1] for name in ("convolution", "convolutions")) == convolutions


def test_python_launches_its_kernels_one_by_one():
    rule = lists().linear.delta_rule("forward")
    assert [launches_of(rule, cost) for cost in (0.0, 0.5, 2.0)] == [0.0, 0.5 * 6, 2.0 + 5]


def test_plain_pytorch_norms_and_gates_in_32_bits():
    """A compiler reads each array once; plain PyTorch moves every step's result in numbers of 32 bits."""
    passes = {
        software: [
            moved(
                getattr(
                    LayerLists(QWEN, Share(1, S), find_stack(software)).unit("linear-dense", "none"), side
                ),
                "gated norm",
            )
            for side in ("forward", "backward_input")
        ]
        for software in ("torchtitan", "torchtitan-compiled")
    }
    assert passes == {
        "torchtitan": [(35 * VALUES, 1), (74 * VALUES, 1)],
        "torchtitan-compiled": [(3 * VALUES, 1), (5 * VALUES, 1)],
    }


def test_prices_of_an_array_are_those_of_its_plans():
    """Also of what one rank, and one sequence, has not: heads are ordered and put in rows in 0 kernels."""
    degrees = np.array([1, 2, 4])
    share = Share(degrees, S, tp=degrees, cp=degrees)
    together = LayerLists(QWEN, share, MEGATRON).unit("linear-dense", "none")
    for place, degree in enumerate(map(int, degrees)):
        one = LayerLists(QWEN, Share(degree, S, tp=degree, cp=degree), MEGATRON).unit("linear-dense", "none")
        for name in ("linear attention", "convolution", "gated norm", "order heads", "heads to rows"):
            for side in ("forward", "backward_input"):
                some = np.broadcast_arrays(*moved(getattr(together, side), name), degrees)[:2]
                assert tuple(each[place] for each in some) == moved(getattr(one, side), name)


def test_an_output_gate_widens_queries_and_multiplies_what_heads_give():
    gated, plain = (lists(replace(QWEN, output_gate=gate)).unit("dense", "none") for gate in ("queries", ""))
    more = 2 * S * H * 24 * 256
    assert named(gated.forward, "qkv forward")[0].flops - named(plain.forward, "qkv forward")[0].flops == more
    (gate,) = named(gated.forward, "output gate")
    assert gate.bytes == 3 * S * 24 * 256 * 2 and not named(plain.forward, "output gate")


def test_every_second_product_counts_an_output_gate_with_its_queries():
    """torchtitan's wq gives both (_qwen35_attention_config): of wq, wk and wv the second runs again."""
    shares = {
        gate: (one := lists(replace(QWEN, output_gate=gate))).recomputed.second_shares(one.attention)["qkv"]
        for gate in ("queries", "")
    }
    assert shares == {"queries": 4 / (2 * 24 + 2 * 4), "": 4 / (24 + 2 * 4)}


def test_selective_recomputation_runs_no_core_of_linear_attention():
    stack = replace(MEGATRON, selective=("core_attn",))
    one = LayerLists(QWEN, Share(1, S), stack)
    assert one.unit("linear-dense", "selective").recompute == []
    assert [item.kind for item in one.unit("dense", "selective").recompute] == ["cudnn forward"]


def test_full_recomputation_runs_the_rule_again():
    again = lists().unit("linear-dense", "full").recompute
    assert [item.kind for item in named(again, "linear attention")] == ["delta-rule forward"]


def test_it_keeps_what_its_kernels_save():
    """By hand: all that the first product gives; queries and keys before and behind their copies for 48
    heads; values; an inverse of 64 for each token and head; what the rule gives, the same behind its norm,
    the gate, and what is multiplied last; beside input and norm of the half."""
    linear, plain = (kept_bytes(lists(), kind, "none") for kind in ("linear-dense", "dense"))
    kept = linear - plain
    linear = INTO + 2 * KEYS + 2 * HEADS * 128 + VALUES + 64 * HEADS + 4 * VALUES
    attention = (2 * 24 + 2 * 4 + 2 * 24) * 256
    assert kept == 2 * S * (linear - attention)


def test_what_its_products_take_is_kept_as_they_cast_it():
    """Transformer Engine keeps 1 byte of what goes into both products, for each of 2."""
    plain, cast = (linear_bytes(lists(number_type=NUMBER_TYPES[name])) for name in ("bf16", "fp8"))
    assert plain - cast == S * (H + VALUES)


def test_a_stage_keeps_what_its_own_layers_keep():
    """Qwen's fourth layers have attention, so of 64 stages every fourth one keeps another layer's bytes. The
    last one has a prediction layer besides."""
    plan = Plan(pp=64, schedule="gpipe")
    memory = memory_of(workload_of(job(), plan))
    linear, plain = (kept_bytes(lists(), kind, "none") for kind in ("linear-dense", "dense"))
    expected = [64 * each for each in 16 * [*3 * [linear], plain]]
    assert [rank.activations for rank in memory[:-1]] == expected[:-1]


def test_torchtitan_runs_the_rule_and_every_second_product_again():
    """Its list of what is saved has attention, and no kernel of linear attention
    (torchtitan/distributed/activation_checkpoint.py). Products are counted in their order: q, k, v, z, a, b,
    output, gate, up, down."""
    titan = LayerLists(QWEN, Share(1, S), find_stack("torchtitan"))
    again = {item.name: item for item in titan.unit("linear-dense", "selective").recompute}
    products = {"linear_in": KEYS + VALUES + HEADS, "gate_up": 17408}  # k, z, b; up
    assert again["linear attention"].kind == "delta-rule forward"
    assert {name: again[f"{name} forward"].flops / (2 * S * H) for name in products} == products
    assert "linear_out forward" not in again and "down forward" not in again
    attention = [item.name for item in titan.unit("dense", "selective").recompute]
    assert "attention" not in attention and "linear attention" not in attention


def test_and_keeps_the_other_products_results():
    """What goes into the layer; q, v, a, output, gate, and down, which runs again last and so not at all."""
    kept = kept_bytes(LayerLists(QWEN, Share(1, S), find_stack("torchtitan")), "linear-dense", "selective")
    assert kept == 2 * S * (H + (KEYS + VALUES + HEADS) + H + 17408)


def test_its_largest_matrix_can_be_the_models():
    """In Hugging Face's layers queries, keys and values are one matrix; DeepSpeed gathers it whole."""
    wide = replace(QWEN, vocab=256, linear=replace(NET, value_heads=256))
    assert largest_weight(job(wide, "deepspeed"), Plan(zero=3)) == H * (2 * KEYS + 256 * 128)


def test_adapters_stand_on_linear_attention_too():
    rank = 16
    on_all, on_output = Adapters(rank), Adapters(rank, ("out_proj",))
    matrices = NET.matrices(H)
    # in_proj_qkv, in_proj_z, in_proj_b and in_proj_a read the same input
    assert on_all.elements(QWEN, matrices, 1, TORCHTITAN) == rank * (4 * H + INTO + VALUES + H)
    assert on_output.elements(QWEN, matrices, 1, TORCHTITAN) == rank * (VALUES + H)


def test_qwen3_next_joins_the_matrices_into_linear_attention():
    """in_proj_qkvz and in_proj_ba of Qwen3NextGatedDeltaNet in transformers, of 2048 inputs: 16 heads of
    queries and keys and 32 of values and their gate, all of 128 numbers, and two gates for each of 32."""
    qkvz, ba, rank = 2 * 16 * 128 + 2 * 32 * 128, 2 * 32, 16
    shape = find_model("qwen3-next-80b-a3b")
    matrices = shape.linear_attention()
    expected = rank * (2048 + qkvz + 2048 + ba + 32 * 128 + 2048)
    assert Adapters(rank).elements(shape, matrices, 1, TORCHTITAN) == expected
    assert Adapters(rank, ("in_proj_ba",)).elements(shape, matrices, 1, TORCHTITAN) == rank * (2048 + ba)
    assert smallest_weight(job(shape, "deepspeed")) == 2048 * ba
    assert largest_weight(job(replace(shape, vocab=256), "deepspeed"), Plan(zero=3)) == 2048 * qkvz


# -------------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize(("dtype", "most"), [("bf16", 16), ("fp8", 2), ("mxfp8", 1)])
def test_eight_bits_need_every_rank_to_have_multiples_of_16_or_32_of_its_products(dtype, most):
    """48 heads of values have 96 gates: 16,480 numbers in all, 2,060 of them on each of 8 ranks
    (_GDNBase.__init__ in megatron/core/ssm/gated_delta_net/common.py asserts the same of all together)."""
    many = replace(job(replace(QWEN, heads=32, kv_heads=16), dtype=dtype), hardware=find_hardware("b200"))
    legal = [tp for tp in (1, 2, 4, 8, 16) if not [*violations(many, Plan(tp=tp))]]
    assert max(legal) == most


def test_heads_wider_than_its_kernels_are_refused():
    check(job(replace(QWEN, linear=replace(NET, key_dim=256))), Plan())
    with pytest.raises(UserError, match="keys is 257 wide; the kernels .* take up to 256"):
        check(job(replace(QWEN, linear=replace(NET, key_dim=257))), Plan())


@pytest.mark.parametrize(
    ("software", "plan", "sentence"),
    [
        ("megatron-2022", Plan(), "megatron-2022 has no linear attention"),
        ("torchtitan", Plan(cp=2), "torchtitan does not cut linear attention over cp=2; cp must be 1"),
        ("deepspeed", Plan(tp=2), "deepspeed does not cut linear attention over tp=2; tp must be 1"),
        ("megatron-core", Plan(tp=8, cp=4), r"tp\*cp=32 cannot cut the 16 heads .* nearest: 16"),
    ],
)
def test_what_software_cannot_cut_is_refused(software, plan, sentence):
    with pytest.raises(UserError, match=sentence):
        check(job(software=software), plan)


@pytest.mark.parametrize("software", ["torchtitan", "deepspeed", "pytorch"])
def test_software_that_cuts_none_of_it_has_it_whole(software):
    check(job(software=software), Plan(dp=8, zero=1))


def test_megatron_cuts_it_over_tp_and_cp():
    check(job(), Plan(tp=4, cp=4, sequence_parallel=True))


def test_stages_are_told_by_their_layers():
    assert (
        held(workload_of(job(), Plan(pp=4)), 0) == "embedding, 4 layers and 12 layers with linear attention"
    )
    words = held(workload_of(job(MIXTURE), Plan(pp=4)), 3)
    assert words.startswith("4 layers with experts, 11 layers with linear attention and experts and head")


def test_its_bar_says_that_no_run_of_it_was_measured():
    bar = error_bar(job(), Plan(tp=2, dp=8))
    assert "no measured run has linear attention" in bar.sentence
    assert bar.fraction > error_bar(job(find_model("qwen3-32b")), Plan(tp=2, dp=8)).fraction
