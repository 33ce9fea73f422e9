"""Fused attention: one kernel, or one for each block of keys.

Cost   2 products forward and 5 backward for each query-key pair that the causal mask keeps.
Limit  Blocks without a mask, whose kernel is up to a tenth quicker, have the rate of those with one.

Glossary: see `ndparallel.planner.layers.attention.sizes`.
"""

from gpu import Operation
from ndparallel.planner.layers.attention.sizes import AttentionSizes

SHORT_ATTENTION = ("cudnn-fp8", "float8")  # Blackwell's kernel, and the type of what it multiplies


class FlashAttention(AttentionSizes):
    """Writes the fused kernels."""

    def forward(self) -> list[Operation]:
        return [self.kernels("forward", 1, 1, 1)]

    def backward(self) -> list[Operation]:
        return [self.kernels("backward", 3, 2, 2)]

    def kept(self, again: bool):
        """No score is kept."""
        return 0

    def kernels(self, direction: str, query_products: int, value_products: int, times: int) -> Operation:
        """Fused kernels: (pairs x head_dim) products of queries and keys, and of probabilities and values.
        A block off the diagonal has all of one side and half of the other, so of each query as many pairs as
        the diagonal has in the mean."""
        heads, kv_heads = self.shape.heads / self.share.tp, self.kv_heads / self.share.tp
        flops = (
            2.0 * self.pairs * (query_products * self.shape.head_dim + value_products * self.shape.value_dim)
        )
        met = heads * self.blocks + kv_heads * (1 + self.blocks) / 2
        arrays = times * self.share.rows * met * (self.shape.head_dim + self.shape.value_dim)
        short = self.stack.fp8_attention and self.share.number_type.kernels and not self.share.transposes
        kernel, dtype = (self.stack.attention, self.share.dtype) if not short else SHORT_ATTENTION
        name, moved = f"{kernel} {direction}", arrays * self.itemsize
        shape = (self.pairs, self.share.sequence / self.blocks, self.shape.head_dim)
        return Operation("attention", name, shape, dtype, flops, moved, times * self.blocks)
