"""Families of models with RMSNorm, whose every layer has one MLP.

Idea   One row per family, and the functions that read what it alone has; see family.py for what a row says,
       and for its limit.

Glossary: see `ndparallel.planner.models.shape`.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.planner.models.huggingface.config import Config
from ndparallel.planner.models.huggingface.family import (
    AS_HEADS,
    PER_HEAD,
    PLAIN_ACTIVATIONS,
    Q_K_V_AND_OUTPUT,
    ZERO_CENTERED,
    Family,
    missing,
)
from ndparallel.planner.models.huggingface.parts import (
    gated_delta_net,
    latent_attention,
    listed_windows,
    listed_words,
)

ONE_WAY = {"use_bidirectional_attention": False}  # where a token sees those before it alone
LLAMA = Family(
    "LlamaConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False, "mlp_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT, "mlp_bias": ("mlp",)},
)
MISTRAL = Family("MistralConfig", {"head_dim": PER_HEAD, "tied": False, "window": 4096})
BEHIND = {"use_window": False, "window": 4096, "window_layers": 28}  # windows of layers behind the first ones
QWEN2 = Family("Qwen2Config", {"head_dim": PER_HEAD, "tied": False, **BEHIND}, biases=("qkv",))
QWEN2_VL = replace(QWEN2, class_name="Qwen2VLTextConfig", defaults={**QWEN2.defaults, "window_layers": 80})
MIMO = replace(QWEN2, class_name="MiMoConfig", must={"attention_bias": True})
QWEN3 = Family(
    "Qwen3Config",
    {"head_dim": 128, "tied": False, "attention_bias": False, **BEHIND},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    qk_norm="head",
)
QWEN3_5 = replace(
    QWEN3,
    class_name="Qwen3_5TextConfig",
    defaults={
        "tied": False,
        "attention_bias": False,
        "head_dim": 256,
        "attention_every": 4,
        "linear_key_heads": 16,
        "linear_value_heads": 32,
        "linear_key_dim": 128,
        "linear_value_dim": 128,
        "linear_conv": 4,
    },
    linear=gated_delta_net,
    output_gate="queries",
    constants=ZERO_CENTERED,  # Qwen3_5RMSNorm in models/qwen3_5/modeling_qwen3_5.py of transformers
)
PHI3 = Family("Phi3Config", {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False})
GRANITE = replace(LLAMA, class_name="GraniteConfig")
SMOLLM3 = replace(
    LLAMA,
    class_name="SmolLM3Config",
    defaults={**LLAMA.defaults, "kv_heads": 4, "tied": True, "use_window": False},
    words=listed_windows,
)
OLMO2 = Family(
    "Olmo2Config",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    norms="after",
    qk_norm="width",
)
OLMO3 = replace(OLMO2, class_name="Olmo3Config", defaults={**OLMO2.defaults, "window": 4096}, full_every=4)
GEMMA2 = Family(
    "Gemma2Config",
    {
        "head_dim": 256,
        "tied": True,
        "attention_bias": False,
        "activation": "gelu_pytorch_tanh",
        "window": 4096,
    },
    spellings={"activation": ("hidden_activation",)},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    norms="both",
    full_every=2,
    must=ONE_WAY,
    constants=ZERO_CENTERED,
)
GEMMA3 = replace(
    GEMMA2,
    class_name="Gemma3TextConfig",
    defaults={**GEMMA2.defaults, "vocab": 262208, "heads": 8, "kv_heads": 4},
    qk_norm="head",
    full_every=6,
)
GLM4 = Family(
    "Glm4Config",
    {"tied": False, "attention_bias": True},
    bias_flags={"attention_bias": ("qkv",)},
    norms="both",
)
SEED_OSS = Family(
    "SeedOssConfig",
    {"tied": False, "attention_bias": True, "output_bias": False, "mlp_bias": False},
    spellings={"output_bias": ("attention_out_bias",)},
    bias_flags={"attention_bias": ("qkv",), "output_bias": ("output",), "mlp_bias": ("mlp",)},
)
ARCEE = replace(LLAMA, class_name="ArceeConfig", hidden_act="relu2", activations=PLAIN_ACTIVATIONS)
INTERNLM3 = replace(
    LLAMA,
    class_name="InternLM3Config",
    defaults={**LLAMA.defaults, "kv_heads": 2, "head_dim": 128},
    spellings={"attention_bias": ("attention_bias", "qkv_bias"), "mlp_bias": ("mlp_bias", "bias")},
)
IQUESTCODER = replace(
    LLAMA, class_name="IQuestCoderConfig", defaults={**LLAMA.defaults, "kv_heads": 8, "head_dim": 128}
)
HELIUM = replace(
    LLAMA,
    class_name="HeliumConfig",
    defaults={**LLAMA.defaults, "kv_heads": missing(20, "kv_heads", AS_HEADS), "head_dim": 128},
    bias_flags={"attention_bias": ("qkv",), "mlp_bias": ("mlp",)},
)
MINISTRAL = replace(MISTRAL, class_name="MinistralConfig")
MINISTRAL3 = replace(MISTRAL, class_name="Ministral3Config", defaults={"head_dim": 128, "tied": False})
CWM = Family(
    "CwmConfig",
    {"head_dim": 128, "tied": False, "mlp_bias": False, "window": 8192},
    bias_flags={"mlp_bias": ("mlp",)},
    full_every=4,
    full_first=True,
)
ERNIE4_5 = Family(
    "Ernie4_5Config",
    {"head_dim": 128, "tied": True, "bias": False},
    spellings={"bias": ("use_bias",)},
    bias_flags={"bias": ("qkv", "output", "mlp")},
)


HUNYUAN = Family(
    "HunYuanDenseV1Config",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    qk_norm="head",
    constants={"rotated_first": True},
)
EXAONE4 = Family(
    "Exaone4Config",
    {"head_dim": PER_HEAD, "tied": False, "window": 4096},
    norms="after",
    qk_norm="head",
    full_every=4,
    rotates_windows_alone=True,
)
GRANITE_SWA = replace(
    GRANITE,
    class_name="GraniteSWAConfig",
    defaults={**GRANITE.defaults, "kv_heads": 4, "tied": True, "window": 128},
    sinks=True,
    full_every=4,
    full_first=True,
)


def hyperclovax_words(config: Config) -> Mapping[str, Any]:
    return {"norms": "both" if config.flag("post_norm") else "before"}


HYPERCLOVAX = replace(
    GRANITE,
    class_name="HyperCLOVAXConfig",
    defaults={**GRANITE.defaults, "post_norm": True},
    words=hyperclovax_words,
)
GEMMA = Family(
    "GemmaConfig",
    {"head_dim": 256, "tied": True, "attention_bias": False},
    hidden_act="gelu_pytorch_tanh",
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    must=ONE_WAY,
    constants=ZERO_CENTERED,
)
VAULTGEMMA = replace(GEMMA2, class_name="VaultGemmaConfig", norms="before")
GLM = Family(
    "GlmConfig",
    {"head_dim": 128, "tied": False, "attention_bias": True},
    bias_flags={"attention_bias": ("qkv",)},
)
NANOCHAT = Family(
    "NanoChatConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False},
    hidden_act="relu2",
    activations=PLAIN_ACTIVATIONS,
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    qk_norm="unscaled",
    embedding_norm=True,
    norm_weights=False,
)
MINICPM3 = Family(
    "MiniCPM3Config",
    {"tied": True, "attention_bias": False, "mlp_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT, "mlp_bias": ("mlp",)},
    latent=latent_attention,
)
YOUTU = Family(
    "YoutuConfig",
    {"tied": True, "attention_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    latent=latent_attention,
)
EXAONE = replace(
    LLAMA,
    class_name="ExaoneConfig",
    defaults={**LLAMA.defaults, "kv_heads": 8},
    spellings={"layers": ("num_hidden_layers", "num_layers")},
)


def apertus_words(config: Config) -> Mapping[str, Any]:
    """Raise UserError for a head of fewer symbols than the embedding has."""
    if (symbols := config.entries.get("output_vocab_size")) not in (None, config.size("vocab")):
        raise UserError(
            f"output_vocab_size {reprlib.repr(symbols)} differs from vocab_size: a head of fewer symbols "
            "than the embedding has is not supported."
        )
    return {}


APERTUS = replace(
    LLAMA,
    class_name="ApertusConfig",
    hidden_act="xielu",
    activations={"xielu": "xielu"},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    qk_norm="head",
    words=apertus_words,
)
GLM4V = Family("Glm4vTextConfig", {"head_dim": PER_HEAD, "tied": False}, biases=("qkv",), norms="both")
MUSE_GLIMMER = Family(
    "MuseGlimmerTextConfig",
    {"head_dim": 128, "tied": False, "activation": "silu", "window": 2048},
    spellings={"activation": ("hidden_activation",)},
    norms="both",
    qk_norm="unscaled",
    output_gate="element",
    words=listed_words,
    must={"attention_bias": False},
    constants=ZERO_CENTERED,
)
OLMO_HYBRID = replace(
    OLMO2,
    class_name="OlmoHybridConfig",
    defaults={**OLMO2.defaults, "attention_every": 4, "linear_conv": 4},
    linear=gated_delta_net,
)
