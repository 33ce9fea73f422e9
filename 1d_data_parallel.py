"""1D: data parallelism. Every GPU has the model, or its share of it, and trains on its own part of the batch.

Idea    The gradient of a batch is the mean of its parts' gradients. So N GPUs compute N parts at once,
        average what they found, and all take the same step. What differs is how they average, when, and who
        keeps what:
            DDP         everybody keeps everything; gradients are all-reduced, round a ring or in two levels
                        (hierarchical: inside the nodes, then across), at the end of the backward pass or
                        behind it
            ZeRO-1      the optimizer's state is cut in N: gradients are reduce-scattered, stepped weights are
                        gathered
            ZeRO-2      gradients are cut in N as well
            FSDP        (ZeRO-3) weights too: gathered unit by unit just before they are used, and forgotten
                        again
            HSDP        FSDP inside each node; the nodes hold copies, and average their gradients across
Cost    DDP and ZeRO-1 send 2 (N-1)/N of the gradients' bytes, once a step. ZeRO-2 as much, and half of it
        once more for every further microbatch. FSDP 3 (N-1)/N for every microbatch.
Limit   A step cannot be shorter than the communication that nothing hides; and every GPU must hold one unit
        and its activations whole.

Glossary
    bucket      a run of units whose gradients travel as one message (--bucket-mb)
    unit        embedding, transformer block or head; FSDP wraps runs of them of at least --unit-mb
    exposed     communication that a GPU waits for; the rest is hidden behind compute
    reshard     forget the weights that were gathered (after the forward pass, or only after the backward
                pass)

Run     python 1d_data_parallel.py    and with --gpus 8, --gpus-per-node 1, --model-size large, --sweep
        (microbatches, causes)
"""

import sys
from itertools import pairwise

from collectives import Array, all_gather
from gpu import GPU
from ndparallel.lessons.data_parallel import SWEEPS, add_options, chosen, notice
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.main import main
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.buckets import FullyShardedUnit, ShardedGradients, ShardedOptimizer
from ndparallel.training.fully_sharded import gather_ahead
from ndparallel.training.hybrid import HybridShardedUnit
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica


def ddp_naive(gpu: GPU, job: Job) -> Outcome:
    """All gradients to one GPU, their mean back to all: its door is the bottleneck."""
    return ddp(Replica(gpu, job), "naive")


def ddp_ring(gpu: GPU, job: Job) -> Outcome:
    """The same mean, round a ring: all links are busy at once."""
    return ddp(Replica(gpu, job), "ring")


def ddp_hierarchical(gpu: GPU, job: Job) -> Outcome:
    """The same mean in two levels: inside the nodes, then across them, on all their links at once. On one
    node it is the ring."""
    return ddp(Replica(gpu, job), None)


def ddp(replica: Replica, algorithm: str | None) -> Outcome:
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.all_reduce(algorithm)
        replica.optimizer_step()
    return replica.outcome


def ddp_overlapped(gpu: GPU, job: Job, algorithm: str | None = None) -> Outcome:
    """Send each bucket as soon as the backward pass has filled it, behind the rest of the backward pass: in
    two levels where there are nodes, else round a ring."""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        handles = []
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for unit in reversed(replica.units):
                gradient = unit.backward(gradient, microbatch)
                if microbatch == microbatches[-1]:
                    filled = replica.filled_by(unit)
                    handles += [bucket.all_reduce(algorithm, async_op=True) for bucket in filled]
        for handle in handles:
            handle.wait()
        replica.optimizer_step()
    return replica.outcome


def ddp_ring_overlapped(gpu: GPU, job: Job) -> Outcome:
    """The same round a ring, also where there are nodes."""
    return ddp_overlapped(gpu, job, "ring")


def zero1(gpu: GPU, job: Job) -> Outcome:
    """An all-reduce is a reduce-scatter and an all-gather; step in between, on one shard, with a shard of the
    optimizer's state."""
    replica = Replica(gpu, job, ShardedOptimizer, job.bucket_mb)
    for microbatches in replica.steps():
        handles = []
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for bucket in replica.buckets:
                gradient = bucket.backward(gradient, microbatch)
                if microbatch == microbatches[-1]:
                    handles.append(bucket.reduce_scatter(async_op=True))
        for handle in handles:
            handle.wait()
        replica.optimizer_step()
        for bucket in replica.buckets:
            bucket.all_gather()
    return replica.outcome


class SteppedShards(ShardedOptimizer):
    """A ZeRO-1 bucket whose weights are whole from the next forward pass on: after a step, only its shard."""

    @property
    def held(self) -> slice:
        return self.owned

    @property
    def held_weights(self) -> Array:
        return self.owned_weights


def zero1_overlapped(gpu: GPU, job: Job) -> Outcome:
    """Gather the stepped weights beside the next forward pass, which waits for a bucket only when it comes
    to it."""
    replica = Replica(gpu, job, SteppedShards, job.bucket_mb)
    for microbatches in replica.steps():
        arriving = [bucket.all_gather(async_op=True) for bucket in reversed(replica.buckets)]
        handles = []
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for bucket, weights in zip(reversed(replica.buckets), arriving):
                weights.wait()
                x = bucket.forward(x, microbatch)
            gradient = None
            for bucket in replica.buckets:
                gradient = bucket.backward(gradient, microbatch)
                if microbatch == microbatches[-1]:
                    handles.append(bucket.reduce_scatter(async_op=True))
        for handle in handles:
            handle.wait()
        replica.optimizer_step()
    return replica.outcome


def zero2(gpu: GPU, job: Job) -> Outcome:
    """Whole gradients exist for one bucket at a time, and the one on its way: they are reduced after every
    microbatch."""
    replica = Replica(gpu, job, ShardedGradients, job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient, on_its_way = None, None
            for bucket in replica.buckets:
                bucket.stage()
                gradient = bucket.backward(gradient, microbatch)
                if on_its_way:
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
    """Weights too are whole for one unit at a time: gather, compute, reshard; every GPU waits for every
    gather."""
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
                unit.stage()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                unit.reduce_scatter()
        replica.optimizer_step()
    return replica.outcome


def fsdp_prefetch(gpu: GPU, job: Job) -> Outcome:
    """Gather the next unit and reduce the last one while this one computes."""
    replica = Replica(gpu, job, GatheredUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit, following in pairwise([*reversed(replica.buckets), None]):
                unit.gather()
                if following:
                    following.gather(async_op=True)
                x = unit.forward(x, microbatch)
                if job.reshard_after_forward:
                    unit.reshard()
            gradient, on_its_way = None, None
            for unit, following in pairwise([*replica.buckets, None]):
                unit.gather()
                if following:
                    following.gather(async_op=True)
                unit.stage()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                if on_its_way:
                    on_its_way.wait()
                on_its_way = unit.reduce_scatter(async_op=True)
            on_its_way.wait()
        replica.optimizer_step()
    return replica.outcome


def hsdp(gpu: GPU, job: Job) -> Outcome:
    """The same loop over units that are sharded inside each node only; their gradients then go across nodes
    once."""
    return gather_ahead(Replica(gpu, job, HybridShardedUnit, job.unit_mb))


def mesh(gpus: int) -> Mesh:
    return Mesh(dp=gpus)


STRATEGIES = [
    Strategy("DDP naive", ddp_naive, mesh),
    Strategy("DDP ring", ddp_ring, mesh),
    Strategy("DDP hierarchical", ddp_hierarchical, mesh),
    Strategy("DDP ring overlapped", ddp_ring_overlapped, mesh),
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
    chosen=chosen,
    add_options=add_options,
    sweeps=SWEEPS,
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
