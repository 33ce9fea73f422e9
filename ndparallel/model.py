"""The model: its units in order, and what it counts."""

from ndparallel.layers import Block, Embedding, Head
from ndparallel.units import Context, Unit


def model_units(context: Context) -> list[Unit]:
    """Embedding, every block, head: they chain from the tokens to the loss."""
    blocks = [Block(f"layers.{index}", context) for index in range(context.config.layers)]
    return [Embedding("embedding", context), *blocks, Head("head", context)]
