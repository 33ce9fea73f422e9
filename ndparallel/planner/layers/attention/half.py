"""Attention's half of a layer: queries, keys and values, the core where they meet, and what comes of it.

Idea   Forward and backward stand next to each other. Dense layers and mixtures have the same.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from functools import cached_property

from gpu import Operation
from ndparallel.planner.layers.attention.core import AttentionCore
from ndparallel.planner.layers.attention.latent import LatentLists
from ndparallel.planner.layers.layer_kernels import writer
from ndparallel.planner.layers.parts import ATTENTION, LayerParts
from ndparallel.planner.models.matrices import Linear


class AttentionLists(LayerParts):
    """Writes attention's half of a layer."""

    core = writer(AttentionCore)
    latent = writer(LatentLists)

    @cached_property
    def matrices(self) -> tuple[Linear, ...]:
        return self.attention_matrices()

    @property
    def into(self) -> tuple[Linear, ...]:
        """The matrices that give queries, keys and values."""
        return self.matrices[: -1 - len(self.shape.head_gate())]

    @cached_property
    def forward(self) -> list:
        result = self.product(self.matrices[-1], "forward")
        return [
            *self.norms_before(ATTENTION, False),
            *self.into_heads(),
            *self.norms_of_heads(False),
            *self.rotary(False),
            *self.core.forward(),
            *self.output_gate(False),
            *self.tp.summed(result, result),
            *self.norms_behind(ATTENTION, False),
            self.residual(False),
        ]

    @cached_property
    def backward(self) -> list:
        back = self.product(self.matrices[-1], "dgrad")
        half = [
            *self.norms_behind(ATTENTION, True),
            *self.tp.gather(back),
            back,
            *self.output_gate(True),
            *self.core.backward(),
            *self.rotary(True),
            *self.norms_of_heads(True),
            *self.values_into_keys(),
            *self.out_of_heads(),
            *self.norms_before(ATTENTION, True),
        ]
        return self.with_residual(half)

    @cached_property
    def weight_gradients(self) -> list:
        return self.weights(self.matrices)

    def core_again(self) -> list:
        """What selective recomputation runs again of the core."""
        return self.core.again()

    def latent_again(self) -> list:
        """What runs again where latent attention keeps its ranks alone."""
        return [*self.latent.from_ranks(), *self.rotary(False)] if self.shape.latent else []

    def into_heads(self) -> list:
        """The products that give queries, keys and values, and heads' gates, and what they gather."""
        if self.gathers_ranks:
            return [*self.latent.to_ranks(), *self.latent.from_ranks()]
        products = [
            item
            for matrix in self.into
            for item in (*self.latent.norm_of(matrix, False), self.product(matrix, "forward"))
        ]
        gates = [self.product(matrix, "forward") for matrix in self.shape.head_gate()]
        return [*self.tp.gather(products[-1], self.side_by_side), *products, *gates]

    def out_of_heads(self) -> list:
        """Their gradients' way back."""
        if self.gathers_ranks:
            return [*self.latent.back_to_ranks(), *self.latent.back_from_ranks()]
        gates = [self.product(matrix, "dgrad") for matrix in self.shape.head_gate()]
        products = [self.product(matrix, "dgrad") for matrix in reversed(self.into)]
        summed = self.tp.summed(products[-1], self.product(self.into[-1], "wgrad"), True, self.side_by_side)
        norms = [norm for matrix in reversed(self.into) for norm in self.latent.norm_of(matrix, True)]
        again = self.tp.gather_again(products[0])
        return [*again, *gates, *products[:-1], *norms, *summed, *self.latent.added()]

    def rotary(self, backward: bool) -> list[Operation]:
        if self.shape.position != "rotary":
            return []
        passes, kernels = self.passes("rotary", backward), self.stack.rotary_kernels
        return [self.elementwise("rotary", self.queries_and_keys, passes, kernels)]

    def norms_of_heads(self, backward: bool) -> list[Operation]:
        """Norms of queries, of keys, and where values have one of these, a kernel each."""
        if not self.shape.qk_norm:
            return []
        of_values = self.shape.qk_norm == "values"
        elements = self.queries_and_keys + of_values * self.values
        return [self.elementwise("norms of heads", elements, self.passes("norm", backward), 2 + of_values)]

    def values_into_keys(self) -> list[Operation]:
        """The sum of keys' and values' gradients, where one matrix makes both."""
        return [self.elementwise("add values", self.values, 3)] * self.shape.keys_as_values

    def output_gate(self, backward: bool) -> list[Operation]:
        """The heads' results times the sigmoid of their gates; backward the gradients of both
        (_apply_output_gate in megatron/core/transformer/attention.py). Gates of one number for each head are
        read for that alone."""
        if not self.shape.output_gate:
            return []
        results, gates = self.shape.value_dim, self.shape.gate_width
        moved = 3 * results + 2 * gates if backward else 2 * results + gates
        elements = self.share.rows * self.shape.heads / self.share.tp * results
        return [self.elementwise("output gate", elements, moved / results)]

    @property
    def side_by_side(self) -> int:
        """Matrices of the same input: queries, keys, values, heads' gates."""
        return len(self.shape.qkv_outputs(self.kv_heads)) + len(self.shape.head_gate())

    @property
    def values(self):
        """Elements of the rank's values."""
        return self.share.rows * self.kv_heads / self.share.tp * self.shape.value_dim

    @property
    def queries_and_keys(self):
        """Elements of the rank's queries and keys."""
        return self.share.rows * (self.shape.heads + self.kv_heads) / self.share.tp * self.shape.head_dim
