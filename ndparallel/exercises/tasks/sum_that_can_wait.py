"""The sum that can wait.

Going forward, a sum of tensor parallelism stands between one matmul and the next, and everybody
waits for it. Going backward, a column-parallel matmul has two gradients to compute: that of its
input, which must be summed over the GPUs, and that of its weights, which is this GPU's own.
They need not wait for one another:

        as it is        dx ──── sum of dx ────  dA                      dA does not use the sum ...
        better          dx  dA                                          ... so it can travel beside it
                           ──── sum of dx ────

Given   mlp.matmul("a name", left, right)               multiplies, and charges the clock
        all_reduce(gpu, array, tp, async_op=True)       begins the sum; its handle's wait() returns it

Right are all gradients, and the gradient of x. Then the exposed seconds count: those in which a
GPU waits.
"""

import numpy as np

from collectives import Group, all_reduce
from gpu import GPU
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import first_fault, in_lesson, right_everywhere
from ndparallel.exercises.tasks.columns_then_rows import EMPTY, NAME, OVERWRITTEN, WORLDS, fault_of_x
from ndparallel.lessons.registry import full_name, module_of
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.slices import part
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome
from ndparallel.training.two_layers import TwoLayers


def column_parallel_backward(gpu: GPU, mlp: TwoLayers, dz: np.ndarray, tp: Group) -> np.ndarray:
    """Add to A's gradient, and return the gradient of x."""
    dx = mlp.matmul("backward first", dz, mlp.a.weight.T)
    summing = all_reduce(gpu, dx, tp, async_op=True)
    mlp.a.gradient += mlp.matmul("backward first weight", mlp.x.T, dz)
    return summing.wait()


def attempt(answer) -> Attempt:
    return right_everywhere(lambda *world: in_world(answer, *world), NAME, *WORLDS)


def in_world(answer, gpus: int, passes: int) -> Attempt:
    lesson = module_of(full_name("2d"))
    gradients_of_x = {}

    def program(gpu: GPU, job: Job) -> Outcome:
        tp = job.mesh.group("tp", gpu.rank)
        mine = part(job.model.ffn, tp.size, tp.index(gpu.rank))
        mlp = TwoLayers(gpu, job).hold_a(columns=mine).hold_b(rows=mine)
        for _ in mlp.steps():
            z = lesson.column_parallel(mlp, mlp.x, tp)
            h = mlp.relu(z)
            dy = mlp.loss_gradient(lesson.row_parallel(mlp, h, tp))
            dz = mlp.relu_backward(lesson.row_parallel_backward(mlp, dy, h, tp), z)
            backward = answer.on(gpu.rank).column_parallel_backward
            for _ in range(passes):
                gradients_of_x[gpu.rank] = backward(gpu, mlp, dz, tp)
            mlp.a.gradient /= passes
        return mlp.outcome

    figures = ("step_seconds", "exposed_seconds", "bytes_sent")
    reference = lesson.columns_then_rows
    return in_lesson(
        program,
        Job(),
        Mesh(tp=gpus),
        figures,
        meaning=meaning,
        reference=reference,
        fault=lambda: first_fault(fault_of_x(rank, dx) for rank, dx in sorted(gradients_of_x.items())),
    )


def meaning(times: float) -> str:
    if times == 0:
        return EMPTY
    if abs(times - 1 / 2) < 0.01:
        return OVERWRITTEN
    return (
        "A's gradient is x^T dz, of this GPU's columns: it is added to mlp.a.gradient, and not summed "
        "over GPUs."
    )


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["bytes_sent"] > par.figures["bytes_sent"]:
        return "More is summed than dx: A's gradient is this GPU's own."
    return "The GPU stands idle while the sum travels: which matmul does not need it?"


EXERCISE = Exercise(
    file=__file__,
    chapter="2D",
    minutes=10,
    asks={"column_parallel_backward": column_parallel_backward},
    attempt=attempt,
    hints=(
        "Compute dx first, although it is returned last.",
        "Begin its sum before A's gradient is computed, and wait for it after that.",
        "summing = all_reduce(gpu, dx, tp, async_op=True), then A's gradient, then return summing.wait().",
    ),
    learned="sums of the backward pass hide behind weight gradients; sums of the forward pass have nothing "
    "to hide behind. Megatron does this, and CUDA_DEVICE_MAX_CONNECTIONS=1 keeps the kernels in this order.",
    page="docs/book/2d.md",
    over_par=over_par,
    least={"bytes_sent": 1},
)
