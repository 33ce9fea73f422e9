"""Seconds and bytes of thousands of plans at once: closed forms where `predict` times the schedule's own
actions.

Idea   A bound from below that is near. No rank begins before a microbatch has come down to it, works less
       than all microbatches, and is done before the last one's gradient has gone back up; the step waits for
       the rank of which all this is longest, and for one microbatch's way through all stages and back. Of
       what travels at the step's ends only the stage that is complete last shows gradients; where FSDP
       keeps weights whole all stages do. FSDP's waits in every pass are exact (sharded.py), but those of
       pairs of microbatches. Memory is the fullest rank's, exactly.
Cost   some hundred numpy operations, whatever the number of plans.
Limit  What ranks wait for one another on the way (uneven stages, slow messages) is left out but in 1F1B,
       where every second microbatch waits for two messages; and of pairs of microbatches all that goes to
       experts is taken to hide. docs/manual.md says how near the bound is.

Glossary
    columns   what does not depend on schedule and chunks (time_columns.py, memory_columns.py); here the first
              axis of an array is ranks, the last is plans
    tail      seconds behind a rank's last action: gradients, weights and optimizer that nothing hides
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.pipeline.recipe import Recipe
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.collective_time import lost_to
from ndparallel.planner.layers.kept import on_gpu, passed_messages
from ndparallel.planner.memory.total import chunks_in_flight
from ndparallel.planner.stack import Stack
from ndparallel.planner.step.paired import share_in_pairs
from ndparallel.search.bounds.depth import StagePartition, depth_of
from ndparallel.search.bounds.memory_columns import TRAINED, memory_table
from ndparallel.search.bounds.plan_table import DEGREES, EMBEDDING, HEAD, LAYERS, OF_UNITS, PlanTable, take
from ndparallel.search.bounds.time_columns import time_tables

NUMBERS = (*DEGREES, "chunks")
TINY = 1e-12  # seconds
F, I, W = range(3)  # places of passes


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
    for pp, chunks in {*zip(plans.pp.tolist(), plans.chunks.tolist())}:
        rows = np.flatnonzero((plans.pp == pp) & (plans.chunks == chunks))
        table, depth = take(columns, rows), depth_of(job.shape, pp, chunks, plans.recipe.layout)
        (seconds[rows],) = least_seconds(table, depth, job.stack, [plans.recipe])
        (memory[rows],) = peak_bytes(table, depth, [plans.recipe])
    return StepBound(seconds, memory)


def check_priced(job: TrainingJob, plans: Plan) -> None:
    """Raise UserError for what a bound does not know."""
    if job.stack.executed:
        raise UserError(
            f"software {job.stack.name} is the lessons' own and is timed, not priced; choose a real "
            "framework's."
        )
    for name in ("recompute_layers", "stage_layers"):
        if apart := getattr(plans, name):
            raise UserError(
                f"{name} is {apart}, and a bound takes all layers to be recomputed alike and split evenly: "
                "leave it out, or time the plan with predict."
            )


def spread(plans: Plan) -> Plan:
    """Return the plans with all their numbers as arrays of one length."""
    arrays = np.broadcast_arrays(*(np.atleast_1d(getattr(plans, name)) for name in NUMBERS))
    numbers: dict[str, Any] = dict(zip(NUMBERS, arrays))
    return replace(plans, **numbers)


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


def through(counts: np.ndarray, table: PlanTable) -> np.ndarray:
    """F, I and W of one microbatch through as many parts as are counted, with what units wait there."""
    parts = table["passes"].shape[1]
    seconds = np.matmul(counts[..., :parts], table["passes"])
    if table["waits"].any():
        seconds[:W] += np.matmul(counts[..., parts:], table["waits"])
    return seconds


def without_pipeline(table: PlanTable, depth: StagePartition, stack: Stack) -> np.ndarray:
    work = through(depth.counts, table).sum(axis=0)
    busy = table["microbatches"] * work + reduced_every_microbatch(table, depth)
    return (busy + step_tails(table, depth, stack))[0]


class PipelineBound:
    """What the bounds of all schedules of a pipeline are made of."""

    def __init__(self, table: PlanTable, depth: StagePartition, stack: Stack, tail: np.ndarray) -> None:
        self.microbatches, self.message, self.tail = table["microbatches"], table["message"], tail
        self.zero_2, rank = table["zero"] == 2, depth.ranks[:, None]
        self.each = through(depth.counts, table)  # F, I and W of one microbatch: (pass, rank, plan)
        self.work = self.each.sum(axis=0)
        self.busy = self.acting = self.microbatches * self.work  # until a rank's tail; until its last action
        self.line = np.zeros_like(self.busy)  # from its first gradients until its tail
        if self.zero_2.any():
            self.busy, self.acting, self.line = (
                np.where(self.zero_2, reducing, usual)
                for reducing, usual in zip(
                    busy_reducing(table, depth, stack, self.work), (self.busy, self.acting, self.line)
                )
            )
        before = through(depth.before, table)
        self.down = before[F] + rank * self.message  # until the first microbatch is there
        self.weights_before = before[W]
        self.down_and_up = before.sum(axis=0) + 2 * rank * self.message
        self.model, self.messages = through(depth.model, table), 2 * (depth.pp - 1) * self.message
        self.beside, self.pp = through(depth.beside, table).sum(axis=0), depth.pp
        self.chunks = depth.chunks
        self.place = self.microbatches, rank, depth.pp, depth.chunks

    def seconds(self, recipe: Recipe) -> np.ndarray:
        if recipe.one_at_a_time:
            return self.microbatches * (self.model.sum(axis=0) + self.messages) + self.tail[0]
        if recipe.is_searched:
            return self.of_equal_spans(recipe)
        acting, busy = self.acting, self.until_tail(recipe)
        if recipe.waits_on_messages:
            acting, busy = np.maximum(self.by_pairs, acting), np.maximum(self.by_pairs, busy)
        if recipe.splits:  # until the last gradient has come up, whatever weights' gradients are left to do
            acting = self.microbatches * self.each[:W].sum(axis=0) - self.weights_before
        last = np.maximum((acting + self.down_and_up).max(axis=0), self.through_all(recipe))
        seconds = np.maximum((self.down + busy + self.tail).max(axis=0), last + self.tail[0])
        return (
            np.maximum(seconds, self.of_first_rank(recipe) + self.tail[0]) if recipe.head_start else seconds
        )

    def through_all(self, recipe: Recipe) -> np.ndarray:
        """One microbatch goes through all stages and back. At every stage one is the last to go forward, and
        one the first to come back: behind the others, or before them."""
        back = self.each[I] if recipe.splits else self.each[I] + self.each[W]
        whole = self.model[:W].sum(axis=0) if recipe.splits else self.model.sum(axis=0)
        others = (self.microbatches - 1) * np.maximum(self.each[F], back).max(axis=0) / self.chunks
        return whole + self.chunks * self.messages + others

    def until_tail(self, recipe: Recipe) -> np.ndarray:
        """A rank's work, or what it does before its first gradients and then its line."""
        if not self.zero_2.any():
            return self.busy
        return np.maximum(self.busy, recipe.microbatches_ahead(*self.place) * self.each[F] + self.line)

    def of_equal_spans(self, recipe: Recipe) -> np.ndarray:
        """Where steps follow without a stop every rank's span counts as long as the longest; what ZeRO-2
        reduces is told from the tail on the same rank alone."""
        first, tail = self.of_first_rank(recipe), self.tail
        reducing = np.maximum((self.until_tail(recipe) + tail).max(axis=0), first + tail[0])
        return np.where(self.zero_2, reducing, np.maximum(self.busy.max(axis=0), first) + tail.max(axis=0))

    def of_first_rank(self, recipe: Recipe) -> np.ndarray:
        """Until its first I the first rank can only do its head start of F."""
        ahead = recipe.head_start(self.pp) if recipe.head_start else np.inf
        first = self.model[F] + self.model[I] - self.each[I, 0] + self.messages + self.busy[0]
        return first - np.minimum(self.microbatches, ahead) * self.each[F, 0]

    @cached_property
    def by_pairs(self) -> np.ndarray:
        """A rank and its neighbour hand two microbatches to and fro in the time of both their work and of two
        messages."""
        pair = (self.work + self.beside) / 2 + self.message
        again = 2 * ((self.microbatches - 1) // 2)
        return again * np.maximum(self.work, pair) + (self.microbatches - again) * self.work


# --------------------------------------------------------------------------------------- the tails of a step


def step_tails(table: PlanTable, depth: StagePartition, stack: Stack) -> np.ndarray:
    """Seconds behind each rank's last action: gradients, weights and optimizer that nothing hides. What
    FSDP's first microbatch waits for weights that stay delays all that follows, and counts here."""
    (reduce, gather), (forward, backward) = table["travel"], units_passes(table)
    one_by_one = np.matmul(depth.units, gather.max(axis=0))
    gathered = exposed(depth.units, gather, forward) if stack.gathers_first else one_by_one
    zero_2, last = table["zero"] == 2, depth.last_units
    gradients = np.where(zero_2, *(np.matmul(units, reduce.sum(axis=0)) for units in (last, depth.units)))
    if stack.dp_overlap:
        shown = (table["zero"] == 3) | (stack.dp_overlap_by_zero & (table["zero"] == 0))
        gradients = np.where(shown, gradients, exposed(last, reduce, backward))
    if depth.pp == 1 and zero_2.any():  # every microbatch reduces, nothing hides what is gathered
        gradients, gathered = np.where(zero_2, 0.0, gradients), np.where(zero_2, one_by_one, gathered)
    none, shared, experts = table["optimizer"]
    elements = np.matmul(depth.parts, table["elements"][TRAINED])
    optimizer = none + shared * elements[0] + experts * elements[1]
    first = np.matmul(depth.model[depth.parts.shape[1] :], table["first_waits"])
    return gradients + gathered + optimizer + depth.has_one_end[:, None] * table["tied"] + first


def busy_reducing(
    table: PlanTable, depth: StagePartition, stack: Stack, work: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ZeRO-2 in a pipeline: how long a rank works until its tail, and until its last action ends, and how
    long its line takes until the tail. Once the pipeline is full, it works beside the reduction of its last
    microbatch, which slows it. Its line reduces every microbatch, of which the tail counts what shows of the
    last; and a stage's backward pass waits until its last microbatch is reduced."""
    microbatches, (reduce, _) = table["microbatches"], table["travel"]
    lines = np.matmul(depth.units, reduce)
    if not stack.dp_overlap:
        last = np.matmul(depth.last_units, reduce.sum(axis=0))
        busy = microbatches * (work + lines.sum(axis=0)) - last
        return busy, busy, np.zeros_like(busy)
    line, (_, backward) = lines.max(axis=0), units_passes(table)
    works = microbatches * work + np.maximum(microbatches - depth.pp, 0) * lost_to(
        line, work, table["slowdown"]
    )
    last = exposed(depth.last_units, reduce, backward)
    waits = (microbatches - 1) * np.matmul(depth.last_units, reduce).max(axis=0)
    return works, np.maximum(works, waits), microbatches * line - last


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
    return reduce(np.maximum, shown, np.zeros((len(units), compute.seconds.shape[-1])))


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
    left = np.matmul(layers, line[LAYERS]) - np.matmul(layers, seconds) - slowed
    shown = np.maximum(one, left + np.maximum(own, head))
    return table * line[EMBEDDING] + slowed + np.maximum(shown - table * compute.seconds[EMBEDDING], 0.0)


def most(layers: np.ndarray, each: np.ndarray) -> np.ndarray:
    """The most of the kinds of layers that there are, (ranks, plans); 0 where there are none."""
    return np.where(layers[..., None] > 0, each, 0.0).max(axis=1, initial=0.0)


def least(layers: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The least seconds of the kinds of layers that there are, (ranks, plans); 0 where there are none."""
    kinds = layers.any(axis=0)
    having = np.where(layers[:, kinds, None] > 0, seconds[kinds], np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isinf(having), 0.0, having)
