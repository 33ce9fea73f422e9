"""Flags of Megatron-LM's forks and of its older releases, in the words of Megatron-Core.

Idea   A flag that decides the model or the plan under another name is translated; all others that
       Megatron-Core does not have are left out. Both are said.
Limit  Megatron-DeepSpeed, bigscience's fork of it, and Pai-Megatron-Patch: what their megatron/arguments.py
       and megatron_patch/arguments.py say. Another fork may mean something else by the same word.
"""

from collections.abc import Iterator, Sequence

from ndparallel.base.errors import UserError
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.shell.words import how_to_set

Flag = tuple[str, list[str]]  # with its values

TP_CUTS_EXPERTS = "--enable-expert-tensor-parallelism"
TRANSLATED = {  # a flag, or a flag with one value: Megatron-Core's, with the values in place of {}
    "--model-parallel-size": "--tensor-model-parallel-size {}",
    "--batch-size": "--micro-batch-size {}",
    "--encoder-seq-length": "--seq-length {}",
    "--encoder-num-layers": "--num-layers {}",
    "--pad-vocab-size-to": "--padded-vocab-size {}",
    "--intermediate-size": "--ffn-hidden-size {}",
    "--num-key-value-heads": "--group-query-attention --num-query-groups {}",
    "--n-head-kv": "--group-query-attention --num-query-groups {}",
    "--attention-head-type multiquery": "--group-query-attention --num-query-groups 1",
    "--use-llama2-rotary-position-embeddings": "--position-embedding-type rope",
    "--checkpoint-activations": fields.RECOMPUTE["full"],
    "--activations-checkpoint-method": f"{fields.RECOMPUTE['full']} --recompute-method {{}}",
    "--activations-checkpoint-num-layers": "--recompute-num-layers {}",
    "--checkpoint-num-layers": "--recompute-num-layers {}",
    "--ds-sequence-parallel-size": "--context-parallel-size {} --cp-comm-type a2a",  # Ulysses
    "--moe-expert-parallel-size": "--expert-model-parallel-size {}",
    "--moe-train-capacity-factor": "--moe-expert-capacity-factor {}",
    "--pp-partition-method type:transformer|embedding": (
        "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    ),
    "--topk": "--moe-router-topk {}",
    "--moe-topk": "--moe-router-topk {}",
    "--shared-moe-ffn-hidden-size": "--moe-shared-expert-intermediate-size {}",
    "--qk-nope-head-dim": "--qk-head-dim {}",
    "--qk-rope-head-dim": "--qk-pos-emb-head-dim {}",
    "--expert-interval": "--moe-layer-freq {}",
    "--geglu": "--quick-geglu",
    "--fp8-hybrid": "--fp8-format hybrid",  # until August 2023
    "--fp8-e4m3": "--fp8-format e4m3",
    TP_CUTS_EXPERTS: "",  # as they are in Megatron-Core
}
# what changes a step, and is neither Megatron-Core's nor the planner's
NOT_MODELLED = {
    **dict.fromkeys(
        ("--deepspeed_config", "--deepspeed-config"),
        "what its file says is not read, and ZeRO's stage is that of --zero-stage, or 0",
    ),
    "--enable-zbh1-pipeline": "the schedule is 1F1B",
    "--cpu-optimizer": "all of it is counted on the GPU",
    "--kd": "no teacher is run",
    "--curriculum-learning-legacy": "sequences have their whole length",
    "--random-ltd": "every layer takes all tokens",
    "--embed-layernorm": "the embedding has no norm",
}
# what --deepspeed switches on, and Megatron-DeepSpeed's defaults for a model with experts
ZERO_STAGES = {f"--zero-stage {stage}": words for stage, words in fields.ZERO.items()}
EXPERTS = ["--topk", "1", "--expert-interval", "2"]


def with_defaults(words: Sequence[str]) -> list[str]:
    """A fork's own defaults, before what its command line says."""
    if "--deepspeed" not in words or "--num-experts" not in words:
        return [*words]
    whole = [] if TP_CUTS_EXPERTS in words else [fields.EXPERT_TP, "1"]
    return [*EXPERTS, *whole, *words]


def translated(flag: str, values: list[str], deepspeed: bool) -> Iterator[Flag] | None:
    """A fork's flag as Megatron-Core's, in the order that counts; None for one that is no fork's. Raises
    UserError for what the planner has not got."""
    if flag == "--transformer-type" and values[:1] == ["huggingface"]:
        raise UserError(
            f"{flag} huggingface takes its model from transformers, and not from these flags: give its "
            "config.json to --model."
        )
    table = TRANSLATED | (ZERO_STAGES if deepspeed else {})
    found = table.get(" ".join([flag, *values[:1]]), table.get(flag))
    if flag == "--zero-stage" and deepspeed and found is None:
        given = " ".join(values)[:40]
        raise UserError(f"{flag} must be 0, 1, 2 or 3, not {given!r}{how_to_set(given)}.")
    return None if found is None else pairs(found.replace("{}", " ".join(values)).split())


def pairs(words: Sequence[str]) -> Iterator[Flag]:
    """Each flag with the words up to the next one."""
    found: list[Flag] = []
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            found.append((flag, [value] if equals else []))
        elif found:
            found[-1][1].append(word)
    yield from found
