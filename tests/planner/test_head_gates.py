"""Claims about gates of one number for each head, and gates with biases. One layer of each kind of Step 3.5
Flash is counted by hand, as Step3p7DecoderLayer of transformers 5.24 multiplies: 64 heads that see the whole
sequence, or 96 with a window, 8 of keys and values, all 128 wide."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu import Operation
from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.megatron.write_model import model_flags
from ndparallel.launch_flags.torchtitan.models import flavor_of
from ndparallel.planner.adapters import Adapters, adapted_names, adapted_parts
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.flops import flops, model_flops
from ndparallel.planner.layers.kept import kept_bytes
from ndparallel.planner.layers.layer import LayerLists, lists_of
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.lesson_runs.model import check_shape
from ndparallel.planner.memory.deepspeed import matrices
from ndparallel.planner.models.attentions import LatentAttention
from ndparallel.planner.models.huggingface.read import shape_of
from ndparallel.planner.models.presets import preset
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import find_stack
from ndparallel.planner.stages import elements_of, trained_of
from ndparallel.search.bounds.lower_bound import lower_bound

SUPPORT = Path(__file__).parents[1] / "support"
PUBLISHED = json.loads((SUPPORT / "architectures.json").read_text("utf-8"))
STEP, BEAM = (shape_of(PUBLISHED[name]["config"], name, "") for name in ("step-3.5-flash", "beam-1.0"))
PLAIN = preset("llama-3-8b")
GATED = replace(PLAIN, output_gate="head")
TOKENS, HIDDEN, WIDTH, KV = 4096, 4096, 128, 8 * 128
# of each kind of layer: heads, pairs
KINDS = {
    "window-experts": (96, 512 * TOKENS - 512 * 511 // 2),
    "experts": (64, TOKENS * (TOKENS + 1) // 2),
}


def job_of(shape: ModelShape, software: str = "megatron-core", **stack) -> TrainingJob:
    return TrainingJob(shape, find_hardware("h100"), replace(find_stack(software), **stack), TOKENS, 64)


def lists(shape: ModelShape, plan: Plan, software: str = "megatron-core", **stack) -> LayerLists:
    return lists_of(job_of(shape, software, **stack), plan)


def named(items: list, name: str) -> list[Operation]:
    return [item for item in items if isinstance(item, Operation) and item.name == name]


# ------------------------------------------------------------------------------------------------ by hand


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_flops_of_attention_are_those_of_queries_keys_values_gates_and_output(kind, tp):
    heads, pairs = KINDS[kind]
    matrices = 2 * TOKENS * HIDDEN * (2 * heads * WIDTH + 2 * KV + heads) / tp
    core = 2 * heads / tp * pairs * 2 * WIDTH
    mixer = lists(STEP, Plan(tp=tp)).mixer(kind)
    assert flops(mixer.forward) == pytest.approx(matrices + core, rel=1e-12)
    assert flops(mixer.backward) == pytest.approx(matrices + 2.5 * core, rel=1e-12)
    assert flops(mixer.weight_gradients) == pytest.approx(matrices, rel=1e-12)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_makes_the_gates_of_its_own_heads(kind, tp):
    heads, _ = KINDS[kind]
    forward, _, backward, weights = lists(STEP, Plan(tp=tp)).unit(kind, "none")
    rows = TOKENS, heads / tp, HIDDEN
    assert [one.shape for one in named(forward, "head_gate forward")] == [rows]
    assert [one.shape for one in named(backward, "head_gate dgrad")] == [(TOKENS, HIDDEN, heads / tp)]
    assert [one.shape for one in named(weights, "head_gate wgrad")] == [(heads / tp, HIDDEN, TOKENS)]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_gate_reads_and_writes_results_and_reads_a_number_for_each_head(tp):
    """Backward it reads the result, its gradient and the gate, and writes the gradients of both."""
    forward, _, backward, _ = lists(STEP, Plan(tp=tp)).unit("experts", "none")
    (gate,), (back,) = named(forward, "output gate"), named(backward, "output gate")
    assert gate.bytes == pytest.approx(2 * TOKENS * 64 / tp * (2 * WIDTH + 1), rel=1e-12)
    assert back.bytes == pytest.approx(2 * TOKENS * 64 / tp * (3 * WIDTH + 2), rel=1e-12)


def test_gates_multiply_between_attention_and_its_output():
    names = [item.name for item in lists(GATED, Plan()).attention.forward]
    assert names.index("qkv forward") < names.index("head_gate forward") < names.index("output gate")
    assert names[names.index("output gate") + 1] == "attention_output forward"
    back = [item.name for item in lists(GATED, Plan()).attention.backward]
    assert back[back.index("attention_output dgrad") + 1] == "output gate"
    assert back.index("output gate") < back.index("head_gate dgrad") < back.index("qkv dgrad")


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_keeps_gates_and_what_they_let_through(kind, tp):
    """Beside them queries, keys, values and what attention gives; without gates these alone."""
    heads, _ = KINDS[kind]
    mine, plain = (
        kept_bytes(lists(shape, Plan(tp=tp)), kind, "none") for shape in (STEP, replace(STEP, output_gate=""))
    )
    assert mine - plain == 2 * TOKENS * heads * (WIDTH + 1) / tp
    dense = kept_bytes(lists(GATED, Plan(tp=tp)), "dense", "none")
    inside = 2 * 4096 + 2 * KV + 4096 + 32 + 3 * 14336
    assert dense == 2 * TOKENS * (4 * HIDDEN + inside / tp)


def test_in_fp8_gates_are_multiplied_in_16_bits_whose_input_is_kept_beside_the_cast_one():
    mine, plain = (replace(job_of(shape), dtype="fp8") for shape in (GATED, PLAIN))
    forward = lists_of(mine, Plan()).unit("dense", "none").forward
    assert named(forward, "head_gate forward")[0].dtype == "bfloat16"
    assert named(forward, "qkv forward")[0].dtype != "bfloat16"
    more = kept_bytes(lists_of(mine, Plan()), "dense", "none")
    more -= kept_bytes(lists_of(plain, Plan()), "dense", "none")
    assert more == 2 * TOKENS * HIDDEN + TOKENS * 2 * 32 * (WIDTH + 1)


def test_every_second_product_counts_gates_before_the_output():
    """Of queries, keys, values, gates, output, gate, up and down the second, fourth, sixth and last run
    again."""
    found = lists(GATED, Plan(), "torchtitan", selective=("half",))
    shares = found.recomputed.second_shares(found.attention)
    keys = 8 / (32 + 2 * 8)
    assert shares == {"qkv": keys, "head_gate": 1, "attention_output": 0, "gate_up": 0.5, "down": 1}


def test_software_that_gathers_for_each_matrix_does_so_for_gates_too():
    by_matrix = {"tp_by_matrix": True, "fusion": "eager"}
    for shape, times in ((GATED, 4), (PLAIN, 3)):
        half = lists(shape, Plan(tp=2, sequence_parallel=True), "torchtitan", **by_matrix).attention
        for items in half.into_heads(), half.out_of_heads():
            assert sum(isinstance(item, CollectiveOp) for item in items) == times


def test_other_software_gathers_and_sums_for_all_together():
    """Megatron-Core, which keeps shards, gathers again for the gradients of weights."""
    mine, plain = (lists(shape, Plan(tp=2, sequence_parallel=True)).attention for shape in (GATED, PLAIN))
    for half in mine, plain:
        sent = [
            [item.name for item in items if isinstance(item, CollectiveOp)]
            for items in (half.into_heads(), half.out_of_heads())
        ]
        assert sent == [["tp all_gather"], ["tp all_gather", "tp reduce_scatter"]]


# ------------------------------------------------------------------------------------------ what has to know


@pytest.mark.parametrize("shape", [STEP, BEAM], ids=lambda shape: shape.name)
def test_parameters_of_stages_add_up_to_the_models(shape):
    kinds = ["embedding", *map(shape.kind, range(shape.layers)), "head"]
    assert sum(sum(elements_of(job_of(shape), Plan(), kind)) for kind in kinds) == shape.parameters().total


def test_model_flops_count_the_matrix_of_gates():
    more = model_flops(job_of(GATED)) - model_flops(job_of(PLAIN))
    assert more == pytest.approx(6 * 64 * TOKENS * 32 * HIDDEN * 32, rel=1e-9)


def test_gates_with_biases_are_as_wide_as_heads_and_have_a_number_more_for_each():
    """Beam's gates stand beside its queries, and have no bias where these have one."""
    plain = replace(BEAM, output_gate="").parameters()
    assert BEAM.parameters().attention - plain.attention == 5120 * 48 * 128 + 48
    biased = replace(BEAM, biases=("qkv",))
    assert biased.parameters().attention - BEAM.parameters().attention == (48 + 2 * 8) * 128
    joined = replace(biased, output_gate="queries")
    assert joined.parameters().attention - biased.parameters().attention == 48 * 128 - 48


def test_adapters_stand_on_the_matrix_of_gates():
    assert adapted_parts(STEP, "head_gate") == {"g_proj": 1.0}
    assert adapted_names(STEP)[:5] == ("q_proj", "k_proj", "v_proj", "g_proj", "o_proj")
    assert "g_proj" not in adapted_names(PLAIN)
    one = replace(job_of(GATED, "torchtitan"), adapters=Adapters(16, ("g_proj",)))
    assert trained_of(one, Plan(), "dense")[0] == 16 * (HIDDEN + 32)
    forward = lists_of(one, Plan()).unit("dense", "none").forward
    beside = named(forward, "adapter of head_gate forward")
    assert sum(item.flops for item in beside) == 2 * TOKENS * 16 * (HIDDEN + 32)


def test_deepspeed_knows_the_matrix_of_gates():
    assert {(HIDDEN, 96.0), (HIDDEN, 64.0)} <= {*matrices(job_of(STEP, "deepspeed"))}


@pytest.mark.parametrize("shape", [STEP, BEAM], ids=lambda shape: shape.name)
@pytest.mark.parametrize("plan", [
    Plan(tp=4, dp=16, ep=16, zero=1, sequence_parallel=True), Plan(dp=64, ep=32, zero=3, recompute="full"),
    Plan(tp=2, pp=2, dp=16, ep=16, zero=1, recompute="selective"),
])  # fmt: skip
def test_the_bound_of_a_plan_is_below_its_step_and_near(shape, plan):
    found, bound = predict(job_of(shape), plan), lower_bound(job_of(shape), plan)
    assert 0.8 * found.seconds <= bound.seconds[0] <= found.seconds * (1 + 1e-9)
    assert bound.memory_bytes[0] == pytest.approx(found.fullest.total, rel=1e-6)


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (GATED, "gates of one number for each head"),
        (replace(PLAIN, output_gate="biased"), "biases of their own of the gates of heads"),
        (replace(PLAIN, output_gate="element", biases=("qkv",)), "without the biases that queries have"),
    ],
)
def test_megatron_has_no_flags_for_them(shape, said):
    with pytest.raises(UserError, match=said):
        [*model_flags(shape)]


def test_torchtitan_and_the_lessons_have_no_such_model():
    assert flavor_of(job_of(PLAIN, "torchtitan")).flavor == "8B"
    with pytest.raises(UserError, match="has no model of these sizes"):
        flavor_of(job_of(GATED, "torchtitan"))
    small = ModelShape("m", 2, 2048, 16, 8, 128, 8192, 256, output_gate="head")
    with pytest.raises(UserError, match="in its output_gate"):
        check_shape(small, 512)


def test_gates_of_other_kinds_and_of_latent_attention_are_refused():
    with pytest.raises(UserError, match="unknown output_gate 'heads'.*head"):
        replace(PLAIN, output_gate="heads")
    latent = LatentAttention(0, 64, 96, 32, 128)
    with pytest.raises(UserError, match="gates of what heads give are not counted of latent attention"):
        replace(GATED, latent=latent)
