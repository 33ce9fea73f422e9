"""Accumulate, talk once.

The batch is taken in four microbatches, and the program below averages the gradients after
every one of them. It is right, and it sends four times what it must: the mean of a sum is the
sum of the means.

        microbatch      0          1          2          3
        compute         F B        F B        F B        F B
        links             ====       ====       ====       ====     four times 420 kB

Given   microbatches                        the numbers of this step's microbatches, a range
        everything else as in `leave_early`

Right is every gradient of one GPU that took the whole batch. Then the bytes count, and the
seconds: what must travel should still travel behind the last backward pass. (In PyTorch this is
`model.no_sync()`.)
"""

from gpu import GPU
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import data_parallel
from ndparallel.lessons.registry import full_name, load
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica

GPUS = 2


def ddp(gpu: GPU, job: Job) -> Outcome:
    """Average once a step. This one averages after every microbatch: change it."""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient, handles = None, []
            for unit in reversed(replica.units):
                gradient = unit.backward(gradient, microbatch)
                handles += [bucket.all_reduce(async_op=True) for bucket in replica.filled_by(unit)]
            for handle in handles:
                handle.wait()
        replica.optimizer_step()
    return replica.outcome


def attempt(answer) -> Attempt:
    return data_parallel(answer, "ddp", Job(microbatches=4), GPUS, ("step_seconds", "bytes_sent"))


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["bytes_sent"] > par.figures["bytes_sent"]:
        times = yours.figures["bytes_sent"] / par.figures["bytes_sent"]
        return (
            f"Every gradient travels {times:.3g} times: a bucket is full after the last microbatch only, and "
            "leaves once."
        )
    return (
        "Nothing computes while you talk: let each bucket leave during the last backward pass, and wait for "
        "all of them after it."
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="1D",
    minutes=10,
    asks={"ddp": load(full_name("1d")).strategy("DDP overlapped").program},
    attempt=attempt,
    hints=(
        "When does a bucket hold the gradients of the whole step?",
        "After the backward pass of the last microbatch: in those before it, no bucket may leave.",
        "if microbatch == microbatches[-1]: only then start the all_reduce of the buckets that are filled.",
    ),
    learned="with gradient accumulation the bytes of a step do not depend on the number of microbatches.",
    page="docs/book/1d.md",
    over_par=over_par,
    least={"bytes_sent": 1},
)
