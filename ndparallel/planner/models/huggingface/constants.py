"""What a config.json says of a model beside its sizes: its Constants.

Limit, glossary: see `ndparallel.planner.models.constants`.
"""

import reprlib
from collections.abc import Mapping
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.planner.models.constants import Constants
from ndparallel.planner.models.sizes import checked_size

KEYS = {
    "norm_epsilon": (
        "rms_norm_eps",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "layernorm_epsilon",
        "norm_eps",
        "norm_epsilon",
    ),
    "rotary_base": ("rope_theta", "rotary_emb_base"),
    "rotary_share": ("partial_rotary_factor", "rotary_pct"),
    "router_scaling": (
        "routed_scaling_factor",
        "router_scaling_factor",
        "moe_routed_scaling_factor",
        "moe_router_scaling_factor",
        "route_scale",
    ),
    "balance_loss": ("router_aux_loss_coef", "aux_loss_alpha"),
    "activation_clamp": ("swiglu_limit",),
}
FLAGS = {"renormalized": "norm_topk_prob", "balance_by_sequence": "seq_aux"}
SCALING = ("rope_scaling", "rope_parameters")  # before and since transformers 5
OTHERS = (  # of which no framework here has a flag
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "logit_scale",
    "clip_qkv",
    "rope_local_base_freq",
    "swa_rope_theta",
    "attention_value_scale",
    "attn_scale",
    "floor_scale",
    "layer_rope_theta",
    "llama_4_scaling_beta",
    "scale_emb",
    "scale_depth",
    "dim_model_base",
    "swiglu_limits",
    "swiglu_limits_shared",
    "moe_router_logit_softcapping",
)


def constants_of(entries: Mapping[str, Any]) -> Constants:
    """Read the constants of a config.json. Raises UserError for what is no number, or no true or false."""
    scaling = rotary_scaling(entries)
    by_layer = [key for key in KEYS["rotary_base"] if isinstance(entries.get(key), list)]
    entries = {**scaling, **{key: value for key, value in entries.items() if key not in by_layer}}
    found: dict[str, Any] = {name: number_of(entries, keys) for name, keys in KEYS.items()}
    found |= {name: truth_of(entries, key) for name, key in FLAGS.items()}
    others = {key: entries[key] for key in OTHERS if entries.get(key) not in (None, False, 1)}
    others |= {key: "of each kind of layer" for key in SCALING if is_nested(entries.get(key))}
    others |= dict.fromkeys(by_layer, "of each layer")
    return Constants(
        **found,
        rotary_scaling=named_scaling(scaling),
        others=tuple(others.items()),
        unrotated=unrotated_layers(entries),
    )


def named_scaling(scaling: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The kind of scaling, and its own numbers; nothing for the usual one."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    own = {key: value for key, value in scaling.items() if key not in ("rope_theta", "rope_type", "type")}
    return () if kind == "default" else (("type", kind), *own.items())


def unrotated_layers(entries: Mapping[str, Any]) -> tuple[int, ...]:
    """The layers whose queries and keys are not turned: zeros in a list, else every N-th."""
    listed, every = entries.get("no_rope_layers"), entries.get("no_rope_layer_interval")
    bases = entries.get("layer_rope_theta")
    if isinstance(bases, list):  # of Granite: 0 is no rotation
        return tuple(layer for layer, base in enumerate(bases) if base == 0)
    if listed:
        if not isinstance(listed, list) or not all(kind in (0, 1) for kind in listed):
            raise UserError(f"no_rope_layers must be a list of zeros and ones, not {reprlib.repr(listed)}.")
        return tuple(layer for layer, turned in enumerate(listed) if not turned)
    if every is None or entries.get("num_hidden_layers") is None:
        return ()
    layers = checked_size(entries.get("num_hidden_layers"), "layers", "num_hidden_layers")
    each = checked_size(every, "no_rope_layer_interval", "no_rope_layer_interval")
    return tuple(range(each - 1, layers, each))


def rotary_scaling(entries: Mapping[str, Any]) -> dict[str, Any]:
    given: Any = next((entries[key] for key in SCALING if entries.get(key) is not None), {})
    if not isinstance(given, dict):
        raise UserError(f"rope_scaling must be an object with keys, not {reprlib.repr(given)}.")
    return {key: value for key, value in given.items() if isinstance(value, int | float | str)}


def is_nested(scaling: Any) -> bool:
    """Whether each kind of layer has positions of its own."""
    return isinstance(scaling, dict) and any(isinstance(value, dict) for value in scaling.values())


def number_of(entries: Mapping[str, Any], keys: tuple[str, ...]) -> float | None:
    key = next((key for key in keys if entries.get(key) is not None), "")
    if not key:
        return None
    if isinstance(entries[key], bool) or not isinstance(entries[key], int | float):
        raise UserError(f"{key} must be a number, not {reprlib.repr(entries[key])}.")
    if not 0 <= entries[key] < 1e18:
        raise UserError(f"{key} is {reprlib.repr(entries[key])}; it must be from 0 to 1e+18.")
    return float(entries[key])


def truth_of(entries: Mapping[str, Any], key: str) -> bool | None:
    value = entries.get(key)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{key} must be true or false, not {reprlib.repr(value)}.")
    return value
