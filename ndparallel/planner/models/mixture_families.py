"""Families of models whose layers, or some of them, are mixtures of experts.

Idea   One row per family; see family.py for what a row says, and for its limit.

Glossary: see `ndparallel.planner.models.shape`.
"""

from dataclasses import replace

from ndparallel.planner.models import parts_of_config
from ndparallel.planner.models.dense_families import COHERE2, HUNYUAN, OLMO2, QWEN3, QWEN3_5
from ndparallel.planner.models.family import AS_EXPERT, AS_HEADS, PER_HEAD, Q_K_V_AND_OUTPUT, Family

MIXTRAL = Family(
    "MixtralConfig", {"head_dim": PER_HEAD, "tied": False}, experts=parts_of_config.mixtral_experts
)
MINIMAX_M2 = Family(
    "MiniMaxM2Config", {"tied": False}, qk_norm="width", experts=parts_of_config.gpt_oss_experts
)
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
    experts=parts_of_config.qwen2_experts,
)
QWEN3_MOE = replace(
    QWEN3,
    class_name="Qwen3MoeConfig",
    defaults={**QWEN3.defaults, "every": 1, "dense_layers": []},
    experts=parts_of_config.qwen3_experts,
)
QWEN3_NEXT = replace(
    QWEN3_5,
    class_name="Qwen3NextConfig",
    defaults={**QWEN3_5.defaults, "every": 1, "dense_layers": []},
    linear=parts_of_config.joined_delta_net,
    experts=parts_of_config.qwen2_experts,
)
QWEN3_5_MOE = replace(
    QWEN3_5,
    class_name="Qwen3_5MoeTextConfig",
    spellings={"ffn": ("moe_intermediate_size",)},
    experts=parts_of_config.qwen3_5_experts,
)
DEEPSEEK_V2 = Family(
    "DeepseekV2Config",
    {"tied": False, "attention_bias": False, "every": 1},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    latent=parts_of_config.latent_attention,
    experts=parts_of_config.deepseek_v2_experts,
    must={"mlp_bias": False},
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    class_name="DeepseekV3Config",
    defaults={**DEEPSEEK_V2.defaults, "groups": 8, "top_groups": 4},
    experts=parts_of_config.deepseek_v3_experts,
)
MISTRAL4 = replace(
    DEEPSEEK_V2, class_name="Mistral4Config", defaults={**DEEPSEEK_V2.defaults, "first_dense": 0}
)
GLM4_MOE_LITE = replace(
    DEEPSEEK_V3,
    class_name="Glm4MoeLiteConfig",
    defaults={**DEEPSEEK_V2.defaults, "first_dense": 1, "groups": 1, "top_groups": 1},
)
OLMOE = replace(OLMO2, class_name="OlmoeConfig", norms="before", experts=parts_of_config.mixtral_experts)
PHIMOE = Family(
    "PhimoeConfig",
    {"head_dim": PER_HEAD, "tied": False, "attention_bias": False, "head_bias": False},
    norm="layernorm",
    biases=("norm",),
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT, "head_bias": ("head",)},
    experts=parts_of_config.mixtral_experts,
)
GLM4_MOE = Family(
    "Glm4MoeConfig",
    {"tied": False, "attention_bias": False, "qk_norm": False, "every": 1},
    bias_flags={"attention_bias": ("qkv",)},
    experts=parts_of_config.deepseek_v3_experts,
    words=parts_of_config.glm4_words,
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
    experts=parts_of_config.llama4_experts,
    words=parts_of_config.llama4_words,
)
GPT_OSS = Family(
    "GptOssConfig",
    {"head_dim": 64, "tied": False, "attention_bias": True, "window": 128},
    biases=("mlp",),
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    sinks=True,
    full_every=2,
    experts=parts_of_config.gpt_oss_experts,
    words=parts_of_config.gpt_oss_words,
)
FLEX_OLMO = replace(OLMO2, class_name="FlexOlmoConfig", experts=parts_of_config.mixtral_experts)
GRANITEMOE = replace(
    MIXTRAL,
    class_name="GraniteMoeConfig",
    defaults={"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
)
GRANITEMOESHARED = replace(
    GRANITEMOE,
    class_name="GraniteMoeSharedConfig",
    spellings={"shared_ffn": ("shared_intermediate_size",)},
    experts=parts_of_config.granite_experts,
)
GRANITEMOE_SWA = replace(
    GRANITEMOESHARED,
    class_name="GraniteMoeSWAConfig",
    defaults={**GRANITEMOESHARED.defaults, "window": 128},
    sinks=True,
    full_every=4,
    full_first=True,
)
HUNYUAN_MOE = replace(
    HUNYUAN,
    class_name="HunYuanMoEV1Config",
    spellings={"top_k": ("moe_topk",)},
    experts=parts_of_config.hunyuan_experts,
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
    experts=parts_of_config.ernie_experts,
    words=parts_of_config.softmax_words,
    must={"use_bias": False},
)
DOTS1 = Family(
    "Dots1Config",
    {
        "kv_heads": AS_HEADS,
        "head_dim": PER_HEAD,
        "tied": False,
        "attention_bias": False,
        "first_dense": 0,
        "every": 1,
    },
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    qk_norm="head",
    experts=parts_of_config.deepseek_v3_experts,
)
SOLAR_OPEN = Family(
    "SolarOpenConfig",
    {"head_dim": 128, "ffn": AS_EXPERT, "tied": False, "attention_bias": False, "first_dense": 0, "every": 1},
    bias_flags={"attention_bias": ("qkv",)},
    experts=parts_of_config.deepseek_v3_experts,
    must={"first_k_dense_replace": 0},
)
HY_V3 = Family(
    "HYV3Config",
    {"head_dim": 128, "tied": False, "first_dense": 1, "every": 1},
    spellings={"shared_experts": ("num_shared_experts",)},
    qk_norm="head",
    experts=parts_of_config.deepseek_v3_experts,
    must={"attention_bias": False, "mlp_bias": False},
)
EXAONE_MOE = Family(
    "ExaoneMoeConfig",
    {"head_dim": PER_HEAD, "tied": False, "first_dense": 1, "every": 1, "window": 4096},
    spellings={"shared_experts": ("num_shared_experts",)},
    qk_norm="head",
    full_every=4,
    rotates_windows_alone=True,
    experts=parts_of_config.deepseek_v3_experts,
)
MELLUM = Family(
    "MellumConfig",
    {"head_dim": 128, "tied": False, "attention_bias": False, "first_dense": 0, "every": 1, "window": 1024},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    qk_norm="head",
    full_every=1,
    experts=parts_of_config.mellum_experts,
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
    experts=parts_of_config.deepseek_v3_experts,
    must={"attention_bias": False},
)
ARIA = Family(
    "AriaTextConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False},
    spellings={
        "experts": ("moe_num_experts",),
        "top_k": ("moe_topk",),
        "shared_experts": ("moe_num_shared_experts",),
    },
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    experts=parts_of_config.aria_experts,
    must={"mlp_bias": False},
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
    experts=parts_of_config.deepseek_v3_experts,
    words=parts_of_config.glm4_words,
    must={"use_bias": False, "sliding_window": None},
)
COHERE2_MOE = replace(
    COHERE2,
    class_name="Cohere2MoeConfig",
    defaults={"kv_heads": AS_HEADS, "head_dim": 128, "tied": True, "attention_bias": False, "window": 4096},
    spellings={
        "dense_ffn": ("prefix_dense_intermediate_size",),
        "expert_ffn": ("intermediate_size",),
        "shared_experts": ("num_shared_experts",),
    },
    experts=parts_of_config.cohere2_experts,
    words=parts_of_config.cohere2_words,
    must={"first_k_dense_replace": 0},
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
    experts=parts_of_config.flint_experts,
    words=parts_of_config.flint_words,
)
GLM4V_MOE = replace(
    GLM4_MOE,
    class_name="Glm4vMoeTextConfig",
    defaults={"head_dim": PER_HEAD, "tied": False, "attention_bias": True, "first_dense": 1, "every": 1},
    words=lambda config: {},
)
KOLIBRI1 = Family(
    "Kolibri1Config",
    {"head_dim": 128, "tied": False, "window": 513},
    spellings={"ffn": ("moe_intermediate_size",)},
    norms="both",
    qk_norm="head",
    full_every=5,
    rotates_windows_alone=True,
    experts=parts_of_config.kolibri_experts,
)
SARVAM_MLA = replace(
    GLM4_MOE_LITE,
    class_name="SarvamMLAConfig",
    spellings={"shared_experts": ("n_shared_experts", "num_shared_experts")},
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
    experts=parts_of_config.lara_experts,
    words=parts_of_config.listed_words,
)
