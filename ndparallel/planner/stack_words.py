"""The words that a software stack's fields can have: a word that no code knows would be priced as another."""

from collections.abc import Collection

from ndparallel.base.errors import unknown
from ndparallel.parallel.context import VARIANTS
from ndparallel.planner.dispatchers import DISPATCHERS
from ndparallel.planner.launches import GRAPHS, LAUNCH_COSTS, SMALL_KERNELS
from ndparallel.planner.optimizer_kernels import OPTIMIZERS, SHARDING

WORDS: dict[str, Collection[str]] = {
    "fusion": ("eager", "fused", "compiled", "minimal"),
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


def check_words(stack: object) -> None:
    """Raise UserError, with the nearest, for a word that its field of the stack does not know."""
    for field, words in WORDS.items():
        if (word := getattr(stack, field)) not in words:
            raise unknown(f"{field} of a software stack", str(word), (each for each in words if each))
