"""The matrices of the experts that a rank has.

Glossary: see `ndparallel.planner.layers.experts.rows`.
"""

from gpu import Operation
from ndparallel.planner.layers.experts.rows import ExpertRows
from ndparallel.planner.layers.layer_kernels import matmul_shape
from ndparallel.planner.models.matrices import Linear


class ExpertMatrices(ExpertRows):
    """Writes the products of a rank's experts."""

    def all_kernels(self, backward: bool) -> list[Operation]:
        """The rank's experts: each kernel once for all of them, or for one after another."""
        side = "dgrad" if backward else "forward"
        up, down = self.grouped(side)
        middle = [] if self.stack.fused_experts else [self.between(backward)]
        one = [down, *middle, up] if backward else [up, *middle, down]
        return [kernel for kernel in one for _ in range(self.turns)]

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

    def between(self, backward: bool) -> Operation:
        """The activation between their two matrices."""
        rows = self.received / self.local_experts if self.stack.experts_in_turn else self.received
        return self.activation(rows * self.expert_ffn, backward)

    @property
    def turns(self) -> int:
        return int(self.local_experts) if self.stack.experts_in_turn else 1
