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
from ndparallel.planner.memory.total import chunks_in_flight
from ndparallel.search.bounds.depth import StagePartition
from ndparallel.search.bounds.memory_columns import TRAINED
from ndparallel.search.bounds.plan_table import HEAD, LAYERS, PlanTable


def peak_bytes(table: PlanTable, depth: StagePartition, recipes: Sequence[Recipe]) -> list[np.ndarray]:
    """Bytes on the fullest GPU, for each of these schedules; of one that is searched for, at the most."""
    per_element, elements = table["per_element"], np.matmul(depth.parts, table["elements"])
    states = reduce(np.add, (each * held for each, held in zip(per_element, elements)))
    heads, layers = depth.units[:, HEAD, None], depth.units[:, LAYERS]
    once = np.maximum(most(layers, table["once"]), heads * table["prediction_once"])
    held = states + heads * table["logits"] + once
    chunk = np.matmul(layers, table["kept"]) / depth.chunks
    rank, microbatches = depth.ranks[:, None], table["microbatches"]
    waiting, every = table["waiting"] * sum(elements[TRAINED]), []
    for recipe in recipes:
        place = (microbatches, rank, depth.pp, depth.chunks)
        chunks = chunks_in_flight(recipe, *place, table["in_pairs"]) if depth.pp > 1 else 1.0
        messages = passed_messages(recipe.layout, depth.pp, depth.chunks, rank, microbatches, chunks)
        begun = recipe.chunks_begun(microbatches, depth.pp, depth.chunks) / depth.chunks
        passing = messages * table["passed"] - (1 - begun) * waiting
        activations = on_gpu(chunks * chunk, most(layers, table["kept"]), table["away"])
        every.append((held + activations + passing).max(axis=0) + table["reserve"])
    return [np.maximum(each, step_bytes(table, elements)) for each in every] if "step" in table else every


def step_bytes(table: PlanTable, elements: np.ndarray) -> np.ndarray:
    """Bytes on the fullest GPU while the optimizer steps."""
    step, made = (
        none + sum(each * held for each, held in zip(lines, elements))
        for none, *lines in (table["step"], table["made"])
    )
    return (step + np.minimum(made, table["most_made"])).max(axis=0)


def most(layers: np.ndarray, each: np.ndarray) -> np.ndarray:
    """The most of the kinds of layers that there are, (ranks, plans); 0 where there are none."""
    return np.where(layers[..., None] > 0, each, 0.0).max(axis=1, initial=0.0)
