"""The lists of a layer whose matrices are frozen: no gradients of their weights, adapters beside them, and
weights of 4 bits made whole before each use.

Idea   Each product of a frozen matrix is followed by those of its adapters; of the backward pass the products
       that make weights' gradients are replaced by the adapters'. What hid behind them is waited for.
       Megatron-Bridge's adapters are in bridge_adapters.py.
Limit  Sums over tp of what an adapter's A or B has in parts are left out but for Megatron-Bridge's: they are
       as narrow as the rank.
"""

from collections.abc import Iterator
from typing import Any

from gpu import Operation
from ndparallel.model import costs
from ndparallel.planner.adapters import Adapters, adapted_parts
from ndparallel.planner.layers.bridge_adapters import ADD, BridgeAdapters
from ndparallel.planner.layers.layer_kernels import LayerKernels, writer
from ndparallel.planner.layers.operations import HALF, CollectiveOp, Layer
from ndparallel.planner.models.shape import ModelShape


class FrozenLists(LayerKernels):
    """Writes lists anew for one model and its adapters."""

    bridge = writer(BridgeAdapters)

    @property
    def adapters(self) -> Adapters:
        assert self.share.adapters
        return self.share.adapters

    def layer(self, layer: Layer) -> Layer:
        forward, again, backward, weights = layer
        made = [each for item in weights for each in self.beside(item)]
        return Layer(self.written(forward), self.written(again), self.written(backward), made)

    def embedding(self, layer: Layer) -> Layer:
        """The embedding has no backward pass: nothing below it is trained."""
        return Layer(layer.forward, [], [], [])

    def head(self, layer: Layer) -> Layer:
        return Layer(layer.forward, layer.recompute, list(map(shown, layer.backward_input)), [])

    def written(self, items: list) -> list:
        return [each for item in items for each in (*self.whole_again(item), shown(item), *self.beside(item))]

    def whole_again(self, item) -> Iterator[Operation]:
        """Read weights of 4 bits, and write them in 16."""
        if self.adapters.quantized and matrix_of(self.shape, item):
            _, n, k = item.shape
            passes = (self.adapters.base_bits / 8 + HALF) / HALF
            yield moved("dequantize", item, n * k, passes)

    def beside(self, item) -> Iterator[Any]:
        """What the adapters of a matrix do beside one of its products."""
        matrix = matrix_of(self.shape, item)
        for share in self.adapters.shares(self.shape, matrix, self.stack) if matrix else ():
            if self.stack.bridge_adapters:
                yield from self.bridge.beside(item, tp_split_of(self.shape, matrix), share)
            else:
                yield from self.multiplied(item, share)

    def multiplied(self, item: Operation, share: float) -> Iterator[Operation]:
        """What the adapter of a part of a matrix multiplies beside one of the matrix's products."""
        (m, n, k), rank, side = item.shape, self.adapters.rank, item.name.rpartition(" ")[2]
        if side == "forward":
            yield from self.products(item, (m, rank, k), (m, share * n, rank))
            yield moved("add adapter", item, m * share * n, ADD)
        elif side == "dgrad":
            yield from self.products(item, (m, rank, share * k), (m, n, rank))
            yield moved("add adapter", item, m * n, ADD)
        else:
            yield from self.products(item, (rank, n, k), (share * m, rank, k))

    def products(self, item: Operation, *shapes: tuple) -> Iterator[Operation]:
        for m, n, k in shapes:
            one = costs.matmul(f"adapter of {item.name}", m, n, k, "bfloat16", products_in(item))
            yield one._replace(kernels=item.kernels)


def matrix_of(shape: ModelShape, item) -> str:
    """The matrix of a layer that an item of a list multiplies with, or ""."""
    if not isinstance(item, Operation) or item.kind != "matmul":
        return ""
    name = item.name.removeprefix("experts ").rpartition(" ")[0]
    return name if adapted_parts(shape, name) else ""


def tp_split_of(shape: ModelShape, name: str) -> str:
    """How tp cuts a matrix of a layer."""
    matrices = (*shape.attention(), *shape.linear_attention(), *shape.mlp(shape.ffn))
    return next(matrix.split for matrix in matrices if matrix.name == name)


def moved(name: str, item: Operation, elements, passes: float) -> Operation:
    """A kernel that only moves so many elements beside each product of an operation."""
    one = costs.elementwise(name, products_in(item) * elements, passes, "bfloat16")
    return one._replace(kernels=item.kernels)


def products_in(item: Operation):
    """How many products an operation is: one for each expert."""
    m, n, k = item.shape
    return item.flops / (2 * m * n * k)


def shown(item):
    """A collective that hid behind a weights' gradient which is not made any more."""
    hidden = isinstance(item, CollectiveOp) and item.beside and item.beside.name.endswith("wgrad")
    return item._replace(beside=None) if hidden else item
