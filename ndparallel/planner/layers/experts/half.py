"""The half of a layer that takes the MLP's place in a mixture of experts: the router, rows on their way, the
experts' matrices, the experts that serve every token.

Idea   Forward and backward stand next to each other. The lists are those of the busiest rank: all others wait
       for it at each all-to-all.

Glossary: see `ndparallel.planner.layers.experts.rows`.
"""

from functools import cached_property

from gpu import Operation
from ndparallel.model import costs
from ndparallel.planner.layers.experts.dispatch import Dispatch
from ndparallel.planner.layers.experts.matrices import ExpertMatrices
from ndparallel.planner.layers.experts.routing import FullRouting, ShortRouting
from ndparallel.planner.layers.experts.rows import ExpertRows
from ndparallel.planner.layers.layer_kernels import matmul_shape, writer
from ndparallel.planner.layers.mlp import MLPLists
from ndparallel.planner.layers.operations import HALF
from ndparallel.planner.layers.parts import MLP
from ndparallel.planner.models.matrices import Linear


class ExpertLists(ExpertRows):
    """Writes the half of a layer that takes the MLP's place."""

    dispatch = writer(Dispatch)
    matrices = writer(ExpertMatrices)
    mlp = writer(MLPLists)

    @cached_property
    def routing(self) -> ShortRouting | FullRouting:
        kind = FullRouting if self.stack.routing_in_full else ShortRouting
        return kind(*self.given)

    @cached_property
    def forward(self) -> list:
        shared = self.shared(False)
        return [
            *self.norms_before(MLP, False),
            *self.own_norms(2, False),
            *self.routers("forward"),
            *self.routing.chosen_forward(),
            *self.dispatch.on_their_way("dispatch", shared),
            *self.dispatch.probabilities(),
            *self.routing.arrived(),
            *self.dispatch.over_tp("all_gather"),
            *self.routing.sorted_by_expert(),
            *self.matrices.all_kernels(False),
            *self.routing.sorted_by_expert(),
            *self.dispatch.over_tp("reduce_scatter"),
            self.dispatch.from_experts(),
            *self.routing.combined_forward(),
            *self.own_norms(1, False),
            *([] if self.stack.ep_overlap else shared),
            *self.added(),
            *self.norms_behind(MLP, False),
            self.residual(False),
            *self.dispatch.unshared(),
        ]

    @cached_property
    def backward(self) -> list:
        shared, routers = self.shared(True), [*self.routing.chosen_backward(), *self.routers("dgrad")]
        half = [
            *self.norms_behind(MLP, True),
            *([] if self.stack.ep_overlap else shared),
            *self.own_norms(1, True),
            *self.routing.combined_backward(),
            *self.dispatch.on_their_way("combine", shared),
            *self.dispatch.over_tp("all_gather"),
            *self.routing.sorted_by_expert(),
            *self.matrices.all_kernels(True),
            *self.routing.sorted_by_expert(),
            *self.dispatch.over_tp("reduce_scatter"),
            *self.dispatch.on_their_way("dispatch", routers),
            *self.dispatch.probabilities(),
            *([] if self.stack.ep_overlap else routers),
            *self.routing.permuted_backward(),
            *self.gradients_added(),
            *self.dispatch.unshared(),
            *self.own_norms(2, True),
            *self.norms_before(MLP, True),
        ]
        return self.with_residual(half)

    @cached_property
    def weight_gradients(self) -> list:
        up, down = self.matrices.grouped("wgrad")
        shared, routers = self.weights(self.shape.shared_mlp()), self.routers("wgrad")
        if not self.stack.in_order:
            return [up, down, *shared, *routers]
        return [*routers, *shared, *[down] * self.matrices.turns, *[up] * self.matrices.turns]

    def routers(self, side: str) -> list[Operation]:
        matrices = self.moe.router(self.shape.hidden)
        if not self.stack.fp32_router:
            return [self.product(matrix, side, self.own_rows) for matrix in matrices]
        gates = [self.product(matrix, side, self.own_rows) for matrix in matrices[1:]]
        return [*self.routers_in_32_bits(matrices[0], side), *gates]

    def routers_in_32_bits(self, matrix: Linear, side: str) -> list[Operation]:
        """The product of a router that gives scores in 32 bits. For their gradients weights are cast, or the
        input, and the gradient of the input is cast back (RouterGatingLinearFunction in
        megatron/core/transformer/moe/moe_utils.py)."""
        if side == "forward":
            product = self.product(matrix, side, self.own_rows)
            return [product._replace(bytes=product.bytes + HALF * self.own_rows * matrix.outputs)]
        sizes = matmul_shape(side, self.own_rows, matrix.inputs, matrix.outputs)
        product = costs.matmul(f"router {side}", *sizes, "float32")
        cast = self.elementwise("router cast", self.own_rows * matrix.inputs, 3)
        return [product, cast] if side == "dgrad" else [cast, product]

    def own_norms(self, count: int, backward: bool) -> list[Operation]:
        """Norms that only a mixture has: two of the inputs of router and experts, one of the experts' result,
        one of the shared experts'."""
        return [self.norm(backward)] * (count * self.moe.own_norms)

    def shared(self, backward: bool) -> list:
        """The experts that serve every row, and the norm of their result, if it is their own."""
        norm, products = self.own_norms(1, backward), self.shared_products(backward)
        return [*norm, *products] if backward else [*products, *norm]

    def shared_products(self, backward: bool) -> list:
        """An MLP that tp cuts (SharedExpertMLP in megatron/core/transformer/moe/shared_experts.py,
        _shared_experts_sharding_configs in torchtitan/models/common/moe_sharding.py)."""
        if not (matrices := self.shape.shared_mlp()):
            return []
        return self.mlp.gated_backward(matrices) if backward else self.mlp.gated_forward(matrices)

    def added(self) -> list[Operation]:
        """What the shared experts gave, added to what the others did (postprocess in
        megatron/core/transformer/moe/moe_layer.py, MoE.forward in torchtitan/models/common/moe.py)."""
        return self.sums("add shared experts", int(self.moe.shared_experts > 0), self.share.shard)

    def gradients_added(self) -> list[Operation]:
        """The norm's gradients from router, dispatcher and shared experts, which read the same array, in a
        sum (autograd); where each has a norm of its own nothing is shared."""
        count = 0 if self.moe.own_norms else 1 + (self.moe.shared_experts > 0)
        return self.sums("add gradients of rows", count, self.share.shard)
