"""What the small models that lessons cut by hand have in common: weights of which a rank holds slices.

Idea   A lesson writes out its cut on a model of a few lines. Here is what surrounds it: slices are drawn as
       parts of the whole, their gradients are cleared, clipped, compared with one GPU's, and stepped.
Limit  Plain gradient descent steps the slices off the clock, so that a step's seconds are those of the cut
       alone.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from collectives import Group, all_reduce
from gpu import GPU
from ndparallel.base.bfloat16 import NAME as BFLOAT16
from ndparallel.base.bfloat16 import as_dtype, in_float32, wide, wide_dtype
from ndparallel.base.errors import UserError
from ndparallel.base.size_only import SizeOnly
from ndparallel.model import costs
from ndparallel.parallel.slices import Parameter
from ndparallel.training.clipping import coefficient
from ndparallel.training.job import Job
from ndparallel.training.replica import Holding, Outcome


class ByHand:
    """A small model on one rank: the slices that it holds, and the steps of their training."""

    def __init__(self, gpu: GPU, job: Job) -> None:
        self.gpu, self.job, self.tokens = gpu, job, job.batch * job.model.sequence
        self.held: list[Slice] = []
        self.outcome = Outcome()

    def drawn(self, shape: tuple[int, ...]) -> Any:
        """Random numbers, the same on every rank."""
        if self.job.sizes_only:
            return SizeOnly(shape, self.job.dtype)
        return as_dtype(np.random.default_rng([self.job.seed, 1]).standard_normal(shape), self.job.dtype)

    def hold(
        self,
        name: str,
        whole: tuple[int, ...],
        *places: tuple[slice, ...],
        deviation: float | None = None,
        copies: int = 1,
    ) -> "Slice":
        """Hold these places of a parameter, one after another; `copies` ranks hold the same ones."""
        parameters = [Parameter(name, whole, place, deviation or whole[0] ** -0.5) for place in places]
        self.held.append(Slice(self.gpu, self.job, parameters, copies))
        self.outcome.trained.add(name)
        return self.held[-1]

    def matmul(self, name: str, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Multiply, and charge for it. Raises UserError for matrices that do not match."""
        if left.shape[1:] != right.shape[:1]:
            raise UserError(
                f"{name}: arrays of shapes {left.shape} and {right.shape} cannot be multiplied. Is one of "
                "them to be transposed (.T)?"
            )
        self.gpu.compute(costs.matmul(name, left.shape[0], right.shape[1], left.shape[1], self.job.dtype))
        return left @ right

    def elementwise(self, name: str, elements: int, passes: int) -> None:
        """Charge for a kernel that moves `passes` arrays of so many elements."""
        self.gpu.compute(costs.elementwise(name, elements, passes, self.job.dtype))

    def distance_gradient(self, y: np.ndarray, target: np.ndarray, ranks: int = 1) -> np.ndarray:
        """The gradient of half the mean square distance from the target, of which each of so many ranks has
        an equal part; the loss of this part is noted."""
        error = y - target
        self.elementwise("forward loss", error.size, 3)
        if not self.job.sizes_only:
            self.outcome.losses.append(float(np.sum(wide(error) ** 2)) / target.size / 2)
        return error / (target.size * ranks)

    def steps(self) -> Iterator[int]:
        """Clear the gradients before every step, and step the weights after it; keep the first gradients."""
        for step in range(self.job.steps):
            for part in self.held:
                part.gradient[:] = 0
            yield step
            if self.job.clip_grad_norm:
                self.clip(self.job.clip_grad_norm)
            if step == 0 and not self.job.sizes_only:
                self.outcome.gradients = [part.holding(part.gradient) for part in self.held]
            for part in self.held:
                part.step(self.job.learning_rate)
        if not self.job.sizes_only:
            self.outcome.weights = [part.holding(part.weight) for part in self.held]

    def clip(self, limit: float) -> None:
        """Scale the gradients to a global norm: a slice that several GPUs hold is counted once."""
        own = sum(float(np.vdot(part.gradient, part.gradient)) / part.copies for part in self.held)
        squares = np.array([own], wide_dtype(self.job.dtype))
        all_reduce(self.gpu, squares, Group("norm", tuple(range(self.job.mesh.world_size))))
        self.outcome.gradient_norms.append(math.sqrt(float(squares[0])))
        for part in self.held:
            part.gradient *= coefficient(self.outcome.gradient_norms[-1], limit)


class Slice:
    """What a rank holds of one parameter, and its gradient. Several places of it lie one after another along
    the first axis."""

    def __init__(self, gpu: GPU, job: Job, parameters: Sequence[Parameter], copies: int) -> None:
        self.parameters, self.copies = list(parameters), copies
        rows = sum(parameter.shape[0] for parameter in parameters)
        self.weight: Any = SizeOnly((rows, *parameters[0].shape[1:]), job.dtype)
        if not job.sizes_only:
            self.weight = np.concatenate([parameter.draw(job.seed, job.dtype) for parameter in parameters])
        self.gradient = np.zeros_like(in_float32(self.weight))
        gpu.allocate("weights", self.weight.nbytes)
        gpu.allocate("gradients", self.gradient.nbytes)
        self.master = self.weight
        if job.dtype == BFLOAT16:
            self.master = in_float32(self.weight).copy()
            gpu.allocate("optimizer", self.master.nbytes)

    def step(self, learning_rate: float) -> None:
        self.master -= learning_rate * self.gradient
        if self.master is not self.weight:
            self.weight[...] = as_dtype(self.master, BFLOAT16)

    def holding(self, array: np.ndarray) -> Holding:
        return Holding(self.parameters, 0, wide(array).reshape(-1).copy())
