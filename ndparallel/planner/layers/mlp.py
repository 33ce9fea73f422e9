"""The MLP: two matrices, or three, with an activation between them.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from functools import cached_property

from ndparallel.planner.layers.parts import MLP, LayerParts
from ndparallel.planner.models.matrices import Linear


class MLPLists(LayerParts):
    """Writes the dense MLP's half of a layer."""

    @cached_property
    def forward(self) -> list:
        matrices = self.shape.mlp(self.shape.ffn)
        half = [*self.norms_before(MLP, False), *self.gated_forward(matrices), *self.norms_behind(MLP, False)]
        return [*half, self.residual(False)]

    @cached_property
    def backward(self) -> list:
        matrices = self.shape.mlp(self.shape.ffn)
        half = [*self.norms_behind(MLP, True), *self.gated_backward(matrices), *self.norms_before(MLP, True)]
        return self.with_residual(half)

    @cached_property
    def weight_gradients(self) -> list:
        return self.weights(self.shape.mlp(self.shape.ffn))

    # ---- an MLP of any width

    def gated_forward(self, matrices: tuple[Linear, ...]) -> list:
        """An MLP of these matrices, without norm and residual."""
        up, down = (self.product(matrix, "forward") for matrix in matrices)
        middle = self.activation(self.share.rows * matrices[1].inputs / self.share.tp, False)
        return [*self.tp.gather(up, 1 + self.shape.gated), up, middle, *self.tp.summed(down, down)]

    def gated_backward(self, matrices: tuple[Linear, ...]) -> list:
        up, down = matrices
        down_back, up_back = self.product(down, "dgrad"), self.product(up, "dgrad")
        return [
            *self.tp.gather(down_back),
            down_back,
            self.activation(self.share.rows * down.inputs / self.share.tp, True),
            *self.tp.gather_again(up_back),
            *self.tp.summed(up_back, self.product(up, "wgrad"), True, 1 + self.shape.gated),
        ]
