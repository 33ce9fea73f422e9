"""The words that a software stack's fields can have: a word that no code knows would be priced as another."""

from collections.abc import Collection
from typing import Any

from ndparallel.base.errors import UserError, unknown
from ndparallel.parallel.context import VARIANTS
from ndparallel.planner.dispatchers import DISPATCHERS
from ndparallel.planner.launches import GRAPHS, LAUNCH_COSTS, SMALL_KERNELS
from ndparallel.planner.optimizer_kernels import OPTIMIZERS, SHARDING

HAND_WRITTEN = ("fused", "engine")  # of fusion
WORDS: dict[str, Collection[str]] = {
    "fusion": ("eager", *HAND_WRITTEN, "compiled", "minimal"),
    "attention": ("unfused", "masked", "flash1", "triton", "flash2", "cudnn", "cudnn-2026"),
    "optimizer": OPTIMIZERS,
    "launching": LAUNCH_COSTS,
    "small_kernels": SMALL_KERNELS,
    "tp_overlap": ("none", "backward", "all", "products"),
    "sharding": ("", *SHARDING),
    "shards_over_one": ("", "always", "tp"),
    "context_parallel": VARIANTS,
    "dispatcher": DISPATCHERS,
    "graphs": GRAPHS,
}


def check_words(stack: Any) -> None:
    """Raise UserError, with the nearest, for a word that its field of the stack does not know, and for words
    that do not go together."""
    for field, words in WORDS.items():
        if (word := getattr(stack, field)) not in words:
            raise unknown(f"{field} of a software stack", str(word), (each for each in words if each))
    if stack.dropout and stack.fusion not in HAND_WRITTEN:
        raise UserError(
            f"dropout of a software stack whose fusion is {stack.fusion} is not priced: take fusion fused, "
            "or no dropout."
        )
