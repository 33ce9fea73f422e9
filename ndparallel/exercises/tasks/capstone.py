"""A plan for a cluster.

You have 64 H100s in nodes of 8, and are to train Llama 3 70B with 128 sequences of 8,192 tokens
a step, in bf16, with Megatron-Core. Plan it. The planner predicts the step, as it does for
published runs, and leaves 8% of the memory free: what fits by a hair in a prediction does not
fit in a machine.

To look around:

        ndparallel plan --model llama-3-70b --gpus 64 --global-batch 128 --sequence 8192 --tp 8 --pp 4
        ndparallel explain --help         ndparallel advise --help

Given   Plan(tp=, pp=, dp=, cp=, chunks=, micro_batch=, zero=, sequence_parallel=, recompute=, schedule=)
        What you leave out is 1, 0, False, "none" or "1f1b". tp * cp * pp * dp is 64.

Right is a plan that is legal and fits. Then the seconds count, against the best of all plans
that the search finds; within 5% is as good, for a prediction is not surer than that.
"""

from ndparallel.base.errors import UserError
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.planner.software import find_stack
from ndparallel.search.search import search

GPUS, HEADROOM = 64, 0.08


def plan() -> Plan:
    """Return a plan for 64 GPUs. This one does not fit: change it."""
    return Plan(tp=8, pp=2, dp=4, sequence_parallel=True)


def searched() -> Plan:
    """Take the best of all plans that are legal and fit."""
    return search(job(), GPUS, frameworks=(), max_memory=limit(), top=1).best.plan


def job() -> TrainingJob:
    """What is to be trained, on what."""
    return TrainingJob(
        find_model("llama-3-70b"), find_hardware("h100"), find_stack("megatron-core"), 8192, 128
    )


def limit() -> float:
    """The bytes that a plan may take."""
    return (1 - HEADROOM) * job().hardware.memory_bytes


def attempt(answer) -> Attempt:
    chosen = answer.on(0).plan()
    if not isinstance(chosen, Plan):
        raise UserError(f"plan() returned {type(chosen).__name__}: return Plan(...)")
    require_kinds(chosen)
    if chosen.gpus != GPUS:
        raise UserError(f"this plan is for {chosen.gpus} GPUs, and there are {GPUS}")
    prediction = predict(job(), chosen)
    needed = prediction.fullest.total
    if needed > limit():
        return Attempt(wrong=f"It needs {needed / 1e9:.1f} GB a GPU, and {limit() / 1e9:.1f} GB may be used.")
    return Attempt({"step_seconds": prediction.seconds}, remarks=(where_time_goes(prediction),))


def require_kinds(chosen: Plan) -> None:
    """Raise UserError for a value of another kind than what stands there when it is left out, or below it."""
    for name, left_out in vars(Plan()).items():
        value = getattr(chosen, name)
        if type(value) is not type(left_out):
            raise UserError(f"{name} is {value!r}, and should be of the kind of {left_out!r}")
        if isinstance(value, int) and value < left_out:
            raise UserError(f"{name} is {value!r}, and is at least {left_out!r}")


def where_time_goes(prediction: Prediction) -> str:
    """Name the two largest parts of the step, and what is left of the GPUs' peak."""
    parts = sorted(prediction.step.breakdown.items(), key=lambda part: -part[1])[:2]
    named = " and ".join(f"{share / prediction.seconds:.0%} {name}" for name, share in parts)
    return f"The step is {named}; MFU {prediction.mfu:.1%}."


def over_par(yours: Attempt, par: Attempt) -> str:
    return (
        "More than the planner's own error away from the best. What does the step wait for? Where there is "
        "memory left, recompute less or cut less."
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="cluster",
    minutes=30,
    asks={"plan": searched},
    attempt=attempt,
    hints=(
        "Weights, gradients and optimizer of 70 billion parameters take 18 bytes each: over how many GPUs "
        "must they be spread? tp * pp divides them all, ZeRO-1 over dp divides the optimizer.",
        "tp 8 with sequence parallelism stays inside the node. Several chunks make the bubble of an "
        "interleaved pipeline small: schedule='interleaved', chunks=5.",
        "Try less tp and some cp: a sequence of 8,192 tokens can be shared as well, and costs less than "
        "tp's sums.",
    ),
    learned="several very different plans are within the error of the best; of these, take the simplest.",
    page="docs/book/cluster.md",
    over_par=over_par,
    as_much=0.05,
)
