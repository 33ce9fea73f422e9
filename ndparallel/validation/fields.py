"""What a file of runs may say: the keys of a run, and what each of them may be.

Idea   A mistyped key or word counts as not stated: a rule fills it, and the error is that of another run. So
       a run has a note on all that nobody here reads, with what would do.
Limit  Free words pass where they contain one that is known. The model's sizes are checked where its shape is
       made, and what rules out a plan where it is priced.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ndparallel.base.quoting import brief
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.job import OFFLOADS
from ndparallel.planner.models.huggingface.config import SPELLINGS
from ndparallel.planner.stack import MODULES
from ndparallel.validation.hardware import PEAK, STATED, number_in
from ndparallel.validation.model import ACTIVATIONS, MORE_SPELLINGS
from ndparallel.validation.words.number_types import bits_named
from ndparallel.validation.words.parallel import context_parallel_named, schedule_named, stage_named
from ndparallel.validation.words.recomputation import recompute_named
from ndparallel.validation.words.software import SOFTWARE
from ndparallel.validation.words.text import NOTHING, as_text


@dataclass(frozen=True)
class Kind:
    """What a field may be: `fits` says whether a value is that, `says` what would do."""

    fits: Callable[[Any], bool]
    says: str = ""
    choices: tuple[str, ...] = ()  # words that would do

    def remark(self, field: str, value: Any) -> str:
        """Say of a value that it is not what the field may be."""
        if self.choices:
            meant = near(value, self.choices)
            return f"its {field} {brief(value)} is not known here, and counts as not stated.{meant}"
        return f"its {field} is {brief(value)}, and should be {self.says}, or null where it is not known."


def near(word: Any, choices: Iterable[str]) -> str:
    """Name the choice that a word may have meant; nothing where none is like it."""
    found = get_close_matches(as_text(word), list(choices), 1)
    return f" Did you mean {found[0]!r}?" if found else ""


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
        **dict.fromkeys(("id", "family", "source", "table", "note", "unknown"), ANYTHING),
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
        "framework": ANYTHING,
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
        "cp_comm_type": words(context_parallel_named, "p2p", "all_gather", "a2a"),
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


def unread(run: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each key of a run that nobody reads, and for each value that is not what it may
    be."""
    return [
        remark
        for table, kinds in FIELDS.items()
        for field, value in stated_in(run, table)
        if (remark := remark_on(table, field, value, kinds))
    ]


def stated_in(run: Mapping[str, Any], table: str) -> Iterator[tuple[str, Any]]:
    given = run.get(table) if table else run
    yield from given.items() if isinstance(given, Mapping) else ()


def remark_on(table: str, field: str, value: Any, kinds: Mapping[str, Kind]) -> str:
    name = f"{table}.{field}" if table else field
    if field not in kinds:
        return f"nobody here reads its key {brief(name)}.{near(field, kinds)}"
    return "" if value is None or kinds[field].fits(value) else kinds[field].remark(name, value)
