"""Leave early.

Data parallelism: every GPU has the whole model and its own part of the batch, and all need the mean of their
gradients before the optimizer steps. The plain loop averages at the end, when every bucket is full and nobody
computes any more. But the backward pass fills the buckets one after another, the last layers' first:

        compute   backward 7  backward 6  backward 5  ...
        links                 bucket 7    bucket 6    ...        while the next layers compute

Given   replica.steps()                     yields the numbers of a step's microbatches, step by step
        replica.forward(microbatch)
        replica.units                       embedding, blocks and head
        unit.backward(gradient, microbatch) takes the gradient of the unit's output, and returns that of
                                            its input; the last unit takes None
        replica.filled_by(unit)             the buckets that are full once this unit's backward pass is done
        bucket.all_reduce(async_op=True)    begins to average, and returns a handle; handle.wait() ends it

Right is every gradient of one GPU that took the whole batch. Then the exposed seconds count: those in which a
GPU waits for messages.
"""

from gpu import GPU
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import data_parallel
from ndparallel.lessons.registry import full_name, load
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica

GPUS = 4


def ddp(gpu: GPU, job: Job) -> Outcome:
    """Average each bucket behind the rest of the backward pass. This one does it at the end: change it."""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.all_reduce()
        replica.optimizer_step()
    return replica.outcome


def attempt(answer) -> Attempt:
    return data_parallel(answer, "ddp", Job(), GPUS, ("step_seconds", "exposed_seconds"))


def over_par(yours: Attempt, par: Attempt) -> str:
    return (
        "Somebody waits while nobody computes: a bucket can leave as soon as the unit that fills it is done, "
        "and its handle is waited for when all units are."
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="1D",
    minutes=15,
    asks={"ddp": load(full_name("1d")).strategy("DDP overlapped").program},
    attempt=attempt,
    hints=(
        "replica.backward runs all units without asking you. Write its loop yourself: over reversed(units).",
        "After every unit's backward pass, begin to average what it has filled, and keep the handles.",
        "handles += [bucket.all_reduce(async_op=True) for bucket in replica.filled_by(unit)]. Wait for all "
        "of them before the optimizer steps. Of several microbatches, only the last one's fill a bucket.",
    ),
    learned="communication behind compute costs nothing, and only what has nothing left to hide behind is "
    "exposed: the first layers' bucket.",
    page="docs/book/1d.md",
    over_par=over_par,
    known_better="The project has a better way, too: with smaller buckets less is left at the end. "
    "They pay more latencies; --bucket-mb of 1d_data_parallel.py shows both.",
)
