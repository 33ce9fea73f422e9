"""The pieces that lists of layers are made of: norms, residuals, and the gradients of weights.

Idea   Attention, MLP and experts are written with these words, with those of tensor parallelism, and with the
       software's small kernels.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from gpu import Operation
from ndparallel.planner.layers.layer_kernels import LayerKernels, writer
from ndparallel.planner.layers.small_kernels import SmallKernelLists
from ndparallel.planner.layers.tensor_parallel import TensorParallelLists
from ndparallel.planner.models.kinds import has_experts, is_linear
from ndparallel.planner.models.matrices import Linear
from ndparallel.planner.models.shape import NORM_PLACES

ATTENTION, MLP = 0, 1  # the halves of a layer


class LayerParts(LayerKernels):
    """Pieces of the lists for one share and one stack."""

    tp = writer(TensorParallelLists)
    small_kernels = writer(SmallKernelLists)

    def norms_before(self, half: int, backward: bool) -> list[Operation]:
        """What a half of a layer (0 attention, 1 MLP) begins with: its norm, wherever among its matrices,
        unless the other half's serves both."""
        return [self.norm(backward)] * min(1, NORM_PLACES[self.shape.norms][half])

    def norms_alone(self, kind: str) -> list[int]:
        """The halves of a layer of this kind whose norm is a module of its own, which can run again. Others
        of Transformer Engine are one with the product behind them
        (get_gpt_layer_with_transformer_engine_submodules in megatron/core/models/gpt/gpt_layer_specs.py)."""
        of_latent = bool(self.shape.latent) and not is_linear(kind)
        alone = {ATTENTION: of_latent, MLP: has_experts(kind)}
        joined = self.stack.fusion == "engine"
        return [half for half in alone if alone[half] or not joined if self.norms_before(half, False)]

    def norms_behind(self, half: int, backward: bool) -> list[Operation]:
        """A second norm, on what the half adds."""
        return [self.norm(backward)] * (NORM_PLACES[self.shape.norms][half] - 1)

    def residual(self, backward: bool) -> Operation:
        """Dropout, and the sum with what bypassed the half."""
        dropout = self.passes("dropout", backward) if self.stack.dropout else 0
        return self.elementwise(
            "residual", self.share.shard * self.shape.hidden, self.passes("residual", backward) + dropout
        )

    def sums(self, name: str, count: int, rows) -> list[Operation]:
        """Sums of two arrays of so many rows, in kernels of their own; lessons and compilers have none."""
        if self.stack.fusion in ("compiled", "minimal"):
            return []
        return [self.elementwise(name, rows * self.shape.hidden, 3)] * count

    def with_residual(self, half: list) -> list:
        """The backward pass of a half of a layer, and of the sum that it is added to."""
        residual = self.residual(True)
        return [*half, residual] if self.stack.in_order else [residual, *half]

    def weights(self, matrices) -> list:
        """The gradients of matrices, which are given in the order of the forward pass."""
        ordered = reversed(matrices) if self.stack.in_order else matrices
        return [item for matrix in ordered for item in self.weight(matrix)]

    def weight(self, matrix: Linear) -> list:
        product = self.product(matrix, "wgrad")
        again = self.stack.regathers and matrix.split == "columns"
        return [*self.tp.gather(product), product] if again else [product]
