"""What chooses experts, and what sorts rows before their way to the experts and behind it.

Idea   Two ways to write it: in the software's small kernels, beside one pass for all copies of rows; or in
       full, kernel by kernel, as the lessons run it. Forward and backward stand next to each other.

Glossary: see `ndparallel.planner.layers.experts.rows`.
"""

from gpu import Operation
from ndparallel.planner.layers.experts.rows import ExpertRows
from ndparallel.planner.layers.operations import CollectiveOp, Start, Wait

COUNT = 4  # bytes of a number of rows


class ShortRouting(ExpertRows):
    """Writes routing in the software's small kernels."""

    def chosen_forward(self) -> list[Operation]:
        """Choose experts, and permute the rows that go to them."""
        permuted = [self.permutation()] if self.dispatcher.sent else []
        return [*self.small_kernels.of_part("router", False), *permuted]

    def chosen_backward(self) -> list[Operation]:
        return [*self.small_kernels.of_part("router", True), self.permutation()]

    def arrived(self) -> list[Operation]:
        """What rows of other ranks are made of: their permutation, where they were sent unpermuted."""
        permuted = [] if self.dispatcher.sent else [self.permutation()]
        return [*self.small_kernels.of_part("arrival", False), *permuted]

    def permutation(self) -> Operation:
        """All copies of rows in one pass."""
        return self.elementwise("permute", self.copied_rows * self.shape.hidden, 1)

    @property
    def copied_rows(self):
        """Rows that kernels read and write on the way to the experts and back."""
        way = self.dispatcher
        sorts = (self.local_experts > 1) * (self.stack.sorts_alone or self.share.ep > 1)
        received = way.received + way.sorts * sorts
        received += 0 if self.stack.fused_permutation else way.unfused
        received += way.pads if self.share.number_type.kernels and self.share.dropless else 0
        return (
            way.own * self.own_rows
            + way.sent * self.routed
            + way.arriving * self.chosen
            + received * self.received
        )

    # ---- what that pass has in it

    def sorted_by_expert(self) -> list[Operation]:
        return []

    def combined_forward(self) -> list:
        return []

    def combined_backward(self) -> list[Operation]:
        return []

    def permuted_backward(self) -> list[Operation]:
        return []


class FullRouting(ExpertRows):
    """Writes routing kernel by kernel."""

    def chosen_forward(self) -> list:
        """Choose experts, tell how many rows go where, and permute them."""
        counts = self.moe.experts * COUNT
        return [
            self.elementwise("route", self.own_rows * self.moe.experts, 2),
            Start(self.balance()),
            CollectiveOp("ep counts", "all_to_all", "ep", counts),
            CollectiveOp("tp counts", "all_gather", "tp", counts * self.share.tp),
            self.elementwise("permute", self.routed * self.shape.hidden, 2),
        ]

    def chosen_backward(self) -> list[Operation]:
        return [self.elementwise("route", self.own_rows * self.moe.experts, 3)]

    def permuted_backward(self) -> list[Operation]:
        return [self.elementwise("permute", (self.own_rows + self.routed) * self.shape.hidden, 1)]

    def arrived(self) -> list[Operation]:
        return []

    def sorted_by_expert(self) -> list[Operation]:
        several = self.share.ep * self.share.tp > 1
        return [self.elementwise("sort", self.received * self.shape.hidden, 2)] if several else []

    def combined_forward(self) -> list:
        """Rows that came back, summed by token."""
        elements = (self.own_rows + self.routed) * self.shape.hidden
        return [self.elementwise("combine", elements, 1), Wait(self.balance())]

    def combined_backward(self) -> list[Operation]:
        elements = (self.own_rows + 2 * self.routed) * self.shape.hidden
        return [self.elementwise("combine", elements, 1)]

    def balance(self) -> CollectiveOp:
        """The sum behind the loss that keeps experts equally busy: of probabilities, and of choices."""
        size = 2 * self.moe.experts * self.share.micro_batch * self.itemsize
        return CollectiveOp("balance", "all_reduce", "tp_cp", size)
