"""Families of models whose every layer has one MLP.

Idea   One row per family; see family.py for what a row says, and for its limit.

Glossary: see `ndparallel.planner.models.shape`.
"""

from dataclasses import replace

from ndparallel.planner.models import parts_of_config
from ndparallel.planner.models.family import (
    ALL_BUT_THE_HEAD,
    AS_HEADS,
    AS_HIDDEN,
    FOUR_TIMES,
    PER_HEAD,
    PLAIN_ACTIVATIONS,
    Q_K_V_AND_OUTPUT,
    Family,
)

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
MISTRAL = Family("MistralConfig", {"head_dim": PER_HEAD, "tied": False, "window": 4096})
QWEN2 = Family("Qwen2Config", {"head_dim": PER_HEAD, "tied": False, "use_window": False}, biases=("qkv",))
MIMO = replace(QWEN2, class_name="MiMoConfig", must={"attention_bias": True})
QWEN3 = Family(
    "Qwen3Config",
    {"tied": False, "attention_bias": False, "use_window": False},
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
    linear=parts_of_config.gated_delta_net,
    output_gate="queries",
)
PHI3 = Family("Phi3Config", {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False})
GRANITE = replace(LLAMA, class_name="GraniteConfig")
SMOLLM3 = replace(
    LLAMA,
    class_name="SmolLM3Config",
    defaults={**LLAMA.defaults, "kv_heads": 4, "tied": True, "use_window": False},
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
)
GEMMA3 = replace(
    GEMMA2,
    class_name="Gemma3TextConfig",
    defaults={**GEMMA2.defaults, "vocab": 262208, "heads": 8, "kv_heads": 4},
    qk_norm="head",
    full_every=6,
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
    words=parts_of_config.neox_words,
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
    words=parts_of_config.falcon_words,
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
    words=parts_of_config.opt_words,
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
    words=parts_of_config.cohere_words,
)
COHERE2 = replace(
    COHERE,
    class_name="Cohere2Config",
    defaults={"head_dim": PER_HEAD, "tied": True, "attention_bias": False, "window": 4096},
    full_every=4,
    rotates_windows_alone=True,
    words=lambda config: {},
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
GPT_BIGCODE = replace(
    GPT2,
    class_name="GPTBigCodeConfig",
    defaults={**GPT2.defaults, "multi_query": True},
    words=parts_of_config.bigcode_words,
)
STARCODER2 = Family(
    "Starcoder2Config",
    {"head_dim": PER_HEAD, "tied": True, "bias": True},
    spellings={"bias": ("use_bias",)},
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    biases=("norm",),
    bias_flags={"bias": ("qkv", "output", "mlp")},
)
STABLELM = Family(
    "StableLmConfig",
    {"head_dim": PER_HEAD, "tied": False, "qkv_bias": False, "parallel_residual": False},
    spellings={"qkv_bias": ("use_qkv_bias",)},
    norm="layernorm",
    biases=("norm",),
    bias_flags={"qkv_bias": ("qkv",)},
    words=parts_of_config.stablelm_words,
    must={"qk_layernorm": False},
)
PHI = Family(
    "PhiConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False},
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    biases=(*ALL_BUT_THE_HEAD, "head"),
    norms="shared",
    parallel=True,
    must={"qk_layernorm": False},
)
GPTJ = Family(
    "GPTJConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "ffn": FOUR_TIMES, "tied": False},
    activations=PLAIN_ACTIVATIONS,
    norm="layernorm",
    biases=("mlp", "norm", "head"),
    norms="shared",
    parallel=True,
)
CODEGEN = replace(GPTJ, class_name="CodeGenConfig")
ARCEE = replace(LLAMA, class_name="ArceeConfig", activations=PLAIN_ACTIVATIONS)
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
    defaults={**LLAMA.defaults, "head_dim": 128},
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
    words=parts_of_config.hunyuan_words,
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
HYPERCLOVAX = replace(
    GRANITE,
    class_name="HyperCLOVAXConfig",
    defaults={**GRANITE.defaults, "post_norm": True},
    words=parts_of_config.hyperclovax_words,
)
GEMMA = Family(
    "GemmaConfig",
    {"head_dim": 256, "tied": True, "attention_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
)
VAULTGEMMA = replace(GEMMA2, class_name="VaultGemmaConfig", norms="before")
GLM = Family(
    "GlmConfig",
    {"head_dim": 128, "tied": False, "attention_bias": True},
    bias_flags={"attention_bias": ("qkv",)},
)
OLMO = Family(
    "OlmoConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    norm="layernorm",
    norm_weights=False,
)
NANOCHAT = Family(
    "NanoChatConfig",
    {"kv_heads": AS_HEADS, "head_dim": PER_HEAD, "tied": False, "attention_bias": False},
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
    latent=parts_of_config.latent_attention,
)
YOUTU = Family(
    "YoutuConfig",
    {"tied": True, "attention_bias": False},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    latent=parts_of_config.latent_attention,
)
EXAONE = replace(
    LLAMA,
    class_name="ExaoneConfig",
    defaults={**LLAMA.defaults, "kv_heads": 8},
    spellings={"layers": ("num_hidden_layers", "num_layers")},
)
APERTUS = replace(
    LLAMA,
    class_name="ApertusConfig",
    activations={"xielu": "xielu"},
    bias_flags={"attention_bias": Q_K_V_AND_OUTPUT},
    qk_norm="head",
)
GLM4V = Family("Glm4vTextConfig", {"head_dim": PER_HEAD, "tied": False}, biases=("qkv",), norms="both")
MUSE_GLIMMER = Family(
    "MuseGlimmerTextConfig",
    {"head_dim": 128, "tied": False, "activation": "silu", "window": 2048},
    spellings={"activation": ("hidden_activation",)},
    norms="both",
    qk_norm="unscaled",
    output_gate="element",
    words=parts_of_config.listed_words,
    must={"attention_bias": False},
)
OLMO_HYBRID = replace(
    OLMO2,
    class_name="OlmoHybridConfig",
    defaults={**OLMO2.defaults, "attention_every": 4, "linear_conv": 4},
    linear=parts_of_config.gated_delta_net,
)
JAIS2 = replace(
    NEMOTRON,
    class_name="Jais2Config",
    defaults={**NEMOTRON.defaults, "kv_heads": AS_HEADS, "attention_bias": True, "mlp_bias": True},
)
