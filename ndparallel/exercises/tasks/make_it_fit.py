"""Make it fit.

Eight GPUs in two nodes of four have 16 MB each. The model has 27 times as many weights as the
lessons': weights, gradients and optimizer states take 46 MB, and activations come on top. Choose
how to cut it:

        tp, pp, dp          how many GPUs share a matrix, stand in the pipeline, share the batch: tp pp dp = 8
        zero                0 to 3: what data parallelism shards
        microbatches        in how many parts a GPU takes its share of the batch: a pipeline needs several
        schedule            "gpipe", "1f1b", "zb-h1", "zb-v", ...

To look around:

        python 4d_combined.py --model-size large --tp 2 --pp 2 --dp 2 --zero 1 --microbatches 2 --memory

Given   nothing: return the choice, as in
        {"tp": 8, "pp": 1, "dp": 1, "zero": 0, "microbatches": 1, "schedule": "1f1b"}

Right is what can be cut so, and fits into 16 MB. Then the seconds count.
"""

from dataclasses import replace

import numpy as np

from gpu import OutOfMemoryError
from ndparallel.base.errors import UserError
from ndparallel.base.quantities import si
from ndparallel.base.quoting import brief
from ndparallel.base.words import ended
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import in_lesson
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.registry import full_name, module_of
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.job import MODEL_SIZES, Job

SMALL = replace(POCKET, memory_bytes=16e6)
GPUS = 8
HELD_WHOLE = {  # what a level of ZeRO needs beside the shards
    2: " With zero 2 the buffers hold gradients whole, until they are added up: zero 1 needs no buffers.",
    3: " With zero 3 the buffers hold the weights and the gradients of a whole stage while the GPU works on "
    "a microbatch, just when it holds most activations: zero 1 needs no buffers.",
}
ASKED = {  # about seconds more than the model solution's
    "compute": "Its GPUs compute for {} more: what does each of them compute that others compute too?",
    "exposed": "Its GPUs wait for messages for {} more. Which axis makes it?",
    "bubble": "Its GPUs are idle for {} more: fewer stages, or more microbatches? Which schedule leaves no "
    "bubble, and what could make room for it?",
}
CHOICES = ("tp", "pp", "dp", "zero", "microbatches", "schedule")


def choose() -> dict:
    """Return tp, pp, dp, zero, microbatches and schedule."""
    return {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "microbatches": 4, "schedule": "zb-v"}


def attempt(answer) -> Attempt:
    chosen = answer.on(0).choose()
    if not isinstance(chosen, dict) or set(chosen) != set(CHOICES):
        raise UserError(f"choose() returned {brief(chosen)}: return a dict of {', '.join(CHOICES)}")
    chosen = checked(chosen)
    mesh = Mesh(tp=chosen["tp"], pp=chosen["pp"], dp=chosen["dp"])
    if mesh.world_size != GPUS:
        raise UserError(
            f"tp {mesh.tp} x pp {mesh.pp} x dp {mesh.dp} is {mesh.world_size} GPUs: there are {GPUS}"
        )
    share, parts = Job.batch // mesh.dp, chosen["microbatches"]
    if share % parts:
        raise UserError(
            f"with dp {mesh.dp} a GPU has {share} sequences, which cannot be taken in {parts} equal parts"
        )
    how = {name: chosen[name] for name in ("zero", "microbatches", "schedule")}
    job = Job(model=MODEL_SIZES["large"], mesh=mesh, **how)
    try:
        return in_lesson(module_of(full_name("4d")).train, job, mesh, ("step_seconds",), SMALL)
    except OutOfMemoryError as error:
        raise UserError(f"{ended(str(error))}{HELD_WHOLE.get(chosen['zero'], '')}") from None


def checked(chosen: dict) -> dict:
    """Return the choice, its numbers Python's own. Raises UserError for what is not of its kind, or out of
    its range."""
    found = {name: int(value) if isinstance(value, np.integer) else value for name, value in chosen.items()}
    for name, value in found.items():
        first, last = (0, 3) if name == "zero" else (1, Job.batch if name == "microbatches" else GPUS)
        if name != "schedule" and not (type(value) is int and first <= value <= last):
            raise UserError(f"{name} is {value!r}, and should be a whole number from {first} to {last}")
        if name == "schedule" and not isinstance(value, str):
            raise UserError(f"schedule is {value!r}, and should be a name, like '1f1b'")
    return found


def over_par(yours: Attempt, par: Attempt) -> str:
    """Name what the GPUs spend most of the difference on, and ask what makes it."""
    more = {name: yours.spent[name] - par.spent[name] for name in ASKED}
    most = max(more, key=lambda name: more[name])
    return f"It fits. {ASKED[most].format(si(more[most], 's'))}"


EXERCISE = Exercise(
    file=__file__,
    chapter="4D",
    minutes=20,
    asks={"choose": choose},
    attempt=attempt,
    hints=(
        "Two GPUs in each of the three axes are a good start: tp inside the node, and not too much of "
        "anything.",
        "A pipeline with more microbatches has a smaller bubble and needs fewer activations at once. "
        "ZB-V fills it. FSDP (zero 3) divides more, but gathers a whole stage at a time into buffers: see "
        "the column *buffers* of --memory.",
        "ZeRO-1 makes room for what ZB-V holds: tp 2, pp 2, dp 2, zero 1, 4 microbatches.",
    ),
    learned="no axis is best for everything: tp for the largest activations, pp for the weights, dp for the "
    "rest, each no more than it must.",
    page="docs/book/4d.md",
    over_par=over_par,
)
