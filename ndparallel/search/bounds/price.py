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
    ends      seconds behind a rank's last action: gradients, weights and optimizer that nothing hides
"""

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.pipeline.recipe import Recipe
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.collective_time import lost_to
from ndparallel.planner.software import Stack
from ndparallel.search.bounds.columns import DEGREES, PlanTable, columns_of, take
from ndparallel.search.bounds.depth import StagePartition, depth_of

NUMBERS = (*DEGREES, "chunks")


@dataclass(frozen=True)
class StepBound:
    """Of plans: the least seconds of a step, and bytes on the fullest GPU."""

    seconds: np.ndarray
    memory_bytes: np.ndarray


def price(job: TrainingJob, plans: Plan) -> StepBound:
    """StepBound an array of plans on the same number of GPUs. Raises UserError for the lessons' own software,
    which is timed alone."""
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
        mine = in_pairs(take(columns, rows)) if plans.recipe.pairs and pp > 1 else take(columns, rows)
        these = PipelineBounds(mine, depth_of(job.shape, pp, chunks, plans.recipe.layout), job.stack)
        seconds[rows], memory[rows] = these.least_seconds(plans.schedule), these.peak_bytes(plans.schedule)
    return StepBound(seconds, memory)


def in_pairs(columns: PlanTable) -> PlanTable:
    """At the best all that goes to experts hides; what hides behind a pass that is over still does so."""
    return columns | {"timed": columns["passes"] - columns["to_experts"]}


def spread(plans: Plan) -> Plan:
    """The same plans with all their numbers as arrays of one length."""
    arrays = np.broadcast_arrays(*(np.atleast_1d(getattr(plans, name)) for name in NUMBERS))
    numbers: dict[str, Any] = dict(zip(NUMBERS, arrays))
    return replace(plans, **numbers)


@dataclass(frozen=True)
class PipelineBounds:
    """Plans that are cut alike in depth; what all schedules need is computed once. Arrays are (rank,
    plan)."""

    columns: PlanTable
    depth: StagePartition
    stack: Stack

    @property
    def timed(self) -> str:
        """The column of passes as the schedule runs them."""
        return "timed" if "timed" in self.columns else "passes"

    def sums(self, parts: np.ndarray, column: str) -> np.ndarray:
        """What runs of stages, counted by part, have of a column."""
        return np.matmul(parts, self.columns[column])

    # ---- memory

    def peak_bytes(self, schedule: str) -> np.ndarray:
        """Bytes on the fullest GPU; of a schedule that is searched for, at the most."""
        depth, chunks = self.depth, 1.0
        if depth.pp > 1:
            chunks = RECIPES[schedule].peak_in_flight(
                self.columns["microbatches"], depth.ranks[:, None], depth.pp, depth.chunks
            )
        return (self.held_anyway + chunks * self.chunk_bytes).max(axis=0) + self.columns["reserve"]

    @cached_property
    def held_anyway(self) -> np.ndarray:
        per_element, held = self.columns["per_element"], self.sums(self.depth.parts, "elements")
        return (
            per_element[0] * held[0]
            + per_element[1] * held[1]
            + self.depth.parts[:, 4:] * self.columns["logits"]
        )

    @cached_property
    def chunk_bytes(self) -> np.ndarray:
        return self.depth.layers[:, None] / self.depth.chunks * self.columns["kept"]

    # ---- seconds

    def least_seconds(self, schedule: str) -> np.ndarray:
        """A bound from below of each plan's step."""
        if self.depth.pp == 1:
            return (self.busy + self.reduced_every_time + self.ends)[0]
        recipe = RECIPES[schedule]
        if recipe.one_at_a_time:
            return self.alone + self.ends[0]
        if recipe.is_searched:
            return np.maximum(self.busy.max(axis=0), self.first_rank(recipe)) + self.ends.max(axis=0)
        busy = self.by_pairs if recipe.waits_on_messages else self.busy
        last = self.all_but_weights if recipe.splits else (busy + self.down_and_up).max(axis=0)
        seconds = np.maximum((self.down + busy + self.ends).max(axis=0), last + self.ends[0])
        return np.maximum(seconds, self.first_rank(recipe) + self.ends[0]) if recipe.head_start else seconds

    @property
    def microbatches(self) -> np.ndarray:
        return self.columns["microbatches"]

    @cached_property
    def each(self) -> np.ndarray:
        """F, I and W of one microbatch: (pass, rank, plan)."""
        return self.sums(self.depth.parts, self.timed)

    @cached_property
    def busy(self) -> np.ndarray:
        return self.microbatches * self.each.sum(axis=0)

    @cached_property
    def before(self) -> np.ndarray:
        return self.sums(self.depth.before, self.timed)

    @cached_property
    def down(self) -> np.ndarray:
        """Until the first microbatch is there."""
        return self.before[0] + self.depth.ranks[:, None] * self.columns["message"]

    @cached_property
    def down_and_up(self) -> np.ndarray:
        return self.before.sum(axis=0) + 2 * self.depth.ranks[:, None] * self.columns["message"]

    @cached_property
    def all_but_weights(self) -> np.ndarray:
        """Until the last gradient has come up, whoever has weights' gradients left to do."""
        return (self.microbatches * self.each[:2].sum(axis=0) + self.down_and_up - self.before[2]).max(axis=0)

    @cached_property
    def alone(self) -> np.ndarray:
        """One microbatch after another, down and up."""
        way = (
            self.sums(self.depth.model, self.timed).sum(axis=0)
            + 2 * (self.depth.pp - 1) * self.columns["message"]
        )
        return self.microbatches * way

    @cached_property
    def by_pairs(self) -> np.ndarray:
        """1F1B: a rank and its neighbour hand two microbatches to and fro in the time of both their work and
        of two messages."""
        each = self.each.sum(axis=0)
        pair = (each + self.sums(self.depth.beside, self.timed).sum(axis=0)) / 2 + self.columns["message"]
        again = 2 * ((self.microbatches - 1) // 2)
        return again * np.maximum(each, pair) + (self.microbatches - again) * each

    def first_rank(self, recipe: Recipe) -> np.ndarray:
        """The first rank's end: until its first I only its head start of F can be done."""
        forward, inputs, _ = self.sums(self.depth.model, self.timed)
        first = forward + inputs - self.each[1, 0] + 2 * (self.depth.pp - 1) * self.columns["message"]
        ahead = recipe.head_start(self.depth.pp) if recipe.head_start else np.inf
        return first + self.busy[0] - np.minimum(self.microbatches, ahead) * self.each[0, 0]

    # ---- the ends of a step

    @cached_property
    def ends(self) -> np.ndarray:
        """Seconds behind each rank's last action."""
        (forward, inputs, weights), (reduce, gather) = self.columns["passes"], self.columns["travel"]
        gradients = self.exposed(reduce, inputs + weights, self.stack.dp_overlap, self.depth.last_stages)
        hidden = self.exposed(gather, forward, self.stack.gathers_first, self.depth.parts)
        # every microbatch reduces, nothing hides what is gathered
        if self.depth.pp == 1 and self.zero_2.any():
            gradients, hidden = (
                np.where(self.zero_2, 0.0, gradients),
                np.where(self.zero_2, self.exposed(gather, forward, False, self.depth.parts), hidden),
            )
        return gradients + hidden + self.optimizer + self.one_end[:, None] * self.columns["tied"]

    @property
    def one_end(self) -> np.ndarray:
        """Whether a rank has the embedding or the head, and not both."""
        return (self.depth.parts[:, 3] > 0) != (self.depth.parts[:, 4] > 0)

    @property
    def zero_2(self) -> np.ndarray:
        return self.columns["zero"] == 2

    @property
    def optimizer(self) -> np.ndarray:
        none, shared, experts = self.columns["optimizer"]
        held = self.sums(self.depth.parts, "elements")
        return none + shared * held[0] + experts * held[1]

    @property
    def reduced_every_time(self) -> np.ndarray:
        """ZeRO-2 without a pipeline: what is left of each microbatch's gradients when its backward pass
        ends."""
        _, inputs, weights = self.columns["passes"]
        return np.where(
            self.zero_2,
            self.microbatches
            * self.exposed(self.columns["travel"][0], inputs + weights, True, self.depth.parts),
            0.0,
        )

    def exposed(self, lines: np.ndarray, compute: np.ndarray, overlap: bool, parts: np.ndarray) -> np.ndarray:
        """What a pass over these parts of a rank does not hide of collectives, one for each unit. Lines run
        side by side. Without overlap nothing of what the whole rank sends is hidden."""
        if not overlap:
            return np.matmul(self.depth.parts[:, 1:], lines).sum(axis=0)
        shown = [
            exposed_line(parts, self.depth.layers[:, None], line, compute) for line in lines if line.any()
        ]
        return reduce(np.maximum, shown, np.zeros_like(self.each[0]))


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
