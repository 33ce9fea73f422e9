"""A plan for a cluster.

You have 64 H100s in nodes of 8, and are to train Llama 3 70B with 128 sequences of 8,192 tokens
a step, in bf16, with Megatron-Core. Plan it. The planner predicts the step, as it does for
published runs, and leaves 8% of the memory free: what only just fits in a prediction may not
fit in a machine.

To look around:

        ndparallel plan --model llama-3-70b --gpus 64 --global-batch 128 --sequence 8192 --tp 8 --pp 4
        ndparallel explain --help         ndparallel advise --help

Given   Plan(tp=, pp=, dp=, cp=, chunks=, micro_batch=, zero=, sequence_parallel=, recompute=, schedule=)
        What you leave out is 1, 0, False, "none" or "1f1b". tp * cp * pp * dp is 64.

Right is a plan that is legal and fits. Then the seconds count, against the best of all plans
that the search finds; within 5% is as good, for a prediction is not surer than that.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.quoting import brief
from ndparallel.base.words import listed
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.describe import WORDS
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.memory.total import STAGE_MEMORY_KINDS
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.planner.software import find_stack
from ndparallel.search.search import search

GPUS, HEADROOM = 64, 0.08
KINDS = {bool: "True or False", int: "a whole number", str: "a word", tuple: "a tuple"}
LEAST = 0.005  # share of a step: what takes less is not named


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
    chosen = checked(answer.on(0).plan())
    if chosen.gpus != GPUS:
        raise UserError(f"The plan is for {chosen.gpus} GPUs, and there are {GPUS}")
    prediction = predict(job(), chosen)
    needed = prediction.fullest.total
    if needed > limit():
        allowed = f"and {gigabytes(limit())} may be used"
        return Attempt(wrong=f"It needs {gigabytes(needed)} a GPU, {allowed}. {what_fills(prediction)}")
    remarks = f"{reached(prediction)} {where_time_goes(prediction)}"
    figures, spent = {"step_seconds": prediction.seconds}, prediction.step.breakdown
    return Attempt(figures, remarks=(remarks,), advice=what_buys_time(chosen), spent=spent)


def checked(chosen: object) -> Plan:
    """Return the plan, its numbers Python's own. Raises UserError for what is no plan, and for a value of
    another kind than what stands there when it is left out, or below it."""
    if not isinstance(chosen, Plan):
        raise UserError(f"plan() returned {brief(chosen)}: return Plan(...)")
    numbers: dict[str, Any] = {
        name: int(value) for name, value in vars(chosen).items() if isinstance(value, np.integer)
    }
    chosen = replace(chosen, **numbers)
    for name, left_out in vars(Plan()).items():
        value = getattr(chosen, name)
        if type(value) is not type(left_out):
            raise UserError(f"{name} is {value!r}, and should be {KINDS[type(left_out)]}, as {left_out!r} is")
        if isinstance(value, int) and value < left_out:
            raise UserError(f"{name} is {value!r}, and is at least {left_out!r}")
    return chosen


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def what_fills(prediction: Prediction) -> str:
    """Name what fills the fullest GPU, the largest first."""
    kinds = {kind: getattr(prediction.fullest, kind) for kind in STAGE_MEMORY_KINDS}
    return f"Most of it: {listed([f'{kind} {gigabytes(size)}' for kind, size in largest(kinds, 3)])}."


def reached(prediction: Prediction) -> str:
    """Say how much of the GPUs' peak a plan uses, and how much of their memory."""
    needed, allowed = gigabytes(prediction.fullest.total), gigabytes(limit())
    return f"It reaches an MFU of {prediction.mfu:.1%}, and needs {needed} of {allowed} on a GPU."


def where_time_goes(prediction: Prediction) -> str:
    """Name the three largest parts of the step."""
    shares = {name: seconds / prediction.seconds for name, seconds in prediction.step.breakdown.items()}
    named = listed([f"{share:.0%} {WORDS[name]}" for name, share in largest(shares, 3) if share >= LEAST])
    return f"Its step is {named}."


def what_buys_time(chosen: Plan) -> str:
    """Say what can be done with memory that is left."""
    less = ", or recompute less" if chosen.recompute != "none" else ""
    return f"Memory that is left can buy time: cut less{less}."


def largest(parts: Mapping[str, float], most: int) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda part: -part[1])[:most]


def over_par(yours: Attempt, par: Attempt) -> str:
    """Say how far the best plan is, and on what it spends less."""
    best = par.figures["step_seconds"]
    left = si(yours.figures["step_seconds"] - best, "s")
    more = {name: seconds - par.spent[name] for name, seconds in yours.spent.items()}
    most = [(name, seconds) for name, seconds in largest(more, 2) if seconds >= LEAST * best]
    named = listed([f"{si(seconds, 's')} more on {WORDS[name]}" for name, seconds in most])
    return (
        f"The best plan that the search finds takes {left} less: more than a prediction may be wrong. "
        f"Yours spends {named}. {yours.advice}"
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
