"""Seconds and bytes of thousands of plans at once: closed forms where `predict` times the schedule's own
actions.

Idea   A bound from below that is near. No rank begins before a microbatch has come down to it, works less
       than all microbatches, and is done before the last one's gradient has gone back up; the step waits for
       the rank of which all this is longest. What hides behind compute at the step's ends follows from equal
       layers, of which only those of the stage that is complete last show gradients. Memory is the fullest
       rank's, exactly.
Cost   some hundred numpy operations, whatever the number of plans.
Limit  What ranks wait for one another on the way (uneven stages, slow messages) is left out but in 1F1B,
       where every second microbatch waits for two messages. docs/manual.md says how near the bound is.

Glossary
    columns   what does not depend on schedule and chunks (columns.py); here the first axis of an array is
              ranks, the last is plans
    tail      seconds behind a rank's last action: gradients, weights and optimizer that nothing hides
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.pipeline.recipe import Recipe
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.collective_time import lost_to
from ndparallel.planner.software import Stack
from ndparallel.search.bounds.columns import DEGREES, PlanTable, columns_of, take
from ndparallel.search.bounds.depth import StagePartition, depth_of

NUMBERS = (*DEGREES, "chunks")


@dataclass(frozen=True)
class StepBound:
    """The least seconds of each plan's step, and the bytes on its fullest GPU."""

    seconds: np.ndarray
    memory_bytes: np.ndarray


def lower_bound(job: TrainingJob, plans: Plan) -> StepBound:
    """Bound the steps of an array of plans on the same number of GPUs. Raises UserError for the lessons' own
    software, which is timed alone."""
    if job.stack.executed:
        raise UserError(
            f"software {job.stack.name} is the lessons' own and is timed, not priced; choose a real "
            "framework's."
        )
    plans = spread(plans)
    columns = columns_of(job, plans)
    seconds, memory = np.empty(len(plans.tp)), np.empty(len(plans.tp))
    for pp, chunks in {*zip(plans.pp.tolist(), plans.chunks.tolist())}:
        rows = np.flatnonzero((plans.pp == pp) & (plans.chunks == chunks))
        table, depth = take(columns, rows), depth_of(job.shape, pp, chunks, plans.recipe.layout)
        timed = in_pairs(table) if plans.recipe.pairs and pp > 1 else table
        (seconds[rows],) = least_seconds(timed, depth, job.stack, [plans.recipe])
        (memory[rows],) = peak_bytes(table, depth, [plans.recipe])
    return StepBound(seconds, memory)


def in_pairs(columns: PlanTable) -> PlanTable:
    """At the best all that goes to experts hides; what hides behind a pass that is over still does so."""
    return columns | {"timed": columns["passes"] - columns["to_experts"]}


def spread(plans: Plan) -> Plan:
    """The same plans with all their numbers as arrays of one length."""
    arrays = np.broadcast_arrays(*(np.atleast_1d(getattr(plans, name)) for name in NUMBERS))
    numbers: dict[str, Any] = dict(zip(NUMBERS, arrays))
    return replace(plans, **numbers)


def peak_bytes(table: PlanTable, depth: StagePartition, recipes: Sequence[Recipe]) -> list[np.ndarray]:
    """Bytes on the fullest GPU, for each of these schedules; of one that is searched for, at the most."""
    per_element, elements = table["per_element"], np.matmul(depth.parts, table["elements"])
    held = per_element[0] * elements[0] + per_element[1] * elements[1] + depth.parts[:, 4:] * table["logits"]
    chunk = depth.layers[:, None] / depth.chunks * table["kept"]
    rank, microbatches = depth.ranks[:, None], table["microbatches"]
    in_flight = [
        recipe.peak_in_flight(microbatches, rank, depth.pp, depth.chunks) if depth.pp > 1 else 1.0
        for recipe in recipes
    ]
    return [(held + chunks * chunk).max(axis=0) + table["reserve"] for chunks in in_flight]


def least_seconds(
    table: PlanTable, depth: StagePartition, stack: Stack, recipes: Sequence[Recipe]
) -> list[np.ndarray]:
    """Bound each plan's step from below, for each of these schedules. What all of them need is computed
    once."""
    passes = table.get("timed", table["passes"])  # as the schedule runs them
    microbatches, message, rank = table["microbatches"], table["message"], depth.ranks[:, None]
    each = np.matmul(depth.parts, passes)  # F, I and W of one microbatch: (pass, rank, plan)
    work = each.sum(axis=0)
    busy, zero_2 = microbatches * work, table["zero"] == 2
    tail = step_tails(table, depth, stack)
    if depth.pp == 1:
        return [(busy + reduced_every_microbatch(table, depth) + tail)[0]] * len(recipes)
    if zero_2.any():
        busy = np.where(zero_2, busy_reducing(table, depth, stack, work), busy)
    before = np.matmul(depth.before, passes)
    down = before[0] + rank * message  # until the first microbatch is there
    down_and_up = before.sum(axis=0) + 2 * rank * message
    model, messages = np.matmul(depth.model, passes), 2 * (depth.pp - 1) * message

    def bound(recipe: Recipe) -> np.ndarray:
        if recipe.one_at_a_time:
            return microbatches * (model.sum(axis=0) + messages) + tail[0]
        # the first rank: until its first I only its head start of F can be done
        ahead = recipe.head_start(depth.pp) if recipe.head_start else np.inf
        first = model[0] + model[1] - each[1, 0] + messages + busy[0]
        first = first - np.minimum(microbatches, ahead) * each[0, 0]
        if recipe.is_searched:
            return np.maximum(busy.max(axis=0), first) + tail.max(axis=0)
        works = by_pairs() if recipe.waits_on_messages else busy
        if recipe.splits:  # until the last gradient has come up, whatever weights' gradients are left to do
            last = (microbatches * each[:2].sum(axis=0) + down_and_up - before[2]).max(axis=0)
        else:
            last = (works + down_and_up).max(axis=0)
        seconds = np.maximum((down + works + tail).max(axis=0), last + tail[0])
        return np.maximum(seconds, first + tail[0]) if recipe.head_start else seconds

    def by_pairs() -> np.ndarray:
        """A rank and its neighbour hand two microbatches to and fro in the time of both their work and of two
        messages."""
        pair = (work + np.matmul(depth.beside, passes).sum(axis=0)) / 2 + message
        again = 2 * ((microbatches - 1) // 2)
        works = again * np.maximum(work, pair) + (microbatches - again) * work
        return np.where(zero_2, np.maximum(works, busy), works)

    return [bound(recipe) for recipe in recipes]


# --------------------------------------------------------------------------------------- the tails of a step


def step_tails(table: PlanTable, depth: StagePartition, stack: Stack) -> np.ndarray:
    """Seconds behind each rank's last action: gradients, weights and optimizer that nothing hides."""
    (forward, inputs, weights), (reduce, gather) = table["passes"], table["travel"]
    gradients = exposed(depth, reduce, inputs + weights, stack.dp_overlap, depth.last_stages)
    gathered = exposed(depth, gather, forward, stack.gathers_first, depth.parts)
    zero_2 = table["zero"] == 2
    if depth.pp == 1 and zero_2.any():  # every microbatch reduces, nothing hides what is gathered
        gradients = np.where(zero_2, 0.0, gradients)
        gathered = np.where(zero_2, exposed(depth, gather, forward, False, depth.parts), gathered)
    none, shared, experts = table["optimizer"]
    elements = np.matmul(depth.parts, table["elements"])
    optimizer = none + shared * elements[0] + experts * elements[1]
    has_one_end = (depth.parts[:, 3] > 0) != (depth.parts[:, 4] > 0)  # the embedding or the head, not both
    return gradients + gathered + optimizer + has_one_end[:, None] * table["tied"]


def busy_reducing(table: PlanTable, depth: StagePartition, stack: Stack, work: np.ndarray) -> np.ndarray:
    """ZeRO-2 in a pipeline: once it is full, a rank works beside the reduction of its last microbatch, which
    slows it; and its line reduces every microbatch, of which the tail counts what shows of the last."""
    microbatches, reduce = table["microbatches"], table["travel"][0]
    lines = np.matmul(depth.parts[:, 1:], reduce)
    if not stack.dp_overlap:
        return microbatches * (work + lines.sum(axis=0)) - lines.sum(axis=0)
    line, backward = lines.max(axis=0), table["passes"][1] + table["passes"][2]
    slower = np.maximum(microbatches - depth.pp, 0) * lost_to(line, work)
    last = exposed(depth, reduce, backward, True, depth.last_stages)
    return np.maximum(microbatches * work + slower, microbatches * line - last)


def reduced_every_microbatch(table: PlanTable, depth: StagePartition) -> np.ndarray:
    """ZeRO-2 without a pipeline: what is left of each microbatch's gradients when its backward pass ends."""
    _, inputs, weights = table["passes"]
    left = exposed(depth, table["travel"][0], inputs + weights, True, depth.parts)
    return np.where(table["zero"] == 2, table["microbatches"] * left, 0.0)


def exposed(
    depth: StagePartition, lines: np.ndarray, compute: np.ndarray, overlap: bool, parts: np.ndarray
) -> np.ndarray:
    """What a pass over these parts of a rank does not hide of collectives, one for each unit. Lines run side
    by side. Without overlap nothing of what the whole rank sends is hidden."""
    if not overlap:
        return np.matmul(depth.parts[:, 1:], lines).sum(axis=0)
    shown = [exposed_line(parts, depth.layers[:, None], line, compute) for line in lines if line.any()]
    return reduce(np.maximum, shown, np.zeros((len(depth.parts), compute.shape[-1])))


def exposed_line(
    parts: np.ndarray, all_layers: np.ndarray, line: np.ndarray, compute: np.ndarray
) -> np.ndarray:
    """Collectives follow one another; what shows began behind the last layer, the first one, or the head.
    Beside the table's own, which hides nowhere, the embedding's compute hides a little of the others. What
    hides slows the layer that it hides behind, in the stages that are complete before too."""
    layers = (parts[:, 1] + parts[:, 2])[:, None]
    mean = parts[:, 1:3] / np.maximum(layers, 1)
    one, beside = np.matmul(mean, line[:2]), np.matmul(mean, compute[1:3])
    table, head = parts[:, 3:4] * line[2], parts[:, 4:] * line[3]
    slowed = lost_to(one, beside)
    beside = beside + slowed
    shown = np.maximum(one, np.maximum(layers * one - (layers - 1) * beside, head + layers * (one - beside)))
    return table + (all_layers - 1) * slowed + np.maximum(shown - parts[:, 3:4] * compute[3], 0.0)
