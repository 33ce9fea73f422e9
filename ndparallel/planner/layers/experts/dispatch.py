"""The rows' way to the experts and back: over ep, and over tp where it cuts experts.

Glossary: see `ndparallel.planner.layers.experts.rows`.
"""

from ndparallel.planner.layers.experts.rows import ExpertRows
from ndparallel.planner.layers.operations import SINGLE, CollectiveOp, Start, Wait


class Dispatch(ExpertRows):
    """Writes the collectives of one layer's experts."""

    def to_experts(self, name: str) -> CollectiveOp:
        """The rows that the busiest rank receives, for which all others wait; or those of all ranks."""
        if self.dispatcher.gathers:
            size = self.own_rows * self.share.ep * self.shape.hidden * self.itemsize
            return CollectiveOp(f"ep {name}", "all_gather", "ep", size)
        size = self.arriving * self.shape.hidden * self.itemsize
        router = self.moe if self.dispatcher.once else None
        return CollectiveOp(f"ep {name}", "all_to_all", "ep", size, router=router)

    def from_experts(self) -> CollectiveOp:
        """What the experts made of the rows, on its way back."""
        rows = self.to_experts("combine")
        return rows._replace(collective="reduce_scatter") if self.dispatcher.gathers else rows

    def on_their_way(self, name: str, beside: list) -> list:
        """Rows go over ep; where software overlaps that, `beside` what does not need them."""
        rows = self.to_experts(name)
        return [Start(rows), *beside, Wait(rows)] if self.stack.ep_overlap else [rows]

    def probabilities(self) -> list[CollectiveOp]:
        """The gates of the rows, in float32, which plain all-to-alls send for themselves."""
        if self.stack.routing_in_full or self.dispatcher.once or self.dispatcher.gathers:
            return []
        return [CollectiveOp("ep probabilities", "all_to_all", "ep", self.arriving * SINGLE)]

    def over_tp(self, collective: str) -> list[CollectiveOp]:
        """What brings all rows to all tp ranks where tp cuts experts, and what the ranks made of them back.
        Megatron-Core gathers rows, and scatters sums (token_dispatcher.py); rows that travel once, and the
        lessons', go by all-to-all."""
        if not self.stack.expert_tp:
            return []
        size = self.shared_over_tp * self.shape.hidden * self.itemsize
        way = "all_to_all" if self.stack.executed or self.dispatcher.once else collective
        return [CollectiveOp(f"tp {way}", way, "tp", size)]

    @property
    def shared_over_tp(self):
        """Rows that all tp ranks need where tp cuts experts, as they came over ep."""
        if self.dispatcher.gathers:
            return self.share.rows * self.share.ep
        return self.chosen if self.dispatcher.once else self.received

    def unshared(self) -> list:
        """Every tp rank has routed its own rows; without sequence parallelism all need all of them."""
        if self.share.sequence_parallel or not self.stack.expert_tp:
            return []
        return [CollectiveOp("tp all_gather", "all_gather", "tp", self.tp.activation_bytes)]
