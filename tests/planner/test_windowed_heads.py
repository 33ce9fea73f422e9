"""Claims about models whose layers with a window have heads of their own. One layer of each kind of Gemma 4
31B and of MiMo-V2-Flash is counted by hand, as modeling_gemma4.py and modeling_mimo_v2_flash.py of
transformers 5.24 multiply."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu import Operation
from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.megatron.write_model import model_flags
from ndparallel.planner.adapters import Adapters, adapted_names
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.flops import flops, model_flops
from ndparallel.planner.layers.kept import gathered_keys_bytes, kept_bytes
from ndparallel.planner.layers.layer import LayerLists, lists_of
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.legality import check, violations
from ndparallel.planner.lesson_runs.model import check_shape
from ndparallel.planner.memory.deepspeed import largest_weight
from ndparallel.planner.memory.states import dequantized_bytes
from ndparallel.planner.models.attentions import WindowedHeads
from ndparallel.planner.models.huggingface.read import shape_of
from ndparallel.planner.models.presets import preset
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import find_stack
from ndparallel.planner.stages import elements_of, trained_of
from ndparallel.search.bounds.lower_bound import lower_bound
from ndparallel.validation.model import cut_by
from ndparallel.validation.plan import sharing_sequences

SUPPORT = Path(__file__).parents[1] / "support"
PUBLISHED = json.loads((SUPPORT / "architectures.json").read_text("utf-8"))
GEMMA, MIMO = (shape_of(PUBLISHED[name]["config"], name, "") for name in ("gemma-4-31b", "mimo-v2-flash"))
PLAIN = replace(GEMMA, norms="before", activation="swiglu")
TOKENS = 8192
IN_WINDOW = 1024 * TOKENS - 1024 * 1023 // 2  # pairs of Gemma 4's window
WHOLE = TOKENS * (TOKENS + 1) // 2
# of Gemma 4 31B in each kind of layer: outputs of queries, of keys and values, and of a head; pairs
GEMMAS = {
    "window-dense": (32 * 256, 16 * 256 + 16 * 256, 256, IN_WINDOW),
    "dense": (32 * 512, 4 * 512, 512, WHOLE),
}
# of MiMo-V2-Flash: heads of keys and values, pairs
MIMOS = {"window-experts": (8, 129 * TOKENS - 129 * 128 // 2), "experts": (4, WHOLE)}


def job_of(shape: ModelShape, software: str = "megatron-core", **stack) -> TrainingJob:
    return TrainingJob(shape, find_hardware("h100"), replace(find_stack(software), **stack), TOKENS, 64)


def small(own: WindowedHeads, heads: int, kv_heads: int, head_dim: int) -> ModelShape:
    """Three layers with a window, and one that sees everything, of these heads."""
    sizes = (4, 2048, heads, kv_heads, head_dim, 8192, 256)
    return ModelShape("m", *sizes, window=512, whole_layers=(3,), windowed=own)


def lists(shape: ModelShape, plan: Plan, software: str = "megatron-core", **stack) -> LayerLists:
    return lists_of(job_of(shape, software, **stack), plan)


def named(items: list, name: str) -> list[Operation]:
    return [item for item in items if isinstance(item, Operation) and item.name == name]


# ------------------------------------------------------------------------------------------------ by hand


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("kind", GEMMAS)
def test_flops_of_a_layer_of_gemma_4_are_those_of_its_kind(kind, tp):
    queries, keys, width, pairs = GEMMAS[kind]
    matrices = 2 * TOKENS * 5376 * (queries + keys + queries + 3 * 21504) / tp
    core = 2 * 32 / tp * pairs * (width + width)
    forward, again, backward, weights = lists(GEMMA, Plan(tp=tp)).unit(kind, "full")
    assert flops(forward) == flops(again) == pytest.approx(matrices + core, rel=1e-12)
    assert flops(backward) == pytest.approx(matrices + 2.5 * core, rel=1e-12)
    assert flops(weights) == pytest.approx(matrices, rel=1e-12)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("kind", GEMMAS)
def test_a_layer_of_gemma_4_keeps_queries_keys_values_and_results_of_its_kind(kind, tp):
    """Beside them three hidden states of each half: its input, what its first norm gives, and what goes into
    its second one; and gate, up and their product. Where one matrix makes keys and values, there are still
    both: they are normed apart, and only keys are rotated."""
    queries, _, width, _ = GEMMAS[kind]
    kv_heads = {"window-dense": 16, "dense": 4}[kind]
    numbers = 6 * 5376 + (2 * queries + 2 * kv_heads * width + 3 * 21504) / tp
    assert kept_bytes(lists(GEMMA, Plan(tp=tp)), kind, "none") == 2 * TOKENS * numbers


@pytest.mark.parametrize("kind", MIMOS)
def test_attention_of_mimo_v2_flash_has_values_narrower_than_keys(kind):
    kv_heads, pairs = MIMOS[kind]
    into, out = 4096 * (64 * 192 + kv_heads * (192 + 128)), 64 * 128 * 4096
    mixer = lists(MIMO, Plan()).mixer(kind)
    assert flops(mixer.forward) == pytest.approx(
        2 * TOKENS * (into + out) + 2 * 64 * pairs * (192 + 128), rel=1e-12
    )
    core = 2 * 64 * pairs * (3 * 192 + 2 * 128)
    assert flops(mixer.backward) == pytest.approx(2 * TOKENS * (into + out) + core, rel=1e-12)
    (rotary,) = named(mixer.forward, "rotary")
    assert rotary.shape == (TOKENS * (64 + kv_heads) * 192,)
    window, whole = (kept_bytes(lists(MIMO, Plan()), each, "none") for each in MIMOS)
    assert window - whole == 2 * TOKENS * (8 - 4) * (192 + 128)


def test_half_of_the_products_are_kept_by_the_kind_of_layer():
    """torchtitan's selective recomputation keeps what attention gives, and every second product: of queries,
    keys, values, output, gate, up and down the first, third, fifth and last; where keys serve as values, of
    six the first, third and fifth: queries, output, up."""
    found = lists(GEMMA, Plan(), "torchtitan", selective=("half",))
    windowed, whole = (kept_bytes(found, kind, "selective") for kind in GEMMAS)
    assert windowed == 2 * TOKENS * (5376 + 32 * 256 + (32 * 256 + 16 * 256 + 21504 + 5376))
    assert whole == 2 * TOKENS * (5376 + 32 * 512 + (32 * 512 + 5376 + 21504))


def test_model_flops_are_those_of_fifty_layers_with_a_window_and_ten_without():
    """6 for each parameter that multiplies, of a tied head too, and token; 12 for each pair, head and number
    of its width."""
    total = PUBLISHED["gemma-4-31b"]["parameters"]
    pairs = 50 * 32 * IN_WINDOW * 256 * 2 + 10 * 32 * WHOLE * 512 * 2
    attention = 6 * pairs * TOKENS / (TOKENS + 1)  # as definitions count, half of a square
    assert model_flops(job_of(GEMMA)) == pytest.approx(64 * (6 * total * TOKENS + attention), rel=1e-12)


def test_values_are_normed_and_their_gradients_are_added_to_keys_where_one_matrix_makes_both():
    windowed, whole = (lists(GEMMA, Plan(tp=2)).mixer(kind) for kind in GEMMAS)
    for mixer, kv_heads, width in ((windowed, 16, 256), (whole, 4, 512)):
        (norms,) = named(mixer.forward, "norms of heads")
        assert (norms.shape, norms.kernels) == ((TOKENS * (32 + 2 * kv_heads) / 2 * width,), 3)
    assert not named(windowed.backward, "add values")
    (added,) = named(whole.backward, "add values")
    assert added.shape == (TOKENS * 4 / 2 * 512,)


def test_small_kernels_move_the_heads_of_their_kind_of_layer():
    """Gradients of queries, keys and values are joined to that of the matrix that made them; values, which
    lie between others, are copied (Transformer Engine)."""
    found = lists(GEMMA, Plan(tp=2))
    for kind, joined, values in (
        ("window-dense", (32 + 2 * 16) * 256, 16 * 256),
        ("dense", 36 * 512, 4 * 512),
    ):
        (join,) = named(found.unit(kind, "none").backward_input, "join q, k, v")
        (apart,) = named(found.unit(kind, "none").forward, "values apart")
        assert (join.shape, apart.shape) == ((TOKENS * joined / 2,), (TOKENS * values / 2,))
    (join,) = named(lists(MIMO, Plan()).unit("window-experts", "none").backward_input, "join q, k, v")
    assert join.shape == (TOKENS * (64 * 192 + 8 * (192 + 128)),)


@pytest.mark.parametrize("kind", ["window-dense", "dense"])
def test_unfused_attention_keeps_the_scores_of_the_heads_of_its_kind(kind):
    """In 16 bits, and dropout's mask and result; masked ones, and those outside of the window, too."""
    shape = small(WindowedHeads(32, 16, 64), 16, 16, 128)
    found = lists(shape, Plan(), "megatron-2022")
    again = kept_bytes(replace_selective(found), kind, "selective")
    heads = {"window-dense": 32, "dense": 16}[kind]
    assert kept_bytes(found, kind, "none") - again == heads * TOKENS**2 * (2 + 1 + 2)


def replace_selective(found: LayerLists) -> LayerLists:
    return LayerLists(found.shape, found.share, replace(found.stack, selective=("core_attn",)))


# ------------------------------------------------------------------------------------------ what has to know


def test_parameters_of_stages_add_up_to_the_models():
    for shape in (GEMMA, MIMO):
        one = job_of(shape)
        kinds = ["embedding", *map(shape.kind, range(shape.layers)), "head"]
        assert sum(sum(elements_of(one, Plan(), kind)) for kind in kinds) == shape.parameters().total


def test_a_prediction_layer_has_the_heads_of_the_last_layer():
    last = replace(GEMMA, whole_layers=tuple(range(59)), prediction_layers=1, tied_embeddings=False)
    heads = 5376 * (2 * 32 * 256 + 2 * 16 * 256) + 2 * 256
    others = 3 * 5376 * 21504 + 4 * 5376 + 2 * 5376 * 5376 + 3 * 5376
    counted = last.parameters()
    assert counted.prediction == counted.prediction_active == heads + others
    mine, _ = elements_of(job_of(last), Plan(), "head")
    assert mine == 262144 * 5376 + 5376 + counted.prediction


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(tp=8, dp=8), ""),
        (Plan(tp=16, dp=4), "tp=16 cannot cut 24 heads; nearest: 12 or 24."),
        (Plan(tp=3), "tp=3 cannot cut 16 heads"),
    ],
)
def test_tp_has_to_cut_the_heads_of_every_kind_of_layer(plan, said):
    shape = small(WindowedHeads(24, 8, 128), 16, 16, 128)
    found = [each.sentence for each in violations(job_of(shape), plan)]
    assert any(said in each for each in found) if said else not found


def test_heads_that_both_kinds_of_layers_have_are_told_once():
    found = [each.sentence for each in violations(job_of(GEMMA), Plan(tp=64))]
    assert sum("cut 32 heads" in each for each in found) == 1


def test_heads_that_no_layer_has_cut_nothing():
    """All layers have a window."""
    shape = small(WindowedHeads(16, 8, 128), 24, 8, 128)
    assert [*violations(job_of(shape), Plan(tp=16, dp=4))]
    assert not [*violations(job_of(replace(shape, whole_layers=())), Plan(tp=16, dp=4))]


def test_an_all_to_all_has_to_give_every_rank_keys_in_every_kind_of_layer():
    whole = job_of(GEMMA, context_parallel="all-to-all", shares_kv_heads=False)
    check(whole, Plan(cp=4, dp=16))
    with pytest.raises(UserError, match="cannot share 4 KV heads, which an all-to-all .* nearest: 4"):
        check(whole, Plan(cp=8, dp=8))


def test_what_context_parallelism_sends_is_of_the_kind_of_layer():
    def sent(way: str) -> list[float]:
        found = lists(MIMO, Plan(cp=4), context_parallel=way, cp_merges=False)
        items = [
            [item for item in found.mixer(kind).forward if isinstance(item, CollectiveOp)] for kind in MIMOS
        ]
        return [sum(item.bytes for item in one if item.group == "cp") / 2 for one in items]

    keys_and_values = [kv_heads * (192 + 128) for kv_heads in (8, 4)]
    assert sent("all-gather") == [TOKENS * width for width in keys_and_values]
    assert sent("ring") == [3 / 4 * TOKENS * width for width in keys_and_values]
    assert sent("all-to-all") == [TOKENS / 4 * (64 * (192 + 128) + width) for width in keys_and_values]


def test_keys_and_values_that_are_gathered_are_held_by_the_kind_of_layer():
    one = job_of(MIMO, context_parallel="all-gather", cp_merges=False)
    held = [gathered_keys_bytes(one, Plan(cp=4), kind) for kind in MIMOS]
    assert held == [2 * TOKENS * kv_heads * (192 + 128) for kv_heads in (8, 4)]


def test_tp_ranks_beyond_the_keys_of_whole_layers_have_copies_of_these_alone():
    found = lists(GEMMA, Plan(tp=8), copies_kv_heads=True)
    into = {kind: found.mixer(kind).matrices[0].outputs for kind in GEMMAS}
    assert into == {"window-dense": (32 + 2 * 16) * 256, "dense": (32 + 8) * 512}


def test_software_that_gathers_for_each_matrix_does_so_twice_where_keys_serve_as_values():
    by_matrix = {"tp_by_matrix": True, "fusion": "eager"}
    found = lists(GEMMA, Plan(tp=2, sequence_parallel=True), "torchtitan", **by_matrix)
    for half, times in ((found.windowed, 3), (found.attention, 2)):
        for items in half.into_heads(), half.out_of_heads():
            assert sum(isinstance(item, CollectiveOp) for item in items) == times


def test_adapters_stand_on_the_matrices_of_each_kind_of_layer():
    adapters = Adapters(16, ("q_proj", "k_proj", "v_proj", "o_proj"))
    one = replace(job_of(GEMMA, "torchtitan"), adapters=adapters)
    windowed, whole = (trained_of(one, Plan(), kind)[0] for kind in GEMMAS)
    assert windowed == 16 * ((3 * 5376 + 32 * 256 + 2 * 16 * 256) + (32 * 256 + 5376))
    assert whole == 16 * ((2 * 5376 + 32 * 512 + 4 * 512) + (32 * 512 + 5376))
    assert adapted_names(GEMMA)[:4] == ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.mark.parametrize("kind", GEMMAS)
def test_adapters_multiply_beside_the_matrices_of_their_kind_of_layer(kind):
    queries, keys, width, _ = GEMMAS[kind]
    adapters = Adapters(16, ("q_proj", "k_proj", "v_proj"))
    one = replace(job_of(GEMMA, "torchtitan"), adapters=adapters)
    forward = lists_of(one, Plan()).unit(kind, "none").forward
    parts = {"window-dense": 3, "dense": 2}[kind]
    beside = named(forward, "adapter of qkv forward")
    assert len(beside) == 2 * parts
    assert sum(item.flops for item in beside) == pytest.approx(
        2 * TOKENS * 16 * (parts * 5376 + queries + keys), rel=1e-12
    )
    plain = kept_bytes(lists_of(job_of(GEMMA, "torchtitan"), Plan()), kind, "none")
    assert kept_bytes(lists_of(one, Plan()), kind, "none") - plain == 2 * TOKENS * 16 * parts


def test_the_largest_matrix_can_be_of_either_kind_of_layer():
    narrow = replace(GEMMA, ffn=64, vocab=64)
    assert largest_weight(job_of(narrow, "deepspeed"), Plan()) == 5376 * 32 * 512
    wide = replace(narrow, windowed=WindowedHeads(64, 16, 512))
    assert largest_weight(job_of(wide, "deepspeed"), Plan()) == 5376 * 64 * 512


def test_validation_pads_the_heads_of_every_kind_of_layer():
    shape = small(WindowedHeads(20, 4, 128), 16, 8, 128)
    padded = cut_by(8, find_stack("megatron-core"), shape)
    assert padded.windowed and (padded.windowed.heads, padded.windowed.kv_heads) == (24, 4)
    assert (padded.heads, padded.kv_heads) == (16, 8)


def test_the_largest_weight_that_is_made_whole_from_4_bits_can_be_of_either_kind_of_layer():
    quantized = Adapters(16, base_bits=4.127)
    small = replace(GEMMA, ffn=64, vocab=64)
    for shape, outputs in (
        (small, 36 * 512),
        (replace(small, windowed=WindowedHeads(64, 16, 512)), 96 * 512),
    ):
        one = replace(job_of(shape, "torchtitan"), adapters=quantized)
        assert dequantized_bytes(one, Plan()) == 2 * 5376 * outputs


def test_widths_are_of_every_kind_of_layer():
    shape = small(WindowedHeads(4, 4, 25), 16, 16, 24)
    said = [each.sentence for each in violations(replace(job_of(shape), dtype="fp8"), Plan(tp=16, dp=4))]
    assert any("m has one of 100: choose bf16" in each for each in said)
    assert any("cut a width of 384 in multiples of 16, which fp8 takes; nearest: 4." in each for each in said)


def test_validation_takes_a_ring_where_heads_of_windows_cannot_be_shared():
    shape = small(WindowedHeads(24, 8, 128), 16, 16, 128)
    for cp, way in ((8, "all-to-all"), (16, "ring")):
        stack = sharing_sequences(
            find_stack("deepspeed"), {"cp_comm_type": "a2a"}, shape, {"tp": 1, "cp": cp}
        )
        assert stack.context_parallel == way


@pytest.mark.parametrize("software", ["megatron-core", "torchtitan", "deepspeed"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_record_of_the_same_heads_changes_no_second_and_no_byte(software, recompute):
    gemma = preset("gemma-3-27b")
    same = replace(gemma, windowed=WindowedHeads(32, 16, 128, value_width=128), value_width=128)
    plans = Plan(tp=2, dp=8, cp=2, zero=3, recompute=recompute), Plan(tp=4, dp=8, zero=1, recompute=recompute)
    for plan in plans:
        mine, plain = (predict(job_of(shape, software), plan) for shape in (same, gemma))
        assert (mine.seconds, mine.fullest, mine.mfu) == (plain.seconds, plain.fullest, plain.mfu)
        assert lower_bound(job_of(same, software), plan).seconds == pytest.approx(
            lower_bound(job_of(gemma, software), plan).seconds, rel=1e-15
        )


@pytest.mark.parametrize("shape", [GEMMA, MIMO], ids=lambda shape: shape.name)
@pytest.mark.parametrize("plan", [
    Plan(tp=4, dp=16, zero=1, sequence_parallel=True), Plan(dp=16, cp=4, zero=3, recompute="full"),
    Plan(tp=2, pp=3, dp=16, zero=1, recompute="selective"),
])  # fmt: skip
def test_the_bound_of_a_plan_is_below_its_step_and_near(shape, plan):
    found, bound = predict(job_of(shape), plan), lower_bound(job_of(shape), plan)
    assert 0.8 * found.seconds <= bound.seconds[0] <= found.seconds * (1 + 1e-9)
    assert bound.memory_bytes[0] == pytest.approx(found.fullest.total, rel=1e-6)


# ---------------------------------------------------------------------------------------------- refusals


def test_heads_of_a_window_that_cannot_be_are_told():
    with pytest.raises(UserError, match="3 heads of keys and values cannot serve 8 heads evenly"):
        replace(GEMMA, windowed=WindowedHeads(8, 3, 64))
    with pytest.raises(UserError, match="value_width is -1"):
        replace(GEMMA, value_width=-1)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (PLAIN, "heads of their own in the layers with a window"),
        (replace(MIMO, windowed=None), "heads of values of another width than keys"),
        (replace(PLAIN, windowed=None), "values that are made of the keys"),
        (replace(PLAIN, windowed=None, keys_as_values=False), "norms of values"),
    ],
)
def test_megatron_has_no_flags_for_them(shape, said):
    with pytest.raises(UserError, match=said):
        [*model_flags(shape)]


def test_the_lessons_model_has_one_kind_of_heads():
    with pytest.raises(UserError, match="keys_as_values, windowed and head_dim:"):
        check_shape(GEMMA, 512)
    with pytest.raises(UserError, match="value_width and windowed:"):
        check_shape(replace(MIMO, experts=None, window=4096, hidden=64 * 192), 512)
