"""Step your own shard.

Every GPU keeps AdamW's two moments of every weight: twice the memory of the weights themselves, and all four
GPUs keep identical copies. But an all-reduce has two halves, and between them each GPU holds the finished
mean of its own shard. Step there, and the moments of one shard are enough:

        gradients ─ reduce-scatter ─> my shard's mean ─ step ─> my shard's weights ─ all-gather ─> all weights

Given   replica.buckets                         the last layers' first; of each this GPU owns a shard,
                                                and replica.optimizer_step() steps that alone
        bucket.backward(gradient, microbatch)   runs all units of a bucket; the first in the list takes None
        bucket.reduce_scatter(async_op=True)    a handle; after its wait the shard has the mean
        bucket.all_gather()                     gives everybody the stepped weights

Right are the gradients, and the losses of two steps. Then memory, bytes and seconds count.
"""

from gpu import GPU
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import data_parallel
from ndparallel.lessons.registry import full_name, load
from ndparallel.training.buckets import ShardedOptimizer
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica

GPUS = 4


def zero1(gpu: GPU, job: Job) -> Outcome:
    """Step this GPU's shards: the buckets keep no other moments. The gradients are not yet reduced."""
    replica = Replica(gpu, job, ShardedOptimizer, job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for bucket in replica.buckets:
                gradient = bucket.backward(gradient, microbatch)
        replica.optimizer_step()
    return replica.outcome


def attempt(answer) -> Attempt:
    figures = ("step_seconds", "bytes_sent", "peak_memory_bytes")
    return data_parallel(answer, "zero1", Job(steps=2), GPUS, figures)


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["bytes_sent"] > par.figures["bytes_sent"]:
        return "Whole gradients come back to everybody, where each GPU needs only its own shard of them."
    if yours.figures["peak_memory_bytes"] > par.figures["peak_memory_bytes"]:
        return "The moments of all weights are kept: are the buckets of the class ShardedOptimizer?"
    return (
        "A GPU waits for a reduce-scatter with nothing to compute: begin each one when its bucket is full, "
        "and wait for all of them only before the step."
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="1D",
    minutes=20,
    asks={"zero1": load(full_name("1d")).strategy("ZeRO-1").program},
    attempt=attempt,
    hints=(
        "The first half of the all-reduce goes where overlapped DDP averages: behind the backward pass.",
        "The second half follows the optimizer's step: each GPU has stepped only its own shard of the "
        "weights.",
        "handles.append(bucket.reduce_scatter(async_op=True)) after each bucket's backward pass, wait for "
        "all, step, then bucket.all_gather() for every bucket.",
    ),
    learned="ZeRO-1 sends DDP's bytes, and divides the optimizer's state by the number of GPUs.",
    page="docs/book/1d.md",
    over_par=over_par,
    least={"bytes_sent": 1},
    known_better='The project has a better way, too: "ZeRO-1 overlapped" of 1d_data_parallel.py gathers the '
    "stepped weights beside the next forward pass. And smaller buckets leave less to wait for.",
)
