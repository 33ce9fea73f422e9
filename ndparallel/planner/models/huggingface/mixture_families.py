"""Families of models with mixtures of experts that are laid out neither as DeepSeek's nor as Qwen's
(deepseek_mixtures.py, qwen_mixtures.py).

Idea   One row per family, and the functions that read what it alone has; see family.py for what a row says,
       and for its limit.

Glossary: see `ndparallel.planner.models.shape`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.huggingface.config import Config
from ndparallel.planner.models.huggingface.constants import constants_of
from ndparallel.planner.models.huggingface.dense_families import HUNYUAN, OLMO2
from ndparallel.planner.models.huggingface.family import AS_HEADS, PER_HEAD, Q_K_V_AND_OUTPUT, Family, missing
from ndparallel.planner.models.huggingface.layernorm_families import COHERE2
from ndparallel.planner.models.huggingface.parts import (
    DENSE,
    FULL,
    dense_layers,
    experts_of,
    mlp_kinds,
)
from ndparallel.planner.models.kinds import layers_with
from ndparallel.planner.models.sizes import checked_size

CHUNKED = "chunked_attention"  # of layer_types


def mixtral_experts(config: Config) -> Experts:
    return experts_of(config, "ffn")


MIXTRAL = Family("MixtralConfig", {"head_dim": PER_HEAD, "tied": False}, experts=mixtral_experts)


def gpt_oss_experts(config: Config) -> Experts:
    return replace(mixtral_experts(config), router_bias=True)


MINIMAX_M2 = Family("MiniMaxM2Config", {"tied": False}, qk_norm="width", experts=gpt_oss_experts)
OLMOE = replace(OLMO2, class_name="OlmoeConfig", norms="before", experts=mixtral_experts)
PHIMOE = Family(
    "PhimoeConfig",
    {"head_dim": PER_HEAD, "tied": False, "attention_bias": False, "head_bias": False},
    norm="layernorm",
    biases=("norm",),
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT, "head_bias": ("head",)},
    experts=mixtral_experts,
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


def chunks(config: Config, unrotated: tuple[int, ...]) -> dict[str, Any]:
    """The chunk, and the layers that see the whole sequence: as `layer_types` lists them, or those without
    positions."""
    kinds = config.layer_kinds("layer_types", (FULL, CHUNKED))
    whole = layers_with(FULL, kinds) if kinds else unrotated
    return {"window": config.size("chunk"), "whole_layers": whole, "chunked": True}


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
        "constants": replace(constants, unrotated=unrotated),
        **chunks(config, unrotated),
    }


LLAMA4 = Family(
    "Llama4TextConfig",
    {
        "head_dim": missing(128, "head_dim", PER_HEAD),
        "tied": False,
        "attention_bias": False,
        "qk_norm": True,
        "every": 1,
        "chunk": 8192,
    },
    spellings={"ffn": ("intermediate_size_mlp",), "expert_ffn": ("intermediate_size",)},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    experts=llama4_experts,
    words=llama4_words,
    constants={"scores": "sigmoid", "scaled_inputs": True},
)


def gpt_oss_words(config: Config) -> Mapping[str, Any]:
    """The activation's clamp, 7 where the file does not say."""
    return {"constants": constants_of({"swiglu_limit": 7.0, **config.entries})}


GPT_OSS = Family(
    "GptOssConfig",
    {"head_dim": 64, "tied": False, "attention_bias": True, "window": 128},
    biases=("mlp",),
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    sinks=True,
    full_every=2,
    experts=gpt_oss_experts,
    words=gpt_oss_words,
)
FLEX_OLMO = replace(OLMO2, class_name="FlexOlmoConfig", experts=mixtral_experts)
GRANITEMOE = replace(
    MIXTRAL,
    class_name="GraniteMoeConfig",
    defaults={"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
)


def granite_experts(config: Config) -> Experts:
    width = config.size_or_zero("shared_ffn")
    return replace(mixtral_experts(config), shared_experts=int(width > 0), shared_ffn=width)


GRANITEMOESHARED = replace(
    GRANITEMOE,
    class_name="GraniteMoeSharedConfig",
    spellings={"shared_ffn": ("shared_intermediate_size",)},
    experts=granite_experts,
)
GRANITEMOE_SWA = replace(
    GRANITEMOESHARED,
    class_name="GraniteMoeSWAConfig",
    defaults={**GRANITEMOESHARED.defaults, "window": 128},
    sinks=True,
    full_every=4,
    full_first=True,
)


def hunyuan_experts(config: Config) -> Experts:
    """All layers choose as many, which a file may say for each of them."""
    listed, width = config.value("top_k"), config.size("ffn")
    alike = isinstance(listed, list) and len({*map(repr, listed)}) == 1
    top_k = checked_size(listed[0] if alike else listed, "top_k", config.key("top_k"))
    return Experts(config.size("experts"), top_k, width, shared_experts=1, shared_ffn=width)


HUNYUAN_MOE = replace(
    HUNYUAN,
    class_name="HunYuanMoEV1Config",
    spellings={"top_k": ("moe_topk",)},
    experts=hunyuan_experts,
)


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


ERNIE4_5_MOE = Family(
    "Ernie4_5_MoeConfig",
    {"head_dim": PER_HEAD, "tied": True, "first_dense": 1, "last_mixed": -1, "every": 1},
    spellings={
        "experts": ("moe_num_experts", "num_experts"),
        "top_k": ("moe_k", "num_experts_per_tok"),
        "shared_experts": ("moe_num_shared_experts",),
        "first_dense": ("moe_layer_start_index",),
        "last_mixed": ("moe_layer_end_index",),
        "every": ("moe_layer_interval",),
    },
    experts=ernie_experts,
    constants={"scores": "softmax"},
    must={"use_bias": False},
)


def mellum_experts(config: Config) -> Experts:
    return replace(mixtral_experts(config), ffn=config.size("expert_ffn"), dense_layers=dense_layers(config))


MELLUM = Family(
    "MellumConfig",
    {"head_dim": 128, "tied": False, "attention_bias": False, "first_dense": 0, "every": 1, "window": 1024},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    qk_norm="head",
    full_every=1,
    experts=mellum_experts,
)


def aria_experts(config: Config) -> Experts:
    shared, width = config.size("shared_experts"), config.size("ffn")
    return replace(mixtral_experts(config), shared_experts=shared, shared_ffn=width)


ARIA = Family(
    "AriaTextConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False},
    spellings={
        "experts": ("moe_num_experts",),
        "top_k": ("moe_topk",),
        "shared_experts": ("moe_num_shared_experts",),
    },
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    experts=aria_experts,
    must={"mlp_bias": False},
)


def cohere2_experts(config: Config) -> Experts:
    """In the layers that are listed, or in all."""
    dense, experts = layers_with(DENSE, mlp_kinds(config)), experts_of(config)
    shared = config.size_or_zero("shared_experts")
    return replace(experts, shared_experts=shared, shared_ffn=experts.ffn, dense_layers=dense)


def cohere2_words(config: Config) -> Mapping[str, Any]:
    """Its norm is the one whose epsilon is given; dense layers may have a width of their own."""
    return {
        "norm": "rmsnorm" if config.entries.get("rms_norm_eps") is not None else "layernorm",
        "ffn": config.size("dense_ffn" if config.has("dense_ffn") else "ffn"),
    }


COHERE2_MOE = replace(
    COHERE2,
    class_name="Cohere2MoeConfig",
    defaults={"kv_heads": AS_HEADS, "head_dim": 128, "tied": True, "attention_bias": False, "window": 4096},
    spellings={
        "dense_ffn": ("prefix_dense_intermediate_size",),
        "expert_ffn": ("intermediate_size",),
        "shared_experts": ("num_shared_experts",),
    },
    experts=cohere2_experts,
    words=cohere2_words,
    must={"first_k_dense_replace": 0},
)
