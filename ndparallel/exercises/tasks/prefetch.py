"""Fetch ahead.

FSDP as you wrote it waits for every gather and every reduction. But the order of the units is
known: while one computes, the next one's weights can be on their way, and the last one's
gradients too.

        compute         unit 0          unit 1          unit 2
        links           gather 1 ====   gather 2 ====   gather 3 ====

Given   unit.gather(async_op=True)              begins, and needs no wait: unit.gather() waits for it
        unit.reduce_scatter(async_op=True)      a handle; its wait also gives the gradients' room back
        pairwise([a, b, c, None])               gives (a, b), (b, c), (c, None)

Right is every gradient. Then the seconds count, and the memory: two units may be whole at once,
but not all.
"""

from itertools import pairwise

from gpu import GPU
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import data_parallel
from ndparallel.lessons.registry import full_name, load
from ndparallel.training.buckets import FullyShardedUnit
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica

GPUS = 4


def fsdp_prefetch(gpu: GPU, job: Job) -> Outcome:
    """Gather the next unit and reduce the last one while this one computes. This one waits for both."""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit, _following in pairwise([*reversed(replica.buckets), None]):
                unit.gather()
                x = unit.forward(x, microbatch)
                unit.reshard()
            gradient = None
            for unit, _following in pairwise([*replica.buckets, None]):
                unit.gather()
                unit.allocate_gradients()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                unit.reduce_scatter()
        replica.optimizer_step()
    return replica.outcome


def attempt(answer) -> Attempt:
    return data_parallel(
        answer, "fsdp_prefetch", Job(), GPUS, ("step_seconds", "exposed_seconds", "peak_memory_bytes")
    )


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["peak_memory_bytes"] > par.figures["peak_memory_bytes"] * 1.005:
        return (
            "More than two units are whole at once: fetch one ahead, and end one reduction before the next."
        )
    return (
        "The links are silent while somebody computes: is the backward pass fetching ahead too, and reducing?"
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="1D",
    minutes=20,
    asks={"fsdp_prefetch": load(full_name("1d")).strategy("FSDP prefetch").program},
    attempt=attempt,
    hints=(
        "After unit.gather() and before unit.forward(...), begin to gather the following unit, if there "
        "is one.",
        "Backward the same, and the reduction of a unit may stay on its way while the next one computes: "
        "keep its handle, and wait for it before you begin the next reduction.",
        "on_its_way = unit.reduce_scatter(async_op=True) after `if on_its_way: on_its_way.wait()`; and wait "
        "for the last one before the optimizer steps.",
    ),
    learned="fetching one unit ahead hides nearly all that FSDP sends, for the memory of one more unit.",
    page="docs/book/1d.md",
    over_par=over_par,
    known_better="PyTorch has a better way, too: the last unit's weights stay whole between the passes, "
    "because they would be gathered again at once. It is fully_shard's reshard_after_forward=False.",
)
