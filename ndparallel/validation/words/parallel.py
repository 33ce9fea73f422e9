"""How measured runs are cut: ZeRO's stage and its shards, the schedule, context parallelism, experts."""

import re
from typing import Any

from ndparallel.base.quantities import whole_number
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.validation.hardware import number_in
from ndparallel.validation.words.frameworks import SHARDED
from ndparallel.validation.words.text import first_named

CONTEXT_PARALLEL_WORDS = (  # the first that is in the word: "a2a+p2p" is taken as a ring
    ("p2p|ring", "ring"),
    ("a2a|ulysses|alltoall", "all-to-all"),
    ("gather", "all-gather"),
)


def zero_stage(stated: Any, framework: str) -> int:
    """Return ZeRO's stage, 0 to 3; where none is stated, what the framework's name implies."""
    if isinstance(stated, int):
        return int(stated)
    if stated is not None and re.search(r"no reshard|grad_op|opt\+grad", str(stated).lower()):
        return 2
    return stage_named(framework if stated is None else str(stated).lower()) or 0


def stage_named(words: str) -> int | None:
    """Return the stage of ZeRO that words name; None where they name none."""
    if found := re.search(r"(?:zero|stage|^)[- _]?([0-3])", words):
        return int(found[1])
    if re.search(rf"{SHARDED}|hsdp|full.?shard|hybrid|zero\+\+", words):
        return 3
    return 1 if "optim" in words else None


def shards_of(parallel: dict[str, Any], gpus_per_node: int) -> int:
    """Return the ranks that weights are sharded over where they are replicated besides (HSDP): the stated
    number, or a node; 0 for all."""
    numbers = (int(number_in(parallel.get(key))) for key in ("shards", "dp_shard", "hsdp_shard"))
    stated, words = next(filter(None, numbers), 0), str(parallel.get("zero")).lower()
    if stated or not re.search("hsdp|hybrid", words):
        return stated
    return next(map(whole_number, re.findall(r"\d+", words)), gpus_per_node)


def schedule_named(stated: str | None) -> str | None:
    """Return our name of the schedule, or None where the word names none."""
    words = re.sub(r"[^a-z0-9]", "", str(stated or "").lower())
    meant = [name for name, recipe in RECIPES.items() if re.search(recipe.spelled, words)]
    return meant[-1] if meant else None


def context_parallel_named(stated: Any) -> str | None:
    """Return our name of how a sequence is shared; None where the word is not known."""
    return first_named(CONTEXT_PARALLEL_WORDS, re.sub("[^a-z0-9]", "", str(stated).lower()))


def cuts_experts(stated: Any, framework: str, tp: int, ep: int) -> bool:
    """Return whether tp cuts experts, too: Megatron-Core's expert tensor parallelism is tp where nobody says
    otherwise (megatron/core/parallel_state.py). Recipes with DeepEP or a hybrid dispatcher say otherwise."""
    return stated in (None, tp) and tp > 1 and ep > 1 and bool(re.search("nemo|megatron", framework))
