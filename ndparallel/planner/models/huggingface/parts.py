"""What several families of models read from a config.json beside plain sizes: experts, latent and linear
attention, windows.

Idea   Each is a function of a Config that gives a part of a ModelShape; the row of a family names those that
       it needs. What one family alone reads stands above its row.
Limit  See family.py.

Glossary: see `ndparallel.planner.models.shape`, and
    every          one layer in `every` is a mixture of experts
    first_dense    so many layers at the front are not
    listed         the layers that a file names as dense
"""

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.planner.models.attentions import GatedDeltaNet, LatentAttention
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.huggingface.config import Config
from ndparallel.planner.models.kinds import layers_with

DENSE, SPARSE = "dense", "sparse"  # of mlp_layer_types
FULL, LINEAR, SLIDING = "full_attention", "linear_attention", "sliding_attention"  # of layer_types

# ------------------------------------------------------------------------------------------------- experts


def experts_of(config: Config, ffn: str = "expert_ffn") -> Experts:
    """A mixture in every layer, whose experts are as wide as the field `ffn` says."""
    return Experts(config.size("experts"), config.size("top_k"), config.size(ffn))


def with_shared_expert(config: Config, experts: Experts) -> Experts:
    """One more expert serves every token."""
    return replace(experts, shared_experts=1, shared_ffn=config.size("shared_ffn"))


def groups(config: Config) -> dict[str, Any]:
    """The groups among which a token chooses; without any, which is no limit, where neither file nor class
    says how many."""
    said = [name for name in ("groups", "top_groups") if config.has(name) or name in config.defaults]
    return {name: config.size(name) for name in said}


def mlp_kinds(config: Config) -> list[str]:
    """What the MLP of each layer is; nothing where they are not listed."""
    return config.layer_kinds("mlp_types", (DENSE, SPARSE))


def dense_layers(config: Config) -> tuple[int, ...]:
    """Those that are listed so, else the first ones, and behind them all but the first of every N."""
    if kinds := mlp_kinds(config):
        return layers_with(DENSE, kinds)
    first, every = config.size("first_dense", least=0), config.size("every")
    return tuple(layer for layer in range(config.size("layers")) if layer < first or layer % every)


# -------------------------------------------------------------------------------- latent and linear attention


def latent_attention(config: Config) -> LatentAttention:
    return LatentAttention(
        query_rank=config.size_or_null("query_rank"),
        kv_rank=config.size("kv_rank"),
        nope_dim=config.size("nope_dim"),
        rope_dim=config.size("rope_dim"),
        value_dim=config.size("value_dim"),
    )


def gated_delta_net(config: Config) -> GatedDeltaNet:
    linear = linear_layers(config)
    return GatedDeltaNet(
        config.size("linear_key_heads"),
        config.size("linear_value_heads"),
        config.size("linear_key_dim"),
        config.size("linear_value_dim"),
        config.size("linear_conv"),
        linear,
    )


def linear_layers(config: Config) -> tuple[int, ...]:
    """Those that are listed so, else all but the last of every N."""
    if kinds := layer_types(config):
        return layers_with(LINEAR, kinds)
    every = config.size("attention_every")
    return tuple(layer for layer in range(config.size("layers")) if (layer + 1) % every)


# ------------------------------------------------------------------------------------------------- windows


def windows(config: Config, full_every: int, first: bool) -> dict[str, Any]:
    """The window, and the layers that see the whole sequence all the same: as `layer_types` lists them, or
    one in `full_every` (0: none), the `first` of these or the last."""
    if not (window := window_of(config)):
        return {}
    return {"window": window, "whole_layers": tuple(layers_without_window(config, full_every, first))}


def window_of(config: Config) -> int:
    """Tokens that a query sees in layers with a window; 0 where there is none, or it is not used."""
    if is_switched_off(config):
        return 0
    return config.size_or_null("window") if "window" in config.defaults else config.size_or_zero("window")


def layers_without_window(config: Config, full_every: int, first: bool) -> Iterable[int]:
    layers = range(config.size("layers"))
    if kinds := layer_types(config):
        return [layer for layer in layers if kinds[layer] != SLIDING]
    if config.has("window_layers") or "window_layers" in config.defaults:
        return layers[: config.size("window_layers", least=0)]  # Qwen's, which counts those at the front
    every = config.size("full_every") if config.has("full_every") else full_every
    return layers[0 if first else every - 1 :: every] if every else ()


def is_switched_off(config: Config) -> bool:
    """Whether the file, or where it says nothing its class, has a window that is not used."""
    if config.has("use_window") or (config.has("window") and "use_window" in config.defaults):
        return not config.flag("use_window")
    return config.defaults.get("use_window") is False


def layer_types(config: Config) -> list[str]:
    """The kinds of attention that are listed; linear attention is one where a family has it."""
    linear = (LINEAR,) if "linear_conv" in config.defaults else ()
    return config.layer_kinds("layer_types", (FULL, SLIDING, *linear))


# ------------------------------------------------------------------------------------ lists, layer by layer


def listed_words(config: Config) -> Mapping[str, Any]:
    """Where the file does not list the kinds of layers, a rule of the class's own would."""
    config.value("layer_types")
    return {}


def listed_windows(config: Config) -> Mapping[str, Any]:
    """The layers with a window must be listed where a rule of the class's own would say which they are."""
    if windows(config, 0, False) and not layer_types(config):
        raise UserError("use_sliding_window is true: layer_types must list the layers that have the window.")
    return {}


def per_layer_config(config: Config, layers: set[int], kind: str, keys: tuple[str, ...]) -> Config:
    """The entries with those of these layers, as transformers 5.24 saves them, all alike; without any the
    same config. `kind` says which layers these are."""
    listed = config.entries.get("per_layer_config")
    if listed is None:
        return config
    numbers = {str(layer) for layer in layers}
    every = [*listed.values()] if isinstance(listed, dict) and {*listed} == numbers else []
    own = every[0] if every and all(each == every[0] for each in every) else None
    if not isinstance(own, dict) or not {*own} <= {*keys}:
        raise UserError(
            f"per_layer_config must give every layer that {kind}, and no other, the same "
            f"{' and '.join(keys)}, not {reprlib.repr(listed)}."
        )
    return Config({**config.entries, **own}, config.defaults, config.class_name, config.spellings)
