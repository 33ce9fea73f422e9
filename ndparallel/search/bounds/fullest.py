"""Bytes on the fullest GPU, of thousands of plans at once.

Idea   ndparallel.planner.memory adds up the same bytes for one plan, kind by kind; here a rank's are sums
       over the parts that it consists of.
Limit  Of a schedule that is searched for, the most bytes that it may take.

Glossary: see lower_bound.py.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from ndparallel.pipeline.recipe import Recipe
from ndparallel.planner.layers.kept import on_gpu, passed_messages
from ndparallel.planner.memory.in_flight import chunks_in_flight
from ndparallel.search.bounds.depth import StagePartition
from ndparallel.search.bounds.memory_columns import TRAINED
from ndparallel.search.bounds.plan_table import HEAD, LAYERS, PlanTable, weighted_sum


def peak_bytes(table: PlanTable, depth: StagePartition, recipes: Sequence[Recipe]) -> list[np.ndarray]:
    """Bytes on the fullest GPU, for each of these schedules; of one that is searched for, at the most."""
    per_element, elements = table["per_element"], weighted_sum(depth.parts, table["elements"])
    states = reduce(np.add, (each * held for each, held in zip(per_element, elements)))
    heads, layers = depth.units[:, HEAD, None], depth.units[:, LAYERS]
    once = np.maximum(most(layers, table["once"]), heads * table["prediction_once"])
    held = states + heads * table["logits"] + once
    waiting = table["waiting"] * sum(elements[TRAINED]) if table["waiting"].any() else None
    every = []
    for recipe in recipes:
        rank_bytes = held + activation_bytes(table, depth, recipe)
        if waiting is not None:
            begun = recipe.chunks_begun(table["microbatches"], depth.pp, depth.chunks) / depth.chunks
            rank_bytes -= (1 - begun) * waiting
        every.append(rank_bytes.max(axis=0) + table["reserve"])
    return [np.maximum(each, step_bytes(table, elements)) for each in every] if "step" in table else every


def activation_bytes(table: PlanTable, depth: StagePartition, recipe: Recipe) -> np.ndarray:
    """Bytes of the activations that each rank has in flight, and of messages that it keeps."""
    layers, microbatches, rank = depth.units[:, LAYERS], table["microbatches"], depth.ranks[:, None]
    place = (microbatches, rank, depth.pp, depth.chunks)
    chunks = chunks_in_flight(recipe, *place, table["in_pairs"]) if depth.pp > 1 else 1.0
    kept = chunks * (weighted_sum(layers, table["kept"]) / depth.chunks)
    if table["away"].any():
        kept = on_gpu(kept, most(layers, table["kept"]), table["away"])
    if table["passed"].any():
        messages = passed_messages(recipe.layout, depth.pp, depth.chunks, rank, microbatches, chunks)
        kept = kept + messages * table["passed"]
    return kept


def step_bytes(table: PlanTable, elements: np.ndarray) -> np.ndarray:
    """Bytes on the fullest GPU while the optimizer steps."""
    step, made = (
        none + sum(each * held for each, held in zip(lines, elements))
        for none, *lines in (table["step"], table["made"])
    )
    return (step + np.minimum(made, table["most_made"])).max(axis=0)


def most(layers: np.ndarray, each: np.ndarray) -> np.ndarray:
    """The most of the kinds of layers that there are, (ranks, plans), or (1, plans) where all ranks have the
    same; 0 where there are none."""
    has = layers > 0
    if (has == has[0]).all():
        return each[has[0]].max(axis=0, keepdims=True, initial=0.0)
    found = np.zeros((len(layers), each.shape[1]))
    for kind in np.flatnonzero(has.any(axis=0)):
        np.maximum(found, each[kind], out=found, where=has[:, kind, None])
    return found
