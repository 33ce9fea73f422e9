"""Multi-head latent attention (arXiv 2405.04434, section 2.1) under tensor parallelism: hidden numbers become
few, the ranks, and these become queries, keys and values.

Idea   Matrices to the ranks are whole on every tp rank. Under sequence parallelism Megatron runs them on the
       shard and gathers the ranks, which are narrower (parallel_mode="duplicated" of
       megatron/core/transformer/multi_latent_attention.py).
Cost   deepseek-v3: 1536 + 512 + 64 numbers of a token are gathered, where other software gathers 7168.
Limit  What sums the gradients of whole matrices over tp, once a step, is not priced.

Glossary
    ranks    the few numbers that queries, or keys and values, are made of; not those of a group of GPUs
"""

from gpu import Operation
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.layers.parts import LayerParts
from ndparallel.planner.models.matrices import Linear
from ndparallel.planner.numbers import anywhere

FROM_RANKS = ("query_up", "kv_up")


class LatentLists(LayerParts):
    """Writes what leads to latent attention's ranks and from there to heads, where the ranks are gathered."""

    @property
    def down(self) -> list[Linear]:
        return [matrix for matrix in self.attention_matrices()[:-1] if matrix.split == "whole"]

    @property
    def up(self) -> list[Linear]:
        return [matrix for matrix in self.attention_matrices()[:-1] if matrix.split == "columns"]

    def norm_of(self, matrix: Linear, backward: bool) -> list[Operation]:
        """The norm of the ranks that go into a matrix (q_layernorm and kv_layernorm in
        megatron/core/transformer/multi_latent_attention.py; arXiv 2405.04434, section 2.1); no other matrix
        has one."""
        elements = self.rows_of_ranks * matrix.inputs
        has_ranks = matrix.name in FROM_RANKS
        return [self.elementwise("norm", elements, self.passes("norm", backward))] * has_ranks

    def to_ranks(self) -> list:
        """Forward, on the shard; all heads' one key with position is gathered at once."""
        return [*[self.product(matrix, "forward") for matrix in self.down], *self.key("all_gather")]

    def from_ranks(self) -> list:
        """Forward; where the ranks are gathered, each before its matrix."""
        items: list = []
        for matrix in self.up:
            product = self.product(matrix, "forward")
            items += self.norm_of(matrix, False)
            items += [*self.tp.gather(product, width=matrix.inputs) * self.gathers_ranks, product]
        return items

    def back_to_ranks(self) -> list:
        """Backward from heads: the ranks come again for their matrix's gradient, and their own is summed."""
        items: list = []
        for matrix in reversed(self.up):
            product, weights = self.product(matrix, "dgrad"), self.product(matrix, "wgrad")
            items += [*self.tp.gather_again(product, matrix.inputs), product]
            items += self.tp.sum_parts(weights, True, width=matrix.inputs)
            items += self.norm_of(matrix, True)
        return items

    def back_from_ranks(self) -> list[CollectiveOp | Operation]:
        products = [self.product(matrix, "dgrad") for matrix in reversed(self.down)]
        return [*self.key("reduce_scatter"), *products, *self.added()]

    def added(self) -> list[Operation]:
        """The sum of the gradients of what several matrices take: autograd's, of the matrices to ranks."""
        count = len(self.to_latent) - 1 if self.shape.latent else 0
        return self.sums("add gradients of ranks", count, self.rows_of_ranks)

    @property
    def to_latent(self) -> list[Linear]:
        """The matrices that take the layer's normed input: queries' or those to their ranks, keys' ranks."""
        return [matrix for matrix in self.attention_matrices()[:-1] if matrix.name not in FROM_RANKS]

    def key(self, collective: str) -> list[CollectiveOp]:
        """The key with position, which nothing hides (gather_from_sequence_parallel_region)."""
        if not (self.share.sequence_parallel and self.shape.latent and anywhere(self.share.tp > 1)):
            return []
        size = self.share.rows * self.shape.latent.rope_dim * self.itemsize
        return [CollectiveOp(f"tp {collective}", collective, "tp", size)]
