"""One rank's share of a training run: its units, its buckets, its data, and what it will report.

Idea   A lesson's loops are about order: what is computed, what is sent, who waits. A replica holds the rest: it draws the batches, keeps
       the losses, and copies, off the clock, the gradients that are compared with the single GPU's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from collectives import Group, all_reduce
from gpu import GPU
from ndparallel import data
from ndparallel.errors import UserError
from ndparallel.job import Job
from ndparallel.model import stage_units
from ndparallel.optimizer import OPTIMIZERS
from ndparallel.parameters import Parameter
from ndparallel.pipeline.stages import Stages, schedule_of
from ndparallel.sharding import Bucket, ShardedOptimizer, wrap
from ndparallel.tensor_parallel import TensorParallel
from ndparallel.units import Context, Unit


@dataclass
class Holding:
    """Elements `start` and after of the flat array of these parameters, as one rank holds them."""

    parameters: list[Parameter]
    start: int
    array: np.ndarray


@dataclass
class Outcome:
    """What a rank program returns: its mean loss of each step, its gradients of the first step, its weights after the last."""

    losses: list[float] = field(default_factory=list)
    gradients: list[Holding] = field(default_factory=list)
    weights: list[Holding] = field(default_factory=list)


class Replica:
    """The model on one rank, in buckets of the given class and of at least `bucket_mb` (default: one bucket for all)."""

    def __init__(self, gpu: GPU, job: Job, bucket: type[Bucket] = Bucket, bucket_mb: float = math.inf) -> None:
        self.gpu, self.job, self.outcome = gpu, job, Outcome()
        mesh = job.mesh
        self.dp = mesh.group("dp", gpu.rank)
        self.context = self.make_context()
        self.stages = self.make_stages()
        self.units = [unit for stage in sorted(self.stages.units) for unit in self.stages.units[stage]]
        if job.model.tied and issubclass(bucket, ShardedOptimizer):
            raise UserError("tied embeddings need whole gradients to be summed: choose DDP, not ZeRO or FSDP.")
        self.buckets = [bucket(gpu, run, self.dp, job.seed) for run in self.runs(bucket_mb * 1e6)]
        sizes = [bucket.owned_weights.size for bucket in self.buckets]
        self.optimizer = OPTIMIZERS[job.optimizer](gpu, sizes, job.dtype, job.learning_rate)

    def make_context(self) -> Context:
        job, gpu = self.job, self.gpu
        tp = TensorParallel(gpu, job.mesh.group("tp", gpu.rank), job.sequence_parallel, job.chunks)
        return Context(gpu, job.model, tp, job.dtype, job.recompute, loss_scale=1 / job.microbatches)

    def make_stages(self) -> Stages:
        """The stages on this rank; without a pipeline, the whole model is the one stage."""
        job, group = self.job, self.job.mesh.group("pp", self.gpu.rank)
        schedule = schedule_of(job.schedule, group.size, job.microbatches, job.stage_chunks)
        layout, rank = schedule.layout, group.index(self.gpu.rank)
        mine = [layout.stage(rank, chunk) for chunk in range(layout.chunks)]
        return Stages(self.gpu, group, schedule, stage_units(self.context, layout.stages, mine))

    def runs(self, minimum_bytes: float) -> list[list[Unit]]:
        """The units of each bucket, the last first; a bucket stays within a stage."""
        return [run for stage in sorted(self.stages.units, reverse=True) for run in wrap(self.stages.units[stage], minimum_bytes)]

    def steps(self) -> Iterator[range]:
        """Draw every step's batch, clear the gradients and yield the microbatches' numbers."""
        job = self.job
        index = self.job.mesh.coordinates(self.gpu.rank)["dp"]
        for windows in data.batches(job.text, job.model.sequence, job.batch, job.steps, job.seed, index, job.mesh.dp):
            self.tokens = self.stages.tokens = np.split(windows[:-1], job.microbatches, axis=1)
            self.context.targets = dict(enumerate(np.split(windows[1:], job.microbatches, axis=1)))
            self.context.losses = {}
            for bucket in self.buckets:
                bucket.clear_gradients()
            yield range(job.microbatches)
            if self.context.losses:
                self.outcome.losses.append(float(np.mean(list(self.context.losses.values()))))
        self.outcome.weights = [self.holding(bucket, bucket.owned_weights) for bucket in self.buckets]

    def forward(self, microbatch: int) -> None:
        x = self.tokens[microbatch]
        for unit in self.units:
            x = unit.forward(x, microbatch)

    def backward(self, microbatch: int) -> None:
        dy = None
        for unit in reversed(self.units):
            dy = unit.backward(dy, microbatch)

    def sum_shared(self) -> None:
        """Sum the gradients that tp ranks share, in one all-reduce for the whole model."""
        self.context.tp.sum_shared(pair for unit in self.units for pair in unit.parameter_gradients())

    def sum_tied(self) -> None:
        """Embedding and head hold a table each, drawn alike: sum their gradients, and they stay alike."""
        tables = [unit.g["table"] for unit in self.units if "table" in unit.g]
        if len(tables) == 2:
            tables[0] += tables[1]
            tables[1][...] = tables[0]
        elif tables:
            ends = (self.stages.rank_of(0), self.stages.rank_of(self.stages.schedule.layout.stages - 1))
            all_reduce(self.gpu, tables[0], Group("tied", ends))

    def filled_by(self, unit) -> list[Bucket]:
        """The buckets whose gradients are complete once this unit's backward pass is."""
        return [bucket for bucket in self.buckets if bucket.filled_by(unit)]

    def optimizer_step(self) -> None:
        """Step what this rank owns."""
        if self.job.model.tied:
            self.sum_tied()
        if not self.outcome.gradients:
            self.outcome.gradients = [self.holding(bucket, bucket.owned_gradients) for bucket in self.buckets]
        self.optimizer.step([bucket.owned_weights for bucket in self.buckets], [bucket.owned_gradients for bucket in self.buckets])

    def holding(self, bucket: Bucket, array: np.ndarray) -> Holding:
        parameters = [parameter for unit in bucket.units for parameter in unit.parameters]
        return Holding(parameters, bucket.owned.start, array.copy())
