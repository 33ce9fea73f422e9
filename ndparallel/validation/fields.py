"""What a file of runs may say: the keys of a run, and what each of them may be.

Idea   A mistyped key or word would count as not stated: a rule would fill it, and the error would be that of
       another run. So what nobody here would read is refused, with what would do.
Limit  Free words pass where they contain one that is known. The model's sizes are checked where its shape is
       made, and what rules out a plan where it is priced.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ndparallel.base.errors import UserError, unknown
from ndparallel.base.quoting import brief
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.job import OFFLOADS
from ndparallel.planner.models.config import SPELLINGS
from ndparallel.planner.stack import MODULES
from ndparallel.validation.hardware import PEAK, STATED, number_in
from ndparallel.validation.model import ACTIVATIONS, MORE_SPELLINGS
from ndparallel.validation.words import (
    NOTHING,
    SOFTWARE,
    as_text,
    bits_named,
    recompute_named,
    schedule_named,
    stack_of_framework,
    stage_named,
)


@dataclass(frozen=True)
class Kind:
    """What a field may be: `fits` says whether a value is that, `says` what would do."""

    fits: Callable[[Any], bool]
    says: str = ""
    choices: tuple[str, ...] = ()  # words that would do

    def refused(self, field: str, value: Any) -> UserError:
        if self.choices and isinstance(value, str):
            return UserError(f"{unknown(field, value, self.choices)} Where it is none of these, give null.")
        says = self.says or f"one of {', '.join(self.choices)}"
        return UserError(f"{field} is {brief(value)}; it must be {says}, or null where it is not known.")


def words(reads: Callable[[Any], Any], *choices: str) -> Kind:
    """Return the kind of words that `reads` knows: of others it returns None."""
    return Kind(
        lambda value: bool(re.match(NOTHING, as_text(value))) or reads(value) is not None, choices=choices
    )


def is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and number_in(value) > 0


def is_whole(value: Any) -> bool:
    return is_number(value) and value == int(value)


def is_share(value: Any) -> bool:
    return is_number(value) and value <= 1


NAMES = (  # of frameworks
    *("Megatron-LM", "Megatron-Core", "Megatron-Bridge", "NeMo", "Megatron-DeepSpeed", "DeepSpeed"),
    *("torchtitan", "PyTorch", "LLM Foundry", "JAX"),
)
LIKE = 0.85  # a word that is so much like one of a framework's name, and not it, is misspelled


def framework_known(stated: Any) -> Any:
    """Return the stack that stands for a framework; None also where a word of its name is misspelled, as in
    torchtitn, which contains torch."""
    named = {word for name in NAMES for word in re.findall("[a-z]+", name.lower())} | {"torch"}
    strange = set(re.findall("[a-z]+", as_text(stated))) - named
    misspelled = any(get_close_matches(word, named, 1, LIKE) for word in strange)
    return None if misspelled else stack_of_framework(as_text(stated))


def zero_known(stated: Any) -> int | None:
    if isinstance(stated, int):
        return stated if 0 <= stated <= 3 else None
    return stage_named(as_text(stated))


def one_of(patterns: tuple[tuple[str, str], ...]) -> Callable[[Any], str | None]:
    return lambda stated: next((name for found, name in patterns if re.search(found, as_text(stated))), None)


ANYTHING = Kind(lambda value: True)
NUMBER = Kind(is_number, "a number above 0")
WHOLE = Kind(is_whole, "a whole number from 1")
SHARDS = Kind(lambda value: value == 0 or is_whole(value), "a whole number from 0, which is all")
SHARE = Kind(is_share, "a share above 0, at most 1")
SP = Kind(
    lambda value: isinstance(value, bool) or is_whole(value), "true, false or the number of Ulysses' ranks"
)
LAYERS = Kind(
    lambda value: isinstance(value, list) and all(map(is_whole, value)), "a list of whole numbers from 1"
)
SIZES = (
    *("hidden", "kv_heads", "layers", "vocab", "head_dim", "groups", "top_groups", "every"),
    *("query_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim", "activation", *MORE_SPELLINGS),
)
# sources write them, and nothing follows from them
NOT_READ = ("attn", "kv_lora", "q_lora", "qk_head", "qk_rope", "v_head")

FIELDS: Mapping[str, Mapping[str, Kind]] = {  # of a run itself (""), and of its tables
    "": {
        **dict.fromkeys(("id", "family", "source", "note", "unknown"), ANYTHING),
        **dict.fromkeys(("hardware", "software", "model", "parallel", "batch", "measured"), ANYTHING),
        "gpus": WHOLE,
        "recompute": words(recompute_named, "none", "selective", "full", *MODULES),
        "precision": words(bits_named, "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "tf32", "fp32"),
        "offload": words(one_of(tuple((word, word) for word in OFFLOADS)), *OFFLOADS),
        "offload_share": SHARE,
    },
    "hardware": {
        "gpu": ANYTHING,
        PEAK: NUMBER,
        **dict.fromkeys(STATED, NUMBER),
        **dict.fromkeys(("gpus_per_node", "gpus_per_leaf"), WHOLE),
        "leaf_share": SHARE,
        "switched": Kind(lambda value: isinstance(value, bool), "true or false"),
    },
    "software": {
        "framework": words(framework_known, *NAMES),
        **dict.fromkeys(SOFTWARE, ANYTHING),  # what is not known there has a note
        "capacity_factor": NUMBER,
    },
    "model": {
        **dict.fromkeys(("name", *SIZES, *NOT_READ), ANYTHING),
        **{name: ANYTHING for size in SIZES for name in SPELLINGS.get(size, ())},
        **{name: ANYTHING for spellings in MORE_SPELLINGS.values() for name in spellings},
        **dict.fromkeys(
            ("activation", *SPELLINGS["activation"]), words(one_of(ACTIVATIONS), "gelu", "swiglu")
        ),
    },
    "parallel": {
        **dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "vp", "etp"), WHOLE),
        "sp": SP,
        "zero": words(zero_known, "0", "1", "2", "3"),
        **dict.fromkeys(("shards", "dp_shard", "hsdp_shard"), SHARDS),
        "schedule": words(schedule_named, *RECIPES),
        "stage_layers": LAYERS,
    },
    "batch": dict.fromkeys(("micro", "global", "sequence", "microbatches", "gradient_accumulation"), WHOLE),
    "measured": dict.fromkeys(
        (
            *("step_seconds", "step_ms", "tokens_per_gpu_s", "tokens_per_s", "samples_per_s"),
            *("tflops_per_gpu", "model_tflops_per_gpu", "tflops_per_gpu_hw", "mfu_pct", "hfu_pct"),
            *("layer_fwd_ms", "layer_bwd_ms", "layer_total_ms", "memory_gb", "memory_gib"),
        ),
        NUMBER,
    ),
}


def refuse_unread(run: Mapping[str, Any]) -> None:
    """Raise UserError for the first key of a run that nobody reads, and for the first value that would count
    as not stated."""
    try:
        for table, kinds in FIELDS.items():
            for field, value in stated_in(run, table):
                refuse_one(table, field, value, kinds)
    except UserError as error:
        raise UserError(f"run {brief(run.get('id', '?'))}: {error}") from None


def stated_in(run: Mapping[str, Any], table: str) -> Iterator[tuple[str, Any]]:
    given = run.get(table) if table else run
    if table == "software" and isinstance(given, str):
        given = {"framework": given}
    yield from given.items() if isinstance(given, Mapping) else ()


def refuse_one(table: str, field: str, value: Any, kinds: Mapping[str, Kind]) -> None:
    if field not in kinds:
        raise unknown(f"key of {table or 'a run'}:", field, kinds)
    if value is not None and not kinds[field].fits(value):
        raise kinds[field].refused(f"{table}.{field}" if table else field, value)
