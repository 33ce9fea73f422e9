"""Families of models that multiply what each head gives by a number of its own, or by gates with biases.

Idea   One row per family, and the functions that read what it alone has; see family.py for what a row says,
       and for its limit.

Glossary: see `ndparallel.planner.models.shape`.
"""

import reprlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.words import count
from ndparallel.planner.models.attentions import WindowedHeads
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.huggingface.config import Config
from ndparallel.planner.models.huggingface.family import Q_K_V_AND_OUTPUT, ZERO_CENTERED, Family
from ndparallel.planner.models.huggingface.parts import (
    FULL,
    SLIDING,
    SPARSE,
    dense_layers,
    experts_of,
    groups,
    layer_types,
    mlp_kinds,
    per_layer_config,
    with_shared_expert,
)
from ndparallel.planner.models.kinds import layers_with
from ndparallel.planner.models.sizes import checked_size


def heads_of_kinds(config: Config, whole: int, windowed: int) -> dict[str, Any]:
    """So many heads in layers that see the whole sequence, and in those with a window. A window of 0 would
    not tell them apart."""
    if config.has("window"):
        config.size("window")
    own = WindowedHeads(windowed, config.size("kv_heads"), config.size("head_dim"))
    return {"heads": whole, "windowed": None if windowed == whole else own}


def mixed_with_shared(config: Config, dense: tuple[int, ...]) -> Experts:
    return replace(with_shared_expert(config, experts_of(config)), router_bias=True, dense_layers=dense)


# ------------------------------------------------------------------------------------------------- Laguna


def laguna_words(config: Config) -> Mapping[str, Any]:
    config.notes.append("What gates heads is a softplus, which is priced as a sigmoid.")
    return {"output_gate": laguna_gate(config), **heads_of_kinds(config, *laguna_heads(config))}


def laguna_gate(config: Config) -> str:
    given = config.entries.get("gating", True)
    if given is True or given == "per-head":
        return "head"
    if given == "per-element":
        return "element"
    raise UserError(f'gating must be true, "per-head" or "per-element", not {reprlib.repr(given)}.')


def laguna_heads(config: Config) -> tuple[int, int]:
    """Heads of layers that see the whole sequence, and of layers with a window, which are listed by layer."""
    key, layers = "num_attention_heads_per_layer", config.size("layers")
    if (listed := config.entries.get(key)) is None:
        return config.size("heads"), config.size("heads")
    if not isinstance(listed, list) or len(listed) != layers:
        raise UserError(f"{key} must be a list of {layers} numbers, not {reprlib.repr(listed)}.")
    heads = [checked_size(number, "heads", key) for number in listed]
    kinds = layer_types(config) or [FULL] * layers
    whole, windowed = ({one for one, kind in zip(heads, kinds) if kind == each} for each in (FULL, SLIDING))
    if len(whole) > 1 or len(windowed) > 1:
        raise UserError(
            f"{key} must give all layers that see the whole sequence as many heads, and all with a window, "
            f"not {reprlib.repr(listed)}."
        )
    return (*whole, *windowed)[0], (*windowed, *whole)[0]


LAGUNA = Family(
    "LagunaConfig",
    {"head_dim": 128, "tied": False, "attention_bias": False, "first_dense": 1, "every": 1, "window": 512},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    qk_norm="head",
    full_every=1,
    experts=lambda config: mixed_with_shared(config, dense_layers(config)),
    words=laguna_words,
    must={"moe_apply_router_weight_on_input": False},
)

# ------------------------------------------------------------------------------------------------ Step 3.5


def step3p5_experts(config: Config) -> Experts:
    """In the layers that are listed or numbered, or in all but the first three."""
    kinds, layers = mlp_kinds(config), range(config.size("layers"))
    mixed = layers_with(SPARSE, kinds) if kinds else step3p5_numbers(config)
    return mixed_with_shared(config, tuple(layer for layer in layers if layer not in mixed))


def step3p5_numbers(config: Config) -> Collection[int]:
    """The numbers of layers, in one word or a list, those of prediction layers among them."""
    given = config.entries.get("moe_layers_enum")
    if given is None:
        return range(3, config.size("layers"))
    numbers = given.split(",") if isinstance(given, str) else given
    if not isinstance(numbers, list) or not all(str(number).strip().isdecimal() for number in numbers):
        raise UserError(f"moe_layers_enum must list numbers of layers, not {reprlib.repr(given)}.")
    return {int(number) for number in numbers}


def step3p5_words(config: Config) -> Mapping[str, Any]:
    windowed = {*layers_with(SLIDING, layer_types(config))}
    if windowed and not config.has("window"):
        raise UserError(f"{config.key('window')} is missing, and layer_types lists {SLIDING}.")
    if layers := config.size_or_zero("prediction_layers"):
        config.notes.append(f"{count(layers, 'layer')} of multi-token prediction are not counted.")
    if any(config.entries.get(key) for key in ("swiglu_limits", "swiglu_limits_shared")):
        config.notes.append("The activation is priced as SwiGLU without its clamps.")
    heads = config.size("heads")
    return {
        "prediction_layers": 0,
        **heads_of_kinds(config, heads, step3p5_heads(config, windowed) if windowed else heads),
    }


def step3p5_heads(config: Config, windowed: set[int]) -> int:
    """Heads of layers with a window (Step3p7TextConfig.__post_init__)."""
    own = per_layer_config(config, windowed, "has a window", ("num_attention_heads",))
    if own is not config or config.has("window_heads"):
        return own.size("heads" if own is not config else "window_heads")
    other, key = config.entries.get("attention_other_setting") or {}, "num_attention_heads"
    if not isinstance(other, dict):
        raise UserError(f"attention_other_setting must be an object with keys, not {reprlib.repr(other)}.")
    return checked_size(other.get(key, config.size("heads")), "heads", f"attention_other_setting.{key}")


STEP3P5 = Family(
    "Step3p7TextConfig",
    {"head_dim": 128, "tied": False, "attention_bias": False},
    spellings={
        "kv_heads": ("num_key_value_heads", "num_attention_groups"),
        "experts": ("n_routed_experts", "num_local_experts", "moe_num_experts"),
        "top_k": ("num_experts_per_tok", "moe_top_k"),
        "shared_ffn": ("share_expert_dim", "share_expert_dims"),
        "window_heads": ("num_sliding_attention_heads",),
    },
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    activation="swiglu",
    qk_norm="head",
    output_gate="head",
    full_every=1,
    experts=step3p5_experts,
    words=step3p5_words,
    reads_layers=True,
    must={
        "gating": True,
        "use_head_wise_attn_gate": True,
        "use_bidirectional_attention": False,
        "mlp_bias": False,
    },
    constants=ZERO_CENTERED,
)

# ---------------------------------------------------------------------------------------------------- Beam


def beam_experts(config: Config) -> Experts:
    return replace(experts_of(config), router_bias=True, **groups(config), dense_layers=dense_layers(config))


def beam_words(config: Config) -> Mapping[str, Any]:
    """Layers that see the whole sequence have no positions: those listed, or every sixth and the last one
    (BeamConfig.__post_init__)."""
    config.notes.append(
        "The residual is scaled by the depth of its layer, and queries without positions by their place; it "
        "takes no time."
    )
    layers = config.size("layers")
    every_sixth = [FULL if layer % 6 == 5 or layer == layers - 1 else SLIDING for layer in range(layers)]
    kinds = layer_types(config) or every_sixth
    return {"whole_layers": layers_with(FULL, kinds)}


BEAM = Family(
    "BeamConfig",
    {
        "head_dim": 128,
        "tied": False,
        "attention_bias": False,
        "first_dense": 3,
        "every": 1,
        "groups": 8,
        "top_groups": 4,
        "window": 512,
    },
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    norms="both",
    qk_norm="head",
    output_gate="biased",
    experts=beam_experts,
    words=beam_words,
    rotates_windows_alone=True,
    must={"rope_parameters.full_attention": None},
)
