"""The model: its units in order, and how a pipeline cuts them into stages."""

from collections.abc import Sequence
from functools import lru_cache

from ndparallel.model.experts import MoELayer
from ndparallel.model.layers import Block, Mlp, SubLayer
from ndparallel.model.units import Context, ModelConfig, Unit
from ndparallel.model.vocabulary import Embedding, Head
from ndparallel.pipeline.work import spread_layers

NEARLY_NOTHING = 1e-9  # blocks: what an embedding costs


def stage_units(context: Context, stages: int, mine: Sequence[int]) -> dict[int, list[Unit]]:
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
    return tuple(spread_layers(config.layers, stages, NEARLY_NOTHING, head_in_blocks(config)))


def head_in_blocks(config: ModelConfig) -> float:
    """Return the head's forward FLOPs divided by a block's. Both are 2 for each weight that a token meets;
    attention adds as many for each element of a query-key pair, once for scores and once for values."""
    h, d = config.hidden, config.head_dim
    attention = (2 * config.heads + 2 * config.kv_heads) * d * h
    mlp = 3 * h * config.ffn
    if config.experts:
        mlp = h * config.experts + 3 * h * config.expert_ffn * (config.top_k + config.shared_experts)
    pairs = config.heads * (config.sequence + 1) / 2  # of one token, on average
    return config.vocab * h / (attention + mlp + 2 * pairs * d)
