"""Kinds of models that cannot be counted here, each with the reason.

Idea   A refusal names the layer that lacks, and the family that is nearest, instead of "unknown".
"""

from typing import NamedTuple


class Refusal(NamedTuple):
    """Why a model_type cannot be counted, and which family is nearest in structure."""

    why: str
    nearest: str


LINEAR = "its linear attention is no gated delta rule, the only one that is a layer here"
MAMBA = "most of its layers are state spaces (Mamba), which are no layer here"
CHOSEN = "its attention chooses each token's keys by an indexer, whose matrices and scores are no layer here"
STREAMS = "its residual is several streams that matrices of their own mix, which are no matrices here"
CONVOLUTION = "most of its layers are convolutions, which are no layer here"
CONVOLVED = "its attention has convolutions, which are no layer here"
LOOPS = "its layers run several times in a pass, which is once here"
REFUSED = {
    "deepseek_v32": Refusal(CHOSEN, "deepseek_v3"),
    "glm_moe_dsa": Refusal(CHOSEN, "deepseek_v3"),
    "minimax_m3_vl_text": Refusal(CHOSEN, "minimax_m2"),
    "axk2": Refusal(CHOSEN, "deepseek_v3"),
    "mistral_large4_text": Refusal(CHOSEN, "mistral4"),
    "dots3_note": Refusal(CHOSEN, "deepseek_v3"),
    "dots3_note_text": Refusal(CHOSEN, "deepseek_v3"),
    "deepseek_v4": Refusal(STREAMS, "deepseek_v3"),
    "hy_v4": Refusal(STREAMS, "hy_v3"),
    "gemma3n_text": Refusal("each layer adds embeddings and streams of its own", "gemma3_text"),
    "longcat_flash": Refusal(
        "each layer has two attentions and two MLPs beside its experts, some of which do nothing",
        "deepseek_v3",
    ),
    "axk1": Refusal("a norm stands behind its experts, and none behind its dense MLPs", "deepseek_v3"),
    "persimmon": Refusal("its norms of queries and keys have a shift, which is not counted here", "nemotron"),
    "bitnet": Refusal("its matrices have weights of three values, and norms before their inputs", "llama"),
    "diffllama": Refusal("each of its heads subtracts one softmax from another", "llama"),
    "dbrx": Refusal("its sizes stand in attn_config and ffn_config, which are not read", "mixtral"),
    "lfm2": Refusal(CONVOLUTION, "llama"),
    "lfm2_moe": Refusal(CONVOLUTION, "qwen3_moe"),
    "lfm3": Refusal(CONVOLUTION, "llama"),
    "inkling_text": Refusal(CONVOLVED, "qwen3_moe"),
    "inkling2_text": Refusal(CONVOLVED, "qwen3_moe"),
    "inkling2_loop_text": Refusal(CONVOLVED, "qwen3_moe"),
    "zaya": Refusal(CONVOLVED, "qwen3_moe"),
    "dory": Refusal(LOOPS, "llama"),
    "hrm_text": Refusal(LOOPS, "llama"),
    "ernie4_5_vl_moe_text": Refusal(
        "what it reads and what it sees have experts of their own", "ernie4_5_moe"
    ),
    "muse_spark_text": Refusal(
        "its experts work in a narrower space, between two matrices", "muse_glimmer_text"
    ),
    "mllama_text_model": Refusal("some of its layers attend to what it sees", "llama"),
    "jetmoe": Refusal("its attention is a mixture of experts too", "mixtral"),
    "nemotron-nas": Refusal(
        "its layers differ from one another in width, and some have no attention", "llama"
    ),
    "qwen4_exp": Refusal(LINEAR, "qwen3_moe"),
    "qwen4_exp_text": Refusal(LINEAR, "qwen3_moe"),
    "minimax": Refusal(LINEAR, "mixtral"),
    "minimax_text_01": Refusal(LINEAR, "mixtral"),
    "kimi_linear": Refusal(LINEAR, "deepseek_v3"),
    "bailing_hybrid": Refusal(LINEAR, "bailing_moe_v2"),
    "glm5_next_text": Refusal(f"{LINEAR}, and {STREAMS}", "deepseek_v3"),
    "nemotron_h": Refusal(MAMBA, "nemotron"),
    "mamba": Refusal(MAMBA, "llama"),
    "mamba2": Refusal(MAMBA, "llama"),
    "jamba": Refusal(MAMBA, "mixtral"),
    "bamba": Refusal(MAMBA, "llama"),
    "zamba2": Refusal(MAMBA, "llama"),
    "falcon_h1": Refusal(MAMBA, "llama"),
    "falcon_mamba": Refusal(MAMBA, "falcon"),
    "granitemoehybrid": Refusal(MAMBA, "granite"),
    "recurrent_gemma": Refusal("most of its layers are recurrent, which is no layer here", "gemma2"),
    "grok-1": Refusal("no class of transformers says what its layers are", "mixtral"),
}
