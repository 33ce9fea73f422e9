"""1D: data parallelism. Every GPU has the model, or its share of it, and trains on its own part of the batch.

Idea    A batch's gradient is the mean of its parts' gradients. So N GPUs compute N parts at once, average
        what they found, and take the same step. What differs is how they average, when, and who keeps what:
            DDP       everybody keeps everything; gradients are all-reduced, behind the backward pass or after
            ZeRO-1    the optimizer's state is cut in N: reduce-scatter gradients, gather updated weights
            ZeRO-2    gradients are cut in N as well
            FSDP      (ZeRO-3) weights too: gathered unit by unit just before they are used, then freed
            HSDP      FSDP inside each node; the nodes hold copies, and average their gradients across
Cost    DDP and ZeRO-1 send 2 (N-1)/N of the gradients' bytes, once a step. ZeRO-2 as much, and half of it
        once more for every further microbatch. FSDP 3 (N-1)/N for every microbatch.
Limit   Each GPU needs enough tokens to hide its messages, and memory for one unit and all activations.

Glossary
    bucket      a run of units whose gradients travel as one message (--bucket-mb); the last units' is first
    unit        embedding, transformer block or head; FSDP wraps runs of them of at least --unit-mb
    exposed     communication that a GPU waits for; the rest is hidden behind compute
    reshard     free the weights that were gathered, after the forward pass or only after the backward pass

Run     python 1d_data_parallel.py    and with --gpus 8, --gpus-per-node 1, --sweep (microbatches, causes)
"""

import sys

from collectives import all_gather
from gpu import GPU
from ndparallel.lessons.data_parallel import SWEEPS, add_options, notice, strategies_for
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.main import main
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.buckets import FullyShardedUnit, Handles, ShardedGradients, ShardedOptimizer
from ndparallel.training.fully_sharded import fsdp_prefetch
from ndparallel.training.hybrid import hsdp
from ndparallel.training.job import Job
from ndparallel.training.overlapped import zero1_overlapped
from ndparallel.training.replica import Outcome, Replica


def ddp(gpu: GPU, job: Job) -> Outcome:
    """Average all gradients at the end: through one GPU (naive), round a ring, or by node (hierarchical)."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.all_reduce(job.all_reduce)
        replica.optimizer_step()
    return replica.outcome


def ddp_overlapped(gpu: GPU, job: Job) -> Outcome:
    """Send each bucket as soon as the backward pass has filled it, behind the rest of the backward pass."""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        handles = Handles()
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for unit in reversed(replica.units):
                gradient = unit.backward(gradient, microbatch)
                if microbatch == microbatches[-1]:
                    filled = replica.filled_by(unit)
                    handles += [bucket.all_reduce(job.all_reduce, async_op=True) for bucket in filled]
        handles.wait()
        replica.optimizer_step()
    return replica.outcome


def zero1(gpu: GPU, job: Job) -> Outcome:
    """An all-reduce is a reduce-scatter and an all-gather; update one shard of the weights in between."""
    replica = Replica(gpu, job, ShardedOptimizer, job.bucket_mb)
    for microbatches in replica.steps():
        handles = Handles()
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for bucket in replica.buckets:
                gradient = bucket.backward(gradient, microbatch)
                if microbatch == microbatches[-1]:
                    handles.append(bucket.reduce_scatter(async_op=True))
        handles.wait()
        replica.optimizer_step()
        for bucket in replica.buckets:
            bucket.all_gather()
    return replica.outcome


def zero2(gpu: GPU, job: Job) -> Outcome:
    """Hold whole gradients of one bucket, and of the one on its way: reduce them after every microbatch."""
    replica = Replica(gpu, job, ShardedGradients, job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient, on_its_way = None, Handles()  # of nothing yet
            for bucket in replica.buckets:
                bucket.allocate_gradients()
                gradient = bucket.backward(gradient, microbatch)
                on_its_way.wait()
                on_its_way = bucket.reduce_scatter(async_op=True)
            on_its_way.wait()
        replica.optimizer_step()
        for bucket in replica.buckets:
            bucket.all_gather()
    return replica.outcome


class GatheredUnit(FullyShardedUnit):
    """A unit of which this rank keeps a shard of the weights: they are whole only while they are used."""

    def gather(self, async_op: bool = False):
        """All-gather the shards, unless the weights are whole, or are about to be."""
        if self.gathered is None:
            self.weights = self.zeros("buffers", self.size)
            self.gathered = all_gather(
                self.gpu, self.weights, self.weight_shard, self.group, self.algorithm, async_op=True
            ).then(self.attach)
        return self.gathered if async_op else self.gathered.wait()

    def reshard(self) -> None:
        """Free the whole weights, and keep the shard."""
        self.give_back("buffers", self.weights)
        self.gathered = None


def fsdp(gpu: GPU, job: Job) -> Outcome:
    """Hold one unit with its whole weights: gather, compute, reshard. Every GPU waits for every gather."""
    replica = Replica(gpu, job, GatheredUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit in reversed(replica.buckets):
                unit.gather()
                x = unit.forward(x, microbatch)
                if job.reshard_after_forward:
                    unit.reshard()
            gradient = None
            for unit in replica.buckets:
                unit.gather()
                unit.allocate_gradients()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                unit.reduce_scatter()
        replica.optimizer_step()
    return replica.outcome


def mesh(gpus: int) -> Mesh:
    return Mesh(dp=gpus)


STRATEGIES = [
    Strategy("DDP naive", ddp, mesh, {"all_reduce": "naive"}),
    Strategy("DDP ring", ddp, mesh, {"all_reduce": "ring"}),
    Strategy("DDP hierarchical", ddp, mesh),
    Strategy("DDP ring overlapped", ddp_overlapped, mesh, {"all_reduce": "ring"}),
    Strategy("DDP overlapped", ddp_overlapped, mesh),
    Strategy("ZeRO-1", zero1, mesh),
    Strategy("ZeRO-1 overlapped", zero1_overlapped, mesh),
    Strategy("ZeRO-2", zero2, mesh),
    Strategy("FSDP", fsdp, mesh),
    Strategy("FSDP prefetch", fsdp_prefetch, mesh),
    Strategy("FSDP no reshard", fsdp_prefetch, mesh, {"reshard_after_forward": False}),
    Strategy("HSDP", hsdp, mesh),
]

LESSON = Lesson(
    name="1d_data_parallel",
    title="1D: data parallelism",
    strategies=STRATEGIES,
    contrast=("DDP naive", "DDP overlapped"),
    compare=("DDP ring", "DDP overlapped", "FSDP prefetch"),
    notice=notice,
    strategies_for=strategies_for,
    add_options=add_options,
    sweeps=SWEEPS,
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
