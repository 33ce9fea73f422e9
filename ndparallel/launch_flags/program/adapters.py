"""The adapters that a program's arguments ask for.

Idea   Programs call them by their own words: TRL and PEFT lora_r, LLaMA-Factory and ms-swift lora_rank,
       DeepSpeed-Chat lora_dim. Of the words that turn adapters on, the first that is there decides.
Limit  Without a rank they are not read: each program has its own. DoRA and other kinds are not LoRA.
"""

from collections.abc import Iterator
from typing import Any

from ndparallel.base.quoting import brief
from ndparallel.launch_flags.settings import Configuration
from ndparallel.planner.adapters import NF4_BITS, TARGETS, Adapters
from ndparallel.planner.models.sizes import checked_size

RANKS = ("lora_r", "lora_rank", "lora_dim")
SWITCHES = (
    *("use_peft", "use_lora", "use_llm_lora", "lora_enable", "qlora", "adapter", "finetuning_type"),
    *("tuner_type", "train_type", "sft_type", *RANKS, "lora_alpha"),
)
LORA = ("true", "lora", "qlora", "llm_lora")  # words that mean no other kind
QUANTIZED = ("load_in_4bit", "q_lora", "qlora", "use_qlora", "quantization_bit", "quant_bits", "bits")
MATRICES = ("lora_target_modules", "lora_target", "target_modules")
ALL = {"all", "all-linear", "all_linear"}


def switch_of(words: Configuration) -> str:
    """The argument that turns adapters on; "" where none does."""
    found = next((name for name in SWITCHES if name in words), "")
    return found if found and words[found] not in (False, None, 0, "full", "none") else ""


def adapters_in(words: Configuration) -> Adapters | None:
    """The adapters, where the arguments say their rank. Raises UserError for a rank that is none."""
    switch = switch_of(words)
    rank = next((words[name] for name in RANKS if type(words.get(name)) is int and words[name] > 0), 0)
    if not switch or not rank or not is_lora(words[switch]):
        return None
    checked_size(rank, "the adapters' rank")
    named = tuple(name for name in TARGETS if name in matrices_of(words))
    return Adapters(rank, named, NF4_BITS if is_quantized(words) else 16)


def is_lora(word: Any) -> bool:
    return type(word) is int or str(word).lower() in LORA


def is_quantized(words: Configuration) -> bool:
    """Whether the frozen model is kept in 4 bits."""
    return words.get("adapter") == "qlora" or any(
        words.get(name) is True or type(words.get(name)) is int and words[name] == 4 for name in QUANTIZED
    )


def matrices_of(words: Configuration) -> set[str]:
    """The names of the matrices that have adapters, as they are written."""
    said: Any = next((words[name] for name in MATRICES if words.get(name)), [])
    return {f"{name}".strip() for name in (said if isinstance(said, list) else [said])} - {""}


def note_on_matrices(words: Configuration) -> Iterator[str]:
    """A sentence on matrices that nobody names, or that are not known here."""
    named = matrices_of(words)
    if not named and words.get("lora_target_linear") is not True:
        yield "No argument says on which matrices its adapters stand: on all (--lora-on with --lora)."
    if unknown := sorted(named - ALL - {*TARGETS}):
        where = "on the others" if named & {*TARGETS} else "on all"
        yield f"Adapters on {brief(', '.join(unknown))} are not known here: they stand {where} (--lora-on)."
