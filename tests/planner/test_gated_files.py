"""Claims about files of models that gate what heads give: Laguna, Step 3.5 and Beam."""

import json
from pathlib import Path

import pytest

from ndparallel.base.errors import UserError
from ndparallel.planner.models.attentions import WindowedHeads
from ndparallel.planner.models.huggingface.read import shape_of

SUPPORT = Path(__file__).parents[1] / "support"
PUBLISHED = json.loads((SUPPORT / "architectures.json").read_text("utf-8"))
LAGUNA, STEP, BEAM = (PUBLISHED[name]["config"] for name in ("laguna-xs.2", "step-3.5-flash", "beam-1.0"))
FULL, SLIDING = "full_attention", "sliding_attention"
SOME_LAGUNA = {
    **LAGUNA,
    "num_hidden_layers": 3,
    "layer_types": [FULL, SLIDING, FULL],
    "mlp_layer_types": None,
}


def told(entries: dict, **changes) -> str:
    with pytest.raises(UserError) as raised:
        shape_of({**entries, **changes}, "m", "")
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [("laguna-xs.2", 33, 3), ("step-3.5-flash", 196, 11), ("beam-1.0", 501, 23)],
)
def test_parameters_are_as_many_as_is_published(name, billions, active):
    """Of Step those of its embedding left out, as its authors count."""
    counted = shape_of(PUBLISHED[name]["config"], name, "").parameters()
    embedding = counted.embedding if "step" in name else 0
    assert int((counted.total - embedding) / 1e9) == billions
    assert int((counted.active - embedding) / 1e9) == active


def test_laguna_lists_heads_by_layer_which_are_alike_in_each_kind():
    shape = shape_of(LAGUNA, "m", "")
    assert (shape.heads, shape.windowed) == (48, WindowedHeads(64, 8, 128))
    assert (shape.window, shape.whole_layers) == (512, tuple(range(0, 40, 4)))
    assert shape.experts and shape.experts.dense_layers == (0,)
    same = shape_of({**LAGUNA, "num_attention_heads_per_layer": [64] * 40}, "m", "")
    assert (same.heads, same.windowed) == (64, None)
    assert "What gates heads is a softplus, which is priced as a sigmoid." in shape.notes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"num_attention_heads_per_layer": [48, 64, 56]},
            "all layers that see the whole sequence as many heads",
        ),
        ({"num_attention_heads_per_layer": [48, 64]}, "must be a list of 3 numbers, not [48, 64]"),
        ({"num_attention_heads_per_layer": [48, 0, 48]}, "num_attention_heads_per_layer is 0"),
        ({"num_attention_heads_per_layer": [48, 44, 48]}, "8 heads of keys and values cannot serve 44 heads"),
        ({"gating": False}, 'gating must be true, "per-head" or "per-element", not False'),
        ({"gating": ["per-head"]}, "gating must be true"),
        (
            {"moe_apply_router_weight_on_input": True},
            "moe_apply_router_weight_on_input True is not supported",
        ),
    ],
)
def test_what_of_laguna_is_not_counted_is_told(changes, said):
    assert said in told({**SOME_LAGUNA, "num_attention_heads_per_layer": None}, **changes)


@pytest.mark.parametrize(
    ("gating", "gate"), [(True, "head"), ("per-head", "head"), ("per-element", "element")]
)
def test_laguna_says_how_wide_its_gates_are(gating, gate):
    entries = {**SOME_LAGUNA, "num_attention_heads_per_layer": None, "gating": gating}
    assert shape_of(entries, "m", "").output_gate == gate


def test_laguna_without_kinds_of_layers_has_no_windows():
    entries = {key: value for key, value in SOME_LAGUNA.items() if "layer" not in key}
    shape = shape_of({**entries, "num_hidden_layers": 3}, "m", "")
    assert shape.layer_kinds == ("dense", "experts")


def test_step_3_5_lists_its_prediction_layers_behind_the_others():
    shape = shape_of(STEP, "m", "")
    assert (shape.heads, shape.windowed) == (64, WindowedHeads(96, 8, 128))
    assert (shape.whole_layers, shape.window) == (tuple(range(0, 45, 4)), 512)
    assert shape.experts and shape.experts.dense_layers == (0, 1, 2)
    assert shape.prediction_layers == 0
    assert "3 layers of multi-token prediction are not counted." in shape.notes
    assert "layer_types lists 47 layers; there are 45" in told(STEP, layer_types=STEP["layer_types"][:47])


@pytest.mark.parametrize("numbers", ["1, 3", [1, 3], ["1", "3", "9"]])
def test_step_3_5_numbers_its_mixtures(numbers):
    entries = {**STEP, "num_hidden_layers": 4, "num_nextn_predict_layers": 0, "moe_layers_enum": numbers}
    shape = shape_of({**entries, "layer_types": [FULL, SLIDING, SLIDING, SLIDING]}, "m", "")
    assert shape.experts and shape.experts.dense_layers == (0, 2)


def test_step_3_5_as_it_is_saved_has_heads_of_each_layer():
    entries = {**STEP, "num_hidden_layers": 3, "num_nextn_predict_layers": 0}
    entries |= {"layer_types": [FULL, SLIDING, SLIDING], "attention_other_setting": None}
    own = {"1": {"num_attention_heads": 80}, "2": {"num_attention_heads": 80}}
    assert shape_of({**entries, "per_layer_config": own}, "m", "").with_window.heads == 80
    assert shape_of(entries, "m", "").windowed is None
    own["2"] = {"num_attention_heads": 64}
    assert "every layer that has a window, and no other, the same num_attention_heads" in told(
        entries, per_layer_config=own
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sliding_window": None}, "sliding_window is missing, and layer_types lists sliding_attention"),
        ({"moe_layers_enum": "3,four"}, "moe_layers_enum must list numbers of layers, not '3,four'"),
        ({"moe_layers_enum": 3}, "moe_layers_enum must list numbers of layers, not 3"),
        ({"attention_other_setting": [96]}, "attention_other_setting must be an object with keys"),
        (
            {"attention_other_setting": {"num_attention_heads": "96"}},
            "attention_other_setting.num_attention_heads must be a whole number",
        ),
        ({"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate False is not supported, only true"),
        ({"mlp_bias": True}, "mlp_bias True is not supported, only false"),
        ({"num_key_value_heads": 4}, "num_key_value_heads 4 and num_attention_groups 8 should be the same"),
    ],
)
def test_what_of_step_3_5_is_not_counted_is_told(changes, said):
    assert said in told(STEP, **changes)


def test_clamps_and_positions_that_step_3_5_lists_by_layer_are_no_error():
    listed = {"rope_theta": [5e6] * 48, "swiglu_limits": [0.0] * 43 + [7.0] * 5}
    shape = shape_of({**STEP, **listed}, "m", "")
    assert "The activation is priced as SwiGLU without its clamps." in shape.notes
    assert {"rope_theta", "swiglu_limits"} <= {key for key, _ in shape.constants.others}


def test_beams_last_layer_and_every_sixth_have_no_positions_and_no_window():
    shape = shape_of(BEAM, "m", "")
    assert shape.whole_layers == shape.constants.unrotated == (5, 11, 17, 23, 29, 35, 41, 47, 51)
    assert shape.output_gate == "biased" and shape.experts and shape.experts.dense_layers == (0, 1, 2)
    assert any("The residual is scaled by the depth of its layer" in note for note in shape.notes)
    listed = shape_of({**BEAM, "num_hidden_layers": 3, "layer_types": [FULL, SLIDING, SLIDING]}, "m", "")
    assert listed.whole_layers == listed.constants.unrotated == (0,)
    rotated = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}
    assert "rope_parameters.full_attention" in told(BEAM, rope_parameters=rotated)
