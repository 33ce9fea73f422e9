"""One rank's share of a training run: its units, its buckets, its data, and what it will report.

Idea   A lesson's loops are about order: what is computed, what is sent, who waits. A replica holds the rest:
       it draws the batches, keeps the losses, and copies, off the clock, the gradients that are compared with
       the single GPU's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, cast

import numpy as np

from collectives import Group, all_reduce
from gpu import GPU
from ndparallel.base.bfloat16 import wide
from ndparallel.base.errors import UserError
from ndparallel.base.quoting import brief
from ndparallel.base.size_only import SizeOnly
from ndparallel.model import data
from ndparallel.model.nonfinite import NonFiniteWatch, Origin
from ndparallel.model.optimizer import make_optimizer
from ndparallel.model.stages import stage_units
from ndparallel.model.units import Context, Routed, SizeOnlyContext, Unit
from ndparallel.model.vocabulary import TiedTable
from ndparallel.parallel.context import ContextParallel
from ndparallel.parallel.expert import ExpertParallel
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.slices import Parameter, pieces
from ndparallel.parallel.tensor import TensorParallel
from ndparallel.pipeline.actions import Action
from ndparallel.training.buckets import Bucket, BucketParts, make_bucket, wrap
from ndparallel.training.clipping import clip_gradients
from ndparallel.training.job import Job
from ndparallel.training.pipeline_stages import Stages, schedule_of


@dataclass
class Holding:
    """A flat array of these parameters from element `start` on, as one rank holds it."""

    parameters: list[Parameter]
    start: int
    array: np.ndarray

    def pieces(self) -> Iterator[tuple[Parameter, slice, np.ndarray]]:
        """Yield its parameters, which elements of each are here, and these elements."""
        return pieces(self.parameters, self.start, self.array)


@dataclass
class Outcome:
    """What a rank program returns: names of the parameters of which it trained any, its mean loss of each
    step, its gradients of the first step as the optimizer took them, its weights after the last, and of each
    step what its experts did, by layer and microbatch; the global norm of each step's gradients where they
    are clipped; `origin` is where it saw the first NaN or infinity, if it was to watch."""

    trained: set[str] = field(default_factory=set)
    losses: list[float] = field(default_factory=list)
    routed: list[dict[tuple[str, int], Routed]] = field(default_factory=list)
    gradients: list[Holding] = field(default_factory=list)
    weights: list[Holding] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    origin: Origin | None = None


class Replica:
    """The model on one rank, in buckets of the given class and of at least `bucket_mb` (default: one
    bucket for all)."""

    def __init__(
        self, gpu: GPU, job: Job, bucket: type[Bucket] = Bucket, bucket_mb: float = math.inf
    ) -> None:
        self.gpu, self.job = gpu, job
        self.context = self.make_context()
        self.stages = self.make_stages()
        self.units = [unit for stage in sorted(self.stages.units) for unit in self.stages.units[stage]]
        groups = averaging_groups(job.mesh, gpu.rank)
        self.buckets: list[Any] = [  # of the class that is given
            make_bucket(bucket, gpu, run, *groups, job.seed) for run in self.runs(bucket_mb * 1e6)
        ]
        self.tokens: Any = None  # of the step's microbatches, in a list
        self.on_their_way: dict[Bucket | BucketParts, Any] = {}
        self.parts = [part for bucket in self.buckets for part in bucket.parts]
        self.outcome = Outcome({each.name for part in self.parts for each in part.parameters})
        owned = [part.owned_weights for part in self.parts]
        self.optimizer = make_optimizer(job.optimizer, gpu, owned, job.dtype, job.learning_rate)

    def make_context(self) -> Context:
        job, gpu = self.job, self.gpu
        tp = TensorParallel(
            gpu, job.mesh.group("tp", gpu.rank), job.sequence_parallel, job.parts, job.tp_overlap
        )
        cp = ContextParallel(gpu, job.mesh.group("cp", gpu.rank), job.context_parallel)
        ep = ExpertParallel.on(gpu, job.mesh)
        watch = NonFiniteWatch(gpu) if job.watch else None
        kind = SizeOnlyContext if job.sizes_only else Context
        return kind(
            gpu,
            job.model,
            tp,
            cp,
            ep,
            job.dtype,
            job.recompute,
            job.grad_reduce_in_bf16,
            loss_scale=1 / job.microbatches,
            watch=watch,
        )

    def make_stages(self) -> Stages:
        """Build the stages on this rank; without a pipeline, the whole model is one stage."""
        job, group = self.job, self.job.mesh.group("pp", self.gpu.rank)
        schedule = schedule_of(job.schedule, group.size, job.microbatches, job.stage_chunks)
        layout = schedule.layout
        mine = layout.stages_of(group.index(self.gpu.rank))
        return Stages(self.gpu, group, schedule, stage_units(self.context, layout.stages, mine))

    def runs(self, minimum_bytes: float) -> list[list[Unit]]:
        """Return the units of each bucket, the last first; a bucket stays within a stage."""
        return [
            run
            for stage in sorted(self.stages.units, reverse=True)
            for run in wrap(self.stages.units[stage], minimum_bytes)
        ]

    def steps(self) -> Iterator[range]:
        """Draw every step's batch, clear the gradients and yield the microbatches' numbers."""
        job = self.job
        for windows in self.batches():
            rows = self.context.rows
            self.tokens = self.stages.tokens = np.split(windows[:-1][rows], job.microbatches, axis=1)
            self.context.targets = dict(enumerate(np.split(windows[1:][rows], job.microbatches, axis=1)))
            self.context.losses, self.context.routed = {}, {}
            for part in self.parts:
                part.clear_gradients()
            yield range(job.microbatches)
            if self.context.losses and not job.sizes_only:
                self.outcome.losses.append(float(np.mean(list(self.context.losses.values()))))
            self.outcome.routed.append(self.context.routed)
        if not job.sizes_only:
            self.outcome.weights = [holding(part, *part.held) for part in self.parts]
        self.outcome.origin = self.context.watch.origin if self.context.watch else None

    def batches(self) -> Iterator[np.ndarray]:
        """Return the windows of every step, (sequence + 1, batch / dp)."""
        job, dp = self.job, self.job.mesh.dp
        if job.sizes_only:
            return repeat(cast(Any, SizeOnly((job.model.sequence + 1, job.batch // dp), np.uint8)), job.steps)
        index = job.mesh.coordinates(self.gpu.rank)["dp"]
        return data.batches(job.text, job.model.sequence, job.batch, job.steps, job.seed, index, dp)

    def tokens_of(self, microbatch: int) -> Any:
        """Return what the first unit takes. Raises UserError for a microbatch that the step does not have."""
        if self.tokens is None:
            raise UserError(
                "no batch is drawn yet: replica.steps() draws one for each step, and yields the numbers of "
                "its microbatches"
            )
        if microbatch not in range(len(self.tokens)):
            raise UserError(
                f"there is no microbatch {brief(microbatch)}: those of this step are 0 to "
                f"{len(self.tokens) - 1}, and forward() takes one of them"
            )
        return self.tokens[microbatch]

    def forward(self, microbatch: int) -> None:
        x = self.tokens_of(microbatch)
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
        """Sum the gradients of embedding and head, once they are reduced: their tables are equal, and so they
        stay."""
        tables = [part.owned_gradients for part in self.parts if isinstance(part.units[0], TiedTable)]
        if len(tables) == 2:
            tables[0] += tables[1]
            tables[1][...] = tables[0]
        elif tables:
            ends = (self.stages.rank_of(0), self.stages.rank_of(self.stages.schedule.layout.stages - 1))
            all_reduce(self.gpu, tables[0], Group("tied", ends))

    def filled_by(self, unit) -> list[Bucket | BucketParts]:
        """Return the buckets whose gradients are complete once this unit's backward pass is."""
        return [bucket for bucket in self.buckets if bucket.units[0] is unit]

    def passed_by(self, action: Action, unit: Unit) -> list[Any]:
        """Return the buckets whose last unit an action has passed, once it has passed this unit."""
        end = -1 if action.op == "F" else 0
        return [bucket for bucket in self.buckets if bucket.units[end] is unit]

    def buckets_of(self, stage: int) -> list[Any]:
        """Return the buckets of one of this rank's stages, the last first."""
        units = self.stages.units[stage]
        return [bucket for bucket in self.buckets if bucket.units[0] in units]

    def wait_for_gradients(self, bucket: Bucket | BucketParts | None = None) -> None:
        """Wait until the gradients of a bucket, or of all buckets, are reduced."""
        for each in [bucket] if bucket else list(self.on_their_way):
            handle = self.on_their_way.pop(each, None)
            if handle:
                handle.wait()

    def optimizer_step(self) -> None:
        """Step the optimizer for the part of the weights that this rank owns."""
        if self.job.model.tied:
            self.sum_tied()
        if limit := self.job.clip_grad_norm:
            norm = clip_gradients(self.gpu, self.parts, self.context, self.job.mesh, limit)
            self.outcome.gradient_norms.append(norm)
        if not (self.outcome.gradients or self.job.sizes_only):
            self.outcome.gradients = [holding(part, part.owned, part.owned_gradients) for part in self.parts]
        self.optimizer.step(
            [part.owned_weights for part in self.parts], [part.owned_gradients for part in self.parts]
        )


def holding(bucket: Bucket, place: slice, array: np.ndarray) -> Holding:
    """Copy an array that stands at this place of a bucket."""
    return Holding(bucket.parameters, place.start, wide(array).copy())


def averaging_groups(mesh: Mesh, rank: int) -> tuple[Group, Group]:
    """Return two groups: the ranks that average their gradients with this one, and those that average
    their experts' gradients with it."""
    return mesh.group("dp_cp" if mesh.cp > 1 else "dp", rank), mesh.group("expert_dp", rank)
