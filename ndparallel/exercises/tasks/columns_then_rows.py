"""Columns, then rows.

Two matrices and a nonlinearity, y = relu(x A) B, are cut over four GPUs that all have the whole
of x. Cut A by columns, and a GPU gets its columns of z = x A without asking anybody; relu needs
no neighbour either. Cut B by rows, and it can multiply its columns of h at once: what it gets
is a part of every number of y. Only there do they talk.

        x · A = A0 A1 A2 A3  ->  z0 z1 z2 z3  ->  h0 h1 h2 h3 · B = B0  ->  h0 B0 + h1 B1 + h2 B2 + h3 B3
                                                                    B1
                                                                    B2
                                                                    B3

Given   mlp.x, mlp.a.weight, mlp.b.weight           whole x; this GPU's columns of A, and rows of B
        mlp.matmul("forward z", left, right)        multiplies, and charges the clock; the first word of its
                                                    name, forward or backward, is its letter in the timeline
        mlp.relu(z), mlp.relu_backward(dh, z)
        mlp.loss_gradient(y)                        the gradient of the loss with respect to y
        mlp.a.gradient, mlp.b.gradient              add your gradients to them: +=
        all_reduce(gpu, array, tp)                  the sum over all GPUs

        y = h B  has  dh = dy B^T  and  dB = h^T dy.

Right are the gradients of A and B, and the gradient of x, which the layer below would need:
return it from the function. Then the seconds count, and the bytes.
"""

import numpy as np

from collectives import Group, all_reduce
from gpu import COMPUTE, GPU
from ndparallel.base.events import of_kinds
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import first_fault, in_lesson, right_everywhere
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.registry import full_name, module_of
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.slices import part
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome
from ndparallel.training.two_layers import TwoLayers

WORLDS = ((4, 1), (2, 2), (8, 2))  # GPUs, and passes whose gradients add up: the first is measured
NAME = "With {} GPUs and {} passes a step"
KERNELS = 9  # of a pass
EMPTY = "It is zero: nothing was added to it."
OVERWRITTEN = "It lacks what the pass before has left there: add your gradient to it, with +=."


def forward_and_backward(gpu: GPU, mlp: TwoLayers, tp: Group) -> np.ndarray:
    """Go forward and backward, add to the gradients of A and B, and return the gradient of x."""
    z = mlp.matmul("forward first", mlp.x, mlp.a.weight)
    h = mlp.relu(z)
    y = all_reduce(gpu, mlp.matmul("forward second", h, mlp.b.weight), tp)
    dy = mlp.loss_gradient(y)
    mlp.b.gradient += mlp.matmul("backward second weight", h.T, dy)
    dz = mlp.relu_backward(mlp.matmul("backward second", dy, mlp.b.weight.T), z)
    mlp.a.gradient += mlp.matmul("backward first weight", mlp.x.T, dz)
    return all_reduce(gpu, mlp.matmul("backward first", dz, mlp.a.weight.T), tp)


def attempt(answer) -> Attempt:
    return right_everywhere(lambda *world: in_world(answer, *world), NAME, *WORLDS)


def in_world(answer, gpus: int, passes: int) -> Attempt:
    gradients_of_x, charged = {}, {}

    def program(gpu: GPU, job: Job) -> Outcome:
        tp = job.mesh.group("tp", gpu.rank)
        mine = part(job.model.ffn, tp.size, tp.index(gpu.rank))
        mlp = TwoLayers(gpu, job).hold_a(columns=mine).hold_b(rows=mine)
        for _ in mlp.steps():
            for _ in range(passes):
                gradients_of_x[gpu.rank] = answer.on(gpu.rank).forward_and_backward(gpu, mlp, tp)
            take_mean(mlp, passes)
        charged[gpu.rank] = len(list(of_kinds(gpu.events, COMPUTE))) / passes
        return mlp.outcome

    reference = module_of(full_name("2d")).columns_then_rows
    figures = ("step_seconds", "bytes_sent")
    return in_lesson(
        program,
        Job(),
        Mesh(tp=gpus),
        figures,
        meaning=meaning,
        reference=reference,
        fault=lambda: (
            first_fault(fault_of_x(rank, dx) for rank, dx in sorted(gradients_of_x.items()))
            or first_fault(beside_the_clock(rank, kernels) for rank, kernels in sorted(charged.items()))
        ),
    )


def take_mean(mlp: TwoLayers, passes: int) -> None:
    """Make the gradients and losses of a step's passes, which are alike, those of one."""
    for held in mlp.held:
        held.gradient /= passes
    del mlp.outcome.losses[1:]


def meaning(times: float) -> str:
    if times == 0:
        return EMPTY
    if abs(times - 1 / 2) < 0.01:
        return OVERWRITTEN
    return (
        "B's gradient needs the whole dy: was y summed before mlp.loss_gradient(y)? A's needs this GPU's "
        "columns of dz, and no sum."
    )


def fault_of_x(rank: int, dx: np.ndarray) -> str:
    """Say what is wrong with the gradient of x that a GPU returned."""
    expected = gradient_of_x()
    if not isinstance(dx, np.ndarray) or dx.shape != expected.shape:
        what = f"shape {list(dx.shape)}" if isinstance(dx, np.ndarray) else f"a {type(dx).__name__}"
        shape = list(expected.shape)
        return f"GPU {rank} returned {what}, and no gradient of x: return dz A^T, of shape {shape}."
    if np.abs(dx - expected).max() <= 1e-5 * np.abs(expected).max():
        return ""
    return (
        f"GPU {rank}: the gradient of x is wrong. Each GPU has a part of dz, so dz A^T is a part of "
        "every number: sum it over the GPUs, and wait for the sum."
    )


def beside_the_clock(rank: int, kernels: float) -> str:
    """Say that a GPU's clock knows of fewer kernels than a pass has."""
    if kernels >= KERNELS:
        return ""
    return (
        f"The numbers are right, but the clock of GPU {rank} knows of {kernels:g} kernels, where a pass has "
        f"{KERNELS}: six matmuls, relu, its backward, and the loss. What numpy does alone, as in h @ w "
        "or np.maximum(z, 0), takes no time: call what the task gives."
    )


def gradient_of_x() -> np.ndarray:
    """Compute it on one GPU, in numpy alone."""
    mlp = TwoLayers(GPU(0, POCKET, transport=None), Job()).hold_a().hold_b()
    z = mlp.x @ mlp.a.weight
    dy = (np.maximum(z, 0) @ mlp.b.weight - mlp.target) / mlp.target.size
    return ((dy @ mlp.b.weight.T) * (z > 0)) @ mlp.a.weight.T


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["bytes_sent"] > par.figures["bytes_sent"]:
        return "More is summed than must be: h and dz stay where they are, and only y and dx are sums."
    return "Something is multiplied twice, or in a longer form than needed."


EXERCISE = Exercise(
    file=__file__,
    chapter="2D",
    minutes=20,
    asks={"forward_and_backward": forward_and_backward},
    attempt=attempt,
    hints=(
        "Write it for one GPU first: six matmuls, relu and its backward. On four GPUs, which results are "
        "whole columns or rows, and in which is every number only one summand?",
        "h B multiplies this GPU's columns of h by its rows of B: that is one summand of every number of y. "
        "Backward, dz A^T is one summand of every number of dx. Those two are summed, and nothing else.",
        "y = all_reduce(gpu, mlp.matmul(..., h, mlp.b.weight), tp) and "
        "return all_reduce(gpu, mlp.matmul(..., dz, mlp.a.weight.T), tp).",
    ),
    learned="a pair of matmuls cut by columns, then by rows, needs one sum forward and one backward.",
    page="docs/book/2d.md",
    over_par=over_par,
    least={"bytes_sent": 1},
    known_better="The project has a better way, too: one of the two sums can travel while something else is "
    "multiplied. It is the exercise sum_that_can_wait.",
)
