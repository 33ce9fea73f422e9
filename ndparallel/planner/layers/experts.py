"""The lists of a mixture of experts: the router, rows on their way, the experts' matrices, the experts that
serve every token.

Idea   Forward and backward stand next to each other. Experts are whole, on ep ranks, or cut by tp as well; tp
       ranks route their own shard of the rows. The lists are those of the busiest rank: all others wait for
       it at each all-to-all.
Limit  As many rows for each of a rank's experts; routing is the same in every layer.

Glossary
    routed     rows that a rank sends to experts;  received: rows that come to its own
"""

from functools import cached_property

from gpu import Operation
from ndparallel.planner.dispatchers import DISPATCHERS, Dispatcher
from ndparallel.planner.layers.dispatch_time import distinct
from ndparallel.planner.layers.operations import SINGLE, CollectiveOp, Start, Wait
from ndparallel.planner.layers.parts import MLP, LayerParts, matmul_shape
from ndparallel.planner.models.shape import Experts, Linear

COUNT = 4  # bytes of a number of rows


class ExpertLists(LayerParts):
    """Writes the half of a layer that takes the MLP's place."""

    @cached_property
    def moe(self) -> Experts:
        if self.shape.experts is None:
            raise ValueError(f"{self.shape.name} has no experts.")
        return self.shape.experts

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
    def shared_over_tp(self):
        """Rows that all tp ranks need where tp cuts experts, as they came over ep."""
        if self.dispatcher.gathers:
            return self.share.rows * self.share.ep
        return self.chosen if self.dispatcher.once else self.received

    def experts_forward(self) -> list:
        shared = self.shared(False)
        return [
            *self.norms_before(MLP, False),
            *self.routers("forward"),
            *self.routing(False),
            *self.on_their_way("dispatch", shared),
            *self.probabilities(),
            *self.arrival(),
            *self.over_tp(),
            *self.inner(False),
            *self.back_over_tp(),
            self.from_experts(),
            *self.combined(),
            *([] if self.stack.ep_overlap else shared),
            *self.norms_behind(MLP, False),
            self.residual(False),
            *self.unshared(),
        ]

    def experts_backward(self) -> list:
        shared, routers = self.shared(True), [*self.routing_backward(), *self.routers("dgrad")]
        half = [
            *self.norms_behind(MLP, True),
            *([] if self.stack.ep_overlap else shared),
            *self.combined_backward(),
            *self.on_their_way("combine", shared),
            *self.over_tp(),
            *self.inner(True),
            *self.back_over_tp(),
            *self.on_their_way("dispatch", routers),
            *self.probabilities(),
            *([] if self.stack.ep_overlap else routers),
            *self.permuted_backward(),
            *self.unshared(),
            *self.norms_before(MLP, True),
        ]
        return self.with_residual(half)

    # ---- the router, and rows on their way

    def routers(self, side: str) -> list[Operation]:
        return [self.product(matrix, side, self.own_rows) for matrix in self.moe.router(self.shape.hidden)]

    def routing(self, backward: bool) -> list:
        """Choose experts, and permute rows to them and back. In full: choose, tell how many rows go where,
        and permute them."""
        hidden = self.shape.hidden
        if not self.stack.routing_in_full:
            here = backward or self.dispatcher.sent
            return [*self.small("router", backward), *([self.permutation()] if here else [])]
        counts = self.moe.experts * COUNT
        return [
            self.elementwise("route", self.own_rows * self.moe.experts, 2),
            Start(self.balance()),
            CollectiveOp("ep counts", "all_to_all", "ep", counts),
            CollectiveOp("tp counts", "all_gather", "tp", counts * self.share.tp),
            self.elementwise("permute", self.routed * hidden, 2),
        ]

    def permutation(self) -> Operation:
        """All copies of rows in one pass."""
        return self.elementwise("permute", self.copied_rows * self.shape.hidden, 1)

    def arrival(self) -> list:
        """What rows of other ranks are made of: their permutation, where they were sent unpermuted."""
        if self.stack.routing_in_full:
            return []
        permuted = [] if self.dispatcher.sent else [self.permutation()]
        return [*self.small("arrival", False), *permuted]

    def routing_backward(self) -> list:
        if not self.stack.routing_in_full:
            return self.routing(True)
        return [self.elementwise("route", self.own_rows * self.moe.experts, 3)]

    @property
    def dispatcher(self) -> Dispatcher:
        return DISPATCHERS[self.stack.dispatcher]

    @property
    def copied_rows(self):
        """Rows that kernels read and write on the way to the experts and back."""
        way = self.dispatcher
        received = way.received + way.sorts * (self.local_experts > 1) * (self.share.ep > 1)
        received += 0 if self.stack.fused_permutation else way.unfused
        received += way.pads if self.share.number_type.kernels and self.share.dropless else 0
        return (
            way.own * self.own_rows
            + way.sent * self.routed
            + way.arriving * self.chosen
            + received * self.received
        )

    def balance(self) -> CollectiveOp:
        """The sum behind the loss that keeps experts equally busy: of probabilities, and of choices."""
        size = 2 * self.moe.experts * self.share.micro_batch * self.itemsize
        return CollectiveOp("balance", "all_reduce", "tp_cp", size)

    def combined(self) -> list:
        """Rows that came back, summed by token: in full only, else `routing` has it."""
        if not self.stack.routing_in_full:
            return []
        elements = (self.own_rows + self.routed) * self.shape.hidden
        return [self.elementwise("combine", elements, 1), Wait(self.balance())]

    def combined_backward(self) -> list:
        elements = (self.own_rows + 2 * self.routed) * self.shape.hidden
        return [self.elementwise("combine", elements, 1)] if self.stack.routing_in_full else []

    def permuted_backward(self) -> list:
        elements = (self.own_rows + self.routed) * self.shape.hidden
        return [self.elementwise("permute", elements, 1)] if self.stack.routing_in_full else []

    def to_experts(self, name: str = "dispatch") -> CollectiveOp:
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

    def probabilities(self) -> list[CollectiveOp]:
        """The gates of the rows, in float32, which plain all-to-alls send for themselves."""
        if self.stack.routing_in_full or self.dispatcher.once or self.dispatcher.gathers:
            return []
        return [CollectiveOp("ep probabilities", "all_to_all", "ep", self.arriving * SINGLE)]

    def on_their_way(self, name: str, beside: list) -> list:
        """Rows go over ep; where software overlaps that, `beside` what does not need them."""
        rows = self.to_experts(name)
        return [Start(rows), *beside, Wait(rows)] if self.stack.ep_overlap else [rows]

    def over_tp(self, collective: str = "all_gather") -> list:
        """What brings all rows to all tp ranks where tp cuts experts, and sorts them by expert. Megatron-Core
        gathers rows, and scatters sums of what the ranks made of them (token_dispatcher.py); rows that travel
        once, and the lessons', go by all-to-all."""
        several = self.stack.routing_in_full and self.share.ep * self.share.tp > 1
        sort = [self.elementwise("sort", self.received * self.shape.hidden, 2)] if several else []
        if not self.stack.expert_tp:
            return sort
        size = self.shared_over_tp * self.shape.hidden * self.itemsize
        way = "all_to_all" if self.stack.executed or self.dispatcher.once else collective
        return [CollectiveOp(f"tp {way}", way, "tp", size), *sort]

    def back_over_tp(self) -> list:
        """What brings what the tp ranks made of all rows back to the ranks whose rows they are."""
        return [*reversed(self.over_tp("reduce_scatter"))]

    def unshared(self) -> list:
        """Every tp rank has routed its own rows; without sequence parallelism all need all of them."""
        if self.share.sequence_parallel or not self.stack.expert_tp:
            return []
        return [CollectiveOp("tp all_gather", "all_gather", "tp", self.activation_bytes)]

    # ---- the experts

    @cached_property
    def local_experts(self):
        return self.moe.experts / self.share.ep

    @property
    def expert_ffn(self):
        """Width of what a rank has of one expert."""
        return self.moe.ffn / self.share.tp if self.stack.expert_tp else self.moe.ffn

    def inner(self, backward: bool) -> list[Operation]:
        """The rank's experts: each kernel once for all of them, or for one after another."""
        side = "dgrad" if backward else "forward"
        up, down = self.grouped(side)
        middle = [] if self.stack.fused_experts else [self.expert_activation(backward)]
        one = [down, *middle, up] if backward else [up, *middle, down]
        return [kernel for kernel in one for _ in range(self.turns)]

    @property
    def turns(self) -> int:
        return int(self.local_experts) if self.stack.experts_in_turn else 1

    def expert_activation(self, backward: bool) -> Operation:
        rows = self.received / self.local_experts if self.stack.experts_in_turn else self.received
        return self.activation(rows * self.expert_ffn, backward)

    def experts_weights(self) -> list:
        up, down = self.grouped("wgrad")
        shared, routers = self.weights(self.shared_matrices()), self.routers("wgrad")
        if not self.stack.in_order:
            return [up, down, *shared, *routers]
        return [*routers, *shared, *[down] * self.turns, *[up] * self.turns]

    def grouped(self, side: str) -> list[Operation]:
        """Both matrices of all the rank's experts, up and down: of each as many products as there are experts
        on the rank, and as many launches, or one. Where experts are multiplied in turn, of one of them."""
        return [self.grouped_product(matrix, side) for matrix in self.shape.mlp(self.expert_ffn)]

    def grouped_product(self, matrix: Linear, side: str) -> Operation:
        products = 1 if self.stack.experts_in_turn else self.local_experts
        shape = matmul_shape(side, self.received / self.local_experts, matrix.inputs, matrix.outputs)
        adds = side == "wgrad" and self.stack.accumulates
        name, dtype = f"experts {matrix.name} {side}", self.share.linear_dtype
        one = self.matmul(name, *shape, dtype, products, adds)
        in_one_launch = self.stack.grouped_experts or self.stack.fused_experts
        return one if in_one_launch else one._replace(kernels=products)

    def shared_matrices(self):
        experts = self.moe
        return self.shape.mlp(experts.shared_experts * experts.shared_ffn) if experts.shared_experts else ()

    def shared(self, backward: bool) -> list:
        """The experts that serve every row: an MLP that tp cuts, or its matrices alone."""
        matrices = self.shared_matrices()
        if matrices and self.stack.shared_mlp:
            return self.gated_backward(matrices) if backward else self.gated_forward(matrices)
        return [
            self.product(matrix, "dgrad" if backward else "forward")
            for matrix in (reversed(matrices) if backward else matrices)
        ]
