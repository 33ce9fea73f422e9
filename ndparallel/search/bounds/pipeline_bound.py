"""The least seconds of a pipeline's step, of thousands of plans at once.

Idea   A rank begins when the first microbatch has come down to it, works for all of them, and is done when
       the last one's gradient has gone back up; its tail follows. The step takes as long as the rank of which
       all this is longest, and no less than one microbatch's way through all stages and back.
Limit  See lower_bound.py.

Glossary: see lower_bound.py, and
    line    of a rank that reduces every microbatch (ZeRO-2): its collectives, one after another
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ndparallel.pipeline.recipe import Recipe
from ndparallel.planner.layers.collective_time import lost_to
from ndparallel.planner.stack import Stack
from ndparallel.search.bounds.depth import StagePartition
from ndparallel.search.bounds.plan_table import PlanTable, take, weighted_sum
from ndparallel.search.bounds.tails import exposed, units_passes

F, I, W = range(3)  # places of passes


class Spans(NamedTuple):
    """Seconds of each rank, (rank, plan), without what it waits for others: until its tail (`busy`), and
    until its last action; of its line, from its first gradients until its tail, 0 where it has none."""

    busy: np.ndarray
    acting: np.ndarray
    line: np.ndarray


@dataclass(frozen=True, eq=False)
class PipelineBound:
    """What the bounds of all schedules of a pipeline are made of: arrays (rank, plan), of passes (pass, rank,
    plan)."""

    table: PlanTable
    depth: StagePartition
    stack: Stack
    tail: np.ndarray

    @cached_property
    def microbatches(self) -> np.ndarray:
        return self.table["microbatches"]

    @cached_property
    def zero_2(self) -> np.ndarray:
        return self.table["zero"] == 2

    @cached_property
    def ranks(self) -> np.ndarray:
        return self.depth.ranks[:, None]

    @cached_property
    def each(self) -> np.ndarray:
        """F, I and W of one microbatch on each rank."""
        return through(self.depth.counts, self.table)

    @cached_property
    def work(self) -> np.ndarray:
        """All of one microbatch on each rank."""
        return self.each.sum(axis=0)

    @cached_property
    def neighbours_work(self) -> np.ndarray:
        return through(self.depth.beside, self.table).sum(axis=0)

    @cached_property
    def model(self) -> np.ndarray:
        """F, I and W of one microbatch through all stages."""
        return through(self.depth.model, self.table)

    @cached_property
    def messages(self) -> np.ndarray:
        """Those of one microbatch's way through all ranks and back."""
        return 2 * (self.depth.pp - 1) * self.table["message"]

    @cached_property
    def before(self) -> np.ndarray:
        """F, I and W of one microbatch on the stages before each rank."""
        return through(self.depth.before, self.table)

    @cached_property
    def down(self) -> np.ndarray:
        """Until the first microbatch has come to each rank."""
        return self.before[F] + self.ranks * self.table["message"]

    @cached_property
    def down_and_up(self) -> np.ndarray:
        """The way down to each rank, and back up."""
        return self.before.sum(axis=0) + 2 * self.ranks * self.table["message"]

    @cached_property
    def spans(self) -> Spans:
        whole = self.microbatches * self.work
        if not self.zero_2.any():
            return Spans(whole, whole, np.zeros_like(whole))
        rows, spans = np.flatnonzero(self.zero_2), Spans(whole, whole.copy(), np.zeros_like(whole))
        some = replace(self, table=take(self.table, rows), tail=self.tail[:, rows]).reducing
        for all_rows, reducing in zip(spans, some):
            all_rows[:, rows] = reducing
        return spans

    @cached_property
    def reducing(self) -> Spans:
        """The spans with ZeRO-2. Once the pipeline is full, a rank works beside the reduction of its last
        microbatch, which slows it. Its line reduces every microbatch, of which the tail counts what shows of
        the last; and a stage's backward pass waits until its last microbatch is reduced."""
        (reduce, _), last_units = self.table["travel"], self.depth.last_units
        lines = weighted_sum(self.depth.units, reduce)
        if not self.stack.dp_overlap:
            last = weighted_sum(last_units, reduce.sum(axis=0))
            busy = self.microbatches * (self.work + lines.sum(axis=0)) - last
            return Spans(busy, busy, np.zeros_like(busy))
        line, (_, backward) = lines.max(axis=0), units_passes(self.table)
        beside = np.maximum(self.microbatches - self.depth.pp, 0)  # microbatches
        busy = self.microbatches * self.work + beside * lost_to(line, self.work, self.table["slowdown"])
        waits = (self.microbatches - 1) * weighted_sum(last_units, reduce).max(axis=0)
        shown = exposed(last_units, reduce, backward)
        return Spans(busy, np.maximum(busy, waits), self.microbatches * line - shown)

    def seconds(self, recipe: Recipe) -> np.ndarray:
        if recipe.one_at_a_time:
            return self.microbatches * (self.model.sum(axis=0) + self.messages) + self.tail[0]
        if recipe.is_searched:
            return self.of_equal_spans(recipe)
        acting, busy = self.spans.acting, self.until_tail(recipe)
        if recipe.waits_on_messages:
            acting, busy = np.maximum(self.by_pairs, acting), np.maximum(self.by_pairs, busy)
        if recipe.splits:  # until the last gradient has come up, whatever weights' gradients are left to do
            acting = self.microbatches * self.each[:W].sum(axis=0) - self.before[W]
        last = np.maximum((acting + self.down_and_up).max(axis=0), self.through_all(recipe))
        seconds = np.maximum((self.down + busy + self.tail).max(axis=0), last + self.tail[0])
        if recipe.head_start:
            seconds = np.maximum(seconds, self.with_first_wait(recipe)[0] + self.tail[0])
        return seconds

    def through_all(self, recipe: Recipe) -> np.ndarray:
        """One microbatch goes through all stages and back. At every stage one is the last to go forward, and
        one the first to come back: behind the others, or before them."""
        back = self.each[I] if recipe.splits else self.each[I] + self.each[W]
        whole = self.model[:W].sum(axis=0) if recipe.splits else self.model.sum(axis=0)
        others = (self.microbatches - 1) * np.maximum(self.each[F], back).max(axis=0) / self.depth.chunks
        return whole + self.depth.chunks * self.messages + others

    def until_tail(self, recipe: Recipe) -> np.ndarray:
        """A rank's work, or what it does before its first gradients and then its line."""
        if not self.zero_2.any():
            return self.spans.busy
        place = self.microbatches, self.ranks, self.depth.pp, self.depth.chunks
        ahead = recipe.microbatches_ahead(*place) * self.each[F]
        return np.maximum(self.spans.busy, ahead + self.spans.line)

    def of_equal_spans(self, recipe: Recipe) -> np.ndarray:
        """Where steps follow without a stop every rank's span counts as long as the longest; what ZeRO-2
        reduces is told from the tail on the same rank alone."""
        waiting = self.with_first_wait(recipe)
        reducing = (np.maximum(self.until_tail(recipe), waiting) + self.tail).max(axis=0)
        usual = np.maximum(self.spans.busy, waiting).max(axis=0) + self.tail.max(axis=0)
        return np.where(self.zero_2, reducing, usual)

    def with_first_wait(self, recipe: Recipe) -> np.ndarray:
        """A rank's work, and how long it waits for its first I. Until then it does no more than its head
        start of F. A searched order has room for as many on every rank; of a written one `head_start` is the
        first rank's, so that the other ranks' rows say nothing."""
        ahead = recipe.head_start(self.depth.pp) if recipe.head_start else np.inf
        below = self.model[:, None] - self.before
        messages = 2 * (self.depth.pp - 1 - self.ranks) * self.table["message"]
        back = below[F] + below[I] - self.each[I] + messages
        return self.spans.busy + back - np.minimum(self.microbatches, ahead) * self.each[F]

    @cached_property
    def by_pairs(self) -> np.ndarray:
        """A rank and its neighbour hand two microbatches to and fro in the time of both their work and of two
        messages."""
        pair = (self.work + self.neighbours_work) / 2 + self.table["message"]
        again = 2 * ((self.microbatches - 1) // 2)
        return again * np.maximum(self.work, pair) + (self.microbatches - again) * self.work


def through(counts: np.ndarray, table: PlanTable) -> np.ndarray:
    """F, I and W of one microbatch through as many parts as are counted, with what units wait there."""
    parts = table["passes"].shape[1]
    seconds = weighted_sum(counts[..., :parts], table["passes"])
    if table["waits"].any():
        seconds[:W] += weighted_sum(counts[..., parts:], table["waits"])
    return seconds
