"""Kinds of models that cannot be counted here, each with the reason.

Idea   A refusal names the layer that lacks, and the family that is nearest, instead of "unknown".
"""

from typing import NamedTuple


class Refusal(NamedTuple):
    """Why a model_type cannot be counted, and which family is nearest in structure."""

    why: str
    nearest: str


LINEAR = "most of its layers are linear attention, which is no layer here"
MAMBA = "most of its layers are state spaces (Mamba), which are no layer here"
CHOSEN = "its attention chooses a token's keys by an indexer, which is no layer here"
REFUSED = {
    "deepseek_v32": Refusal(CHOSEN, "deepseek_v3"),
    "glm_moe_dsa": Refusal(CHOSEN, "deepseek_v3"),
    "nemotron-nas": Refusal(
        "its layers differ from one another in width, and some have no attention", "llama"
    ),
    "qwen3_next": Refusal(LINEAR, "qwen3_moe"),
    "qwen3_5": Refusal(LINEAR, "qwen3"),
    "qwen3_5_text": Refusal(LINEAR, "qwen3"),
    "qwen3_5_moe": Refusal(LINEAR, "qwen3_moe"),
    "qwen3_5_moe_text": Refusal(LINEAR, "qwen3_moe"),
    "minimax": Refusal(LINEAR, "mixtral"),
    "minimax_text_01": Refusal(LINEAR, "mixtral"),
    "kimi_linear": Refusal(LINEAR, "deepseek_v3"),
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
