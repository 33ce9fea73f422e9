"""What each pipeline rank of an executed run of the lessons has to do: the workload of the "pocket" stack.

Idea   The same questions as `ndparallel.planner.step.workload` answers for real frameworks, answered from the
       lists of executed layers. Buckets, units and what the ranks share are cut as
       ndparallel/training/buckets.py and ndparallel/model/layers.py cut them.
Limit  As ndparallel.planner.lesson_runs.layers; links that differ within a tp group delay the ranks of a
       pipeline stage by different times, of which the longest is taken.

Glossary: see `ndparallel.planner.step.workload`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ndparallel.model import costs
from ndparallel.model.costs import Sizes
from ndparallel.model.routing import capacity
from ndparallel.model.units import ModelConfig, local_sizes
from ndparallel.parallel.mesh import Mesh
from ndparallel.pipeline.actions import Schedule
from ndparallel.pipeline.work import spread_layers
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.operations import CollectiveOp, Hold
from ndparallel.planner.lesson_runs.cluster import LockstepMachine
from ndparallel.planner.lesson_runs.experts import ExecutedExperts
from ndparallel.planner.lesson_runs.layers import ExecutedLists
from ndparallel.planner.lesson_runs.model import check_executed, config_of
from ndparallel.planner.lesson_runs.routing import Routes, routed
from ndparallel.planner.step.overlap import BucketCost, UnitCost
from ndparallel.planner.step.streams import Item, MemoryLedger, StreamClock

PASSES = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}


@dataclass(frozen=True)
class ExecutedWorkload:
    """Of one plan of a job of the lessons' model."""

    job: TrainingJob
    plan: Plan

    @cached_property
    def config(self) -> ModelConfig:
        check_executed(self.job, self.plan)
        return config_of(self.job)

    @cached_property
    def mesh(self) -> Mesh:
        plan = self.plan
        return Mesh(plan.tp, plan.cp, plan.dp, plan.pp, plan.ep)

    @cached_property
    def machine(self) -> LockstepMachine:
        return LockstepMachine(self.job.hardware, self.mesh, self.itemsize)

    def stage_machine(self, rank: int) -> LockstepMachine:
        """The GPUs of one pipeline rank."""
        return LockstepMachine(self.job.hardware, self.mesh, self.itemsize, rank, self.machine.prices)

    @property
    def itemsize(self) -> int:
        return costs.itemsize(self.job.stack.dtype)

    @property
    def sequence_parallel(self) -> str:
        return (
            "none" if not self.plan.sequence_parallel else "sp-regather" if self.job.stack.regathers else "sp"
        )

    @cached_property
    def lists(self) -> ExecutedLists:
        plan, stack, config = self.plan, self.job.stack, self.config
        variant = "all-gather" if stack.cp_gathers else "ring"
        z = local_sizes(
            config,
            plan.micro_batch,
            plan.tp,
            0,
            self.sequence_parallel,
            stack.dtype,
            plan.cp,
            variant,
            plan.ep,
        )
        common = (
            z,
            plan.tp,
            self.sequence_parallel,
            plan.recompute,
            stack.tp_chunks,
            plan.cp,
            stack.cp_gathers,
        )
        if not config.experts:
            return ExecutedLists(*common)
        return ExecutedExperts(
            *common, self.rows_to_each_expert(z), plan.micro_batch, config.balance_loss > 0
        )

    def rows_to_each_expert(self, z: Sizes) -> float:
        """That one rank sends: the mean, or what a full expert takes."""
        mean = z.routed_tokens * z.top_k / z.experts
        return min(mean, capacity(self.job.capacity_factor, z.routed_tokens, z.top_k, z.experts))

    # ---- units and buckets

    @cached_property
    def kinds(self) -> list[list[str]]:
        """As ndparallel/model/stages.py spreads them: the head counted by its FLOPs."""
        z = local_sizes(self.config, 1, 1, 0, "none", "float32")
        head = sum(operation.flops for operation in costs.head_forward(z)) / sum(
            operation.flops for operation in costs.block_forward(z)
        )
        kinds = [
            ["block"] * count for count in spread_layers(self.config.layers, self.plan.stages, 0.0, head)
        ]
        kinds[0].insert(0, "embedding")
        kinds[-1].append("head")
        return kinds

    def passes(self, kind: str, which: str, deferred: bool = False) -> list[Item]:
        return self.lists.passes(kind, which, deferred)

    def layers(self, stage: int) -> range:
        """The model's layers on a stage, by number."""
        behind = sum(kinds.count("block") for kinds in self.kinds[:stage])
        return range(behind, behind + self.kinds[stage].count("block"))

    def routed_block(self, op: str, layer: int, microbatch: int, machine: LockstepMachine) -> list[Item]:
        """A block's pass on all ranks of the machine, with the rows that the run's own router sent."""
        assert isinstance(self.lists, ExecutedExperts) and self.job.token_counts
        sent = self.job.token_counts.sent(
            layer, microbatch, self.mesh.world_size, machine.members, self.config.experts
        )
        return routed(self.lists, Routes(self.mesh, machine.members, sent)).passes(
            "block", PASSES[op], deferred=op == "I"
        )

    def parameters(self, kind: str) -> dict[str, tuple[int, int]]:
        """Parameters of a unit by name: how many, and how many tp ranks share them."""
        z, tp = self.lists.z, self.plan.tp
        norms = tp if self.lists.shards else 1
        if kind == "embedding":
            return {"table": (z.vocab * z.hidden, 1)}
        if kind == "head":
            return {"norm": (z.hidden, norms), "logits": (z.vocab * z.hidden, 1)}
        cut = (z.heads * z.head_dim * 2 + 3 * (z.shared_ffn if z.experts else z.ffn)) * z.hidden
        keys_and_values = 2 * z.kv_heads * z.head_dim * z.hidden
        shared = {"norms": (2 * z.hidden, norms), "kv": (keys_and_values, max(1, tp // self.config.kv_heads))}
        return shared | {"router": (z.experts * z.hidden, tp), "cut": (cut, 1)}

    def elements(self, kind: str) -> np.ndarray:
        """Of a unit on one rank: (all but experts, experts)."""
        z = self.lists.z
        experts = 3 * z.local_experts * z.expert_ffn * z.hidden if kind == "block" else 0
        return np.array([sum(size for size, _ in self.parameters(kind).values()), experts])

    def runs(self, stage: int) -> list[list[str]]:
        """Runs of whole units of at least the stack's smallest bucket, the last unit's first."""
        stack = self.job.stack
        least = stack.unit_bytes if self.plan.zero == 3 and not stack.grid else stack.bucket_bytes
        runs: list[list[str]] = [[]]
        for kind in reversed(self.kinds[stage]):
            if runs[-1] and self.sizes(runs[-1]).sum() * self.itemsize >= least:
                runs.append([])
            runs[-1].insert(0, kind)
        return runs

    def buckets(self, stage: int) -> list[BucketCost]:
        return [self.bucket(run, f"{stage}.{number}") for number, run in enumerate(self.runs(stage))]

    def bucket(self, run: Sequence[str], name: str) -> BucketCost:
        units = [
            UnitCost(self.passes(kind, "forward"), self.passes(kind, "backward"), tuple(self.elements(kind)))
            for kind in run
        ]
        whole = self.sizes(run) * self.itemsize
        reduce = self.exchanges(
            f"gradients {name}", "reduce_scatter" if self.plan.zero else "all_reduce", whole
        )
        gather = self.exchanges(f"weights {name}", "all_gather", whole)
        return BucketCost(units, reduce, gather, self.shared_by(run), (whole.sum(), whole.sum()))

    def sizes(self, run: Sequence[str]) -> np.ndarray:
        """Elements of a run of units, as `elements` parts them."""
        return np.sum([self.elements(kind) for kind in run], axis=0)

    def exchanges(self, name: str, collective: str, sizes: np.ndarray) -> list[CollectiveOp]:
        """Of what all data-parallel ranks hold, and of the experts, which fewer hold."""
        parts = zip(("", " of experts"), self.averaging_groups, self.owners, sizes)
        return [
            CollectiveOp(name + what, collective, group, size)
            for what, group, ranks, size in parts
            if size and ranks > 1
        ]

    @property
    def averaging_groups(self) -> tuple[str, str]:
        return ("dp_cp", "expert_dp_cp") if self.plan.cp > 1 else ("dp", "expert_dp")

    @property
    def owners(self) -> np.ndarray:
        """Ranks that average: (all but experts, experts)."""
        plan = self.plan
        return np.array([plan.dp * plan.cp, plan.dp * plan.cp // plan.ep])

    def shared_by(self, run: Sequence[str]) -> list[CollectiveOp]:
        """The sums over tp of gradients that its ranks share: one for each number of sharers."""
        sizes: dict[int, int] = defaultdict(int)
        for kind in run:
            for size, sharers in self.parameters(kind).values():
                sizes[sharers] += size
        return [
            CollectiveOp(f"shared by {sharers}", "all_reduce", f"tp/{sharers}", size * self.itemsize)
            for sharers, size in sizes.items()
            if sharers > 1 and size
        ]

    # ---- the pipeline

    @cached_property
    def columns(self) -> tuple[list[TimeBreakdown], list[TimeBreakdown], list[TimeBreakdown]]:
        return tuple([self.action_seconds(op, stage) for stage in range(self.plan.stages)] for op in "FIW")  # type: ignore[return-value]

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
        return [item for kind in kinds for item in self.passes(kind, PASSES[op], deferred=op == "I")]

    @property
    def message_bytes(self) -> int:
        return self.lists.z.shard_tokens * self.lists.z.hidden * self.itemsize

    def messages(self) -> tuple[np.ndarray, np.ndarray]:
        """Latency and wire time of a message between stages, by [sending rank][receiving rank]."""
        mesh, hardware = self.machine.mesh, self.job.hardware
        place = [mesh.rank(pp=rank) for rank in range(self.plan.pp)]
        links = [[hardware.link(a, b) for b in place] for a in place]
        latency = [[link.latency_seconds for link in row] for row in links]
        return np.array(latency), np.array(
            [[self.message_bytes / link.bandwidth_bytes_per_second for link in row] for row in links]
        )

    # ---- the end of a step

    def shared(self, rank: int) -> Sequence[Item]:
        kinds = [kind for stage in self.plan.layout.stages_of(rank) for kind in self.kinds[stage]]
        return [] if self.plan.zero == 3 else self.shared_by(kinds)

    def optimizer(self, rank: int) -> list[Item]:
        return [costs.adamw("adamw", share, self.job.stack.dtype) for _, share in self.shares(rank)]

    def shares(self, rank: int) -> list[tuple[int, int]]:
        """Elements of each bucket, those of experts by themselves, and those of the fullest owner's share."""
        found = []
        for stage in reversed(self.plan.layout.stages_of(rank)):
            for run in self.runs(stage):
                sizes = self.sizes(run)
                owned = -(-sizes // self.owners) if self.plan.zero else sizes
                found += [(int(size), int(share)) for size, share in zip(sizes, owned) if size]
        return found

    # ---- memory

    def states(self, rank: int) -> list[Item]:
        """Weights, gradients and AdamW's two moments, as ndparallel/training/buckets.py holds them."""
        whole, share = (sum(column) * self.itemsize for column in zip(*self.shares(rank)))
        zero = self.plan.zero
        weights, gradients = share if zero == 3 else whole, share if zero >= 2 else whole
        return [Hold("weights", weights), Hold("gradients", gradients), Hold("optimizer", 2 * share)]

    def memory(self, rank: int, schedule: Schedule) -> dict[str, float]:
        """Bytes by kind when the rank of a pipeline holds most: its actions, one after another."""
        ledger, holds = MemoryLedger(), {}
        ledger.run(self.states(rank))
        for op, stage, _ in schedule.actions[rank]:
            if (op, stage) not in holds:
                holds[op, stage] = [item for item in self.action_items(op, stage) if isinstance(item, Hold)]
            ledger.run(holds[op, stage])
        return ledger.peak
