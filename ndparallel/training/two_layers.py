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

import numpy as np

from collectives import Group, all_gather, reduce_scatter
from gpu import GPU
from ndparallel.parallel.tensor import contiguous
from ndparallel.training.by_hand import ByHand, Slice
from ndparallel.training.job import Job


class TwoLayers(ByHand):
    """The mathematics of the two layers on one rank, with its slices of A and B."""

    a: Slice
    b: Slice

    def __init__(self, gpu: GPU, job: Job) -> None:
        super().__init__(gpu, job)
        self.x, self.target = self.drawn((2, self.tokens, job.model.hidden))

    def hold_a(self, columns: slice | None = None) -> "TwoLayers":
        """Hold these columns of A, or all."""
        hidden, ffn = self.job.model.hidden, self.job.model.ffn
        self.a = self.hold("a", (hidden, ffn), (slice(0, hidden), columns or slice(0, ffn)))
        return self

    def hold_b(self, rows: slice | None = None, columns: slice | None = None) -> "TwoLayers":
        """Hold these rows and columns of B, or all."""
        hidden, ffn = self.job.model.hidden, self.job.model.ffn
        self.b = self.hold("b", (ffn, hidden), (rows or slice(0, ffn), columns or slice(0, hidden)))
        return self

    def relu(self, z: np.ndarray) -> np.ndarray:
        self.elementwise("forward relu", z.size, 2)
        self.gpu.allocate("activations", 2 * z.nbytes)  # z and h stay until the backward pass
        return np.maximum(z, 0)

    def relu_backward(self, dh: np.ndarray, z: np.ndarray) -> np.ndarray:
        self.elementwise("backward relu", z.size, 3)
        self.gpu.free("activations", 2 * z.nbytes)
        return dh * (z > 0)

    def loss_gradient(self, y: np.ndarray) -> np.ndarray:
        """The gradient of half the mean square distance from the target; the loss is noted."""
        return self.distance_gradient(y, self.target)

    def gather_columns(self, mine: np.ndarray, columns: int, group: Group) -> np.ndarray:
        """Put the columns of all ranks side by side; they travel as rows of the transpose, without gaps."""
        whole = np.empty_like(self.x, shape=(columns, self.tokens))
        return all_gather(self.gpu, whole, contiguous(mine.T), group).T

    def reduce_columns(self, parts: np.ndarray, columns: int, group: Group) -> np.ndarray:
        """Sum what all ranks have of every column, and keep this rank's `columns`."""
        mine = np.empty_like(self.x, shape=(columns, self.tokens))
        return reduce_scatter(self.gpu, mine, contiguous(parts.T), group).T
