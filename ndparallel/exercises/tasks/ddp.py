"""Everybody takes the same step.

Four GPUs have the same weights, and a quarter of the batch each. The program below trains each
of them on its own quarter, so that after one step there are four models. Make it one:

        GPU 0   forward  backward   g0 ┐
        GPU 1   forward  backward   g1 ├──  the mean of all four  ──  the same step everywhere
        GPU 2   forward  backward   g2 │
        GPU 3   forward  backward   g3 ┘

Given   replica.buckets                     the gradients, in one array or several
        bucket.all_reduce(algorithm="ring") averages a bucket over all GPUs; "naive" does it on GPU 0

Right are the gradients and the weights of one GPU that took the whole batch. Then the seconds count.
"""

from math import inf

from gpu import GPU
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import data_parallel
from ndparallel.lessons.registry import full_name, load
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica

GPUS = 4


def ddp(gpu: GPU, job: Job) -> Outcome:
    """Train one model on all GPUs. This one trains four: change it."""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.optimizer_step()
    return replica.outcome


def attempt(answer) -> Attempt:
    job = Job(batch=16, microbatches=4, bucket_mb=inf)  # one bucket, in the run that is measured
    return data_parallel(answer, "ddp", job, GPUS, ("step_seconds", "bytes_sent"))


def over_par(yours: Attempt, par: Attempt) -> str:
    times = yours.figures["bytes_sent"] / par.figures["bytes_sent"]
    if not yours.sends_evenly:
        often = " And average once a step, not after every microbatch." if times > 2.005 else ""
        return f"One GPU sends more than the others, who wait for it: a ring keeps all links busy.{often}"
    if times > 1.005:
        return (
            f"Every gradient is averaged {times:.3g} times a step: add up all microbatches first, and "
            "average the sum once."
        )
    return "It sends what it must, and takes longer: is something computed twice?"


EXERCISE = Exercise(
    file=__file__,
    chapter="1D",
    minutes=10,
    asks={"ddp": load(full_name("1d")).strategy("DDP ring").program},
    attempt=attempt,
    hints=(
        "Between which two lines are this GPU's gradients complete, and not yet used?",
        "After the loop over microbatches, before the optimizer steps: average every bucket.",
        'for bucket in replica.buckets: bucket.all_reduce() - with "ring", not with "naive".',
    ),
    learned="data parallelism is one line: average the gradients before the optimizer steps.",
    page="docs/book/1d.md",
    over_par=over_par,
    least={"bytes_sent": 1},
    known_better="The project has a better way, too: a mean that travels beside the backward pass. It is the "
    "next exercise, leave_early.",
)
