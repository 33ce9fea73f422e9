"""How large attention is on one rank: query-key pairs, scores, queries, keys and values.

Glossary
    pairs        query-key pairs that the causal mask and windows keep, over the rank's heads
    block        the keys and values of one cp rank
"""

from ndparallel.planner.layers.layer_kernels import LayerKernels


class AttentionSizes(LayerKernels):
    """Sizes of one layer's attention for one share and one stack."""

    @property
    def pairs(self):
        """Query-key pairs under the causal mask and in the shape's window, over the rank's heads; cp ranks
        share them evenly."""
        heads, seen = self.shape.heads / self.share.tp, self.shape.seen_pairs(self.share.sequence)
        return self.share.micro_batch * heads * seen / self.share.cp

    @property
    def scores(self):
        """Query-key pairs, masked ones too, over the rank's heads."""
        return (
            self.share.micro_batch
            * self.shape.heads
            / self.share.tp
            * self.share.sequence
            * self.share.sequence
            / self.share.cp
        )

    @property
    def blocks(self):
        """Blocks of keys that a rank's queries meet one after another."""
        way = self.stack.context_parallel
        return self.share.cp if way == "ring" or (way == "all-gather" and self.stack.cp_merges) else 1

    @property
    def value_elements(self):
        """Elements of the values mixed for the rank's tokens."""
        return self.share.rows * self.shape.heads / self.share.tp * self.shape.value_dim

    @property
    def query_elements(self):
        return self.share.rows * self.shape.heads / self.share.tp * self.shape.head_dim

    @property
    def keys_and_values_bytes(self):
        """Bytes of the keys and values of all cp ranks, latent attention's values as wide as its keys."""
        width = self.shape.head_dim + (self.shape.value_width or self.shape.head_dim)
        kv = self.kv_heads / self.share.tp * width
        return self.share.micro_batch * self.share.sequence * kv * self.itemsize
