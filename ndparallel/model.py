"""The model: its units in order, and what it counts."""

from ndparallel.experts import Experts
from ndparallel.layers import Block, Branch, Embedding, Head, Mlp
from ndparallel.units import Context, Unit


def model_units(context: Context) -> list[Unit]:
    """Embedding, every block, head: they chain from the tokens to the loss."""
    feed_forward: type[Branch] = Experts if context.config.experts else Mlp
    blocks = [Block(f"layers.{index}", context, feed_forward) for index in range(context.config.layers)]
    return [Embedding("embedding", context), *blocks, Head("head", context)]
