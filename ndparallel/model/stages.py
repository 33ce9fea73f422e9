"""The model: its units in order, and how a pipeline cuts them into stages."""

from functools import lru_cache

from ndparallel.model import costs
from ndparallel.model.experts import MoELayer
from ndparallel.model.layers import Block, Embedding, Head, Mlp, SubLayer
from ndparallel.model.units import Context, ModelConfig, Unit, local_sizes
from ndparallel.pipeline.work import spread_layers

NEARLY_NOTHING = 1e-9  # blocks: what an embedding costs


def stage_units(context: Context, stages: int, mine: list[int]) -> dict[int, list[Unit]]:
    """The units of these stages of the model: blocks in order, the embedding before the first and the head
    after the last."""
    counts = layers_per_stage(context.config, stages)
    return {stage: _units(context, stage, counts) for stage in mine}


def _units(context: Context, stage: int, counts: tuple[int, ...]) -> list[Unit]:
    first = sum(counts[:stage])
    feed_forward: type[SubLayer] = MoELayer if context.config.experts else Mlp
    units: list[Unit] = [
        Block(f"layers.{index}", context, feed_forward) for index in range(first, first + counts[stage])
    ]
    if stage == 0:
        units.insert(0, Embedding("embedding", context))
    if stage == len(counts) - 1:
        units.append(Head("head", context))
    return units


@lru_cache
def layers_per_stage(config: ModelConfig, stages: int) -> tuple[int, ...]:
    """Spread the blocks as evenly as can be, the head counted by its FLOPs; the embedding may have a stage of
    its own."""
    sizes = local_sizes(config, 1, 1, 0, "none", "float32")
    block = sum(operation.flops for operation in costs.block_forward(sizes))
    head = sum(operation.flops for operation in costs.head_forward(sizes))
    return tuple(spread_layers(config.layers, stages, NEARLY_NOTHING, head / block))
