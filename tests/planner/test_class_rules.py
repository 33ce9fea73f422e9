"""What a config.json leaves out, or says to turn a model into another, is read as its class of transformers
(5.24.0) reads it, or refused: windows, heads, attention of both directions."""

import json
from pathlib import Path
from typing import Any

import pytest

from ndparallel.base.errors import UserError
from ndparallel.planner.models.huggingface.read import shape_of

SUPPORT = Path(__file__).parents[1] / "support"
SMALL = {name: entry["config"] for name, entry in json.loads((SUPPORT / "variants.json").read_text()).items()}
SIZES = {
    "num_hidden_layers": 5,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 100,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHARED = {"shared_expert_intermediate_size": 24}


def read(entries: dict[str, Any], **changes: Any):
    return shape_of({**entries, **changes}, "m", "")


def told(entries: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(UserError) as raised:
        read(entries, **changes)
    return str(raised.value)


def without(entries: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if key not in keys}


def windowed(model_type: str, **changes: Any) -> list[int]:
    """The layers with a window."""
    shape = read(SIZES, model_type=model_type, **changes)
    return [layer for layer in range(shape.layers) if shape.kind(layer).startswith("window")]


@pytest.mark.parametrize("model_type", ["gemma", "gemma2", "gemma3_text", "vaultgemma"])
def test_a_gemma_that_sees_both_ways_is_refused(model_type):
    """EmbeddingGemma's file is such a gemma3_text. It was priced with half of its attention."""
    said = told(SIZES, model_type=model_type, use_bidirectional_attention=True)
    assert said == "use_bidirectional_attention True is not supported, only false."
    assert read(SIZES, model_type=model_type, use_bidirectional_attention=False)


def test_any_model_that_is_said_not_to_be_causal_is_refused():
    said = told(SIZES, model_type="qwen2", is_causal=False)
    assert said == "is_causal False is not supported, only true."
    assert read(SIZES, model_type="qwen2", is_causal=True)


@pytest.mark.parametrize(
    ("name", "key", "field", "size", "of_a_null"),
    [
        ("llama4 all mixtures", "head_dim", "head_dim", 128, 8),
        ("helium", "num_key_value_heads", "kv_heads", 20, 40),
        ("dots1", "num_key_value_heads", "kv_heads", 32, 64),
    ],
)
def test_a_missing_size_is_the_classs_own_and_a_null_follows_from_others(name, key, field, size, of_a_null):
    """All three were taken for a null: of Llama 4 with 40 heads of 128 in 5,120 that is right by chance."""
    entries = {**SMALL[name], "num_attention_heads": 4 if field == "head_dim" else of_a_null}
    assert getattr(read(without(entries, key)), field) == size
    assert getattr(read(entries, **{key: None}), field) == of_a_null


def test_windows_that_a_file_switches_on_are_the_classs_where_it_does_not_say_which():
    """They were of all layers, or none where the file gives no width."""
    on = {"use_sliding_window": True}
    assert windowed("qwen2", **on, max_window_layers=3) == [3, 4]
    assert windowed("qwen3", **on, num_hidden_layers=30, sliding_window=9) == [28, 29]
    assert windowed("qwen2_vl_text", **on, num_hidden_layers=82) == [80, 81]
    assert windowed("qwen3_moe", **EXPERTS, **on, max_window_layers=3) == [0, 1, 2, 3, 4]
    assert windowed("qwen2", sliding_window=9, max_window_layers=3) == []
    assert read(SIZES, model_type="qwen2", **on).window == 4096


def test_of_dots_1_the_layers_behind_the_first_62_have_a_window():
    sizes = without(SMALL["dots1"], "sliding_window", "max_window_layers") | {"num_hidden_layers": 64}
    shape = read(sizes)
    assert (shape.window, shape.whole_layers) == (4096, (*range(62),))
    assert read(sizes, sliding_window=None).window == 0


@pytest.mark.parametrize(
    ("model_type", "more"), [("qwen2_moe", {**EXPERTS, **SHARED}), ("smollm3", {"sliding_window": 9})]
)
def test_where_a_class_has_a_rule_of_its_own_for_windows_they_must_be_listed(model_type, more):
    """Qwen 2's mixture has them in every second layer, SmolLM3 where there are no positions."""
    on = {**more, "use_sliding_window": True}
    said = told(SIZES, model_type=model_type, **on)
    assert said == "use_sliding_window is true: layer_types must list the layers that have the window."
    kinds = ["full_attention", *["sliding_attention"] * 4]
    assert windowed(model_type, **on, layer_types=kinds) == [1, 2, 3, 4]


def test_a_head_of_fewer_symbols_than_the_embedding_is_refused():
    entries = {**SIZES, "model_type": "apertus1p5_text", "hidden_act": "xielu"}
    assert "output_vocab_size 90 differs from vocab_size" in told(entries, output_vocab_size=90)
    assert read(entries, output_vocab_size=100) == read(entries, output_vocab_size=None)


@pytest.mark.parametrize(
    "name", ["laguna, heads by kind of layer", "step3p5, heads of windows, biases, tied"]
)
def test_a_window_of_nothing_is_refused_where_it_tells_which_heads_a_layer_has(name):
    assert told(SMALL[name], sliding_window=0).startswith("sliding_window is 0; it must be from 1 to")


def test_a_null_list_of_dense_layers_is_as_if_none_were_given():
    entries = {**SIZES, **EXPERTS, "model_type": "qwen3_moe"}
    assert read(entries, mlp_only_layers=None).experts == read(entries).experts


def test_what_is_missing_is_told_before_what_would_follow_from_it():
    entries = without(SMALL["llama4 all mixtures"], "num_hidden_layers")
    assert told(entries) == "num_hidden_layers or n_layer or n_layers is missing."
