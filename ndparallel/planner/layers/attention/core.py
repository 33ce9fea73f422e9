"""The core of attention, where queries meet keys: the stack's kernels, with the keys and values of the cp
ranks.

Glossary: see `ndparallel.planner.layers.attention.sizes`.
"""

from functools import cached_property

from ndparallel.planner.layers.attention.flash import FlashAttention
from ndparallel.planner.layers.attention.keys_and_values import KeysAndValues
from ndparallel.planner.layers.attention.masked import MaskedAttention
from ndparallel.planner.layers.attention.unfused import UnfusedAttention
from ndparallel.planner.layers.layer_kernels import LayerKernels, writer
from ndparallel.planner.numbers import anywhere


class AttentionCore(LayerKernels):
    """Writes the core of attention for one share and one stack."""

    keys_and_values = writer(KeysAndValues)

    @cached_property
    def kernels(self) -> FlashAttention | MaskedAttention | UnfusedAttention:
        if self.stack.flash:
            return FlashAttention(*self.given)
        masked = self.stack.attention == "masked"
        return MaskedAttention(*self.given) if masked else UnfusedAttention(*self.given)

    @cached_property
    def ring(self) -> MaskedAttention | None:
        """Blocks that bring their keys and values themselves."""
        kernels, rings = self.kernels, self.stack.context_parallel == "ring"
        return kernels if isinstance(kernels, MaskedAttention) and rings else None

    def forward(self) -> list:
        return self.ring.ring_forward() if self.ring else self.with_keys(self.kernels.forward(), False)

    def backward(self) -> list:
        return self.ring.ring_backward() if self.ring else self.with_keys(self.kernels.backward(), True)

    def with_keys(self, core: list, backward: bool) -> list:
        return self.keys_and_values.around(core, backward) if anywhere(self.share.cp > 1) else core

    def again(self) -> list:
        """What selective recomputation runs of the core."""
        core = self.forward() if self.stack.flash else self.kernels.forward()
        if not self.stack.keeps_mixed:
            return core
        return [operation for operation in core if operation.name in ("scores", "softmax")]
