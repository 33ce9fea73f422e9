"""Claims about files of models whose layers with a window have heads of their own."""

import json
from pathlib import Path

import pytest

from ndparallel.base.errors import UserError
from ndparallel.planner.models.huggingface.read import shape_of

SUPPORT = Path(__file__).parents[1] / "support"
PUBLISHED = json.loads((SUPPORT / "architectures.json").read_text("utf-8"))


def told(entries: dict, **changes) -> str:
    with pytest.raises(UserError) as raised:
        shape_of({**entries, **changes}, "m", "")
    return str(raised.value)


def test_gemma_4s_last_layer_sees_the_whole_sequence_whatever_is_listed():
    entries = PUBLISHED["gemma-4-31b"]["config"]
    shape = shape_of({**entries, "num_hidden_layers": 7}, "m", "")
    assert shape.whole_layers == (5, 6)
    assert any("Heads are up to 512 wide" in note for note in shape.notes)
    listed = {"num_hidden_layers": 3, "layer_types": ["full_attention", *["sliding_attention"] * 2]}
    assert shape_of({**entries, **listed}, "m", "").whole_layers == (0, 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size_per_layer_input": 256}, "a layer's own embeddings are not counted, only 0"),
        ({"hidden_size_per_layer_input": None}, "hidden_size_per_layer_input is 256"),
        ({"enable_moe_block": True}, "num_experts is missing"),
        (
            {"model_type": "gemma4_unified_text", "enable_moe_block": True},
            "enable_moe_block True is not supported, only false",
        ),
        ({"num_kv_shared_layers": 20}, "num_kv_shared_layers 20 is not supported, only 0"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all' is not supported"),
        ({"num_key_value_heads": 5}, "5 heads of keys and values cannot serve 32 heads evenly"),
        ({"per_layer_config": {"5": {"head_dim": 512}}}, "per_layer_config must give every layer that sees"),
        ({"per_layer_config": [1]}, "per_layer_config must give every layer that sees"),
        ({"sliding_window": 0}, "sliding_window is 0; it must be from 1 to"),
    ],
)
def test_what_of_gemma_4_is_not_counted_is_told(changes, said):
    entries = {**PUBLISHED["gemma-4-31b"]["config"], **changes}
    assert said in told({key: value for key, value in entries.items() if value is not None})


def test_gemma_4_without_a_window_is_refused_whose_layers_could_not_be_told_apart():
    entries = PUBLISHED["gemma-4-31b"]["config"]
    assert "sliding_window must be a whole number, not None" in told(entries, sliding_window=None)


def test_layers_whose_saved_heads_differ_are_refused():
    entries = {**PUBLISHED["gemma-4-31b"]["config"], "num_hidden_layers": 12}
    every = {"5": {"head_dim": 512}, "11": {"head_dim": 256}}
    assert "the same head_dim and num_key_value_heads" in told(entries, per_layer_config=every)
    every["11"] = {"head_dim": 512, "sliding_window": 3}
    assert "the same head_dim and num_key_value_heads" in told(entries, per_layer_config=every)


def test_mimo_v2_flash_marks_layers_by_ones_and_its_window_leaves_out_the_query():
    """Without marks all layers have a window but the first and every sixth (MiMoV2FlashConfig)."""
    published = PUBLISHED["mimo-v2-flash"]["config"]
    mimo = shape_of(published, "m", "")
    assert (mimo.window, mimo.whole_layers) == (129, (0, 5, 11, 17, 23, 29, 35, 41, 47))
    assert "Attention's sinks are counted, but take no time." in mimo.notes
    entries = {**published, "num_hidden_layers": 3}
    marks = {"hybrid_layer_pattern": [1, 0, 1], "moe_layer_freq": [1, 0, 1]}
    shape = shape_of({**entries, **marks}, "m", "")
    assert shape.whole_layers == (1,) and shape.experts and shape.experts.dense_layers == (1,)
    assert "hybrid_layer_pattern must be a list of 3 zeros and ones, not [1, 2, 0]" in told(
        entries, **marks | {"hybrid_layer_pattern": [1, 2, 0]}
    )
    assert "moe_layer_freq must be a list of 3 zeros and ones" in told(
        entries, **marks | {"moe_layer_freq": 1}
    )
