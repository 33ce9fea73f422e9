"""Families of models with LayerNorm, whose every layer has one MLP.

Idea   One row per family, and the functions that read what it alone has; see family.py for what a row says,
       and for its limit.

Glossary: see `ndparallel.planner.models.shape`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.planner.models.huggingface.config import Config
from ndparallel.planner.models.huggingface.family import (
    ALL_BUT_THE_HEAD,
    AS_HEADS,
    AS_HIDDEN,
    FOUR_TIMES,
    PER_HEAD,
    PLAIN_ACTIVATIONS,
    Q_K_V_AND_OUTPUT,
    ZERO_CENTERED,
    Family,
)

GPT2 = Family(
    "GPT2Config",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "ffn": FOUR_TIMES, "tied": True},
    hidden_act="gelu_new",
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    position="learned",
    biases=ALL_BUT_THE_HEAD,
    must={"add_cross_attention": False},
)


def bigcode_words(config: Config) -> Mapping[str, Any]:
    return {"kv_heads": 1 if config.flag("multi_query") else config.size("heads")}


GPT_BIGCODE = replace(
    GPT2,
    class_name="GPTBigCodeConfig",
    hidden_act="gelu_pytorch_tanh",
    defaults={**GPT2.defaults, "multi_query": True},
    words=bigcode_words,
)
MPT = Family(
    "MptConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "ffn": FOUR_TIMES, "tied": True},
    activation="gelu",
    norm="layernorm",
    position="alibi",
    must={
        "no_bias": True,
        "expansion_ratio": 4,
        "attn_config.attn_type": "multihead_attention",
        "attn_config.alibi": True,
        "attn_config.qk_ln": False,
    },
)


def neox_words(config: Config) -> Mapping[str, Any]:
    return {"parallel": config.flag("parallel_residual")}


GPT_NEOX = Family(
    "GPTNeoXConfig",
    {
        "kv_heads": AS_HEADS,
        "head_dim": PER_HEAD,
        "tied": False,
        "attention_bias": True,
        "parallel_residual": True,
    },
    hidden_act="gelu",
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    biases=("mlp", "norm"),
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    words=neox_words,
)
GPTJ = Family(
    "GPTJConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "ffn": FOUR_TIMES, "tied": False},
    hidden_act="gelu_new",
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    biases=("mlp", "norm", "head"),
    norms="shared",
    parallel=True,
)
CODEGEN = replace(GPTJ, class_name="CodeGenConfig")


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


FALCON = Family(
    "FalconConfig",
    {
        "kv_heads": AS_HEADS,
        "head_dim": PER_HEAD,
        "ffn": FOUR_TIMES,
        "tied": True,
        "activation": "gelu",
        "bias": False,
        "alibi": False,
        "multi_query": True,
        "parallel_attention": True,
        "new_decoder": False,
    },
    spellings={"ffn": ("ffn_hidden_size",), "kv_heads": ("num_kv_heads",), "activation": ("activation",)},
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    biases=("norm",),
    bias_flags={"bias": ("qkv", "output", "mlp")},
    words=falcon_words,
)
BLOOM = Family(
    "BloomConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "ffn": FOUR_TIMES, "tied": True},
    spellings={"hidden": ("hidden_size", "n_embed")},
    activation="gelu",
    norm="layernorm",
    position="alibi",
    biases=ALL_BUT_THE_HEAD,
    embedding_norm=True,
)


def opt_words(config: Config) -> Mapping[str, Any]:
    """The table of positions has two rows more than there are positions. Raises UserError for the one OPT
    whose embedding is narrower than its layers."""
    if config.size("hidden") != config.size("embedding_width"):
        raise UserError(
            f"word_embed_proj_dim {config.size('embedding_width')} differs from hidden_size: a projection "
            "behind the embedding is not supported."
        )
    return {"positions": config.size("positions") + 2}


OPT = Family(
    "OPTConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": True, "embedding_width": AS_HIDDEN},
    spellings={"ffn": ("ffn_dim",)},
    hidden_act="relu",
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    position="learned",
    biases=ALL_BUT_THE_HEAD,
    words=opt_words,
    must={
        "do_layer_norm_before": True,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "_remove_final_layer_norm": False,
    },
)
NEMOTRON = Family(
    "NemotronConfig",
    {"head_dim": PER_HEAD, "tied": False, "attention_bias": False, "mlp_bias": False},
    hidden_act="relu2",
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    biases=("norm",),
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT, "mlp_bias": ("mlp",)},
    constants=ZERO_CENTERED,  # NemotronLayerNorm1P in models/nemotron/modeling_nemotron.py of transformers
)
JAIS2 = replace(
    NEMOTRON,
    class_name="Jais2Config",
    constants={},
    defaults={**NEMOTRON.defaults, "kv_heads": AS_HEADS, "attention_bias": True, "mlp_bias": True},
)


def cohere_words(config: Config) -> Mapping[str, Any]:
    return {"qk_norm": "width" if config.flag("qk_norm") else ""}


COHERE = Family(
    "CohereConfig",
    {"head_dim": PER_HEAD, "tied": True, "attention_bias": False, "qk_norm": False},
    norm="layernorm",
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    norms="shared",
    parallel=True,
    words=cohere_words,
)
COHERE2 = replace(
    COHERE,
    class_name="Cohere2Config",
    defaults={"head_dim": PER_HEAD, "tied": True, "attention_bias": False, "window": 4096},
    full_every=4,
    rotates_windows_alone=True,
    words=lambda config: {},
)
STARCODER2 = Family(
    "Starcoder2Config",
    {"head_dim": PER_HEAD, "tied": True, "bias": True},
    spellings={"bias": ("use_bias",)},
    hidden_act="gelu_pytorch_tanh",
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    biases=("norm",),
    bias_flags={"bias": ("qkv", "output", "mlp")},
)


def stablelm_words(config: Config) -> Mapping[str, Any]:
    """Halves that read the same input share its norm."""
    parallel = config.flag("parallel_residual")
    return {"parallel": parallel, "norms": "shared" if parallel else "before"}


STABLELM = Family(
    "StableLmConfig",
    {"head_dim": PER_HEAD, "tied": False, "qkv_bias": False, "parallel_residual": False},
    spellings={"qkv_bias": ("use_qkv_bias",)},
    norm="layernorm",
    biases=("norm",),
    bias_flags={"qkv_bias": ("qkv",)},
    words=stablelm_words,
    must={"qk_layernorm": False},
)
PHI = Family(
    "PhiConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False},
    hidden_act="gelu_new",
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    biases=(*ALL_BUT_THE_HEAD, "head"),
    norms="shared",
    parallel=True,
    must={"qk_layernorm": False},
)
OLMO = Family(
    "OlmoConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    norm="layernorm",
    norm_weights=False,
)
