"""What families of models read from a config.json beside plain sizes: experts, latent attention, windows, and
the words in which one family says what the others do not.

Idea   Each is a function of a Config that gives a part of a ModelShape; a row of families.py names those that
       it needs.
Limit  See families.py.

Glossary: see `ndparallel.planner.models.shape`, and
    every          one layer in `every` is a mixture of experts
    first_dense    so many layers at the front are not
    listed         the layers that a file names as dense
"""

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.planner.models.attentions import GatedDeltaNet, LatentAttention
from ndparallel.planner.models.config import Config
from ndparallel.planner.models.constants import constants_of
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.kinds import layers_with
from ndparallel.planner.models.sizes import checked_size

DENSE, SPARSE = "dense", "sparse"  # of mlp_layer_types
# of layer_types
FULL, LINEAR = "full_attention", "linear_attention"
SLIDING, CHUNKED = "sliding_attention", "chunked_attention"

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


def mixtral_experts(config: Config) -> Experts:
    return experts_of(config, "ffn")


def gpt_oss_experts(config: Config) -> Experts:
    return replace(mixtral_experts(config), router_bias=True)


def qwen3_experts(config: Config) -> Experts:
    every, listed = config.size("every"), config.layer_numbers("dense_layers")
    dense = tuple(layer for layer in range(config.size("layers")) if layer in listed or (layer + 1) % every)
    return replace(experts_of(config), dense_layers=dense)


def flint_experts(config: Config) -> Experts:
    return with_shared_expert(config, qwen3_experts(config))


def qwen2_experts(config: Config) -> Experts:
    return replace(flint_experts(config), shared_gate=True)


def lara_experts(config: Config) -> Experts:
    """In every layer; `ffn` is spelled as the width of an expert."""
    return with_shared_expert(config, mixtral_experts(config))


def qwen3_5_experts(config: Config) -> Experts:
    return replace(lara_experts(config), shared_gate=True)


def kolibri_experts(config: Config) -> Experts:
    return replace(lara_experts(config), router_bias=True)


def aria_experts(config: Config) -> Experts:
    shared, width = config.size("shared_experts"), config.size("ffn")
    return replace(mixtral_experts(config), shared_experts=shared, shared_ffn=width)


def cohere2_experts(config: Config) -> Experts:
    """In the layers that are listed, or in all."""
    dense, experts = layers_with(DENSE, mlp_kinds(config)), experts_of(config)
    shared = config.size_or_zero("shared_experts")
    return replace(experts, shared_experts=shared, shared_ffn=experts.ffn, dense_layers=dense)


def deepseek_v2_experts(config: Config) -> Experts:
    experts = experts_of(config)
    return replace(
        experts,
        shared_experts=config.size_or_null("shared_experts"),
        shared_ffn=experts.ffn,
        **groups(config),
        dense_layers=dense_layers(config),
    )


def deepseek_v3_experts(config: Config) -> Experts:
    return replace(deepseek_v2_experts(config), router_bias=True)


def mellum_experts(config: Config) -> Experts:
    return replace(mixtral_experts(config), ffn=config.size("expert_ffn"), dense_layers=dense_layers(config))


def granite_experts(config: Config) -> Experts:
    width = config.size_or_zero("shared_ffn")
    return replace(mixtral_experts(config), shared_experts=int(width > 0), shared_ffn=width)


def hunyuan_experts(config: Config) -> Experts:
    """All layers choose as many, which a file may say for each of them."""
    listed, width = config.value("top_k"), config.size("ffn")
    alike = isinstance(listed, list) and len({*map(repr, listed)}) == 1
    top_k = checked_size(listed[0] if alike else listed, "top_k", config.key("top_k"))
    return Experts(config.size("experts"), top_k, width, shared_experts=1, shared_ffn=width)


def ernie_experts(config: Config) -> Experts:
    """Between a first and a last layer (-1: of all), in the last of every N."""
    layers, every = config.size("layers"), config.size("every")
    first, last = config.size("first_dense", least=0), config.size("last_mixed", least=-1)
    between, experts = range(first, layers if last == -1 else last + 1), experts_of(config)
    return replace(
        experts,
        shared_experts=config.size("shared_experts", least=0),
        shared_ffn=experts.ffn,
        router_bias=True,
        dense_layers=tuple(layer for layer in range(layers) if layer not in between or (layer + 1) % every),
    )


def llama4_experts(config: Config) -> Experts:
    """In the layers that are listed, else in the last of every N; beside them one as wide serves every
    token."""
    layers, every = range(config.size("layers")), config.size("every")
    mixed = (
        config.layer_numbers("mixed_layers")
        if config.has("mixed_layers")
        else {layer for layer in layers if (layer + 1) % every == 0}
    )
    dense, experts = tuple(layer for layer in layers if layer not in mixed), experts_of(config)
    return replace(experts, shared_experts=1, shared_ffn=experts.ffn, dense_layers=dense)


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


def joined_delta_net(config: Config) -> GatedDeltaNet:
    return replace(gated_delta_net(config), joined=True)


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
    window = config.size_or_null("window") if "window" in config.defaults else config.size_or_zero("window")
    switched = config.has("use_window") or "use_window" in config.defaults
    if not window or (switched and not config.flag("use_window")):
        return {}
    last = config.size("layers")
    if kinds := layer_types(config):
        whole = [layer for layer in range(last) if kinds[layer] != SLIDING]
    elif config.has("window_layers"):  # Qwen's, which counts those at the front that have none
        whole = [*range(min(last, config.size("window_layers", least=0)))]
    else:
        every = config.size("full_every") if config.has("full_every") else full_every or last + 1
        whole = [layer for layer in range(last) if (layer + (not first)) % every == 0]
    return {"window": window, "whole_layers": tuple(whole)}


def layer_types(config: Config) -> list[str]:
    """The kinds of attention that are listed; linear attention is one where a family has it."""
    linear = (LINEAR,) if "linear_conv" in config.defaults else ()
    return config.layer_kinds("layer_types", (FULL, SLIDING, *linear))


def chunks(config: Config, unrotated: tuple[int, ...]) -> dict[str, Any]:
    """The chunk, and the layers that see the whole sequence: as `layer_types` lists them, or those without
    positions."""
    kinds = config.layer_kinds("layer_types", (FULL, CHUNKED))
    whole = layers_with(FULL, kinds) if kinds else unrotated
    return {"window": config.size("chunk"), "whole_layers": whole, "chunked": True}


# ---------------------------------------------------------------------- what one family says in its own words


def llama4_words(config: Config) -> Mapping[str, Any]:
    """Every fourth layer has no positions where the file does not say which; the others have chunks, and may
    have norms of queries and keys."""
    every = config.entries.get("no_rope_layer_interval") or 4
    tuned = config.entries.get("attn_temperature_tuning", True)  # 4 in older files
    warmer = {"attn_scale": 0.1, "floor_scale": 8192} if tuned else {}
    constants = constants_of({**warmer, **config.entries, "no_rope_layer_interval": every})
    unrotated = tuple(layer for layer in constants.unrotated if layer < config.size("layers"))
    return {
        "qk_norm": "unscaled" if config.flag("qk_norm") else "",
        "constants": replace(constants, unrotated=unrotated, scores="sigmoid", scaled_inputs=True),
        **chunks(config, unrotated),
    }


def bigcode_words(config: Config) -> Mapping[str, Any]:
    return {"kv_heads": 1 if config.flag("multi_query") else config.size("heads")}


def stablelm_words(config: Config) -> Mapping[str, Any]:
    """Halves that read the same input share its norm."""
    parallel = config.flag("parallel_residual")
    return {"parallel": parallel, "norms": "shared" if parallel else "before"}


def hyperclovax_words(config: Config) -> Mapping[str, Any]:
    return {"norms": "both" if config.flag("post_norm") else "before"}


def hunyuan_words(config: Config) -> Mapping[str, Any]:
    return {"constants": replace(constants_of(config.entries), rotated_first=True)}


def listed_words(config: Config) -> Mapping[str, Any]:
    """Where the file does not list the kinds of layers, a rule of the class's own would."""
    config.value("layer_types")
    return {}


def flint_words(config: Config) -> Mapping[str, Any]:
    return {**listed_words(config), "constants": replace(constants_of(config.entries), scores="sigmoid")}


def softmax_words(config: Config) -> Mapping[str, Any]:
    return {"constants": replace(constants_of(config.entries), scores="softmax")}


def neox_words(config: Config) -> Mapping[str, Any]:
    return {"parallel": config.flag("parallel_residual")}


def falcon_words(config: Config) -> Mapping[str, Any]:
    """One norm for both halves, or two; one head of keys and values, all, or a number."""
    new, parallel = config.flag("new_decoder"), config.flag("parallel_attention")
    shared = config.value("parallel_norms") == 1 if new and config.has("parallel_norms") else not new
    kv_heads = config.size("kv_heads") if new else 1 if config.flag("multi_query") else config.size("heads")
    return {
        "kv_heads": kv_heads,
        "parallel": new or parallel,
        "norms": "shared" if shared and (new or parallel) else "before",
        "position": "alibi" if config.flag("alibi") else "rotary",
    }


def gpt_oss_words(config: Config) -> Mapping[str, Any]:
    """The activation's clamp, 7 where the file does not say."""
    return {"constants": constants_of({"swiglu_limit": 7.0, **config.entries})}


def glm4_words(config: Config) -> Mapping[str, Any]:
    return {"qk_norm": "head" if config.flag("qk_norm") else ""}


def cohere_words(config: Config) -> Mapping[str, Any]:
    return {"qk_norm": "width" if config.flag("qk_norm") else ""}


def cohere2_words(config: Config) -> Mapping[str, Any]:
    """Its norm is the one whose epsilon is given; dense layers may have a width of their own."""
    return {
        "norm": "rmsnorm" if config.entries.get("rms_norm_eps") is not None else "layernorm",
        "ffn": config.size("dense_ffn" if config.has("dense_ffn") else "ffn"),
    }


def opt_words(config: Config) -> Mapping[str, Any]:
    """The table of positions has two rows more than there are positions. Raises UserError for the one OPT
    whose embedding is narrower than its layers."""
    if config.size("hidden") != config.size("embedding_width"):
        raise UserError(
            f"word_embed_proj_dim {config.size('embedding_width')} differs from hidden_size: a projection "
            "behind the embedding is not supported."
        )
    return {"positions": config.size("positions") + 2}


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
