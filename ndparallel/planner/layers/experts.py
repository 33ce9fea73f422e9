"""The lists of a mixture of experts: the router, rows on their way, the experts' matrices, the experts that
serve every token.

Idea   Forward and backward stand next to each other. Experts are whole, on ep ranks; tp ranks route their own
       shard of the rows. The lists are those of the busiest rank: all others wait for it at each all-to-all.
Limit  As many rows for each of a rank's experts; routing is the same in every layer.

Glossary
    routed     rows that a rank sends to experts;  received: rows that come to its own
"""

from gpu import Operation
from ndparallel.planner.layers.operations import ROUTING_LAUNCHES, CollectiveOp
from ndparallel.planner.layers.parts import LayerParts, matmul_shape
from ndparallel.planner.models.shape import Experts


class ExpertLists(LayerParts):
    """Writes the half of a layer that takes the MLP's place."""

    @property
    def moe(self) -> Experts:
        if self.shape.experts is None:
            raise ValueError(f"{self.shape.name} has no experts.")
        return self.shape.experts

    @property
    def routed(self):
        """Rows that the rank sends: each of its tokens goes to top_k experts."""
        return self.share.shard * self.moe.top_k * self.share.sent

    @property
    def received(self):
        """Rows that the experts of the busiest rank multiply; all wait for it."""
        return self.share.shard * self.moe.top_k * self.share.received

    def experts_forward(self) -> list:
        experts = self.moe
        routers = [
            self.product(matrix, "forward", self.share.shard) for matrix in experts.router(self.shape.hidden)
        ]
        inner = [
            self.grouped("up", "forward"),
            self.expert_activation(False),
            self.grouped("down", "forward"),
        ]
        return [
            self.norm(False),
            *routers,
            *self.routing(),
            self.to_experts("dispatch"),
            *inner,
            self.to_experts("combine"),
        ] + [
            *self.shared(False),
            self.residual(False),
        ]

    def experts_backward(self) -> list:
        experts = self.moe
        routers = [
            self.product(matrix, "dgrad", self.share.shard) for matrix in experts.router(self.shape.hidden)
        ]
        inner = [self.grouped("down", "dgrad"), self.expert_activation(True), self.grouped("up", "dgrad")]
        return [
            self.residual(True),
            *self.shared(True),
            self.to_experts("combine"),
            *inner,
            self.to_experts("dispatch"),
        ] + [
            *self.routing(),
            *routers,
            self.norm(True),
        ]

    def expert_activation(self, backward: bool) -> Operation:
        return self.activation(self.received * self.moe.ffn, backward)

    def experts_weights(self) -> list:
        return [
            self.grouped("up", "wgrad"),
            self.grouped("down", "wgrad"),
            *self.weights(self.shared_matrices()),
        ]

    def routing(self) -> list[Operation]:
        """Permute rows by expert, and back: read and write each row twice where it is sent, and where it
        arrives."""
        return [
            self.elementwise(
                "permute", (self.routed + self.received) * self.shape.hidden, 4, ROUTING_LAUNCHES
            )
        ]

    def to_experts(self, name: str) -> CollectiveOp:
        """The rows of the busiest rank, at whose door all others wait."""
        size, choices = (
            self.received * self.shape.hidden * self.itemsize,
            self.moe.top_k if self.stack.deduplicates else 0,
        )
        return CollectiveOp(f"ep {name}", "all_to_all", "ep", size, choices=choices)

    def grouped(self, which: str, side: str) -> Operation:
        """One matrix of all the rank's experts: as many products as there are experts on the rank, and as
        many launches, or one."""
        experts = self.moe.experts / self.share.ep
        up, down = self.shape.mlp(self.moe.ffn)
        matrix, rows = up if which == "up" else down, self.received / experts
        m, n, k = matmul_shape(side, rows, matrix.inputs, matrix.outputs)
        one = self.matmul(
            f"experts {matrix.name} {side}",
            m,
            n,
            k,
            self.share.linear_dtype,
            experts,
            side == "wgrad" and self.stack.accumulates,
        )
        return one._replace(kernels=1 if self.stack.grouped_experts else experts)

    def shared_matrices(self):
        experts = self.moe
        return self.shape.mlp(experts.shared_experts * experts.shared_ffn) if experts.shared_experts else ()

    def shared(self, backward: bool) -> list:
        """The experts that serve every row, cut by tp like an MLP."""
        matrices = self.shared_matrices()
        return [
            self.product(matrix, "dgrad" if backward else "forward")
            for matrix in (reversed(matrices) if backward else matrices)
        ]
