"""f and g.

A transformer layer has two pairs of matmuls that are cut by columns, then by rows: attention's
projections and its output, and the two of the MLP. All that tensor parallelism adds to the
single GPU's program stands at four places: where an activation enters a pair, forward and
backward; and where it leaves, forward and backward:

        x ── enter ──> columns of A ── ... ── rows of B ── leave ──> y          forward
        dx <─ enter_backward ── ...                   <─ leave_backward ── dy   backward

Two of the four are a sum over the GPUs, two hand on what they are given. (Megatron calls them f
and g.)

Given   all_reduce(gpu, array, tp)                  the sum over the group's GPUs, in `array`, and returned

Right is every gradient of one GPU, in a whole transformer. Then the seconds count.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collectives import Group, all_reduce
from gpu import GPU
from ndparallel.base.errors import UserError
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import in_lesson, right_everywhere
from ndparallel.lessons.registry import single_gpu
from ndparallel.model.units import Context
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.tensor import TensorParallel
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica

GPUS = ((4,), (2,), (8,))  # the first is measured


def enter(gpu: GPU, x: np.ndarray, tp: Group) -> np.ndarray:
    """What goes into the columns of A: x is whole on every GPU."""
    return x


def enter_backward(gpu: GPU, dx: np.ndarray, tp: Group) -> np.ndarray:
    """What the layer below is given: dx is what this GPU's columns contribute."""
    return all_reduce(gpu, dx, tp)


def leave(gpu: GPU, y: np.ndarray, tp: Group) -> np.ndarray:
    """What the layer above is given: y is what this GPU's rows contribute."""
    return all_reduce(gpu, y, tp)


def leave_backward(gpu: GPU, dy: np.ndarray, tp: Group) -> np.ndarray:
    """What goes backward into the rows of B: dy is whole on every GPU."""
    return dy


@dataclass
class Operators(TensorParallel):
    """The package's operators, with the answer's in their place."""

    functions: Any = None

    def column_input(self, x: np.ndarray) -> np.ndarray:
        return self.returned("enter", x)

    def column_input_backward(self, dx: np.ndarray) -> np.ndarray:
        return self.returned("enter_backward", np.ascontiguousarray(dx))

    def row_output(self, y: np.ndarray) -> np.ndarray:
        return self.returned("leave", np.ascontiguousarray(y))

    def row_output_backward(self, dy: np.ndarray) -> np.ndarray:
        return self.returned("leave_backward", dy)

    def returned(self, name: str, array: np.ndarray) -> np.ndarray:
        found = getattr(self.functions, name)(self.gpu, array, self.group)
        if not isinstance(found, np.ndarray) or found.shape != array.shape:
            what = (
                f"the shape {found.shape}" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"
            )
            raise UserError(
                f"{name} returned {what}: return an array of the shape {array.shape} that it is given"
            )
        return found


def attempt(answer) -> Attempt:
    class Cut(Replica):
        def make_context(self) -> Context:
            context = super().make_context()
            tp = Operators(self.gpu, context.tp.group, functions=answer.on(self.gpu.rank))
            return replace(context, tp=tp)

    def program(gpu: GPU, job: Job) -> Outcome:
        replica = Cut(gpu, job)
        for microbatches in replica.steps():
            for microbatch in microbatches:
                replica.forward(microbatch)
                replica.backward(microbatch)
            replica.sum_shared()
            replica.optimizer_step()
        return replica.outcome

    def run(gpus: int) -> Attempt:
        figures, alone = ("step_seconds", "bytes_sent"), single_gpu().program
        return in_lesson(program, Job(), Mesh(tp=gpus), figures, meaning=meaning, reference=alone)

    return right_everywhere(run, "With {} GPUs", *GPUS)


def meaning(times: float) -> str:
    return (
        "Ask at each of the four places: is what I am given whole, or this GPU's part of a sum? A part is "
        "summed, and what is whole must not be."
    )


def over_par(yours: Attempt, par: Attempt) -> str:
    return (
        "Something travels that need not: two sums forward and two backward in every layer are enough, each "
        "by all_reduce as it is, a ring, and of the numbers as they are given, float32."
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="2D",
    minutes=15,
    asks={
        "enter": enter,
        "enter_backward": enter_backward,
        "leave": leave,
        "leave_backward": leave_backward,
    },
    attempt=attempt,
    hints=(
        "Forward: the rows of B leave a part of every number of y on each GPU. What must happen to it?",
        "Where forward copies, backward sums: x went to all GPUs, so dx comes from all. Where forward sums, "
        "backward copies: each part of y has the gradient dy.",
        "enter returns x, enter_backward returns all_reduce(gpu, dx, tp), leave returns all_reduce(gpu, y, "
        "tp), leave_backward returns dy.",
    ),
    learned="f and g are conjugate: what one does forward, the other does backward. They are all that tensor "
    "parallelism adds to a program.",
    page="docs/book/2d.md",
    over_par=over_par,
    least={"bytes_sent": 1},
)
