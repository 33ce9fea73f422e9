"""Attention's core as ndparallel/model/attention.py executes it: all keys at hand, gathered, or block by
block round a ring.

Idea   The operations of ndparallel/model/costs.py, parted into meetings of queries with one block of keys,
       between which the next block travels.
Cost   cp shifts of a block's keys and values forward; backward as many, and those of their gradients beside
       them.
Limit  As ndparallel/model/costs.py: a block off the diagonal has half the pairs.

Glossary
    meeting    the operations of the rank's queries with one block of keys, its own first
    shift      a block handed to the right neighbour while another comes from the left
"""

from dataclasses import dataclass

from gpu import Operation
from ndparallel.model import costs
from ndparallel.model.costs import Sizes
from ndparallel.planner.layers.operations import CollectiveOp, Start, Wait
from ndparallel.planner.step.streams import Item


@dataclass(frozen=True)
class Core:
    """The lists of one rank."""

    z: Sizes
    cp: int = 1
    gathers: bool = False
    selective: bool = False  # the scores are computed again

    @property
    def block_bytes(self) -> int:
        """Of keys and values of the rank's tokens."""
        return 2 * self.z.tokens * self.z.kv_heads * self.z.head_dim * costs.itemsize(self.z.dtype)

    def forward(self) -> list[Item]:
        if self.cp > 1 and not self.gathers:
            return self.ring_forward()
        return [*self.gather(), *costs.core_forward(self.z)]

    def backward(self) -> list[Item]:
        if self.cp > 1 and not self.gathers:
            return self.ring_backward()
        scattered = (
            [CollectiveOp("cp scatter", "reduce_scatter", "cp", self.cp * self.block_bytes)]
            if self.cp > 1
            else []
        )
        return [
            *self.gather(),
            *self.again(costs.core_recompute(self.z)),
            *costs.core_backward(self.z),
            *scattered,
        ]

    def gather(self) -> list[Item]:
        return (
            [CollectiveOp("cp gather", "all_gather", "cp", self.cp * self.block_bytes)] if self.cp > 1 else []
        )

    def again(self, operations: list[Operation]) -> list[Operation]:
        return operations if self.selective else []

    def shift(self, what: str, hop: int) -> CollectiveOp:
        return CollectiveOp(f"cp {what} {hop}", "shift", "cp", self.block_bytes)

    def meetings(self, operations: list[Operation]) -> list[list[Operation]]:
        """The rank's own block, and those that come round, which are all alike."""
        size = (len(operations) - 3) // (self.cp - 1)
        return [operations[:3], *[operations[3 : 3 + size]] * (self.cp - 1)]

    def ring_forward(self) -> list[Item]:
        items: list[Item] = []
        for hop, meeting in enumerate(self.meetings(costs.core_forward(self.z))):
            keys = [] if hop == self.cp - 1 else [self.shift("keys and values", hop)]
            items += [*map(Start, keys), *meeting, *map(Wait, keys)]
        return items

    def ring_backward(self) -> list[Item]:
        """Gradients follow their block: each rank adds its own to those that come, and hands them on."""
        items: list[Item] = []
        again = self.meetings(costs.core_forward(self.z))
        for hop, meeting in enumerate(self.meetings(costs.core_backward(self.z))):
            keys = [] if hop == self.cp - 1 else [self.shift("keys and values", hop)]
            come = [Wait(self.shift("their gradients", hop - 1))] if hop else []
            items += [*map(Start, keys), *self.again(again[hop][:2]), *meeting, *come]
            items += [Start(self.shift("their gradients", hop)), *map(Wait, keys)]
        return [*items, Wait(self.shift("their gradients", self.cp - 1))]
