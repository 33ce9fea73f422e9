"""Seconds and bytes of thousands of plans at once: closed forms where `predict` times the schedule's own
actions.

Idea   A bound from below that is near: passes of a pipeline's ranks, which wait for one another
       (pipeline_bound.py), and what travels at the step's ends (tails.py). FSDP's waits in every pass are
       exact (sharded.py), but those of pairs of microbatches. Memory is the fullest rank's, exactly
       (fullest.py).
Cost   some hundred numpy operations, whatever the number of plans.
Limit  What ranks wait for one another on the way (uneven stages, slow messages) is left out but in 1F1B,
       where every second microbatch waits for two messages; and of pairs of microbatches all that goes to
       experts is taken to hide. docs/manual.md says how near the bound is.

Glossary
    columns   what does not depend on schedule and chunks (time_columns.py, memory_columns.py); here the first
              axis of an array is ranks, the last is plans
    tail      seconds behind a rank's last action: gradients, weights and optimizer that nothing hides
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.pipeline.recipe import Recipe
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.stack import Stack
from ndparallel.planner.stages import layers_by_stage
from ndparallel.planner.step.paired import share_in_pairs
from ndparallel.search.bounds.depth import StagePartition, depth_of
from ndparallel.search.bounds.fullest import peak_bytes
from ndparallel.search.bounds.memory_columns import memory_table
from ndparallel.search.bounds.pipeline_bound import PipelineBound, through
from ndparallel.search.bounds.plan_table import DEGREES, PlanTable, some_kept, take, weighted_sum, whole
from ndparallel.search.bounds.tails import reduced_every_microbatch, step_tails
from ndparallel.search.bounds.time_columns import (
    none_of_parts,
    passes_of,
    pricings_of,
    time_tables,
    to_hide,
)

NUMBERS = (*DEGREES, "chunks", "recompute_layers")


@dataclass(frozen=True)
class StepBound:
    """The least seconds of each plan's step, and the bytes on its fullest GPU."""

    seconds: np.ndarray
    memory_bytes: np.ndarray


def lower_bound(job: TrainingJob, plans: Plan) -> StepBound:
    """Bound the steps of an array of plans on the same number of GPUs. Raises UserError for what is timed
    alone: the lessons' own software, and plans that no search has."""
    check_priced(job, plans)
    plans = spread(plans)
    columns = memory_table(job, plans) | time_tables(job, [plans])[0]
    seconds, memory = np.empty(len(plans.tp)), np.empty(len(plans.tp))
    for rows, depth in by_depth(job, plans):
        table = take(columns, rows)
        (seconds[rows],) = least_seconds(table, depth, job.stack, [plans.recipe])
        (memory[rows],) = peak_bytes(table, depth, [plans.recipe])
    return StepBound(seconds, memory)


def fewest_layers(job: TrainingJob, plans: Plan, memory_bytes: float) -> np.ndarray:
    """The least number of recomputed layers of a stage with which each of these plans fits, which have full
    recomputation and fit with all; 0 for all. A layer more never takes more bytes."""
    columns = memory_table(job, replace(plans, recompute_layers=1))
    least, most = np.ones(len(plans.tp), dtype=int), layers_of_largest_stage(job, plans)
    whole = most.copy()
    while (least < most).any():
        middle, fits = (least + most) // 2, np.empty(len(plans.tp), dtype=bool)
        for rows, depth in by_depth(job, replace(plans, recompute_layers=middle)):
            fits[rows] = peak_bytes(take(columns, rows), depth, [plans.recipe])[0] <= memory_bytes
        least, most = np.where(fits, least, middle + 1), np.where(fits, middle, most)
    return np.where(most < whole, most, 0)


def layers_of_largest_stage(job: TrainingJob, plans: Plan) -> np.ndarray:
    shape = job.shape
    most = cache(lambda stages: max(layers_by_stage(shape.layers, stages, shape.prediction_layers)))
    return np.array([most(stages) for stages in plans.stages.tolist()])


def by_depth(job: TrainingJob, plans: Plan) -> Iterator[tuple[np.ndarray, StagePartition]]:
    """The rows of plans that cut the model alike and recompute as many layers of a stage, and how they do."""
    layers = np.broadcast_to(plans.recompute_layers, np.shape(plans.tp))
    if some_kept(plans):
        layers = np.where(layers, layers, job.shape.layers)
    for pp, chunks, recomputed in {*zip(plans.pp.tolist(), plans.chunks.tolist(), layers.tolist())}:
        rows = np.flatnonzero((plans.pp == pp) & (plans.chunks == chunks) & (layers == recomputed))
        yield rows, depth_of(job.shape, pp, chunks, plans.recipe.layout, recomputed)


def least_work(job: TrainingJob, families: Sequence[Plan], pairs: bool) -> np.ndarray:
    """Bound steps whatever their schedule: by what the mean pipeline rank does, and no less than it does the
    slowest one. With `pairs` all hides that pairs of microbatches can hide."""
    return np.concatenate([work_of_mean_rank(one, pairs) for one in pricings_of(job, families)])


def work_of_mean_rank(pricing: Pricing, pairs: bool) -> np.ndarray:
    job, plans = pricing.job, pricing.plan
    hidden = to_hide(pricing) if pairs else none_of_parts(pricing)
    passes, hides = (whole(each, len(plans.tp)) for each in (passes_of(pricing), hidden))
    (counts,) = depth_of(job.shape, 1, 1, RECIPES[Plan.schedule].layout).parts
    return plans.microbatches(job) * weighted_sum(counts, passes - hides).sum(axis=0) / plans.pp


def check_priced(job: TrainingJob, plans: Plan) -> None:
    """Raise UserError for what a bound does not know."""
    if job.stack.executed:
        raise UserError(
            f"software {job.stack.name} is the lessons' own and is timed, not priced; choose a real "
            "framework's."
        )
    if plans.stage_layers:
        raise UserError(
            f"stage_layers is {plans.stage_layers}, and a bound takes all layers to be split evenly: leave "
            "it out, or time the plan with predict."
        )


def spread(plans: Plan) -> Plan:
    """Return the plans with all their numbers as arrays of one length."""
    arrays = np.broadcast_arrays(*(np.atleast_1d(getattr(plans, name)) for name in NUMBERS))
    numbers: dict[str, Any] = dict(zip(NUMBERS, arrays))
    return replace(plans, **numbers)


def least_seconds(
    table: PlanTable, depth: StagePartition, stack: Stack, recipes: Sequence[Recipe]
) -> list[np.ndarray]:
    """Bound each plan's step from below, for each of these schedules. What several of them need is computed
    once; in a schedule's pairs of microbatches at the best all that can hide does."""
    if depth.pp == 1:
        usual = in_pairs(table, depth, recipes[0]) if stack.hides_dispatch else table
        return [without_pipeline(usual, depth, stack)] * len(recipes)
    stack = stack.running(1, depth.pp)  # with ZeRO or without, which `step_tails` tells apart
    kinds = [(recipe.pairs, stack.hides_dispatch and bool(recipe.group)) for recipe in recipes]
    tables = {
        beside: in_pairs(table, depth, recipe) if beside else table
        for recipe, (_, beside) in zip(recipes, kinds)
    }
    tails = {beside: step_tails(each, depth, stack) for beside, each in tables.items()}
    bounds = {
        (pairs, beside): PipelineBound(
            less(table, table["to_hide"]) if pairs else tables[beside], depth, stack, tails[beside]
        )
        for pairs, beside in {*kinds}
    }
    return [bounds[kind].seconds(recipe) for recipe, kind in zip(recipes, kinds)]


def in_pairs(table: PlanTable, depth: StagePartition, recipe: Recipe) -> PlanTable:
    """The software's pairs: of as many passes as run so, what hides does."""
    share = share_in_pairs(recipe, table["microbatches"], depth.pp, depth.chunks)
    return less(table, share * table["hidden"])


def less(table: PlanTable, seconds: np.ndarray) -> PlanTable:
    """The table with shorter passes."""
    return table | {"passes": table["passes"] - seconds}


def without_pipeline(table: PlanTable, depth: StagePartition, stack: Stack) -> np.ndarray:
    work = through(depth.counts, table).sum(axis=0)
    busy = table["microbatches"] * work + reduced_every_microbatch(table, depth)
    return (busy + step_tails(table, depth, stack))[0]
