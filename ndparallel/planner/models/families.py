"""What a config.json does not say: the architecture that its `model_type` stands for.

Idea   One row per family. Norm, positions, biases and the layout of experts are the family's; sizes are the
       file's.
Limit  A key may be missing only where transformers' own configuration class has a default on which published
       files rely; those are the `defaults` (src/transformers/models/*/configuration_*.py). Where a family
       could be built otherwise (a bias, another attention) and we could not count it, `must` names the key
       and the only value we take.

Glossary: see `ndparallel.planner.models.shape`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ndparallel.planner.models.config import Config, ConfigRule
from ndparallel.planner.models.parts_of_config import (
    cohere_words,
    deepseek_v2_experts,
    deepseek_v3_experts,
    falcon_words,
    glm4_words,
    gpt_oss_experts,
    gpt_oss_words,
    latent_attention,
    llama4_experts,
    llama4_words,
    mixtral_experts,
    neox_words,
    opt_words,
    qwen2_experts,
    qwen3_experts,
)
from ndparallel.planner.models.shape import Experts, LatentAttention
from ndparallel.planner.models.sizes import head_width

GATED_ACTIVATIONS = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu",
}
PLAIN_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}


AS_HEADS = ConfigRule("as many as heads", lambda config: config.size("heads"))
PER_HEAD = ConfigRule(
    "hidden size / heads",
    lambda config: head_width(config.size("hidden"), config.size("heads"), config.key("hidden")),
)
AS_HIDDEN = ConfigRule("as hidden size", lambda config: config.size("hidden"))
FOUR_TIMES = ConfigRule("4 x hidden size", lambda config: 4 * config.size("hidden"))

Q_K_V_AND_OUTPUT = ("qkv", "output")
ALL_BUT_THE_HEAD = ("qkv", "output", "mlp", "norm")


@dataclass(frozen=True)
class Family:
    """One model_type. `spellings` are its own names of fields. `biases` are always there, those of
    `bias_flags` where the flag says so; `latent` and `experts` read their part, and `words` gives further
    fields of the ModelShape.

    `activation` is given where no key says it; else `activations` translates the key's word. Where a file
    has a window, every layer has it, or all but one in `full_every`.
    """

    class_name: str
    defaults: Mapping[str, Any]
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    activation: str = ""
    activations: Mapping[str, str] = field(default_factory=lambda: GATED_ACTIVATIONS)
    norm: str = "rmsnorm"
    position: str = "rotary"
    biases: tuple[str, ...] = ()
    bias_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    norms: str = "before"
    qk_norm: str = ""
    sinks: bool = False
    embedding_norm: bool = False
    parallel: bool = False
    full_every: int = 0
    latent: Callable[[Config], LatentAttention] | None = None
    experts: Callable[[Config], Experts] | None = None
    words: Callable[[Config], Mapping[str, Any]] = lambda config: {}
    must: Mapping[str, Any] = field(default_factory=dict)


GPT2 = Family(
    "GPT2Config",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "ffn": FOUR_TIMES, "tied": True},
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    position="learned",
    biases=ALL_BUT_THE_HEAD,
    must={"add_cross_attention": False},
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
LLAMA = Family(
    "LlamaConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False, "mlp_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT, "mlp_bias": ("mlp",)},
)
MISTRAL = Family("MistralConfig", {"head_dim": PER_HEAD, "tied": False})
MIXTRAL = replace(MISTRAL, class_name="MixtralConfig", experts=mixtral_experts)
QWEN2 = Family("Qwen2Config", {"head_dim": PER_HEAD, "tied": False, "use_window": False}, biases=("qkv",))
MIMO = replace(QWEN2, class_name="MiMoConfig", must={"attention_bias": True})
MINIMAX_M2 = Family("MiniMaxM2Config", {"tied": False}, qk_norm="width", experts=gpt_oss_experts)
QWEN2_MOE = Family(
    "Qwen2MoeConfig",
    {
        "head_dim": PER_HEAD,
        "tied": False,
        "qkv_bias": True,
        "every": 1,
        "dense_layers": [],
        "use_window": False,
    },
    bias_flags={"qkv_bias": ("qkv",)},
    experts=qwen2_experts,
)
QWEN3 = Family(
    "Qwen3Config",
    {"tied": False, "attention_bias": False, "use_window": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    qk_norm="head",
)
QWEN3_MOE = replace(
    QWEN3,
    class_name="Qwen3MoeConfig",
    defaults={**QWEN3.defaults, "every": 1, "dense_layers": []},
    experts=qwen3_experts,
)
DEEPSEEK_V2 = Family(
    "DeepseekV2Config",
    {"tied": False, "attention_bias": False, "every": 1},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    latent=latent_attention,
    experts=deepseek_v2_experts,
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    class_name="DeepseekV3Config",
    defaults={**DEEPSEEK_V2.defaults, "groups": 8, "top_groups": 4},
    experts=deepseek_v3_experts,
)
GLM4_MOE_LITE = replace(
    DEEPSEEK_V3,
    class_name="Glm4MoeLiteConfig",
    defaults={**DEEPSEEK_V2.defaults, "first_dense": 1, "groups": 1, "top_groups": 1},
)

PHI3 = Family("Phi3Config", {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False})
GRANITE = replace(LLAMA, class_name="GraniteConfig")
SMOLLM3 = replace(
    LLAMA, class_name="SmolLM3Config", defaults={**LLAMA.defaults, "tied": True, "use_window": False}
)
OLMO2 = Family(
    "Olmo2Config",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    norms="after",
    qk_norm="width",
)
OLMO3 = replace(OLMO2, class_name="Olmo3Config", full_every=4)
OLMOE = replace(OLMO2, class_name="OlmoeConfig", norms="before", experts=mixtral_experts)
PHIMOE = Family(
    "PhimoeConfig",
    {"head_dim": PER_HEAD, "tied": False, "attention_bias": False, "head_bias": False},
    norm="layernorm",
    biases=("norm",),
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT, "head_bias": ("head",)},
    experts=mixtral_experts,
)
GLM4_MOE = Family(
    "Glm4MoeConfig",
    {"tied": False, "attention_bias": False, "qk_norm": False, "every": 1},
    bias_flags={"attention_bias": ("qkv",)},
    experts=deepseek_v3_experts,
    words=glm4_words,
)
GEMMA2 = Family(
    "Gemma2Config",
    {"head_dim": 256, "tied": True, "attention_bias": False, "activation": "gelu_pytorch_tanh"},
    spellings={"activation": ("hidden_activation",)},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    norms="both",
    full_every=2,
)
GEMMA3 = replace(
    GEMMA2,
    class_name="Gemma3TextConfig",
    defaults={**GEMMA2.defaults, "vocab": 262208, "heads": 8, "kv_heads": 4},
    qk_norm="head",
    full_every=6,
)
LLAMA4 = Family(
    "Llama4TextConfig",
    {
        "head_dim": PER_HEAD,
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
)
GPT_OSS = Family(
    "GptOssConfig",
    {"head_dim": 64, "tied": False, "attention_bias": True},
    biases=("mlp",),
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    sinks=True,
    full_every=2,
    experts=gpt_oss_experts,
    words=gpt_oss_words,
)
GPT_NEOX = Family(
    "GPTNeoXConfig",
    {
        "kv_heads": AS_HEADS,
        "head_dim": PER_HEAD,
        "tied": False,
        "attention_bias": True,
        "parallel_residual": True,
    },
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    biases=("mlp", "norm"),
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    words=neox_words,
)
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
OPT = Family(
    "OPTConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": True, "embedding_width": AS_HIDDEN},
    spellings={"ffn": ("ffn_dim",)},
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    position="learned",
    biases=ALL_BUT_THE_HEAD,
    words=opt_words,
    must={"do_layer_norm_before": True, "enable_bias": True, "layer_norm_elementwise_affine": True},
)
NEMOTRON = Family(
    "NemotronConfig",
    {"head_dim": PER_HEAD, "tied": False, "attention_bias": False, "mlp_bias": False},
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    biases=("norm",),
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT, "mlp_bias": ("mlp",)},
)
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
    defaults={"head_dim": PER_HEAD, "tied": True, "attention_bias": False},
    full_every=4,
    words=lambda config: {},
)
GLM4 = Family(
    "Glm4Config",
    {"tied": False, "attention_bias": False},
    bias_flags={"attention_bias": ("qkv",)},
    norms="both",
)
SEED_OSS = Family(
    "SeedOssConfig",
    {"tied": False, "attention_bias": True, "output_bias": False, "mlp_bias": False},
    spellings={"output_bias": ("attention_out_bias",)},
    bias_flags={"attention_bias": ("qkv",), "output_bias": ("output",), "mlp_bias": ("mlp",)},
)

FAMILIES = {
    "gpt2": GPT2,
    "mpt": MPT,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "qwen2": QWEN2,
    "qwen2_vl": QWEN2,  # files from before text_config
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "mimo": MIMO,
    "minimax_m2": MINIMAX_M2,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3_vl_text": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe_text": QWEN3_MOE,
    "deepseek_v2": DEEPSEEK_V2,
    "deepseek_v3": DEEPSEEK_V3,
    "kimi_k2": DEEPSEEK_V3,  # its files name DeepseekV3Config as their class
    "phi3": PHI3,
    "granite": GRANITE,
    "smollm3": SMOLLM3,
    "olmo2": OLMO2,
    "olmo3": OLMO3,
    "olmoe": OLMOE,
    "phimoe": PHIMOE,
    "glm4": GLM4,
    "glm4_moe": GLM4_MOE,
    "glm4_moe_lite": GLM4_MOE_LITE,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "llama4_text": LLAMA4,
    "gpt_oss": GPT_OSS,
    "gpt_neox": GPT_NEOX,
    "falcon": FALCON,
    "bloom": BLOOM,
    "opt": OPT,
    "nemotron": NEMOTRON,
    "cohere": COHERE,
    "cohere2": COHERE2,
    "seed_oss": SEED_OSS,
}
