"""Unfused attention: scores, softmax and values one after another, over all pairs, masked ones too.

Cost   2 products forward and 4 backward of all pairs, and every score through memory.
Limit  What is outside of windows is computed too.

Glossary: see `ndparallel.planner.layers.attention.sizes`.
"""

from gpu import Operation
from ndparallel.planner.layers.attention.sizes import AttentionSizes
from ndparallel.planner.layers.operations import SCORE_DROPOUT


class UnfusedAttention(AttentionSizes):
    """Writes the kernels over all pairs."""

    def forward(self) -> list[Operation]:
        """Scores, softmax, values."""
        return [
            self.product_of_pairs("scores", "qk", self.shape.head_dim),
            self.elementwise("softmax", self.scores, 2),
            *self.score_dropout(),
            self.product_of_pairs("values", "pv", self.shape.value_dim),
            self.elementwise("heads to rows", self.value_elements, 2),
        ]

    def backward(self) -> list[Operation]:
        return [
            self.product_of_pairs("values dgrad", "qk", self.shape.value_dim),
            self.product_of_pairs("values wgrad", "pv", self.shape.value_dim),
            *self.score_dropout(),
            self.elementwise("softmax", self.scores, 3),
            self.product_of_pairs("queries", "pv", self.shape.head_dim),
            self.product_of_pairs("keys", "pv", self.shape.head_dim),
            self.elementwise("rows to heads", self.value_elements, 4),
        ]

    def kept(self, again: bool):
        """Numbers kept: all probabilities, where they do not come `again`."""
        return 0 if again else self.scores

    def product_of_pairs(self, name: str, side: str, width: int) -> Operation:
        """A product over all pairs: into scores (qk), or from them (pv)."""
        length, mine = self.share.sequence, self.share.sequence / self.share.cp
        n, k = (length, width) if side == "qk" else (width, length)
        heads = self.share.micro_batch * self.shape.heads / self.share.tp
        return self.matmul(name, mine, n, k, self.share.dtype, heads)

    def score_dropout(self) -> list[Operation]:
        if not self.stack.dropout:
            return []
        return [self.elementwise("score dropout", self.scores, SCORE_DROPOUT)]
