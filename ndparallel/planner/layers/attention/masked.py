"""Masked attention, block by block: the pairs under the causal mask alone, while blocks of keys go round a
ring of cp ranks.

Cost   2 products forward and 4 backward for each pair, and every score through memory.
Limit  A list has as many items as cp says, so there cp is a number, and no array. What is outside of windows
       is computed too.

Glossary: see `ndparallel.planner.layers.attention.sizes`;
    diagonal     the rank's own block, the only one with a mask
    shift        a block handed to the right neighbour while another comes from the left
"""

from functools import partial

from gpu import Operation
from ndparallel.model import costs
from ndparallel.planner.layers.attention.sizes import AttentionSizes
from ndparallel.planner.layers.operations import CollectiveOp, Start, Wait


class MaskedAttention(AttentionSizes):
    """Writes the kernels of all blocks, and the ring."""

    def forward(self) -> list[Operation]:
        return [operation for block in self.blocks_forward() for operation in block]

    def backward(self) -> list[Operation]:
        return [operation for block in self.blocks_backward() for operation in block]

    def kept(self, again: bool):
        """Numbers kept: all probabilities, where they do not come `again`, and round a ring what each block
        weighs, or the sum over all of them; of blocks off the diagonal no half that is masked is computed."""
        if self.stack.context_parallel != "ring":
            return 0 if again else self.scores
        queries, others = self.share.rows * self.shape.heads / self.share.tp, self.blocks - 1
        mine = self.share.sequence / self.share.cp
        scores = queries * (mine + others * mine / 2)
        weights = (1 if again else self.blocks) * (self.blocks > 1)
        return queries * weights + (0 if again else scores)

    def block_pairs(self) -> list:
        """Pairs of each block: the diagonal's, and those that come round, of which half are masked."""
        heads, mine = self.shape.heads / self.share.tp, self.share.sequence / self.share.cp
        other = self.share.micro_batch * heads * mine * mine / 2
        return [self.pairs - (self.blocks - 1) * other, *[other] * (self.blocks - 1)]

    def over_pairs(self, name: str, pairs, tensors: int, products: int = 1) -> Operation:
        """Price `products` over pairs, which also move the scores and so many `tensors` of the rank's
        tokens."""
        dim, elements = self.shape.head_dim, self.value_elements
        return costs.attention(name, pairs, dim, tensors, elements, dtype=self.share.dtype, products=products)

    def blocks_forward(self) -> list[list[Operation]]:
        """Block by block: scores, softmax, values, and their sum with those of the blocks before."""
        merge = self.elementwise("merge", self.value_elements, 3)
        return [
            [
                self.over_pairs("scores", pairs, 2),
                self.elementwise("softmax", pairs, 2),
                self.over_pairs("values", pairs, 2),
                *[merge] * (number > 0),
            ]
            for number, pairs in enumerate(self.block_pairs())
        ]

    def blocks_backward(self) -> list[list[Operation]]:
        return [
            [
                self.over_pairs("values", pairs, 3, products=2),
                self.elementwise("softmax", pairs, 3),
                self.over_pairs("scores", pairs, 4, products=2),
            ]
            for pairs in self.block_pairs()
        ]

    # ---- the ring

    def ring_forward(self) -> list:
        """A block is met while the next is on its way."""
        items: list = []
        for hop, block in enumerate(self.blocks_forward()):
            keys = self.shifts("keys and values", [hop] if hop < self.blocks - 1 else [])
            items += [*map(Start, keys), *block, *map(Wait, keys)]
        return items

    def ring_backward(self) -> list:
        """Gradients follow their block: each rank adds its own to those that come, and hands them on."""
        items: list = []
        gradients = partial(self.shifts, "their gradients")
        for hop, block in enumerate(self.blocks_backward()):
            keys = self.shifts("keys and values", [hop] if hop < self.blocks - 1 else [])
            items += [*map(Start, keys), *block, *map(Wait, gradients([hop - 1] if hop else []))]
            items += [*map(Start, gradients([hop])), *map(Wait, keys)]
        return [*items, *map(Wait, gradients([self.blocks - 1]))]

    def shifts(self, what: str, hops: list[int]) -> list[CollectiveOp]:
        size = self.keys_and_values_bytes / self.share.cp
        return [CollectiveOp(f"cp {what} {hop}", "shift", "cp", size) for hop in hops]
