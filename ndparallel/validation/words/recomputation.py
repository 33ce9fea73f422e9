"""What measured runs recompute: which layers, which modules, and how far."""

import re
from collections.abc import Mapping
from typing import Any

from ndparallel.base.quantities import whole_number
from ndparallel.planner.stack import MODULES
from ndparallel.validation.words.text import NOTHING, UNSTATED, as_text

RECOMPUTED = {"norm": "layernorm", "act": "moe_act", "attn": "core_attn", "attention": "core_attn"} | {
    module: module for module in MODULES
}
# frameworks that recompute a share of the layers where they say selective; which share, the run's settings
# say (fms_fsdp/policies/ac_handler.py)
SHARE_OF_LAYERS = "fms"
WHOLE_LAYERS = r"full|checkpoint|ckpt|recompu|remat|uniform|block|layer|\ball\b|yes|true|\bon\b|%|^\d"


def recompute_of(stated: Any, layers: int) -> tuple[str, int]:
    """Return none, selective or full; with full also how many of a stage's `layers` are recomputed, 0 for
    all."""
    kind = recompute_named(stated) or "none"
    return kind, recomputed_layers(as_text(stated), layers) if kind == "full" else 0


def recompute_named(stated: Any) -> str | None:
    """Return none, selective or full; None where the words say none of them."""
    words = as_text(stated)
    if modules_of(stated) or re.search("selective|op.level|^sac", words):
        return "selective"
    if re.match(NOTHING, words):
        return "none"
    return "full" if re.search(WHOLE_LAYERS, words) else None


def states_recomputation(run: Mapping[str, Any]) -> bool:
    """Return whether a run says what it computes again, if only that it is nothing."""
    stated, framework = run.get("recompute"), str((run.get("software") or {}).get("framework")).lower()
    unsaid = f"{UNSTATED}|selective$" if re.search(SHARE_OF_LAYERS, framework) else UNSTATED
    return stated is not None and not re.match(unsaid, as_text(stated))


def recomputed_layers(words: str, layers: int) -> int:
    """Return how many of a stage's layers are recomputed; 0, which means all, where no number is given."""
    if found := re.search(r"every (\d+)|1 ?/ ?(\d+)", words):
        return max(1, layers // counted(found[1] or found[2]))
    if found := re.search(r"(\d+) ?%", words):
        return max(1, layers * whole_number(found[1]) // 100)
    if found := re.search(r"(\d+) ?(?:of|/) ?(\d+)", words):
        return max(1, layers * whole_number(found[1]) // counted(found[2]))
    found = re.search(r"(\d+) ?layers|layers\D*(\d+)|^(\d+)$|block\D*(\d+)", words)
    number = whole_number(next(filter(None, found.groups()))) if found else 0
    return number if number < layers else 0


def counted(digits: str) -> int:
    """Return a number to divide by, at least 1."""
    return max(1, whole_number(digits))


def modules_of(stated: Any) -> tuple[str, ...]:
    """Return the modules that are recomputed, where the run names them; unknown modules cost nothing."""
    words = [word for word in re.split(r"[^a-z_]+", as_text(stated).removeprefix("selective")) if word]
    known = tuple(dict.fromkeys(RECOMPUTED[word] for word in words if word in RECOMPUTED))
    return known if known and all(word in RECOMPUTED or "_" in word for word in words) else ()


def stops_late(stack: str, precision: Any) -> bool:
    """Return whether recomputation runs to a layer's end, as in torch 1.13: LLM Foundry's runs in pure 16
    bits are of its tables of May 2023 (scripts/train/benchmarking/sweep.sh); from October on it had torch
    2.1."""
    return stack == "fsdp-2023" and "pure" in str(precision).lower()
