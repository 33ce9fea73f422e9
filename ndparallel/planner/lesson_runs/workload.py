"""What each pipeline rank of an executed run of the lessons has to do: the workload of the "pocket" stack.

Idea   The same questions as `ndparallel.planner.step.workload` answers for real frameworks, answered from
       what one rank of the executed layers does (ndparallel.planner.lesson_runs.record).
Limit  As ndparallel.planner.lesson_runs.record; links that differ within a tp group delay the ranks of a
       pipeline stage by different times, of which the longest is taken.

Glossary: see `ndparallel.planner.step.workload`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf

import numpy as np

from ndparallel.model import costs
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.operations import CollectiveOp, Hold
from ndparallel.planner.lesson_runs.optimizer import global_norm, norm_over_pp, owned, stepped, summed
from ndparallel.planner.lesson_runs.stage_units import StageUnits
from ndparallel.planner.step.overlap import BucketCost, UnitCost
from ndparallel.planner.step.streams import Item, StreamClock
from ndparallel.planner.step.workload import StageCollective


@dataclass(frozen=True)
class ExecutedWorkload(StageUnits):
    """The workload of one plan of a job of the lessons' model."""

    def buckets(self, stage: int) -> list[BucketCost]:
        return [self.bucket(run, f"{stage}.{number}") for number, run in enumerate(self.runs(stage))]

    def bucket(self, run: Sequence[str], name: str) -> BucketCost:
        units = [UnitCost(*(self.rank.items(kind, op) for op in "FBW")) for kind in run]
        collective = "reduce_scatter" if self.plan.zero else "all_reduce"
        reduce = self.exchanges(f"gradients {name}", collective, run, self.gradient_itemsize)
        gather = self.exchanges(f"weights {name}", "all_gather", run, self.itemsize)
        weights, gradients = self.whole(run), self.whole(run) // self.itemsize * self.gradient_itemsize
        return BucketCost(units, reduce, gather, self.shared_by(run), (weights, gradients))

    def exchanges(self, name: str, collective: str, run: Sequence[str], itemsize: int) -> list[CollectiveOp]:
        """Return a collective for each bucket of a run that several ranks share."""
        return [
            CollectiveOp(
                name + what, collective, self.averaging_groups[kind], size * itemsize, itemsize=itemsize
            )
            for what, size, kind in self.vocabulary.parts(run)
            if self.owners[kind] > 1
        ]

    def shared_by(self, run: Sequence[str]) -> list[CollectiveOp]:
        """The sums over tp of gradients that its ranks share: one for each number of sharers."""
        sizes: dict[int, int] = defaultdict(int)
        for kind in run:
            for parameter in self.units[kind].parameters:
                sizes[parameter.shared_by] += parameter.size
        return [
            summed(f"shared by {sharers}", f"tp/{sharers}", size, self.gradient_itemsize)
            for sharers, size in sizes.items()
            if sharers > 1
        ]

    # ---- the pipeline

    @cached_property
    def columns(self) -> tuple[list[TimeBreakdown], list[TimeBreakdown], list[TimeBreakdown]]:
        forward, inputs, weights = (
            [self.action_seconds(op, stage) for stage in range(self.plan.stages)] for op in "FIW"
        )
        return forward, inputs, weights

    @cached_property
    def whole_backward(self) -> list[TimeBreakdown]:
        """What goes to experts hides behind gradients of weights."""
        return [self.action_seconds("B", stage) for stage in range(self.plan.stages)]

    def action_seconds(self, op: str, stage: int) -> TimeBreakdown:
        streams = StreamClock(self.machine)
        streams.run(self.action_items(op, stage))
        return TimeBreakdown({kind: float(np.max(seconds)) for kind, seconds in streams.spent.items()})

    @cached_property
    def known_items(self) -> dict[tuple[str, str], list[Item]]:
        """Lists by op and kind of unit, once they have been asked for."""
        return {}

    def action_items(self, op: str, stage: int) -> list[Item]:
        kinds = self.kinds[stage] if op == "F" else self.kinds[stage][::-1]
        return [item for kind in kinds for item in self.rank.items(kind, op)]

    @property
    def message_bytes(self) -> int:
        return self.rank.activation.nbytes

    def messages(self) -> tuple[np.ndarray, np.ndarray]:
        """Latency and wire time of a message between stages, by [sending rank][receiving rank]."""
        mesh, hardware = self.machine.mesh, self.job.hardware
        place = [mesh.rank(pp=rank) for rank in range(self.plan.pp)]
        links = [[hardware.link(a, b) for b in place] for a in place]
        latency = [[link.latency_seconds for link in row] for row in links]
        bandwidth = [[link.bandwidth_bytes_per_second for link in row] for row in links]
        return np.array(latency), self.message_bytes / np.array(bandwidth)

    # ---- the end of a step

    @cached_property
    def stage_collectives(self) -> Sequence[StageCollective]:
        """What pipeline ranks sum behind the gradients of dp: tables that two of them hold, and the
        norm. Sums over tp are in the buckets."""
        ends, ranks, machine = (0, self.plan.pp - 1), range(self.plan.pp), self.machine
        tables = [StageCollective(ends, each, partial(machine.across, each, ends)) for each in self.tied_sums]
        before = partial(global_norm, self, machine=machine)
        norms = [
            StageCollective(ranks, each, partial(machine.across, each, ranks), before)
            for each in norm_over_pp(self)
        ]
        return [*tables, *norms]

    @property
    def tied_sums(self) -> list[CollectiveOp]:
        """The sum of the gradients of a table that two pipeline ranks hold, as each of them owns it."""
        layout = self.plan.layout
        if not self.config.tied or layout.rank(0) == layout.rank(self.plan.stages - 1):
            return []
        *_, (_, table, kind) = self.vocabulary.parts(["embedding"])
        elements = owned(self, table, kind, self.machine)
        return [summed("gradients of both ends", "tied", elements, self.gradient_itemsize)]

    def optimizer(self, rank: int) -> list[Item]:
        alone = global_norm(self, rank, self.machine) if self.plan.pp == 1 else []
        return [*alone, *stepped(self, rank, self.machine)]

    def longest_tail(self, rank: int) -> float:
        return inf

    # ---- memory

    def states(self, rank: int) -> list[Item]:
        """Weights, gradients, AdamW's two moments and masters, as ndparallel/training/buckets.py holds them;
        shards are those of the first owner, whose are the largest."""
        zero, parts = self.plan.zero, [(int(np.max(size)), kind) for size, kind in self.parts(rank)]
        whole = sum(size for size, _ in parts)
        first = sum(-(-size // int(self.owners[kind])) for size, kind in parts)
        share = first if zero else whole
        weights, gradients = share if zero == 3 else whole, share if zero >= 2 else whole
        optimizer = (2 + self.has_masters) * costs.itemsize(self.wide_dtype)
        return [
            Hold("weights", weights * self.itemsize),
            Hold("gradients", gradients * self.gradient_itemsize),
            Hold("optimizer", share * optimizer),
        ]
