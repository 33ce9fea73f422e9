"""Families of models whose mixtures of experts are laid out as DeepSeek's: shared experts, groups among which
a token chooses, and first layers that are dense.

Idea   One row per family, and the functions that read what it alone has; see family.py for what a row says,
       and for its limit.

Glossary: see `ndparallel.planner.models.shape`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.huggingface.config import Config
from ndparallel.planner.models.huggingface.family import (
    AS_EXPERT,
    AS_HEADS,
    PER_HEAD,
    Q_K_V_AND_OUTPUT,
    Family,
    missing,
)
from ndparallel.planner.models.huggingface.parts import dense_layers, experts_of, groups, latent_attention


def deepseek_v2_experts(config: Config) -> Experts:
    experts = experts_of(config)
    return replace(
        experts,
        shared_experts=config.size_or_null("shared_experts"),
        shared_ffn=experts.ffn,
        **groups(config),
        dense_layers=dense_layers(config),
    )


DEEPSEEK_V2 = Family(
    "DeepseekV2Config",
    {"tied": False, "attention_bias": False, "every": 1},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    latent=latent_attention,
    experts=deepseek_v2_experts,
    must={"mlp_bias": False},
)


def deepseek_v3_experts(config: Config) -> Experts:
    return replace(deepseek_v2_experts(config), router_bias=True)


DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    class_name="DeepseekV3Config",
    defaults={**DEEPSEEK_V2.defaults, "groups": 8, "top_groups": 4},
    experts=deepseek_v3_experts,
)
MISTRAL4 = replace(
    DEEPSEEK_V2, class_name="Mistral4Config", defaults={**DEEPSEEK_V2.defaults, "first_dense": 0}
)
GLM4_MOE_LITE = replace(
    DEEPSEEK_V3,
    class_name="Glm4MoeLiteConfig",
    defaults={**DEEPSEEK_V2.defaults, "first_dense": 1, "groups": 1, "top_groups": 1},
)
SARVAM_MLA = replace(
    GLM4_MOE_LITE,
    class_name="SarvamMLAConfig",
    spellings={"shared_experts": ("n_shared_experts", "num_shared_experts")},
)


def glm4_words(config: Config) -> Mapping[str, Any]:
    return {"qk_norm": "head" if config.flag("qk_norm") else ""}


GLM4_MOE = Family(
    "Glm4MoeConfig",
    {"head_dim": PER_HEAD, "tied": False, "attention_bias": False, "qk_norm": False, "every": 1},
    bias_flags={"attention_bias": ("qkv",)},
    experts=deepseek_v3_experts,
    words=glm4_words,
)
GLM4V_MOE = replace(
    GLM4_MOE,
    class_name="Glm4vMoeTextConfig",
    defaults={"head_dim": PER_HEAD, "tied": False, "attention_bias": True, "first_dense": 1, "every": 1},
    words=lambda config: {},
)
SARVAM_MOE = replace(
    GLM4_MOE,
    class_name="SarvamMoEConfig",
    defaults={
        "head_dim": 64,
        "tied": False,
        "attention_bias": False,
        "qk_norm": True,
        "first_dense": 1,
        "every": 1,
    },
    spellings={
        "shared_experts": ("n_shared_experts", "num_shared_experts"),
        "attention_bias": ("attention_bias", "use_qkv_bias"),
    },
)
DOTS1 = Family(
    "Dots1Config",
    {
        "kv_heads": missing(32, "kv_heads", AS_HEADS),
        "head_dim": PER_HEAD,
        "tied": False,
        "attention_bias": False,
        "first_dense": 0,
        "every": 1,
        "window": 4096,
        "window_layers": 62,
    },
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    qk_norm="head",
    experts=deepseek_v3_experts,
)
SOLAR_OPEN = Family(
    "SolarOpenConfig",
    {"head_dim": 128, "ffn": AS_EXPERT, "tied": False, "attention_bias": False, "first_dense": 0, "every": 1},
    bias_flags={"attention_bias": ("qkv",)},
    experts=deepseek_v3_experts,
    must={"first_k_dense_replace": 0},
)
HY_V3 = Family(
    "HYV3Config",
    {"head_dim": 128, "tied": False, "first_dense": 1, "every": 1},
    spellings={"shared_experts": ("num_shared_experts",)},
    qk_norm="head",
    experts=deepseek_v3_experts,
    must={"attention_bias": False, "mlp_bias": False},
)
EXAONE_MOE = Family(
    "ExaoneMoeConfig",
    {"head_dim": PER_HEAD, "tied": False, "first_dense": 1, "every": 1, "window": 4096},
    spellings={"shared_experts": ("num_shared_experts",)},
    qk_norm="head",
    full_every=4,
    rotates_windows_alone=True,
    experts=deepseek_v3_experts,
)
AFMOE = Family(
    "AfmoeConfig",
    {"kv_heads": AS_HEADS, "head_dim": 128, "tied": False, "first_dense": 1, "every": 1, "window": 1024},
    spellings={
        "shared_experts": ("num_shared_experts",),
        "first_dense": ("num_dense_layers",),
        "full_every": ("global_attn_every_n_layers",),
    },
    norms="both",
    qk_norm="head",
    full_every=4,
    rotates_windows_alone=True,
    output_gate="element",
    experts=deepseek_v3_experts,
    must={"attention_bias": False},
)
BAILING_MOE_V2 = Family(
    "BailingMoeV2Config",
    {
        "tied": False,
        "qkv_bias": False,
        "qk_norm": True,
        "first_dense": 1,
        "every": 1,
        "groups": 8,
        "top_groups": 4,
    },
    spellings={"qkv_bias": ("use_qkv_bias",), "shared_experts": ("num_shared_experts",)},
    bias_flags={"qkv_bias": ("qkv",)},
    experts=deepseek_v3_experts,
    words=glm4_words,
    must={"use_bias": False, "sliding_window": None},
)
