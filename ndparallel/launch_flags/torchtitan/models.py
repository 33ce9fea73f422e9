"""The models that torchtitan has, and what it cannot run of each.

Idea   torchtitan builds a model from a flavor of its own, not from sizes: a plan's model is looked for among
       them by its sizes. A flavor for which it has no configuration starts from a sibling's, of the same
       vocabulary.
Limit  The release of torchtitan.json. Sizes are compared, not the constants on which no second depends.
"""

from functools import cache, partial
from typing import NamedTuple

from ndparallel.launch_flags.rules import LaunchRule, has_no, rule_maker
from ndparallel.planner.job import TrainingJob
from ndparallel.planner.models.presets import preset
from ndparallel.planner.models.shape import ModelShape


class Flavor(NamedTuple):
    """One of torchtitan's models. Where the configuration is a sibling's, `assets` is the folder of its own
    tokenizer."""

    module: str
    flavor: str
    base: str  # the configuration whose data, optimizer and learning rate are kept
    assets: str = ""


LONGEST = {  # sequence of each module's models: max_seq_len of their positions
    "llama3": 131072,
    "qwen3": 40960,
    "deepseek_v3": 16384,
    "gpt_oss": 131072,
    "kimi_k2_7": 8192,
}
NO_CONTEXT = {  # modules that raise NotImplementedError with cp
    "gpt_oss": "its VarlenAttention refuses it",
    "kimi_k2_7": "its parallelize_kimi_k2_5 refuses it",
}
MODELS = {
    "llama-3.2-1b": Flavor("llama3", "1B", "llama3_8b", "Llama-3.2-1B"),
    "llama-3.2-3b": Flavor("llama3", "3B", "llama3_8b", "Llama-3.2-3B"),
    "llama-3-8b": Flavor("llama3", "8B", "llama3_8b"),
    "llama-3-70b": Flavor("llama3", "70B", "llama3_70b"),
    "llama-3-405b": Flavor("llama3", "405B", "llama3_405b"),
    "qwen3-0.6b": Flavor("qwen3", "0.6B", "qwen3_0_6b"),
    "qwen3-1.7b": Flavor("qwen3", "1.7B", "qwen3_1_7b"),
    "qwen3-4b": Flavor("qwen3", "4B", "qwen3_1_7b", "Qwen3-4B"),
    "qwen3-8b": Flavor("qwen3", "8B", "qwen3_14b", "Qwen3-8B"),
    "qwen3-14b": Flavor("qwen3", "14B", "qwen3_14b"),
    "qwen3-32b": Flavor("qwen3", "32B", "qwen3_32b"),
    "qwen3-30b-a3b": Flavor("qwen3", "30B-A3B", "qwen3_30b_a3b"),
    "qwen3-235b-a22b": Flavor("qwen3", "235B-A22B", "qwen3_30b_a3b", "Qwen3-235B-A22B"),
    "deepseek-v2-lite": Flavor("deepseek_v3", "16B", "deepseek_v3_16b"),
    "deepseek-v2": Flavor("deepseek_v3", "236B", "deepseek_v3_16b", "DeepSeek-V2"),
    "deepseek-v3": Flavor("deepseek_v3", "671B", "deepseek_v3_671b"),
    "gpt-oss-20b": Flavor("gpt_oss", "20b", "gpt_oss_20b"),
    "gpt-oss-120b": Flavor("gpt_oss", "120b", "gpt_oss_120b"),
    "moonlight-16b-a3b": Flavor("kimi_k2_7", "moonlight-16B-A3B", "moonlight_16b_a3b"),
}


def sizes(shape: ModelShape) -> tuple:
    return (
        shape.layers,
        shape.hidden,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.ffn,
        shape.vocab,
        shape.latent,
        shape.windowed,
        shape.output_gate,
        shape.experts,
    )


@cache
def flavors() -> dict[tuple, Flavor]:
    return {sizes(preset(name)): found for name, found in MODELS.items()}


def module_of(job: TrainingJob) -> str:
    """torchtitan's module of the model; "" where it has none."""
    found = flavors().get(sizes(job.shape))
    return found.module if found else ""


def flavor_of(job: TrainingJob) -> Flavor:
    """Find the model among those of torchtitan. Raises UserError for one that it does not have, or sequences
    that are too long for it."""
    found = flavors().get(sizes(job.shape))
    if job.shape.linear:
        raise torchtitan_lacks(
            "model with linear attention that sees no images, which are not counted here",
            "take megatron or deepspeed",
        )
    if not found:
        raise torchtitan_lacks(f"model of these sizes ({job.shape.name})", f"it has {', '.join(MODELS)}")
    if job.sequence > LONGEST[found.module]:
        raise torchtitan_lacks(
            f"positions for {job.sequence} tokens of {job.shape.name}",
            f"take a sequence of at most {LONGEST[found.module]}",
        )
    return found


torchtitan_lacks = partial(has_no, "torchtitan")
never = rule_maker(torchtitan_lacks)
MODEL_RULES = (
    never(  # Decoder.Config.update_from_config in torchtitan/models/common/decoder.py
        "pipeline for tied embeddings, which {job.shape.name} has",
        "leave --pp out",
        lambda job, plan: job.shape.tied_embeddings and plan.pp > 1,
    ),
    never(  # there too
        "copies of {job.shape.kv_heads} KV heads for tp={plan.tp}",
        "take a tp that divides {job.shape.kv_heads}",
        lambda job, plan: job.shape.kv_heads % plan.tp > 0,
    ),
    LaunchRule(
        lambda job, plan: module_of(job) in NO_CONTEXT and plan.cp > 1,
        lambda job, plan: torchtitan_lacks(
            f"context parallelism for {job.shape.name}: {NO_CONTEXT[module_of(job)]}", "leave --cp out"
        ),
    ),
    never(  # _KimiTrainerConfig.__post_init__ in torchtitan/models/kimi_k2_7/config_registry.py
        "tensor or pipeline parallelism for {job.shape.name}",
        "leave --tp and --pp out",
        lambda job, plan: module_of(job) == "kimi_k2_7" and (plan.tp > 1) | (plan.pp > 1),
    ),
)
