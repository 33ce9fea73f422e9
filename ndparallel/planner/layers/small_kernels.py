"""The kernels that move little, as they are counted in the software.

Idea   A small kernel is there where the model and the software have what it is for: its feature.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from functools import cached_property

from gpu import Operation
from ndparallel.planner.launches import SmallKernel, small_kernels
from ndparallel.planner.layers.layer_kernels import LayerKernels
from ndparallel.planner.numbers import anywhere


class SmallKernelLists(LayerKernels):
    """Writes the small kernels of one layer."""

    def of_part(self, of: str, backward: bool) -> list[Operation]:
        """The software's small kernels in one part of a pass. Nobody waits to know how many rows come
        where a mixture drops those above its capacity."""
        kernels = small_kernels(self.stack.small_kernels, of, backward)
        there = [kernel for kernel in kernels if kernel.when in self.features]
        return [self.kernel(kernel) for kernel in there if self.share.dropless or not kernel.waits]

    def kernel(self, kernel: SmallKernel) -> Operation:
        if kernel.calls or kernel.waits:
            kind = "wait" if kernel.waits else "host"
            return Operation(kernel.name, kind, (kernel.calls,), self.share.dtype, 0.0, 0.0, kernel.launches)
        elements = self.elements(kernel.elements)
        there = 1 * (elements > 0) if kernel.elements else 1
        return self.elementwise(kernel.name, elements, kernel.passes, kernel.launches * there)

    def elements(self, name: str):
        """Numbers of the array that a small kernel moves."""
        if (heads := self.heads(name)) is not None:
            return self.share.rows * heads / self.share.tp * self.shape.head_dim
        widths = {"hidden": self.shape.hidden, "ffn": self.shape.ffn / self.share.tp, "": 0.0}
        return (self.share.shard if name == "hidden" else self.share.rows) * widths[name]

    def heads(self, name: str):
        """Heads as wide as queries', of all tp ranks together, whose numbers a small kernel moves."""
        shape = self.shape
        if name == "queries":
            return shape.heads * self.grouped_heads
        values = self.kv_heads * (shape.value_width or shape.head_dim) / shape.head_dim
        own = values * (not shape.keys_as_values)
        return {"qkv": shape.heads + self.kv_heads + own, "values": values}.get(name)

    @cached_property
    def features(self) -> set[str]:
        """What the model and the software have of all that small kernels may need."""
        stack = self.stack
        there = {
            "": True,
            "rotary": self.shape.position == "rotary",
            "rotary_heads": self.rotary_heads,
            "grouped_heads": anywhere(self.grouped_heads),
            "latent": self.shape.latent is not None,
            "dropout": stack.dropout,
            "unfused": not stack.flash,
            "score dropout": stack.dropout and not (stack.flash or self.share.sequence_parallel),
            "fused router" if stack.fused_router else "plain router": True,
            stack.dispatcher: True,
            f"{'fused' if stack.fused_permutation else 'plain'} {stack.dispatcher}": True,
            f"16-bit {stack.dispatcher}": not stack.fp32_router,
            f"{'one-kernel' if stack.fused_mask else 'masked'} {stack.dispatcher}": True,
        }
        return {*self.shape.biases, *(feature for feature, has in there.items() if has)}

    @property
    def rotary_heads(self) -> bool:
        """Whether queries and keys, cut out of one array with the values, are turned by their positions into
        arrays of their own."""
        return self.shape.position == "rotary" and self.shape.latent is None

    @property
    def grouped_heads(self):
        """Whether no view of that array has the queries alone: they lie group by group between keys and
        values, and a rank has several groups of several heads."""
        return self.rotary_heads * (self.kv_heads > self.share.tp) * (self.shape.heads > self.kv_heads)
