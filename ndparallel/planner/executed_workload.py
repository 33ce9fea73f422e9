"""What each pipeline rank of an executed run of the lessons has to do: the workload of the "pocket" stack.

Idea   The same questions as `ndparallel.planner.workload` answers for real frameworks, answered from the lists of executed layers. Buckets,
       units and what the ranks share are cut as ndparallel/sharding.py and ndparallel/layers.py cut them.
Limit  As ndparallel.planner.executed; links that differ within a tp group delay the ranks of a pipeline stage by different times, of which
       the longest is taken.

Glossary: see `ndparallel.planner.workload`.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ndparallel import costs
from ndparallel.errors import UserError
from ndparallel.mesh import Mesh
from ndparallel.pipeline.actions import Schedule
from ndparallel.pipeline.work import spread_layers
from ndparallel.planner.executed import Cluster, ExecutedLists
from ndparallel.planner.operations import Exchange, Hold
from ndparallel.planner.overlap import Bucket, Unit
from ndparallel.planner.plan import Job, Plan
from ndparallel.planner.streams import Item, Ledger, Seconds, Streams
from ndparallel.units import ModelConfig, local_sizes

PASSES = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}


def config_of(job: Job) -> ModelConfig:
    """The lessons' model of this shape."""
    shape = job.shape
    sizes = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.ffn, shape.vocab)
    return ModelConfig(*sizes, sequence=job.sequence, tied=shape.tied_embeddings)


@dataclass(frozen=True)
class ExecutedWorkload:
    """Of one plan of a job of the lessons' model."""

    job: Job
    plan: Plan

    @cached_property
    def config(self) -> ModelConfig:
        if self.job.shape.tied_embeddings and self.plan.pp > 1:
            raise UserError("tied embeddings on two pipeline ranks are not predicted for the lessons' model: choose pp=1.")
        return config_of(self.job)

    @cached_property
    def machine(self) -> Cluster:
        plan = self.plan
        return Cluster(self.job.hardware, Mesh(plan.tp, plan.cp, plan.dp, plan.pp, plan.ep), self.itemsize)

    @property
    def itemsize(self) -> int:
        return costs.itemsize(self.job.stack.dtype)

    @property
    def sequence_parallel(self) -> str:
        return "none" if not self.plan.sequence_parallel else "sp-regather" if self.job.stack.regathers else "sp"

    @cached_property
    def lists(self) -> ExecutedLists:
        plan, stack = self.plan, self.job.stack
        z = local_sizes(self.config, plan.micro_batch, plan.tp, 0, self.sequence_parallel, stack.dtype)
        return ExecutedLists(z, plan.tp, self.sequence_parallel, plan.recompute, stack.tp_chunks)

    # ---- units and buckets

    @cached_property
    def kinds(self) -> list[list[str]]:
        """As ndparallel/model.py spreads them: the head counted by its FLOPs."""
        z = local_sizes(self.config, 1, 1, 0, "none", "float32")
        head = sum(operation.flops for operation in costs.head_forward(z)) / sum(operation.flops for operation in costs.block_forward(z))
        kinds = [["block"] * count for count in spread_layers(self.config.layers, self.plan.stages, 0.0, head)]
        kinds[0].insert(0, "embedding")
        kinds[-1].append("head")
        return kinds

    def passes(self, kind: str, which: str, deferred: bool = False) -> list[Item]:
        make: Callable[..., list[Item]] = getattr(self.lists, f"{kind}_{which}")
        return make(deferred) if which == "backward" else make()

    def parameters(self, kind: str) -> dict[str, tuple[int, int]]:
        """Parameters of a unit by name: how many, and how many tp ranks share them."""
        z, tp = self.lists.z, self.plan.tp
        norms = tp if self.lists.shards else 1
        if kind == "embedding":
            return {"table": (z.vocab * z.hidden, 1)}
        if kind == "head":
            return {"norm": (z.hidden, norms), "logits": (z.vocab * z.hidden, 1)}
        cut = (z.heads * z.head_dim * 2 + 3 * z.ffn) * z.hidden
        keys_and_values = 2 * z.kv_heads * z.head_dim * z.hidden
        return {"norms": (2 * z.hidden, norms), "kv": (keys_and_values, max(1, tp // self.config.kv_heads)), "cut": (cut, 1)}

    def elements(self, kind: str) -> int:
        return sum(size for size, _ in self.parameters(kind).values())

    def buckets(self, stage: int) -> list[Bucket]:
        """Runs of whole units of at least the stack's smallest bucket, the last unit's first."""
        least = self.job.stack.unit_bytes if self.plan.zero == 3 else self.job.stack.bucket_bytes
        runs: list[list[str]] = [[]]
        for kind in reversed(self.kinds[stage]):
            if runs[-1] and sum(map(self.elements, runs[-1])) * self.itemsize >= least:
                runs.append([])
            runs[-1].insert(0, kind)
        return [self.bucket(run, f"{stage}.{number}") for number, run in enumerate(runs)]

    def bucket(self, run: Sequence[str], name: str) -> Bucket:
        units = [Unit(self.passes(kind, "forward"), self.passes(kind, "backward"), (self.elements(kind), 0)) for kind in run]
        whole = sum(map(self.elements, run)) * self.itemsize
        if self.plan.dp == 1:
            return Bucket(units, [], [], self.shared_by(run), (whole, whole))
        reduce = Exchange(f"gradients {name}", "reduce_scatter" if self.plan.zero else "all_reduce", "dp", whole)
        return Bucket(units, [reduce], [Exchange(f"weights {name}", "all_gather", "dp", whole)], self.shared_by(run), (whole, whole))

    def shared_by(self, run: Sequence[str]) -> list[Exchange]:
        """The sums over tp of gradients that its ranks share: one for each number of sharers."""
        sizes: dict[int, int] = defaultdict(int)
        for kind in run:
            for size, sharers in self.parameters(kind).values():
                sizes[sharers] += size
        return [
            Exchange(f"shared by {sharers}", "all_reduce", f"tp/{sharers}", size * self.itemsize)
            for sharers, size in sizes.items()
            if sharers > 1
        ]

    # ---- the pipeline

    @cached_property
    def columns(self) -> tuple[list[Seconds], list[Seconds], list[Seconds]]:
        return tuple([self.action_seconds(op, stage) for stage in range(self.plan.stages)] for op in "FIW")  # type: ignore[return-value]

    def action_seconds(self, op: str, stage: int) -> Seconds:
        streams = Streams(self.machine)
        streams.run(self.action_items(op, stage))
        return Seconds({kind: float(np.max(seconds)) for kind, seconds in streams.spent.items()})

    def action_items(self, op: str, stage: int) -> list[Item]:
        kinds = self.kinds[stage] if op == "F" else self.kinds[stage][::-1]
        return [item for kind in kinds for item in self.passes(kind, PASSES[op], deferred=op == "I")]

    def messages(self) -> tuple[np.ndarray, np.ndarray]:
        """Latency and wire time of a message between stages, by [sending rank][receiving rank]."""
        mesh, hardware = self.machine.mesh, self.job.hardware
        nbytes = self.lists.z.shard_tokens * self.lists.z.hidden * self.itemsize
        place = [mesh.rank(pp=rank) for rank in range(self.plan.pp)]
        links = [[hardware.link(a, b) for b in place] for a in place]
        latency = [[link.latency_seconds for link in row] for row in links]
        return np.array(latency), np.array([[nbytes / link.bandwidth_bytes_per_second for link in row] for row in links])

    # ---- the end of a step

    def shared(self, rank: int) -> Sequence[Item]:
        kinds = [kind for stage in self.plan.layout.stages_of(rank) for kind in self.kinds[stage]]
        return [] if self.plan.zero == 3 else self.shared_by(kinds)

    def optimizer(self, rank: int) -> list[Item]:
        return [costs.adamw("adamw", share, self.job.stack.dtype) for _, share in self.shares(rank)]

    def shares(self, rank: int) -> list[tuple[int, int]]:
        """Elements of each bucket, and those of the fullest owner's share."""
        owners = self.plan.dp if self.plan.zero else 1
        buckets = [bucket for stage in self.plan.layout.stages_of(rank) for bucket in self.buckets(stage)]
        sizes = [sum(int(unit.elements[0]) for unit in bucket.units) for bucket in buckets]
        return [(size, -(-size // owners)) for size in sizes]

    # ---- memory

    def states(self, rank: int) -> list[Item]:
        """Weights, gradients and AdamW's two moments, as ndparallel/sharding.py holds them."""
        whole, share = (sum(column) * self.itemsize for column in zip(*self.shares(rank)))
        zero = self.plan.zero
        weights, gradients = share if zero == 3 else whole, share if zero >= 2 else whole
        return [Hold("weights", weights), Hold("gradients", gradients), Hold("optimizer", 2 * share)]

    def memory(self, rank: int, schedule: Schedule) -> dict[str, float]:
        """Bytes by kind when the rank of a pipeline holds most: its actions, one after another."""
        ledger, holds = Ledger(), {}
        ledger.run(self.states(rank))
        for op, stage, _ in schedule.actions[rank]:
            if (op, stage) not in holds:
                holds[op, stage] = [item for item in self.action_items(op, stage) if isinstance(item, Hold)]
            ledger.run(holds[op, stage])
        return ledger.peak
