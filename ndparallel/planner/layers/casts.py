"""The casts of what a matmul in fewer than 16 bits takes.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from functools import cached_property

from gpu import Operation
from ndparallel.planner.layers.layer_kernels import LayerKernels
from ndparallel.planner.layers.operations import SINGLE, CollectiveOp
from ndparallel.planner.numbers import anywhere

# products whose input the one before makes, in fused experts
INSIDE_EXPERTS = ("experts down forward", "experts gate_up dgrad", "experts up dgrad")

# products of one module with the norm before them
BEHIND_NORM = tuple(
    f"{matrix} forward" for matrix in ("qkv", "gate_up", "up", "query_up", "kv_up", "linear_in")
)


class Casts(LayerKernels):
    """Writes casts into lists."""

    def written_into(self, items: list, twice: frozenset[str]) -> list:
        """Cast what a matmul in fewer than 16 bits takes: its activations, or their gradients; its weights
        too, where nobody keeps them cast. The gradient of the weights takes what the two others made, but of
        matrices that cast `twice`, whose input is kept in 16 bits."""
        result: list = []
        for item in items:
            if isinstance(item, Operation) and item.dtype == self.share.number_type.dtype:
                result = self.with_casts(result, item, twice)
            result.append(item)
        return result

    def with_casts(self, before: list, product: Operation, twice: frozenset[str]) -> list:
        """A list, and what is cast of a product's inputs behind it."""
        matrix, _, side = product.name.rpartition(" ")
        if matrix in twice and side != "dgrad" and not self.is_made_cast(product.name):
            return [*before, *self.cast_for_one(product, side == "wgrad")]
        if self.is_cast_before(product.name):
            return before
        if norm := self.norm_right_before(product.name, before):
            return self.cast_by_norm(before, norm, product)
        return before + self.casts_before(product)

    def is_cast_before(self, product: str) -> bool:
        """Whether another kernel has cast what a product takes: for weights' gradients the products of the
        other passes, in fused experts the product before."""
        return product.endswith("wgrad") or self.is_made_cast(product)

    def is_made_cast(self, product: str) -> bool:
        return self.stack.fused_experts and product in INSIDE_EXPERTS

    def casts_before(self, product: Operation) -> list:
        """The casts of a product's inputs; of many products in one operation each has its own."""
        kind, (rows, columns, _) = self.share.number_type, product.shape
        moved = (
            kind.gathered_bytes(self.share.transposes, self.share.tp)
            if self.is_gathered(product)
            else kind.cast_bytes(self.share.transposes)
        )
        widths = (columns, rows) if kind.casts_weights else (columns,)
        elements = sum(product.flops / (2 * width) for width in widths)
        return self.cast(product, moved, elements, kind.kernels)

    def cast(self, product: Operation, moved, elements, kernels: int) -> list:
        """A cast that moves so many bytes for each of these elements, and the maximum that it waits for."""
        kind = self.share.number_type
        name = f"{'experts ' * product.name.startswith('experts')}cast to {kind.name}"
        shape, dtype = (elements,), self.share.dtype
        cast = Operation(name, "cast", shape, dtype, 0, moved * elements, kernels * product.kernels)
        amax = CollectiveOp("tp amax", "few bytes", "tp", SINGLE)
        return [cast, *[amax] * (self.is_gathered(product) and kind.gathers_amax)]

    def is_gathered(self, product: Operation) -> bool:
        return self.share.number_type.travels and product.name in self.gathered_products

    # ---- inputs that are kept in 16 bits

    def cast_for_one(self, product: Operation, again: bool) -> list:
        """What is cast for a product of the forward pass, and again for the weights' gradient: a copy each
        (save_original_input in transformer_engine/pytorch/module/linear.py)."""
        kind, (rows, columns, _) = self.share.number_type, product.shape
        matrix, _, _ = product.name.rpartition(" ")
        gathered = kind.travels and f"{matrix} forward" in self.gathered_products
        if again:
            moved = kind.again_bytes(self.share.transposes, self.share.tp, gathered)
        else:
            moved = kind.one_copy_bytes(self.share.tp, gathered)
        elements = product.flops / (2 * (rows if again else columns))
        return self.cast(product, moved, elements, kind.kernels_of_one_copy)

    # ---- norms that cast

    def norm_right_before(self, product: str, before: list) -> Operation | None:
        """Transformer Engine's norm, if it is of one module with a product that takes its result
        (TELayerNormColumnParallelLinear in megatron/core/models/gpt/gpt_layer_specs.py)."""
        kind = self.share.number_type
        last = next((item for item in reversed(before) if isinstance(item, Operation)), None)
        joined = self.stack.fusion == "engine" and (kind.norm_casts or kind.norm_finds_amax)
        is_norm = last is not None and last.name == "norm"
        return last if joined and is_norm and product in BEHIND_NORM else None

    def cast_by_norm(self, before: list, norm: Operation, product: Operation) -> list:
        """The norm writes its result cast, and a kernel what it has not done."""
        kind, (_, columns, _) = self.share.number_type, product.shape
        gathered = self.is_gathered(product)
        moved = kind.bytes_behind_norm(self.share.transposes, self.share.tp, gathered)
        (elements,) = norm.shape
        spared = (self.itemsize - kind.copy) * elements * kind.norm_casts
        place = max(place for place, item in enumerate(before) if item is norm)
        result = [*before[:place], norm._replace(bytes=norm.bytes - spared), *before[place + 1 :]]
        kernels = 1 if kind.norm_casts else kind.kernels - 1
        if not anywhere(moved > 0):
            return result
        return result + self.cast(product, moved, product.flops / (2 * columns), kernels)

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
