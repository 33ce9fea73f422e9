"""The pieces that lists of layers are made of: norms, residuals, matrices, and what tensor parallelism says
between them.

Idea   Attention, MLP and experts are written with these words (layer_lists.py, expert_lists.py); what the
       software fuses and overlaps is decided here.
Limit  Biases and norms' weights are not priced.

Glossary: see `ndparallel.planner.layers.operations`.
"""

import math
from dataclasses import dataclass

from gpu import Operation
from ndparallel.planner.layers.operations import HALF, PASSES, CollectiveOp, Share, elementwise, matmul
from ndparallel.planner.models.shape import Linear, ModelShape
from ndparallel.planner.software import Stack

KEEP_DTYPE = ("router", "shared_gate", "logits")  # too sensitive for fp8


@dataclass(frozen=True)
class LayerParts:
    """Pieces of the lists for one share and one stack."""

    shape: ModelShape
    share: Share
    stack: Stack

    def passes(self, kernel: str, backward: bool) -> float:
        return PASSES[self.stack.fusion][kernel][backward]

    def norm(self, backward: bool) -> Operation:
        return elementwise("norm", self.share.shard * self.shape.hidden, self.passes("norm", backward))

    def residual(self, backward: bool) -> Operation:
        """Dropout, and the sum with what bypassed the half."""
        dropout = self.passes("dropout", backward) if self.stack.dropout else 0
        return elementwise(
            "residual", self.share.shard * self.shape.hidden, self.passes("residual", backward) + dropout
        )

    def activation(self, elements, backward: bool) -> Operation:
        kind = "gated" if self.shape.gated else "plain"
        return elementwise(self.shape.activation, elements, self.passes(kind, backward))

    def product(self, matrix: Linear, side: str, rows=None) -> Operation:
        """The matmul of one matrix: forward, dgrad or wgrad."""
        rows = self.share.rows if rows is None else rows
        inputs = matrix.inputs / (self.share.tp if matrix.split == "rows" else 1)
        outputs = matrix.outputs / (self.share.tp if matrix.split == "columns" else 1)
        m, n, k = matmul_shape(side, rows, inputs, outputs)
        dtype = self.share.dtype if matrix.name in KEEP_DTYPE else self.share.linear_dtype
        return matmul(
            f"{matrix.name} {side}", m, n, k, dtype, accumulate=side == "wgrad" and self.stack.accumulates
        )

    def weights(self, matrices) -> list:
        return [self.product(matrix, "wgrad") for matrix in matrices]

    # ---- tensor parallelism (Korthikanti et al. 2205.05198, sections 3 and 4.2)

    def gather(self, beside: Operation, matrices: int = 1) -> list[CollectiveOp]:
        """Before a column matrix, or several side by side: without sequence parallelism every rank has all
        rows already."""
        if not self.share.sequence_parallel:
            return []
        return [self.exchange("all_gather", beside, self.stack.tp_overlap == "all")] * (
            matrices if self.stack.tp_by_matrix else 1
        )

    def sum_parts(self, beside: Operation, backward: bool = False, matrices: int = 1) -> list[CollectiveOp]:
        """After a row matrix, and after the dgrad of column matrices."""
        collective = "reduce_scatter" if self.share.sequence_parallel else "all_reduce"
        whole = backward and self.stack.tp_overlap != "none"
        one = self.exchange(
            collective, beside, self.stack.tp_overlap == "all" or whole, math.inf if whole else self.share.tp
        )
        return [one] * (matrices if self.stack.tp_by_matrix else 1)

    def gather_again(self, beside: Operation) -> list[CollectiveOp]:
        """The input of a column matrix, for its wgrad: only the shard was kept."""
        kept = self.stack.tp_overlap == "none" or not self.share.sequence_parallel
        return [] if kept else [self.exchange("all_gather", beside, True, math.inf)]

    def exchange(self, collective: str, beside: Operation, hidden: bool, chunks=None) -> CollectiveOp:
        size = self.share.rows * self.shape.hidden * HALF
        return CollectiveOp(
            f"tp {collective}",
            collective,
            "tp",
            size,
            beside if hidden else None,
            self.share.tp if chunks is None else chunks,
        )


def matmul_shape(side: str, rows, inputs, outputs) -> tuple:
    """(m, n, k) of a matrix's forward, dgrad or wgrad."""
    if side == "wgrad":
        return outputs, inputs, rows
    return (rows, outputs, inputs) if side == "forward" else (rows, inputs, outputs)
