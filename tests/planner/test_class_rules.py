"""What a config.json leaves out, or says to turn a model into another, is read as its class of transformers
(5.24.0) reads it, or refused: windows, heads, attention of both directions."""

import json
from pathlib import Path
from typing import Any

import pytest

from ndparallel.base.errors import UserError
from ndparallel.planner.models.huggingface import shape_of

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
