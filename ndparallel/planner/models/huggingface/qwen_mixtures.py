"""Families of models whose mixtures of experts are laid out as Qwen's: one expert may serve every token, and
dense layers are listed, or come between mixtures.

Idea   One row per family, and the functions that read what it alone has; see family.py for what a row says,
       and for its limit.

Glossary: see `ndparallel.planner.models.shape`.
"""

from dataclasses import replace

from ndparallel.planner.models.attentions import GatedDeltaNet
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.huggingface.config import Config
from ndparallel.planner.models.huggingface.dense_families import QWEN3, QWEN3_5
from ndparallel.planner.models.huggingface.family import PER_HEAD, Family
from ndparallel.planner.models.huggingface.parts import (
    experts_of,
    gated_delta_net,
    listed_windows,
    listed_words,
    with_shared_expert,
)


def qwen3_experts(config: Config) -> Experts:
    every, listed = config.size("every"), config.layer_numbers("dense_layers")
    dense = tuple(layer for layer in range(config.size("layers")) if layer in listed or (layer + 1) % every)
    return replace(experts_of(config), dense_layers=dense)


def flint_experts(config: Config) -> Experts:
    return with_shared_expert(config, qwen3_experts(config))


def qwen2_experts(config: Config) -> Experts:
    return replace(flint_experts(config), shared_gate=True)


QWEN2_MOE = Family(
    "Qwen2MoeConfig",
    {
        "head_dim": PER_HEAD,
        "tied": False,
        "qkv_bias": True,
        "every": 1,
        "dense_layers": [],
        "use_window": False,
        "window": 4096,
    },
    bias_flags={"qkv_bias": ("qkv",)},
    experts=qwen2_experts,
    words=listed_windows,
)
QWEN3_MOE = replace(
    QWEN3,
    class_name="Qwen3MoeConfig",
    defaults={
        "head_dim": PER_HEAD,
        "tied": False,
        "attention_bias": False,
        "every": 1,
        "dense_layers": [],
        "use_window": False,
        "window": 4096,
    },
    spellings={"window_layers": ()},  # where windows are used, all layers have them
    experts=qwen3_experts,
)


def joined_delta_net(config: Config) -> GatedDeltaNet:
    return replace(gated_delta_net(config), joined=True)


QWEN3_NEXT = replace(
    QWEN3_5,
    class_name="Qwen3NextConfig",
    defaults={**QWEN3_5.defaults, "every": 1, "dense_layers": []},
    linear=joined_delta_net,
    experts=qwen2_experts,
)


FLINT = replace(
    QWEN3_MOE,
    class_name="FlintConfig",
    defaults={
        "head_dim": 128,
        "tied": False,
        "attention_bias": False,
        "every": 1,
        "dense_layers": [0, 1],
        "window": 513,
    },
    sinks=True,
    rotates_windows_alone=True,
    experts=flint_experts,
    words=listed_words,
    constants={"scores": "sigmoid"},
)


def lara_experts(config: Config) -> Experts:
    """In every layer; `ffn` is spelled as the width of an expert."""
    return with_shared_expert(config, experts_of(config, "ffn"))


def qwen3_5_experts(config: Config) -> Experts:
    return replace(lara_experts(config), shared_gate=True)


QWEN3_5_MOE = replace(
    QWEN3_5,
    class_name="Qwen3_5MoeTextConfig",
    spellings={"ffn": ("moe_intermediate_size",)},
    experts=qwen3_5_experts,
)
LARA_MINI = replace(
    QWEN3_5_MOE,
    class_name="LaraMiniConfig",
    defaults={
        "head_dim": 128,
        "tied": True,
        "attention_bias": False,
        "linear_key_heads": 8,
        "linear_value_heads": 16,
        "linear_key_dim": 128,
        "linear_value_dim": 128,
        "linear_conv": 4,
        "window": 512,
    },
    output_gate="",
    experts=lara_experts,
    words=listed_words,
    constants={},
)


def kolibri_experts(config: Config) -> Experts:
    return replace(lara_experts(config), router_bias=True)


KOLIBRI1 = Family(
    "Kolibri1Config",
    {"head_dim": 128, "tied": False, "window": 513},
    spellings={"ffn": ("moe_intermediate_size",)},
    norms="both",
    qk_norm="head",
    full_every=5,
    rotates_windows_alone=True,
    experts=kolibri_experts,
)
