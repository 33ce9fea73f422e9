"""How many rows a rank of a mixture of experts sends, receives and multiplies.

Idea   tp ranks route their own shard of the rows. Experts are whole, on ep ranks, or cut by tp as well. The
       numbers are those of the busiest rank, for which all others wait.
Limit  As many rows for each of a rank's experts; routing is the same in every layer.

Glossary
    routed     rows that a rank sends to experts;  received: rows that come to its own
"""

from functools import cached_property

from ndparallel.planner.dispatchers import DISPATCHERS, Dispatcher
from ndparallel.planner.layers.dispatch_time import distinct
from ndparallel.planner.layers.parts import LayerParts
from ndparallel.planner.models.experts import Experts


class ExpertRows(LayerParts):
    """Numbers of rows in one layer of experts."""

    @cached_property
    def moe(self) -> Experts:
        if self.shape.experts is None:
            raise ValueError(f"{self.shape.name} has no experts.")
        return self.shape.experts

    @property
    def dispatcher(self) -> Dispatcher:
        return DISPATCHERS[self.stack.dispatcher]

    @cached_property
    def local_experts(self):
        return self.moe.experts / self.share.ep

    @cached_property
    def own_rows(self):
        """Rows whose experts the rank chooses."""
        return self.share.rows / self.share.tp if self.stack.expert_tp else self.share.shard

    @property
    def routed(self):
        """Rows that the rank sends: each of its tokens goes to top_k experts."""
        return self.own_rows * self.moe.top_k * self.share.sent

    @property
    def arriving(self):
        """Rows that come over ep to the busiest rank; all wait for it."""
        return self.own_rows * self.moe.top_k * self.share.received

    @cached_property
    def received(self):
        """Rows that the experts of the busiest rank multiply: of all its tp ranks, where tp cuts experts."""
        return self.arriving * self.share.tp if self.stack.expert_tp else self.arriving

    @property
    def chosen(self):
        """Rows of the tokens that chose an expert of the rank, one for each."""
        return self.received / self.moe.top_k * distinct(self.share.ep, self.moe)

    @property
    def expert_ffn(self):
        """Width of what a rank has of one expert."""
        return self.moe.ffn / self.share.tp if self.stack.expert_tp else self.moe.ffn
