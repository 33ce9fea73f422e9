"""What a config.json does not say: the architecture that its `model_type` stands for.

The idea: one row per family. Norm, positions, biases and the layout of experts are the family's; sizes are
the file's. The limit: a key may be missing only where transformers' own configuration class has a default on
which published files rely; those are the `defaults` (src/transformers/models/*/configuration_*.py). Where a
family could be built otherwise (a bias, another attention) and we could not count it, `must` names the key
and the only value we take.

Glossary: see shape.py; every = one layer in `every` is a mixture of experts; first_dense = so many layers at
the front are not; listed = the layers that a file names as dense.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ndparallel.planner.models.config import Config, ConfigRule
from ndparallel.planner.models.shape import BIASES, Experts, LatentAttention
from ndparallel.planner.models.sizes import head_width

GATED_ACTIVATIONS = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu",
}
PLAIN_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu"}


def mixtral_experts(config: Config) -> Experts:
    return Experts(config.size("experts"), config.size("top_k"), config.size("ffn"))


def qwen3_experts(config: Config) -> Experts:
    every, listed = config.size("every"), config.layer_numbers("dense_layers")
    dense = tuple(layer for layer in range(config.size("layers")) if layer in listed or (layer + 1) % every)
    return Experts(
        config.size("experts"), config.size("top_k"), config.size("expert_ffn"), dense_layers=dense
    )


def qwen2_experts(config: Config) -> Experts:
    return replace(
        qwen3_experts(config), shared_experts=1, shared_ffn=config.size("shared_ffn"), shared_gate=True
    )


def deepseek_v2_experts(config: Config) -> Experts:
    first, every = config.size("first_dense", least=0), config.size("every")
    return Experts(
        config.size("experts"),
        config.size("top_k"),
        config.size("expert_ffn"),
        shared_experts=config.size_or_null("shared_experts"),
        shared_ffn=config.size("expert_ffn"),
        dense_layers=tuple(layer for layer in range(config.size("layers")) if layer < first or layer % every),
    )


def deepseek_v3_experts(config: Config) -> Experts:
    return replace(deepseek_v2_experts(config), router_bias=True)


def latent_attention(config: Config) -> LatentAttention:
    return LatentAttention(
        query_rank=config.size_or_null("query_rank"),
        kv_rank=config.size("kv_rank"),
        nope_dim=config.size("nope_dim"),
        rope_dim=config.size("rope_dim"),
        value_dim=config.size("value_dim"),
    )


AS_HEADS = ConfigRule("as many as heads", lambda config: config.size("heads"))
PER_HEAD = ConfigRule(
    "hidden size / heads",
    lambda config: head_width(config.size("hidden"), config.size("heads"), config.key("hidden")),
)
FOUR_TIMES = ConfigRule("4 x hidden size", lambda config: 4 * config.size("hidden"))

Q_K_V_AND_OUTPUT = ("qkv", "output")


@dataclass(frozen=True)
class Family:
    """One model_type. `biases` are always there, those of `bias_flags` where the flag says so; `latent` and
    `experts` read their part.

    `activation` is given where no key says it; else `activations` translates the key's word.
    """

    class_name: str
    defaults: Mapping[str, Any]
    activation: str = ""
    activations: Mapping[str, str] = field(default_factory=lambda: GATED_ACTIVATIONS)
    norm: str = "rmsnorm"
    position: str = "rotary"
    biases: tuple[str, ...] = ()
    bias_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    qk_norm: bool = False
    latent: Callable[[Config], LatentAttention] | None = None
    experts: Callable[[Config], Experts] | None = None
    must: Mapping[str, Any] = field(default_factory=dict)


GPT2 = Family(
    "GPT2Config",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "ffn": FOUR_TIMES, "tied": True},
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    position="learned",
    biases=BIASES,
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
QWEN2 = Family("Qwen2Config", {"head_dim": PER_HEAD, "tied": False}, biases=("qkv",))
QWEN2_MOE = Family(
    "Qwen2MoeConfig",
    {"head_dim": PER_HEAD, "tied": False, "qkv_bias": True, "every": 1, "dense_layers": []},
    bias_flags={"qkv_bias": ("qkv",)},
    experts=qwen2_experts,
)
QWEN3 = Family(
    "Qwen3Config",
    {"tied": False, "attention_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    qk_norm=True,
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
DEEPSEEK_V3 = replace(DEEPSEEK_V2, class_name="DeepseekV3Config", experts=deepseek_v3_experts)

FAMILIES = {
    "gpt2": GPT2,
    "mpt": MPT,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "qwen2": QWEN2,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "deepseek_v2": DEEPSEEK_V2,
    "deepseek_v3": DEEPSEEK_V3,
    "kimi_k2": DEEPSEEK_V3,  # its files name DeepseekV3Config as their class
}
