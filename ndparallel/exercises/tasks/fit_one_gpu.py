"""Discard and compute again.

This GPU has 3 MB of memory, and the model with a batch of 8 sequences needs 18.5 MB. There are
two ways to keep fewer activations:

        microbatches        take the batch in 1, 2, 4 or 8 parts, one after another
        recompute           "none" keeps everything; "selective" discards attention's probabilities, "full"
                            all but each layer's input: they are computed again when they are needed

They cost little or much time, and can be combined. To look around:

        python 0d_single_gpu.py --memory --microbatches 2         (or: ndparallel lesson 0d --memory ...)

Given   nothing: return the two values

Right is whatever fits. Then the seconds count.
"""

from dataclasses import replace

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.base.quoting import brief
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import in_lesson
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.registry import single_gpu
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.job import Job

PARTS = (1, 2, 4, 8)
SMALL = replace(POCKET, memory_bytes=3e6)


def choose() -> tuple[int, str]:
    """Return how many microbatches, and what to recompute."""
    return 8, "selective"


def attempt(answer) -> Attempt:
    microbatches, recompute = checked(answer.on(0).choose())
    if microbatches not in PARTS:
        raise UserError(f"8 sequences cannot be taken in {microbatches} equal parts: take 1, 2, 4 or 8.")
    job = Job(microbatches=microbatches, recompute=recompute)
    return in_lesson(single_gpu().program, job, Mesh(), ("step_seconds",), SMALL)


def checked(chosen: object) -> tuple[int, str]:
    """Return what was chosen. Raises UserError for what is no whole number and word."""
    match chosen:
        case (int() | np.integer() as microbatches, str(recompute)) if microbatches is not True:
            return int(microbatches), recompute
    raise UserError(
        f"choose() returned {brief(chosen)}: return a whole number and a word, as in `return 2, 'none'`"
    )


def over_par(yours: Attempt, par: Attempt) -> str:
    return "It fits, and computes a third of the work twice. Is there something cheaper to discard?"


EXERCISE = Exercise(
    file=__file__,
    chapter="0D",
    minutes=10,
    asks={"choose": choose},
    attempt=attempt,
    hints=(
        "Which of the two costs next to no time? Take as much of it as you can get first.",
        "Eight parts need 3.78 MB. What is the cheapest thing left to discard?",
        "Attention's probabilities are computed again in a few percent of the time, whole layers in a third.",
    ),
    learned="microbatches are nearly free, discarding attention's probabilities costs a few percent, "
    "discarding everything a third: use them in this order.",
    page="docs/book/0d.md",
    over_par=over_par,
)
