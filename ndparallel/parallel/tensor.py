"""The conjugate operators of tensor parallelism: what happens where activations enter and leave a cut matmul.

Idea   Cut the first matmul by columns and the second by rows, and only their two ends talk (Shoeybi et al.
       1909.08053). With sequence parallelism (Korthikanti et al. 2205.05198) the same bytes also gather and
       scatter the sequence, so norms and residuals are cut too.
Cost   none: an all-reduce forward where activations leave, one backward where they entered.  sp, sp-regather:
       an all-gather and a reduce-scatter in each of their places; sp-regather gathers the inputs once more,
       for the weight gradients.
Limit  Under sequence parallelism tp must divide the sequence.

Glossary
    column_input   before a column-parallel matmul: f of the paper (g with sequence parallelism)
    row_output     after a row-parallel matmul: f's conjugate
    overlap    "backward": the sum of an input's gradient travels beside the weight's gradient
    parts      pieces of an activation; one is all-reduced while the next is still multiplied
    shared     a parameter that several tp ranks hold, each with a part of its gradient: norms under sequence
               parallelism, KV heads where there are fewer of them than ranks
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collectives import Group, all_gather, all_reduce, reduce_scatter
from gpu import Handle
from ndparallel.parallel.axis import AxisOperators
from ndparallel.parallel.slices import Parameter, part

SEQUENCE_PARALLEL = ("none", "sp", "sp-regather")
TP_OVERLAP = ("none", "backward")


@dataclass
class TensorParallel(AxisOperators):
    """The tensor-parallel operators of one rank. Activations are (sequence, batch, hidden); shards are cut
    along the sequence."""

    sequence_parallel: str = "none"
    parts: int = 1
    overlap: str = "none"

    @cached_property
    def shards(self) -> bool:
        return self.sequence_parallel != "none" and self.size > 1

    @cached_property
    def regathers(self) -> bool:
        return self.sequence_parallel == "sp-regather" and self.size > 1

    @cached_property
    def overlaps(self) -> bool:
        return self.overlap == "backward" and self.size > 1

    def column_input(self, x: np.ndarray) -> np.ndarray:
        return self.gather(x) if self.shards else x

    def column_input_backward(self, dx: np.ndarray) -> np.ndarray:
        return self.scatter(dx) if self.shards else self.reduce(dx)

    def start_column_input_backward(self, dx: np.ndarray) -> Handle:
        return self.scatter(dx, async_op=True) if self.shards else self.reduce(dx, async_op=True)

    def row_output(self, y: np.ndarray) -> np.ndarray:
        return self.scatter(y) if self.shards else self.reduce(y)

    def row_output_backward(self, dy: np.ndarray) -> np.ndarray:
        return self.gather(dy) if self.shards else dy

    def reduce(self, x: np.ndarray, op: str = "sum", async_op: bool = False):
        return all_reduce(self.gpu, contiguous(x), self.group, op, async_op=async_op) if self.size > 1 else x

    def gather(self, x: np.ndarray, async_op: bool = False):
        """Put the shards of the sequence together."""
        whole = np.empty_like(x, order="C", shape=(x.shape[0] * self.size, *x.shape[1:]))
        return all_gather(self.gpu, whole, x, self.group, async_op=async_op)

    def scatter(self, x: np.ndarray, async_op: bool = False):
        """Sum over the ranks and keep this rank's shard of the sequence."""
        shard = np.empty_like(x, order="C", shape=(x.shape[0] // self.size, *x.shape[1:]))
        return reduce_scatter(self.gpu, shard, x, self.group, async_op=async_op)

    def share(self, x: np.ndarray) -> np.ndarray:
        """Return this rank's part of the sequence; under sequence parallelism an activation is that part
        already."""
        return x if self.shards else x[part(len(x), self.size, self.index)]

    def unshare(self, x: np.ndarray) -> np.ndarray:
        """Gather the ranks' parts of the sequence, unless activations stay cut. Its backward pass is
        `share`, and the other way round."""
        return x if self.shards or self.size == 1 else self.gather(x)

    def sum_shared(self, gradients: Iterable[tuple[Parameter, np.ndarray]]) -> None:
        """Sum the gradients of shared parameters over the ranks that share them: one all-reduce for each
        number of sharers."""
        by_sharers: dict[int, list[np.ndarray]] = {}
        for parameter, gradient in gradients:
            if parameter.shared_by > 1:
                by_sharers.setdefault(parameter.shared_by, []).append(gradient)
        for sharers, shared in by_sharers.items():
            first = self.index - self.index % sharers
            self._sum_coalesced(shared, Group(self.group.name, self.group.ranks[first : first + sharers]))

    def _sum_coalesced(self, arrays: list[np.ndarray], group: Group) -> None:
        coalesced = np.concatenate([array.reshape(-1) for array in arrays])
        all_reduce(self.gpu, coalesced, group)
        start = 0
        for array in arrays:
            array[...] = coalesced[start : start + array.size].reshape(array.shape)
            start += array.size


def contiguous(x: np.ndarray) -> np.ndarray:
    return x if x.flags.c_contiguous else x.copy()
