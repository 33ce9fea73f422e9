"""The tail of each rank's step, of thousands of plans at once: gradients, weights and optimizer that nothing
hides.

Idea   ndparallel.planner.step.tail times the same, bucket by bucket. Here collectives that follow one another
       beside a pass are one sum, and the pass another: what shows is what the first has more. Only the stage
       that is complete last shows gradients; where FSDP keeps weights whole all stages do.

Glossary: see lower_bound.py and time_columns.py.
"""

from functools import reduce
from typing import NamedTuple

import numpy as np

from ndparallel.planner.stack import Stack
from ndparallel.search.bounds.depth import StagePartition
from ndparallel.search.bounds.memory_columns import TRAINED
from ndparallel.search.bounds.plan_table import EMBEDDING, HEAD, LAYERS, OF_UNITS, PlanTable, weighted_sum

TINY = 1e-12  # seconds


def step_tails(table: PlanTable, depth: StagePartition, stack: Stack) -> np.ndarray:
    """Seconds behind each rank's last action: gradients, weights and optimizer that nothing hides. What
    FSDP's first microbatch waits for weights that stay delays all that follows, and counts here."""
    gradients, gathered = shown_gradients(table, depth, stack), shown_weights(table, depth, stack)
    none, shared, experts = table["optimizer"]
    elements = weighted_sum(depth.parts, table["elements"][TRAINED])
    optimizer = none + shared * elements[0] + experts * elements[1]
    first = weighted_sum(depth.model[depth.parts.shape[1] :], table["first_waits"])
    return gradients + gathered + optimizer + depth.has_one_end[:, None] * table["tied"] + first


def shown_gradients(table: PlanTable, depth: StagePartition, stack: Stack) -> np.ndarray:
    """Seconds of the reductions that nothing hides: those of ZeRO-2 without a pipeline are behind every
    microbatch, and not here."""
    (reduce, _), (_, backward) = table["travel"], units_passes(table)
    zero_2, last = table["zero"] == 2, depth.last_units
    gradients = np.where(zero_2, *(weighted_sum(units, reduce.sum(axis=0)) for units in (last, depth.units)))
    if stack.dp_overlap:
        shown = (table["zero"] == 3) | (stack.dp_overlap_by_zero & (table["zero"] == 0))
        gradients = np.where(shown, gradients, exposed(last, reduce, backward))
    return np.where(zero_2, 0.0, gradients) if depth.pp == 1 else gradients


def shown_weights(table: PlanTable, depth: StagePartition, stack: Stack) -> np.ndarray:
    """Seconds of the gathers that nothing hides: of ZeRO-2 without a pipeline of all."""
    (_, gather), (forward, _) = table["travel"], units_passes(table)
    one_by_one = weighted_sum(depth.units, gather.max(axis=0))
    gathered = exposed(depth.units, gather, forward) if stack.gathers_first else one_by_one
    return np.where(table["zero"] == 2, one_by_one, gathered) if depth.pp == 1 else gathered


def reduced_every_microbatch(table: PlanTable, depth: StagePartition) -> np.ndarray:
    """ZeRO-2 without a pipeline: what is left of each microbatch's gradients when its backward pass ends."""
    (reduce, _), (_, backward) = table["travel"], units_passes(table)
    left = exposed(depth.units, reduce, backward)
    return np.where(table["zero"] == 2, table["microbatches"] * left, 0.0)


class UnitPasses(NamedTuple):
    """Seconds by unit of a forward or of a backward pass: all, and those of compute alone, which are so much
    longer beside a collective."""

    seconds: np.ndarray
    alone: np.ndarray
    slowdown: np.ndarray


def units_passes(table: PlanTable) -> tuple[UnitPasses, UnitPasses]:
    """The units' forward and backward passes."""
    forward, inputs, weights = table["passes"][:, OF_UNITS]
    alone_forward, alone_backward = table["alone"]
    return (
        UnitPasses(forward, alone_forward, table["slowdown"]),
        UnitPasses(inputs + weights, alone_backward, table["slowdown"]),
    )


def exposed(units: np.ndarray, lines: np.ndarray, compute: UnitPasses) -> np.ndarray:
    """What a pass over so many units of each rank does not hide of collectives, one for each unit. Lines run
    side by side."""
    shown = [exposed_line(units, line, compute) for line in lines if line.any()]
    return reduce(np.maximum, shown, np.zeros((len(units), compute.seconds.shape[1])))


def exposed_line(units: np.ndarray, line: np.ndarray, compute: UnitPasses) -> np.ndarray:
    """Collectives follow one another; what shows began behind the last layer, the first one, or the head.
    Beside the table's own, which hides nowhere, the embedding's compute hides a little of the others. What
    hides slows the layer that it hides behind. Of several kinds of layers any may be the first."""
    layers, table, head = units[:, LAYERS], units[:, EMBEDDING, None], units[:, HEAD, None] * line[HEAD]
    others = np.maximum(layers.sum(axis=1, keepdims=True) - 1, 0)
    seconds, alone = compute.seconds[LAYERS], compute.alone[LAYERS]
    share = alone / np.maximum(seconds + compute.slowdown * alone, TINY)  # of the pass that can be slower
    one, own, most = (least(layers, each) for each in (line[LAYERS], seconds, alone))
    slowed = others * compute.slowdown * np.minimum(one * least(layers, share), most)
    left = weighted_sum(layers, line[LAYERS]) - weighted_sum(layers, seconds) - slowed
    shown = np.maximum(one, left + np.maximum(own, head))
    return table * line[EMBEDDING] + slowed + np.maximum(shown - table * compute.seconds[EMBEDDING], 0.0)


def least(layers: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The least seconds of the kinds of layers that there are, (ranks, plans), or (1, plans) where all ranks
    have the same; 0 where there are none."""
    has = layers > 0
    if (has == has[0]).all():
        return seconds[has[0]].min(axis=0, keepdims=True) if has[0].any() else np.zeros_like(seconds[:1])
    found = np.full((len(has), seconds.shape[-1]), np.inf)
    for kind in np.flatnonzero(has.any(axis=0)):
        np.minimum(found, seconds[kind], out=found, where=has[:, kind, None])
    found[~has.any(axis=1)] = 0.0
    return found
