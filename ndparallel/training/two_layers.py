"""The smallest model worth cutting: two matrices and a nonlinearity, y = relu(x A) B, held against a target.

Idea   Lessons cut it by hand. Every piece of mathematics is priced as it is computed, so a cut that computes
       less takes less time; who sends what is left to the lesson.
Cost   3 * 2 * tokens * hidden * ffn * 2 FLOPs for forward and backward.
Limit  Plain gradient descent steps the matrices off the clock, so that a step's seconds are those of the
       cut alone.

Glossary
    x, y, target     (tokens, hidden)
    a, b             the matrices, (hidden, ffn) and (ffn, hidden), or the slices of them that this rank holds
    z, h             what the first layer gives before and after the nonlinearity
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from collectives import Group, all_gather, all_reduce, reduce_scatter
from gpu import GPU
from ndparallel.base.bfloat16 import NAME as BFLOAT16
from ndparallel.base.bfloat16 import as_dtype, in_float32, wide, wide_dtype
from ndparallel.base.size_only import SizeOnly
from ndparallel.model import costs
from ndparallel.parallel.slices import Parameter
from ndparallel.parallel.tensor import contiguous
from ndparallel.training.clipping import coefficient
from ndparallel.training.job import Job
from ndparallel.training.replica import Holding, Outcome


class TwoLayers:
    """The mathematics of the two layers on one rank, with its slices of A and B."""

    a: "Slice"
    b: "Slice"

    def __init__(self, gpu: GPU, job: Job) -> None:
        self.gpu, self.job, self.tokens = gpu, job, job.batch * job.model.sequence
        self.held: list[Slice] = []
        self.outcome = Outcome()
        self.x, self.target = self.drawn((2, self.tokens, job.model.hidden))

    def drawn(self, shape: tuple[int, ...]) -> Any:
        if self.job.sizes_only:
            return SizeOnly(shape, self.job.dtype)
        return as_dtype(np.random.default_rng([self.job.seed, 1]).standard_normal(shape), self.job.dtype)

    def hold_a(self, columns: slice | None = None) -> "TwoLayers":
        """Hold these columns of A, or all."""
        hidden, ffn = self.job.model.hidden, self.job.model.ffn
        self.a = self._hold("a", (hidden, ffn), (slice(0, hidden), columns or slice(0, ffn)))
        return self

    def hold_b(self, rows: slice | None = None, columns: slice | None = None) -> "TwoLayers":
        """Hold these rows and columns of B, or all."""
        hidden, ffn = self.job.model.hidden, self.job.model.ffn
        self.b = self._hold("b", (ffn, hidden), (rows or slice(0, ffn), columns or slice(0, hidden)))
        return self

    def _hold(self, name: str, whole: tuple[int, int], index: tuple[slice, slice]) -> "Slice":
        self.held.append(Slice(self.gpu, self.job, name, whole, index))
        return self.held[-1]

    def matmul(self, name: str, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Multiply, and charge for it."""
        self.gpu.compute(costs.matmul(name, left.shape[0], right.shape[1], left.shape[1], self.job.dtype))
        return left @ right

    def relu(self, z: np.ndarray) -> np.ndarray:
        self.gpu.compute(costs.elementwise("forward relu", z.size, 2, self.job.dtype))
        self.gpu.allocate("activations", 2 * z.nbytes)  # z and h stay until the backward pass
        return np.maximum(z, 0)

    def relu_backward(self, dh: np.ndarray, z: np.ndarray) -> np.ndarray:
        self.gpu.compute(costs.elementwise("backward relu", z.size, 3, self.job.dtype))
        self.gpu.free("activations", 2 * z.nbytes)
        return dh * (z > 0)

    def loss_gradient(self, y: np.ndarray) -> np.ndarray:
        """The gradient of half the mean square distance from the target; the loss is noted."""
        error = y - self.target
        self.gpu.compute(costs.elementwise("forward loss", error.size, 3, self.job.dtype))
        if not self.job.sizes_only:
            self.outcome.losses.append(float(np.sum(wide(error) ** 2)) / self.target.size / 2)
        return error / self.target.size

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
        """Scale the gradients to a global norm: the GPUs' slices are parts of one model, and no two alike."""
        own = sum(float(np.vdot(part.gradient, part.gradient)) for part in self.held)
        squares = np.array([own], wide_dtype(self.job.dtype))
        all_reduce(self.gpu, squares, Group("norm", tuple(range(self.job.mesh.world_size))))
        self.outcome.gradient_norms.append(math.sqrt(float(squares[0])))
        for part in self.held:
            part.gradient *= coefficient(self.outcome.gradient_norms[-1], limit)

    def gather_columns(self, mine: np.ndarray, columns: int, group: Group) -> np.ndarray:
        """Put the columns of all ranks side by side; they travel as rows of the transpose, without gaps."""
        whole = np.empty_like(self.x, shape=(columns, self.tokens))
        return all_gather(self.gpu, whole, contiguous(mine.T), group).T

    def reduce_columns(self, parts: np.ndarray, columns: int, group: Group) -> np.ndarray:
        """Sum what all ranks have of every column, and keep this rank's `columns`."""
        mine = np.empty_like(self.x, shape=(columns, self.tokens))
        return reduce_scatter(self.gpu, mine, contiguous(parts.T), group).T


class Slice:
    """A rank's slice of one matrix, and its gradient."""

    def __init__(
        self, gpu: GPU, job: Job, name: str, whole: tuple[int, int], index: tuple[slice, slice]
    ) -> None:
        self.parameter = Parameter(name, whole, index, whole[0] ** -0.5)
        self.weight: Any = SizeOnly(self.parameter.shape, job.dtype)
        if not job.sizes_only:
            self.weight = self.parameter.draw(job.seed, job.dtype).copy()
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
        return Holding([self.parameter], 0, wide(array).reshape(-1).copy())
