"""The kernels that lists of layers are made of: one norm, one product of a matrix, one pass over an array.

Idea   What the software fuses is decided here; which kernels follow one another, and which collectives come
       between them, is written in the other files.
Limit  Biases and norms' weights are not priced.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from gpu import Operation
from ndparallel.model import costs
from ndparallel.planner.job import Share
from ndparallel.planner.layers.operations import MEMORY_PASSES
from ndparallel.planner.models.matrices import Linear
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.numbers import larger
from ndparallel.planner.stack import Stack

TO_RANKS = ("query_down", "kv_down")  # from hidden to latent attention's ranks
KEEP_DTYPE = ("router", "shared_gate", "head_gate", "logits")  # too sensitive or too narrow for fp8
Writer = TypeVar("Writer")


@dataclass(frozen=True)
class LayerKernels:
    """Kernels of one layer for one share and one stack."""

    shape: ModelShape
    share: Share
    stack: Stack

    @property
    def given(self) -> tuple[ModelShape, Share, Stack]:
        """What everything that writes a list of this layer is made of."""
        return self.shape, self.share, self.stack

    @cached_property
    def itemsize(self) -> int:
        """Bytes of a number in activations."""
        return costs.itemsize(self.share.dtype)

    def matmul(self, name: str, m, n, k, dtype: str, batch=1, accumulate: bool = False) -> Operation:
        """Price `batch` products of (m, k) and (k, n); one that accumulates reads and writes a gradient that
        stays."""
        result = 2 * self.stack.gradient_bytes if accumulate else self.itemsize
        return costs.matmul(name, m, n, k, dtype, batch, result)

    def elementwise(self, name: str, elements, passes: float, kernels: float = 1) -> Operation:
        """Price kernels that move `passes` arrays of `elements` through memory."""
        return costs.elementwise(name, elements, passes, self.share.dtype, kernels)

    def passes(self, kernel: str, backward: bool) -> float:
        return MEMORY_PASSES[self.stack.fusion][kernel][backward]

    def norm(self, backward: bool) -> Operation:
        return self.elementwise("norm", self.share.shard * self.shape.hidden, self.passes("norm", backward))

    def activation(self, elements, backward: bool) -> Operation:
        kind = "gated" if self.shape.gated else "plain"
        return self.elementwise(self.shape.activation, elements, self.passes(kind, backward))

    def product(self, matrix: Linear, side: str, rows=None) -> Operation:
        """The matmul of one matrix: forward, dgrad or wgrad."""
        rows = self.rows_of(matrix) if rows is None else rows
        inputs = matrix.inputs / (self.share.tp if matrix.split == "rows" else 1)
        outputs = matrix.outputs / (self.share.tp if matrix.split == "columns" else 1)
        m, n, k = matmul_shape(side, rows, inputs, outputs)
        keeps = matrix.name in KEEP_DTYPE and not (matrix.name == "logits" and self.stack.fp8_head)
        dtype = self.share.dtype if keeps else self.share.linear_dtype
        return self.matmul(
            f"{matrix.name} {side}", m, n, k, dtype, accumulate=side == "wgrad" and self.stack.accumulates
        )

    def rows_of(self, matrix: Linear):
        """The rows that a matrix multiplies: a shard's, where its result is gathered and not its input."""
        return self.rows_of_ranks if matrix.name in TO_RANKS else self.share.rows

    @property
    def rows_of_ranks(self):
        return self.share.shard if self.gathers_ranks else self.share.rows

    @property
    def gathers_ranks(self) -> bool:
        """Whether tp ranks gather latent attention's ranks, and not what these are made of."""
        return self.stack.latent_on_shards and self.shape.latent is not None

    # ---- the heads of keys and values

    @cached_property
    def kv_heads(self):
        """Heads of keys and values on all tp ranks together."""
        heads = self.shape.kv_heads
        return larger(heads, self.share.tp) if self.stack.copies_kv_heads else heads

    @property
    def attending_kv_heads(self):
        """Heads of keys and values that a tp rank keeps for its tokens: cp ranks that attend with a part of
        the heads each get one at least."""
        heads = self.kv_heads / self.share.tp
        return larger(heads, self.share.cp) if self.stack.context_parallel == "all-to-all" else heads

    def attention_matrices(self) -> tuple[Linear, ...]:
        """The matrices of attention, with the copies that tp ranks hold."""
        matrices = self.shape.attention()
        if not self.stack.copies_kv_heads:
            return matrices
        outputs = sum(self.shape.qkv_outputs(self.kv_heads))
        return tuple(
            matrix._replace(outputs=outputs) if matrix.name == "qkv" else matrix for matrix in matrices
        )


def writer(kind: Callable[[ModelShape, Share, Stack], Writer]) -> cached_property[Writer]:
    """What else writes lists of the same layer, made when it is first asked for."""
    return cached_property(lambda lists: kind(*lists.given))


def matmul_shape(side: str, rows, inputs, outputs) -> tuple[Any, Any, Any]:
    """(m, n, k) of a matrix's forward, dgrad or wgrad."""
    if side == "wgrad":
        return outputs, inputs, rows
    return (rows, outputs, inputs) if side == "forward" else (rows, inputs, outputs)
