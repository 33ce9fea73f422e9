"""The shapes of models: parameters to the last one, and config.json files as people really write (and break)
them."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.huggingface.config import SPELLINGS
from ndparallel.planner.models.huggingface.families import FAMILIES
from ndparallel.planner.models.huggingface.read import from_huggingface, shape_of
from ndparallel.planner.models.huggingface.refused import REFUSED
from ndparallel.planner.models.parameters import Parameters
from ndparallel.planner.models.presets import find_model, from_flags, presets
from ndparallel.planner.models.shape import ModelShape

# What the Hugging Face Hub counts in the safetensors files of each model (huggingface.co/api/models/<model>,
# "safetensors"), where it
# counts each tensor once; for gpt2 and for tied qwen, whose files also hold buffers or the tied matrix,
# model.num_parameters().
PUBLISHED = {
    "gpt2": 124439808,
    "gpt2-medium": 354823168,
    "gpt2-large": 774030080,
    "gpt2-xl": 1557611200,
    "llama-2-7b": 6738415616,
    "llama-2-13b": 13015864320,
    "llama-2-70b": 68976648192,
    "llama-3-8b": 8030261248,
    "llama-3-70b": 70553706496,
    "llama-3-405b": 405853388800,
    "mistral-7b": 7241732096,
    "mixtral-8x7b": 46702792704,
    "mixtral-8x22b": 140620634112,
    "qwen2-0.5b": 494032768,
    "qwen2-7b": 7615616512,
    "qwen2.5-14b": 14770033664,
    "qwen2.5-32b": 32763876352,
    "qwen2.5-72b": 72706203648,
    "qwen2-57b-a14b": 57408658944,
    "qwen3-4b": 4022468096,
    "qwen3-8b": 8190735360,
    "qwen3-14b": 14768307200,
    "qwen3-32b": 32762123264,
    "qwen3-30b-a3b": 30532122624,
    "qwen3-235b-a22b": 235093634560,
    "deepseek-v2-lite": 15706484224,
    "deepseek-v2": 235741434880,
}


SUPPORT = Path(__file__).parents[1] / "support"
ARCHITECTURES = json.loads((SUPPORT / "architectures.json").read_text("utf-8"))
VARIANTS = json.loads((SUPPORT / "variants.json").read_text("utf-8"))


def tiny(model_type: str, **changes):
    """A small config.json of the family, with `changes`; None drops the key."""
    entries = {
        "model_type": model_type,
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 40,
        "vocab_size": 100,
        "hidden_act": "silu",
    } | changes
    return {key: value for key, value in entries.items() if value is not None}


QWEN_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
DEEPSEEK = LATENT | {
    "q_lora_rank": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
}

# Counted by transformers 5.24.0, which built each model from these very entries (for deepseek_v3 its buffer
# of router biases included).
BUILT = [
    (
        30144,
        tiny(
            "llama",
            num_hidden_layers=2,
            head_dim=24,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    (
        72336,
        tiny(
            "mistral",
            num_hidden_layers=5,
            hidden_size=48,
            num_attention_heads=6,
            num_key_value_heads=1,
            intermediate_size=64,
            vocab_size=128,
            hidden_act="gelu",
            tie_word_embeddings=False,
            head_dim=4,
        ),
    ),
    (
        56896,
        tiny(
            "qwen2_moe",
            num_hidden_layers=5,
            shared_expert_intermediate_size=56,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
            qkv_bias=False,
            **QWEN_MOE,
        ),
    ),
    (
        90528,
        tiny(
            "qwen3_moe",
            num_hidden_layers=4,
            head_dim=24,
            attention_bias=True,
            mlp_only_layers=[0],
            **QWEN_MOE,
        ),
    ),
    (57824, tiny("deepseek_v2", first_k_dense_replace=1, attention_bias=True, **DEEPSEEK)),
    (
        41814,
        tiny("deepseek_v3", first_k_dense_replace=2)
        | DEEPSEEK
        | {"q_lora_rank": None, "n_shared_experts": 1},
    ),
    (
        26298,
        {
            "model_type": "gpt2",
            "n_layer": 2,
            "n_embd": 32,
            "n_head": 4,
            "n_positions": 33,
            "vocab_size": 100,
            "n_inner": 77,
            "activation_function": "gelu_new",
            "tie_word_embeddings": False,
        },
    ),
    (
        154304,
        {
            "model_type": "mpt",
            "n_layers": 3,
            "d_model": 64,
            "n_heads": 4,
            "vocab_size": 100,
            "expansion_ratio": 4,
        },
    ),
]


def parameters(entries) -> Parameters:
    return shape_of(entries, "tiny", "").parameters()


def write(folder, text):
    path = folder / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else json.dumps(text).encode())
    return path


def refusal(work, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        work(*arguments)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


# --- counting


@pytest.mark.parametrize("name, count", PUBLISHED.items())
def test_a_preset_has_as_many_parameters_as_the_published_model(name, count):
    assert find_model(name).parameters().total == count


@pytest.mark.parametrize(
    "count, entries", BUILT, ids=lambda value: value["model_type"] if isinstance(value, dict) else None
)
def test_unusual_variants_are_counted_as_transformers_builds_them(count, entries):
    assert parameters(entries).total == count


@pytest.mark.parametrize(
    ("layers", "experts", "total", "active"),
    [(24, 32, 20_914_757_184, 3.61), (36, 128, 116_829_156_672, 5.13)],
)
def test_gpt_oss_has_biases_of_experts_and_router_and_a_sink_of_every_head(layers, experts, total, active):
    """As their checkpoints on the Hub are counted; of a token without the embedding (2508.10925, table 1)."""
    sizes = {"hidden_size": 2880, "intermediate_size": 2880, "vocab_size": 201088, "head_dim": 64}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128}
    moe = {"num_hidden_layers": layers, "num_local_experts": experts, "num_experts_per_tok": 4}
    shape = shape_of(tiny("gpt_oss", **sizes, **heads, **moe), "gpt-oss", "")
    counted = shape.parameters()
    assert counted.total == total
    assert round((counted.active - counted.token_embedding) / 1e9, 2) == active
    assert shape.whole_layers == (*range(1, layers, 2),)
    assert any("sinks" in note for note in shape.notes)


LING_MINI = {
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 157184,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "num_shared_experts": 1,
}


def test_ling_mini_has_the_parameters_that_its_own_code_builds_and_its_card_names():
    """BailingMoeV2ForCausalLM in models/modeling_bailing_moe_v2.py of github.com/inclusionAI/Ling-V2, its
    buffer of router biases included: 16255638528 + 4864, and with a prediction layer 17083499776 + 5120. Its
    README.md: of 16B a token uses 1.4B, and 789M without embedding and head."""
    shape = shape_of(tiny("bailing_moe_v2", **LING_MINI, num_nextn_predict_layers=1), "ling", "")
    counted = shape.parameters()
    assert counted.total == 16255638528 + 4864
    assert counted.total + counted.prediction == 17083499776 + 5120
    assert round(counted.active / 1e9, 1) == 1.4
    assert round((counted.active - counted.token_embedding - counted.head) / 1e6) == 789


def test_apertus_has_two_parameters_of_its_activation_in_each_layer():
    """Apertus-8B by hand: embedding and head; attention with its norms, two matrices, xIELU's two numbers and
    two norms in each layer; the last norm."""
    sizes = {"hidden_size": 4096, "intermediate_size": 21504, "num_hidden_layers": 32, "vocab_size": 131072}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "xielu"}
    shape = shape_of(tiny("apertus", **sizes, **heads), "apertus", "")
    attention = 4096 * (32 + 2 * 8) * 128 + 4096 * 4096 + 2 * 128
    layer = attention + 2 * 4096 * 21504 + 2 + 2 * 4096
    assert shape.parameters().total == 2 * 131072 * 4096 + 32 * layer + 4096 == 8_053_338_176
    assert any("xIELU is priced as one kernel" in note for note in shape.notes)


def test_lara_has_linear_attention_windows_and_whole_attention_in_turn():
    listed = ["linear_attention", "sliding_attention", "full_attention"]
    shape = shape_of(VARIANTS["lara_mini"]["config"] | {"layer_types": listed}, "lara", "")
    assert [*map(shape.kind, range(3))] == ["linear-experts", "window-experts", "experts"]


def test_deepseek_v3_and_its_prediction_layer_make_up_its_checkpoint():
    """The Hub counts 3918786560 bf16, 680571043840 fp8 and, but for scales, 15104 fp32 numbers; the
    prediction layer has a projection of 2 x hidden, three norms, and copies of the embedding and the head
    (README_WEIGHTS.md of deepseek-ai/DeepSeek-V3)."""
    shape = find_model("deepseek-v3")
    main = shape.parameters()
    prediction = main.moe_layer + 2 * shape.hidden**2 + 3 * shape.hidden
    assert main.prediction == prediction
    copies = main.token_embedding + main.head
    assert main.total + prediction + copies == 3918786560 + 680571043840 + 15104
    assert any("adds 1 layer and the head again" in note for note in shape.notes)


@pytest.mark.parametrize(
    "name, billions", [("22b", "22"), ("175b", "174.6"), ("530b", "529.6"), ("1t", "1008.0")]
)
def test_megatron_models_follow_the_formula_of_their_paper(name, billions):
    """arXiv 2104.04473, equation 2: P = 12 l h^2 (1 + 13/(12h) + (V+s)/(12lh)), without the final norm's 2h.
    Figures: its tables 1 and 2, and arXiv 2205.05198, table 3."""
    shape = find_model(f"megatron-{name}")
    formula = (
        12 * shape.layers * shape.hidden**2
        + 13 * shape.layers * shape.hidden
        + (shape.vocab + 2048) * shape.hidden
    )
    assert shape.parameters().total == formula + 2 * shape.hidden
    assert f"{formula / 1e9:.{len(billions.partition('.')[2])}f}" == billions


@pytest.mark.parametrize(
    "name, billions",
    [
        ("mixtral-8x22b", 39),
        ("qwen2-57b-a14b", 14),
        ("qwen3-235b-a22b", 22),
        ("deepseek-v2", 21),
        ("kimi-k2", 33),  # 32 without the embedding
    ],
)
def test_active_parameters_are_those_on_the_model_card(name, billions):
    assert round(find_model(name).parameters().active / 1e9) == billions


def test_deepseek_v3_calls_37_billion_active_by_leaving_out_the_embedding():
    active = find_model("deepseek-v3").parameters()
    assert round((active.active - active.token_embedding) / 1e9) == 37
    assert round(active.active / 1e9) == 38


def test_layers_add_up_to_the_model():
    counted = find_model("deepseek-v2-lite").parameters()
    layers = counted.dense_layer + 26 * counted.moe_layer
    assert (counted.dense_layers, counted.moe_layers) == (1, 26)
    assert counted.total == counted.embedding + layers + counted.final_norm + counted.head


def test_a_dense_model_is_active_as_a_whole():
    counted = find_model("llama-3-8b").parameters()
    assert counted.active == counted.total
    assert (counted.router, counted.expert, counted.moe_layers) == (0, 0, 0)


def test_a_tied_head_is_not_counted_twice():
    tied = parameters(tiny("llama", tie_word_embeddings=True))
    untied = parameters(tiny("llama", tie_word_embeddings=False))
    assert (tied.head, untied.head) == (0, 100 * 32)
    assert untied.total - tied.total == 100 * 32


def test_learned_positions_are_parameters_and_rotary_ones_are_not():
    assert find_model("gpt2").parameters().position_embedding == 1024 * 768
    assert find_model("llama-2-7b").parameters().position_embedding == 0


def test_attention_lists_its_matrices_with_their_tensor_parallel_cut():
    qkv, output = find_model("llama-3-70b").attention()
    assert (qkv.inputs, qkv.outputs, qkv.split) == (8192, (64 + 2 * 8) * 128, "columns")
    assert (output.inputs, output.outputs, output.split) == (8192, 8192, "rows")


def test_latent_attention_lists_narrow_matrices_that_no_rank_cuts():
    """arXiv 2412.19437, section 4.2: 128 heads, query rank 1536, key-value rank 512, head width 128 and 64
    with position."""
    shape = find_model("deepseek-v3")
    sizes = {matrix.name: (matrix.inputs, matrix.outputs, matrix.split) for matrix in shape.attention()}
    assert sizes == {
        "query_down": (7168, 1536, "whole"),
        "query_up": (1536, 128 * (128 + 64), "columns"),
        "kv_down": (7168, 512 + 64, "whole"),
        "kv_up": (512, 128 * (128 + 128), "columns"),
        "attention_output": (128 * 128, 7168, "rows"),
    }
    assert shape.attention_norms() == (1536, 512)


def test_latent_attention_without_a_query_rank_cuts_its_one_query_matrix():
    query, *_ = find_model("deepseek-v2-lite").attention()
    assert (query.name, query.inputs, query.outputs, query.split) == (
        "query",
        2048,
        16 * (128 + 64),
        "columns",
    )


def test_the_first_three_layers_of_deepseek_v3_are_dense():
    shape = find_model("deepseek-v3")
    assert [shape.has_experts(layer) for layer in range(5)] == [False, False, False, True, True]


def test_qwen_puts_experts_in_every_second_layer_from_the_second_on():
    """transformers: a layer has experts if it is not listed as dense and (layer + 1) % decoder_sparse_step ==
    0."""
    shape = shape_of(
        tiny(
            "qwen3_moe",
            num_hidden_layers=6,
            head_dim=8,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
            **QWEN_MOE,
        ),
        "tiny",
        "",
    )
    assert [layer for layer in range(6) if shape.has_experts(layer)] == [1, 5]


@pytest.mark.parametrize("name", ARCHITECTURES | VARIANTS)
def test_an_architecture_has_as_many_parameters_as_transformers_builds(name):
    """tests/planner/test_reference.py builds them again where transformers is installed."""
    entry = (ARCHITECTURES | VARIANTS)[name]
    assert parameters(entry["config"]).total == entry["parameters"]


@pytest.mark.parametrize("name", sorted(presets().keys() & ARCHITECTURES.keys() - PUBLISHED.keys()))
def test_a_preset_is_as_large_as_transformers_builds_its_architecture(name):
    assert find_model(name).parameters().total == ARCHITECTURES[name]["parameters"]


def test_the_language_model_of_qwens_that_see_is_counted_in_files_of_every_age():
    """Qwen3-VL's text model is Qwen3's own; files of Qwen2-VL had its keys beside vision_config."""
    entries = presets()["qwen3-1.7b"]["config"]
    text = {**entries, "model_type": "qwen3_vl_text"}
    inside = shape_of({"model_type": "qwen3_vl", "text_config": text, "vision_config": {}}, "m", "")
    assert inside.parameters() == find_model("qwen3-1.7b").parameters()
    older = presets()["qwen2-7b"]["config"] | {"model_type": "qwen2_vl", "vision_config": {}}
    beside = shape_of(older, "m", "")
    assert beside.parameters() == find_model("qwen2-7b").parameters()
    assert "what sees is left out" in beside.notes[-1]


@pytest.mark.parametrize("name, billions", [("llama-4-scout", 109), ("llama-4-maverick", 402)])
def test_llama_4_and_what_it_sees_with_have_the_parameters_on_the_model_card(name, billions):
    """A token passes 17 billion of them. Both see with 871932416, as transformers builds
    Llama4ForConditionalGeneration from their vision_config."""
    counted = find_model(name).parameters()
    assert round((counted.total + 871932416) / 1e9) == billions
    assert round(counted.active / 1e9) == 17


def test_maverick_has_experts_in_every_second_layer_and_scout_in_all():
    shape = find_model("llama-4-maverick")
    assert [shape.has_experts(layer) for layer in range(4)] == [False, True, False, True]
    assert find_model("llama-4-scout").moe_layers == shape.layers == 48


def test_layers_have_experts_where_the_file_lists_them():
    """mlp_layer_types of transformers 5; it goes before the numbers of dense layers at the front."""
    listed = {"mlp_layer_types": ["sparse", "dense", "sparse"]}
    for entries in (tiny("mellum", **SOME), tiny("hy_v3", **SOME), tiny("exaone_moe", **SOME)):
        shape = shape_of(entries | listed, "m", "")
        assert shape.experts and shape.experts.dense_layers == (1,)
    said = refusal(shape_of, tiny("mellum", **SOME, mlp_layer_types=["sparse"]), "m", "")
    assert said == "mlp_layer_types lists 1 layers; there are 3."


def test_ernie_has_experts_between_two_layers_in_the_last_of_every_n():
    """Ernie4_5_MoeDecoderLayer in modeling_ernie4_5_moe.py of transformers 5.23.0."""
    sizes = {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts": 1}
    places = {"moe_layer_start_index": 2, "moe_layer_end_index": 6, "moe_layer_interval": 2}
    shape = shape_of(tiny("ernie4_5_moe", num_hidden_layers=9, **sizes, **places), "m", "")
    assert [layer for layer in range(9) if shape.has_experts(layer)] == [3, 5]
    shape = shape_of(tiny("ernie4_5_moe", num_hidden_layers=9, **sizes), "m", "")
    assert [layer for layer in range(9) if shape.has_experts(layer)] == [*range(1, 9)]


@pytest.mark.parametrize(
    "entries, sentence",
    [
        (
            tiny("hunyuan_v1_moe", num_experts=4, moe_topk=[1, 2, 2]),
            "moe_topk must be a whole number, not [1,",
        ),
        (tiny("hunyuan_v1_moe", num_experts=4, moe_topk=[]), "moe_topk must be a whole number, not []."),
        (tiny("stablelm", qk_layernorm=True), "qk_layernorm True is not supported, only false."),
        (tiny("ernie4_5_moe", use_bias=True), "use_bias True is not supported, only false."),
        (tiny("apertus"), "hidden_act"),
        (tiny("deepseek_v2", mlp_bias=True), "mlp_bias True is not supported, only false."),
        (tiny("opt", _remove_final_layer_norm=True), "_remove_final_layer_norm True is not supported"),
        (tiny("flint"), "layer_types is missing."),
        (tiny("llama", layer_types=["linear_attention"] * 3, sliding_window=9), "layer_types"),
    ],
)
def test_what_a_family_could_be_and_is_not_counted_is_told(entries, sentence):
    assert sentence in refusal(shape_of, entries, "m", "")


def test_norms_without_weights_have_no_parameters_wherever_they_stand():
    """OLMo's, and nanochat's, which norms the embedding, queries and keys as well."""
    for name, changes in (("olmo", {}), ("nanochat", {"hidden_act": "relu2"})):
        counted = parameters(tiny(name, **changes))
        assert (counted.layer_norms, counted.final_norm, counted.embedding_norm) == (0, 0, 0)
    assert shape_of(tiny("nanochat", hidden_act="relu2"), "m", "").attention_norms() == ()


def test_a_norm_without_weights_is_priced_as_one_with_them_and_said():
    scout, weighed = find_model("llama-4-scout"), replace(find_model("llama-4-scout"), qk_norm="head")
    assert weighed.parameters().total - scout.parameters().total == 48 * 2 * 128
    assert any("priced in every layer" in note for note in scout.notes)


LLAMA4 = {"intermediate_size_mlp": 56, "num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 12}


@pytest.mark.parametrize(
    "changes, whole, unrotated",
    [
        ({}, [3], [3]),
        ({"no_rope_layers": []}, [3], [3]),
        ({"no_rope_layer_interval": 2}, [1, 3, 5], [1, 3, 5]),
        ({"no_rope_layers": [0, 1, 1, 1, 1, 0, 0]}, [0, 5], [0, 5]),
        ({"layer_types": ["full_attention"] * 2 + ["chunked_attention"] * 4}, [0, 1], [3]),
    ],
)
def test_llama_4_attends_in_chunks_but_in_layers_without_positions_or_as_listed(changes, whole, unrotated):
    """Llama4TextConfig.__post_init__ in configuration_llama4.py of transformers 5.23.0."""
    entries = tiny("llama4_text", num_hidden_layers=6, attention_chunk_size=9, **LLAMA4 | changes)
    shape = shape_of(entries, "tiny", "")
    assert (shape.chunked, shape.window, [*shape.whole_layers]) == (True, 9, whole)
    assert [*shape.constants.unrotated] == unrotated
    assert dict(shape.constants.others) == {"attn_scale": 0.1, "floor_scale": 8192}
    assert not shape_of(entries | {"attn_temperature_tuning": False}, "tiny", "").constants.others


def test_mimo_is_a_qwen2_with_a_prediction_layer():
    entries = presets()["qwen2-7b"]["config"] | {"model_type": "mimo", "num_nextn_predict_layers": 1}
    assert shape_of(entries | {"attention_bias": True}, "m", "").prediction_layers == 1
    assert "attention_bias" in refusal(shape_of, entries | {"attention_bias": False}, "m", "")


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_cannot_be_counted_says_why_and_what_is_near(model_type):
    told = refusal(shape_of, tiny(model_type), "tiny", "")
    assert REFUSED[model_type].why in told and "--layers, --hidden" in told
    assert REFUSED[model_type].nearest in FAMILIES and f"{REFUSED[model_type].nearest!r}" in told


# --- presets


def test_every_preset_has_a_source_and_rests_on_no_default():
    for name, entry in presets().items():
        assert entry["source"]
        assert not [note for note in find_model(name).notes if "not given" in note], name


def test_a_preset_is_found_in_capitals_and_a_slip_is_put_right():
    assert find_model("Llama-3-8B").name == "llama-3-8b"
    assert "Did you mean 'llama-3-70b', " in refusal(find_model, "llama-3-7b0")
    assert "Did you mean 'qwen3-8b', " in refusal(find_model, "qwen3-8b-fp8")


def test_an_unknown_model_is_told_the_nearest_three_and_the_command_that_lists_all(capsys):
    told = refusal(find_model, "llama-3-71b")
    assert "Did you mean 'llama-3-70b', 'llama-3.2-1b' or 'llama-3-8b'?" in told and len(told) < 150
    assert f"ndparallel plan --help lists all {len(presets())}." in told
    assert main(["plan", "--help"]) == 0
    assert " ".join(presets()) in " ".join(capsys.readouterr().out.replace(",", "").split())


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3-8b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("llama-3.3-70b", "llama-3-70b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3-70b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
        ("Llama-4-Maverick-17B-128E", "llama-4-maverick"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("nvidia/Nemotron-4-340B-Instruct", "nemotron-4-340b"),
        ("DeepSeek-R1", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
    ],
)
def test_a_preset_is_found_by_its_name_on_the_hub_and_by_that_of_a_model_of_its_sizes(name, preset):
    assert find_model(name).name == preset


def test_no_name_of_a_preset_finds_another():
    for name, entry in presets().items():
        source = entry["source"].partition(",")[0]
        hub = [source.removeprefix("huggingface.co/")] if "huggingface" in source else []
        for each in (name, *entry.get("also", ()), *hub):
            assert find_model(each).name == name


@pytest.mark.parametrize("name", ["arXiv 2205.05198", "mistralai/llama-2-7b", "gemma-3-27b-italian", "base"])
def test_what_only_looks_like_a_name_of_a_preset_finds_none(name):
    assert "unknown model or file" in refusal(find_model, name)


def test_a_file_is_read_where_its_path_cannot_be_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("phi-4").write_text(json.dumps(presets()["gpt2"]["config"]), encoding="utf-8")
    assert find_model("phi-4").layers == 40 and find_model("./phi-4").layers == 12


def test_a_folder_is_read_by_its_config(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    assert "checkpoint/config.json: cannot be read: no such file" in refusal(find_model, str(folder))
    (folder / "config.json").write_text(json.dumps(presets()["gpt2"]["config"]), encoding="utf-8")
    assert find_model(str(folder)).name == "checkpoint"


# --- config.json


@pytest.mark.parametrize(
    "spelled",
    [
        ("num_hidden_layers", "hidden_size", "num_attention_heads"),
        ("n_layer", "n_embd", "n_head"),
        ("n_layers", "d_model", "n_heads"),
    ],
)
def test_every_spelling_means_the_same(spelled):
    usual = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    entries = tiny("llama")
    values = [entries.pop(key) for key in usual]
    assert parameters(entries | dict(zip(spelled, values))) == parameters(tiny("llama"))


@pytest.mark.parametrize("spelling", ["num_local_experts", "num_experts", "n_routed_experts"])
def test_experts_are_found_under_every_spelling(spelling):
    shape = shape_of(tiny("mixtral", num_experts_per_tok=2, **{spelling: 8}), "tiny", "")
    assert shape.experts is not None and shape.experts.experts == 8


def test_a_file_gives_the_same_shape_as_its_preset(tmp_path):
    path = write(
        tmp_path,
        presets()["deepseek-v2"]["config"] | {"torch_dtype": "bfloat16", "rope_scaling": {"factor": 40}},
    )
    assert from_huggingface(path).parameters() == find_model("deepseek-v2").parameters()
    assert find_model(str(path)).name == tmp_path.name


def test_the_language_model_is_taken_out_of_text_config(tmp_path):
    outer = {
        "model_type": "some_vision_model",
        "vision_config": {},
        "tie_word_embeddings": True,
        "text_config": tiny("llama"),
    }
    shape = from_huggingface(write(tmp_path, outer))
    assert shape.parameters() == parameters(tiny("llama", tie_word_embeddings=True))
    assert "Only text_config" in shape.notes[-1]


def test_every_default_that_was_used_is_said():
    notes = shape_of(tiny("llama", num_key_value_heads=None), "tiny", "").notes
    assert "num_key_value_heads is not given: as many as heads, as LlamaConfig has it." in notes
    assert "tie_word_embeddings is not given: false, as LlamaConfig has it." in notes
    assert sum("not given" in note for note in notes) == 5  # head_dim, attention_bias and mlp_bias too


@pytest.mark.parametrize(("model_type", "width"), [("qwen3", 128), ("qwen3_moe", 8), ("glm4_moe", 8)])
def test_a_file_without_a_width_of_heads_has_the_one_that_transformers_gives_it(model_type, width):
    """Qwen3Config's is 128; the mixtures' attention divides hidden_size by the heads."""
    experts = {"num_experts": 6, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
               "first_k_dense_replace": 0, "n_shared_experts": 1}  # fmt: skip
    found = shape_of(
        tiny(model_type, head_dim=None, hidden_size=48, num_attention_heads=6, **experts), "tiny", ""
    )
    assert found.head_dim == width


SOME = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_shared_experts": 1}
WINDOWS = [  # entries, and the layers out of 6 that see the whole sequence
    (tiny("cwm", sliding_window=9), [0, 4]),
    (tiny("granite_swa", sliding_window=9), [0, 4]),
    (tiny("exaone4", sliding_window=9), [3]),
    (tiny("exaone_moe", sliding_window=9, **SOME), [3]),
    (tiny("afmoe", sliding_window=9, **SOME), [3]),
    (tiny("afmoe", sliding_window=9, global_attn_every_n_layers=2, **SOME), [1, 3, 5]),
    (tiny("cohere2_moe", sliding_window=9, **SOME), [3]),
    (tiny("kolibri1", sliding_window=9, shared_expert_intermediate_size=24, **SOME), [4]),
    (tiny("mellum", sliding_window=9, **SOME), [*range(6)]),
    (tiny("vaultgemma", sliding_window=9), [1, 3, 5]),
    (tiny("ministral", sliding_window=9), []),
    (tiny("starcoder2", sliding_window=9, hidden_act="gelu"), []),
    (tiny("mistral", sliding_window=9), []),
    (tiny("gemma2", sliding_window=9), [1, 3, 5]),
    (tiny("gemma3_text", sliding_window=9), [5]),
    (tiny("gemma3_text", sliding_window=9, sliding_window_pattern=2), [1, 3, 5]),
    (
        tiny("gemma2", sliding_window=9, layer_types=["full_attention"] * 2 + ["sliding_attention"] * 4),
        [0, 1],
    ),
    (tiny("qwen2", sliding_window=9, use_sliding_window=True, max_window_layers=4), [0, 1, 2, 3]),
    (tiny("qwen2", sliding_window=9, use_sliding_window=True, max_window_layers=0), []),
]


@pytest.mark.parametrize("entries, whole", WINDOWS)
def test_windows_are_on_the_layers_where_transformers_has_them(entries, whole):
    """configuration_*.py of transformers 5.23.0: layer_types where it is given; else Gemma 2 has a window in
    every second layer from the first on, Gemma 3 in five of six, Qwen from layer max_window_layers on."""
    shape = shape_of(entries | {"num_hidden_layers": 6}, "tiny", "")
    assert (shape.window, [*shape.whole_layers]) == (9, whole)


def test_a_window_that_is_not_given_is_that_of_the_class_and_a_null_is_none():
    """configuration_*.py of transformers 5.24.0."""
    for entries, window in ((tiny("mistral"), 4096), (tiny("gemma3_text"), 4096), (tiny("cwm"), 8192)):
        assert shape_of(entries, "tiny", "").window == window
        assert shape_of(entries | {"sliding_window": None}, "tiny", "").window == 0
    assert shape_of(tiny("mixtral", **SOME), "tiny", "").window == 0


@pytest.mark.parametrize(
    "entries, unrotated",
    [
        (tiny("cohere2", sliding_window=9), [3]),
        (tiny("exaone4", sliding_window=9), [3]),
        (tiny("exaone4") | {"sliding_window": None}, []),
        (tiny("afmoe", sliding_window=9, **SOME), [3]),
        (tiny("granite_swa", sliding_window=9), []),
        (tiny("granite_swa", sliding_window=9, layer_rope_theta=[0, 1e4, 1e4, 1e4, 0, 1e4]), [0, 4]),
    ],
)
def test_layers_without_positions_are_those_that_transformers_does_not_rotate(entries, unrotated):
    """modeling_*.py of transformers 5.24.0."""
    shape = shape_of(entries | {"num_hidden_layers": 6}, "tiny", "")
    assert [*shape.constants.unrotated] == unrotated


@pytest.mark.parametrize("switched", [{"use_sliding_window": False}, {}])
def test_a_window_that_is_switched_off_is_none(switched):
    shape = shape_of(presets()["qwen2-7b"]["config"] | {"sliding_window": 9} | switched, "q", "")
    assert shape.window == 0


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_window_keeps_the_pairs_of_its_mask_counted_one_by_one(length, window):
    shape = from_flags(**SMALL, window=window)
    seen = [sum(key > query - window for key in range(query + 1)) for query in range(length)]
    assert shape.seen_pairs(length) == sum(seen)


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_query_sees_its_own_chunk_alone(length, chunk):
    shape = from_flags(**SMALL, window=chunk, chunked=True)
    seen = [sum(key // chunk == query // chunk for key in range(query + 1)) for query in range(length)]
    assert shape.seen_pairs(length) == sum(seen)


@pytest.mark.parametrize(
    "entries, sentence",
    [
        (
            tiny("llama4_text", interleave_moe_layer_step=0, **LLAMA4),
            "interleave_moe_layer_step is 0; it must",
        ),
        (
            tiny("llama4_text", moe_layers=[3], **LLAMA4),
            "moe_layers must be a list of layer numbers from 0 to 2",
        ),
        (
            tiny("llama4_text", no_rope_layers=[2], **LLAMA4),
            "no_rope_layers must be a list of zeros and ones",
        ),
        (tiny("llamma"), "unknown model_type 'llamma'. Did you mean 'llama'?"),
        ({"hidden_size": 1}, "model_type is missing."),
        (tiny("llama", vocab_size=None), "vocab_size is missing."),
        (tiny("llama", hidden_size=None), "hidden_size or n_embd or d_model is missing."),
        (tiny("mistral", num_key_value_heads=None), "num_key_value_heads is missing."),
        (
            tiny("deepseek_v2", first_k_dense_replace=1) | DEEPSEEK | LATENT | {"q_lora_rank": "none"},
            "q_lora_rank must be a whole number",
        ),
        (tiny("llama", hidden_size="4096"), "hidden_size must be a whole number, not '4096'."),
        (tiny("llama", hidden_size=32.0), "hidden_size must be a whole number, not 32.0."),
        (tiny("llama", hidden_size=True), "hidden_size must be a whole number, not True."),
        (tiny("llama", hidden_size=float("nan")), "hidden_size must be a whole number, not nan."),
        (tiny("llama", intermediate_size=-5), "intermediate_size is -5; it must be from 1 to"),
        (tiny("llama", num_hidden_layers=10000), "num_hidden_layers is 10000; it must be from 1 to 4096."),
        (tiny("llama", vocab_size=10**4000), "vocab_size is 1000"),
        (
            tiny("llama", num_attention_heads=5),
            "hidden_size 32 is not a multiple of 5 heads; take 4 or 8 heads, or give head_dim.",
        ),
        (
            tiny("llama", num_key_value_heads=3),
            "3 heads of keys and values cannot serve 4 heads evenly; nearest: 2 or 4.",
        ),
        (tiny("llama", tie_word_embeddings="yes"), "tie_word_embeddings must be true or false, not 'yes'."),
        (tiny("llama", hidden_act="sillu"), "unknown hidden_act 'sillu'. Did you mean 'silu'?"),
        (tiny("llama", hidden_act=["silu"]), "hidden_act must be one of"),
        (tiny("llama", n_embd=64), "hidden_size 32 and n_embd 64 should be the same and differ."),
        (
            tiny("mixtral", num_local_experts=2, num_experts_per_tok=4),
            "top_k is 4, but there are only 2 experts to choose from.",
        ),
        (
            tiny("qwen3_moe", head_dim=8, mlp_only_layers=[3], **QWEN_MOE),
            "mlp_only_layers must be a list of layer numbers from 0 to 2",
        ),
        (
            {"model_type": "mpt", "attn_config": {"alibi": False}},
            "attn_config.alibi False is not supported, only true.",
        ),
        ({"text_config": 5}, "text_config must be an object with keys, not 5."),
        ({"text_config": tiny("llama", vocab_size=None)}, "vocab_size is missing."),
        ([1, 2], "an object with keys is needed, not [1, 2]."),
    ],
)
def test_what_is_wrong_in_a_file_is_told_in_one_sentence_that_names_it(tmp_path, entries, sentence):
    path = write(tmp_path, entries)
    told = refusal(from_huggingface, path)
    assert told.startswith(f"{path}: ")
    assert sentence in told


@pytest.mark.parametrize("key", ["head_dim", "num_key_value_heads"])
def test_a_null_that_transformers_computes_is_as_good_as_no_key(key):
    """configuration_llama.py: head_dim and num_key_value_heads are computed where they are None."""
    without = tiny("llama", **{key: None})
    assert shape_of(without | {key: None}, "tiny", "") == shape_of(without, "tiny", "")


@pytest.mark.parametrize(
    ("model_type", "word"),
    [  # the defaults of transformers 5.24, models/*/configuration_*.py
        ("llama", "silu"),
        ("arcee", "relu2"),
        ("gemma", "gelu_pytorch_tanh"),
        ("nanochat", "relu2"),
        ("apertus", "xielu"),
        ("gpt2", "gelu_new"),
        ("gpt_bigcode", "gelu_pytorch_tanh"),
        ("gpt_neox", "gelu"),
        ("codegen", "gelu_new"),
        ("opt", "relu"),
        ("nemotron", "relu2"),
        ("jais2", "relu2"),
        ("starcoder2", "gelu_pytorch_tanh"),
        ("phi", "gelu_new"),
        ("cohere", "silu"),
    ],
)
def test_a_file_without_an_activation_has_that_of_its_class_and_says_so(model_type, word):
    beside = {"n_positions": 64, "ffn_dim": 40, "activation_function": None}
    without = shape_of(tiny(model_type, hidden_act=None, **beside), "m", "")
    key = "activation_function" if model_type == "opt" else "hidden_act"
    given = shape_of(tiny(model_type, **beside | {"hidden_act": None, key: word}), "m", "")
    assert replace(without, notes=()) == replace(given, notes=())
    assert f'is not given: "{word}", as ' in " ".join(without.notes)


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"\xff\xfe{}", "byte 0 is not UTF-8"),
        (b"", "this is not JSON"),
        (b"{", "this is not JSON"),
        (b"[" * 100_000, "this is not JSON"),
    ],
)
def test_a_file_that_is_no_json_is_named(tmp_path, content, sentence):
    assert sentence in refusal(from_huggingface, write(tmp_path, content))


def test_a_directory_or_no_file_is_named(tmp_path):
    assert refusal(from_huggingface, tmp_path) == f"{tmp_path}: this is a directory; name a file in it."
    assert "cannot be read: no such file" in refusal(find_model, str(tmp_path / "config.json"))
    assert "unknown model or file 'a\\x00b'" in refusal(find_model, "a\x00b")
    assert refusal(from_huggingface, "a\x00b/config.json")


def test_a_device_is_not_read_without_end():
    if os.path.exists("/dev/zero"):
        assert "this is a device" in refusal(from_huggingface, "/dev/zero")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-2, 9) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
KEYS = st.sampled_from(
    sorted(
        {key for keys in SPELLINGS.values() for key in keys}
        | {"text_config", "attn_config", "sliding_window"}
    )
)
STARTS = st.sampled_from([entry["config"] for entry in presets().values()])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    STARTS,
    st.dictionaries(KEYS, JUNK, max_size=3),
    st.sets(KEYS, max_size=2),
    st.none() | st.sampled_from(sorted(FAMILIES)),
)
def test_any_entries_give_a_shape_or_one_sentence(start, changes, dropped, model_type):
    entries = {key: value for key, value in (start | changes).items() if key not in dropped}
    try:
        shape = shape_of(entries | ({"model_type": model_type} if model_type else {}), "fuzz", "")
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
    else:
        counted = shape.parameters()
        assert 0 < counted.active <= counted.total


# --- flags


def test_a_model_can_be_given_by_its_sizes():
    shape = from_flags(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
    assert shape.parameters() == find_model("llama-3-8b").parameters()


def test_gpt2_and_mixtral_can_be_given_by_their_sizes():
    gpt2 = from_flags(
        layers=12,
        hidden=768,
        heads=12,
        ffn=3072,
        vocab=50257,
        position="learned",
        positions=1024,
        activation="gelu",
        norm="layernorm",
        biases=("qkv", "output", "mlp", "norm"),
        tied_embeddings=True,
    )
    assert gpt2.parameters() == find_model("gpt2").parameters()
    mixtral = from_flags(
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        ffn=14336,
        vocab=32000,
        experts=8,
        top_k=2,
        expert_ffn=14336,
    )
    assert mixtral.parameters() == find_model("mixtral-8x7b").parameters()


SMALL: dict[str, Any] = {"layers": 2, "hidden": 32, "heads": 4, "ffn": 40, "vocab": 100}


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"hidden": None, "vocab": None}, "a model given by its sizes also needs --hidden, --vocab."),
        ({"heads": 5}, "hidden 32 is not a multiple of 5 heads; take 4 or 8 heads, or give head_dim."),
        ({"heads": 0}, "--heads is 0; it must be from 1 to"),
        ({"activation": "swigloo"}, "Did you mean 'swiglu'?"),
        ({"biases": ("kqv",)}, "unknown bias 'kqv'. Did you mean 'qkv'?"),
        ({"experts": 4, "expert_ffn": 8}, "--top-k is 0; it must be from 1 to"),
        ({"kv_heads": 0}, "--kv-heads is 0; it must be from 1 to"),
        ({"head_dim": 0}, "--head-dim is 0; it must be from 1 to"),
        ({"top_k": 2}, "mean nothing without --experts."),
    ],
)
def test_what_is_wrong_in_given_sizes_is_told(changes, sentence):
    assert sentence in refusal(lambda: from_flags(**(SMALL | changes)))


def test_a_dense_layer_behind_the_last_one_is_told():
    experts = Experts(4, 2, 8, dense_layers=(0, 1, 2))
    told = refusal(lambda: replace(from_flags(**SMALL), experts=experts))
    assert told == "layer 2 is to be dense, but the last layer is 1."


@pytest.mark.parametrize("size", ["layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab"])
def test_no_size_of_a_model_is_zero(size):
    none: dict[str, Any] = {size: 0}
    assert refusal(lambda: replace(find_model("llama-3-8b"), **none)).startswith(f"{size} is 0; it must")


@pytest.mark.parametrize(
    "groups, top_groups, sentence",
    [
        (3, 1, "256 experts make no 3 groups of equal size; nearest: 2 or 4."),
        (8, 9, "top_groups is 9, but there are only 8 groups of experts."),
        (64, 1, "top_k is 8, but a token may choose among 4 experts only: those of 1 of 64 groups."),
        (0, 1, "n_group is 0; it must be from 1 to"),
    ],
)
def test_groups_that_a_router_cannot_keep_a_token_to_are_told(groups, top_groups, sentence):
    config = presets()["deepseek-v3"]["config"] | {"n_group": groups, "topk_group": top_groups}
    assert sentence in refusal(lambda: shape_of(config, "v3", "here"))


@pytest.mark.parametrize(
    "name, given, limit",
    [
        ("deepseek-v2", {}, (8, 3)),
        ("deepseek-v2", {"n_group": None, "topk_group": None}, (1, 1)),
        ("deepseek-v3", {"n_group": None, "topk_group": None}, (8, 4)),  # as DeepseekV3Config has it
        ("kimi-k2", {}, (1, 1)),
    ],
)
def test_groups_of_experts_are_as_config_json_or_its_class_has_them(name, given, limit):
    config = presets()[name]["config"] | given
    entries = {key: value for key, value in config.items() if value is not None}
    experts = shape_of(entries, name, "here").experts
    assert experts and (experts.groups, experts.top_groups) == limit


def test_shapes_are_values():
    assert from_flags(**SMALL) == from_flags(**SMALL)
    assert hash(find_model("deepseek-v3")) == hash(find_model("deepseek-v3"))
    assert isinstance(find_model("gpt2"), ModelShape)


MINIMAX_M2 = {
    "model_type": "minimax_m2",
    "num_hidden_layers": 62,
    "hidden_size": 3072,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 1536,
    "vocab_size": 200064,
    "hidden_act": "silu",
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
}


def test_prediction_layers_that_no_family_is_counted_with_are_said():
    """As the published config.json of MiniMax-M2 has them, which transformers does not build."""
    own = {"use_mtp": True, "num_mtp_modules": 3, "mtp_transformer_layers": 1}
    said = "are not counted: 'num_mtp_modules' 3, 'mtp_transformer_layers' 1."
    assert said in shape_of(MINIMAX_M2 | own, "m", "").notes[-1]
    without = shape_of(MINIMAX_M2 | {"num_mtp_modules": 0, "use_mtp": False}, "m", "").notes
    assert not any("multi-token" in note for note in without)


def test_layers_that_differ_one_by_one_are_refused_where_they_are_not_read():
    """Any configuration of transformers 5.24 may have per_layer_config, whose sizes then count."""
    own = {"per_layer_config": {"3": {"num_attention_heads": 24}}}
    with pytest.raises(UserError, match="per_layer_config .* is not read for MiniMaxM2Config"):
        shape_of(MINIMAX_M2 | own, "m", "")
    assert shape_of(MINIMAX_M2 | {"per_layer_config": {}}, "m", "") == shape_of(MINIMAX_M2, "m", "")
