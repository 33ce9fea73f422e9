"""The casts of what a matmul in fewer than 16 bits takes.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from functools import cached_property

from gpu import Operation
from ndparallel.planner.layers.layer_kernels import LayerKernels
from ndparallel.planner.layers.operations import SINGLE, CollectiveOp

# products whose input the one before makes, in fused experts
INSIDE_EXPERTS = ("experts down forward", "experts gate_up dgrad", "experts up dgrad")


class Casts(LayerKernels):
    """Writes casts into lists."""

    def written_into(self, items: list) -> list:
        """Cast what a matmul in fewer than 16 bits takes: its activations, or their gradients; its weights
        too, where nobody keeps them cast. The gradient of the weights takes what the two others made."""
        kind, result = self.share.number_type, []
        for item in items:
            if (
                isinstance(item, Operation)
                and item.dtype == kind.dtype
                and not self.is_cast_before(item.name)
            ):
                result += self.casts_before(item)
            result.append(item)
        return result

    def is_cast_before(self, product: str) -> bool:
        """Whether another kernel has cast what a product takes: for weights' gradients the products of the
        other passes, in fused experts the product before."""
        return product.endswith("wgrad") or (self.stack.fused_experts and product in INSIDE_EXPERTS)

    def casts_before(self, product: Operation) -> list:
        """The casts of a product's inputs; of many products in one operation each has its own."""
        kind, (rows, columns, _) = self.share.number_type, product.shape
        gathered = kind.travels and product.name in self.gathered_products
        moved = (
            kind.gathered_bytes(self.share.transposes, self.share.tp)
            if gathered
            else kind.cast_bytes(self.share.transposes)
        )
        widths = (columns, rows) if kind.casts_weights else (columns,)
        elements = sum(product.flops / (2 * width) for width in widths)
        kernels = kind.kernels * product.kernels
        name = f"{'experts ' * product.name.startswith('experts')}cast to {kind.name}"
        cast = Operation(name, "cast", (elements,), self.share.dtype, 0, moved * elements, kernels)
        amax = CollectiveOp("tp amax", "few bytes", "tp", SINGLE)
        return [cast, *[amax] * (gathered and kind.gathers_amax)]

    @cached_property
    def gathered_products(self) -> set[str]:
        """Products whose input, or its gradient, tp ranks have in shards: of column matrices in the forward
        pass, of row matrices for the gradients of their inputs."""
        if not self.share.sequence_parallel:
            return set()
        sides = {"columns": "forward", "rows": "dgrad"}
        mixers = *self.attention_matrices(), *self.shape.linear_attention()
        return {
            f"{matrix.name} {sides[matrix.split]}"
            for matrix in (*mixers, *self.shape.mlp(self.shape.ffn))
            if matrix.split in sides
            and (self.gathers_ranks or self.shape.hidden in (matrix.inputs, matrix.outputs))
        }
