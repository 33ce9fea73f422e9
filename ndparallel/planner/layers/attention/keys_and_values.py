"""How keys and values come from the other cp ranks, and their gradients back.

Idea   They go round a ring beside attention's kernels, their gradients too (Liu et al. 2310.01889), or are
       gathered before it, and their gradients scattered behind it (Llama 3, 2407.21783, 3.3.2); or each rank
       gets all tokens of a part of the heads, by all-to-alls (Ulysses, 2309.14509): the stack's
       `context_parallel` says which. A ring meets the blocks one by one: a fused kernel is then launched for
       each of them, as fast as it is on so short a sequence, and its results are merged.
Limit  What is merged is in 16 bits, in fp8 attention too. Of an all-to-all the copies of one array are not
       hidden beside another's messages.

Glossary: see `ndparallel.planner.layers.attention.sizes`.
"""

from typing import NamedTuple

from gpu import Operation
from ndparallel.planner.layers.attention.sizes import AttentionSizes
from ndparallel.planner.layers.operations import SINGLE, CollectiveOp
from ndparallel.planner.numbers import larger


class BlockMerge(NamedTuple):
    """What merges one block in float32: passes over the rank's part of attention's result, and kernels."""

    passes: int
    kernels: int


# (forward, backward), in plain PyTorch: a cast, two differences and a product, and half of the time a join of
# two halves; sums and a join of keys' and values' gradients, and a sum of queries'
MERGES = (BlockMerge(passes=16, kernels=8), BlockMerge(passes=23, kernels=8))
# the same, each compiled to one chain
COMPILED_MERGES = (BlockMerge(passes=5, kernels=2), BlockMerge(passes=15, kernels=3))


class KeysAndValues(AttentionSizes):
    """Writes the exchange of keys and values around a core."""

    def around(self, core: list[Operation], backward: bool) -> list:
        """The core, with the keys and values of the cp ranks."""
        if self.stack.context_parallel == "all-to-all":
            return self.by_heads(core, backward)
        if self.stack.context_parallel == "all-gather":
            return self.merged(core, backward) if self.stack.cp_merges else self.gathered(core, backward)
        merges = [self.ring_merges(backward)] * self.stack.flash
        return [*self.ring_hops(kernel_of(core), backward), *core, *merges]

    def by_heads(self, core: list[Operation], backward: bool) -> list:
        """Queries, keys and values of all tokens come for a part of the heads, and what is found goes to its
        tokens; backward the gradients do, and, where it was not kept by heads too, the result comes again."""
        heads = self.share.rows * self.attending_kv_heads  # of keys, and as many of values
        keys, values = heads * self.shape.head_dim, heads * self.shape.value_dim
        qkv, result = (self.query_elements, keys, values), (self.value_elements,)
        again = result if backward and self.stack.resends_heads else ()
        come, go = (again + result, qkv) if backward else (qkv, result)
        return [
            *(item for elements in come for item in (self.order(elements), self.exchange(elements))),
            *core,
            *(item for elements in go for item in (self.exchange(elements), self.order(elements))),
        ]

    def exchange(self, elements) -> CollectiveOp:
        return CollectiveOp("cp all_to_all", "all_to_all", "cp", elements * self.key_bytes)

    def order(self, elements) -> Operation:
        """The copies around an array's all-to-all."""
        there, copies = self.share.cp > 1, self.stack.head_copies
        return self.elementwise("order heads", there * elements, 2 * copies, there * copies)

    def gathered(self, core: list[Operation], backward: bool) -> list:
        size = self.keys_and_values_bytes
        sent = size * self.key_bytes / self.itemsize
        scatter = [CollectiveOp("cp scatter", "reduce_scatter", "cp", size)] if backward else []
        return [CollectiveOp("cp gather", "all_gather", "cp", sent), *core, *scatter]

    @property
    def key_bytes(self) -> int:
        """Bytes of a key, or a value, on its way to the other cp ranks: attention that takes fp8 casts it
        before, but in MXFP8, which a rank casts for itself (fp8_recipe.mxfp8() in Transformer Engine's
        context_parallel.py)."""
        return self.stack.fp8_attention * self.share.number_type.key_bytes or self.itemsize

    @property
    def gathered_keys_bytes(self):
        """Bytes of the keys and values that are gathered: PyTorch's are of every query head (repeat_kv in
        torchtitan's models)."""
        size = self.keys_and_values_bytes
        return size * self.shape.heads / self.kv_heads if self.stack.cp_merges else size

    def merged(self, core: list[Operation], backward: bool) -> list:
        """Keys and values, of every query head, come beside the first block; each later block's result is
        merged in float32. Their gradients go round in float32, one hop a block, beside the next block, the
        last beside none (_templated_ring_attention and its backward in
        torch/distributed/tensor/experimental/_attention.py; repeat_kv in torchtitan's models). A compiled
        layer waits for each at once (_maybe_wrap_tensor in torch/distributed/_functional_collectives.py)."""
        kernel, cp = kernel_of(core), self.share.cp
        compiled = self.stack.fusion == "compiled"
        beside = None if compiled else kernel
        size = self.gathered_keys_bytes
        gather = CollectiveOp("cp gather", "all_gather", "cp", size, beside, share=1 / cp)
        passes, kernels = (COMPILED_MERGES if compiled else MERGES)[backward]
        merges = cp - 1 + backward * (cp > 1)
        merge = self.elementwise("merge blocks", merges * self.value_elements, passes, merges * kernels)
        sent = size * SINGLE / self.itemsize
        round_ = CollectiveOp("cp gradients", "hops", "cp", sent, beside, cp, share=(cp - 1) / cp, hops=cp)
        return [gather, *core, merge, *[round_] * backward]

    def ring_hops(self, kernel: Operation, backward: bool) -> list[CollectiveOp]:
        """The hops of Transformer Engine's ring (AttnFuncWithCPAndKVP2P), each of them sent before one
        block's kernel and waited for behind it, so that none is exposed if kernels are longer. Forward keys
        and values of the next block come beside each kernel but the last. Backward they have the gradients of
        their block with them, but for the first hop, and the last brings a rank the gradients of its own. In
        fp8 these come from all ranks at once, in 8 bits, beside the last kernel (dkv_a2a_req)."""
        cp = self.share.cp
        one = self.keys_and_values_bytes / cp
        keys = self.hops("cp ring", cp - 1, one * self.key_bytes / self.itemsize, kernel)
        if not backward:
            return [keys]
        if self.stack.fp8_attention and self.share.number_type.key_bytes:
            size = self.keys_and_values_bytes / self.itemsize
            beside = kernel if self.stack.cp_overlap else None
            return [keys, CollectiveOp("cp gradients", "all_to_all", "cp", size, beside, share=1 / cp)]
        return [
            self.hops("cp ring", larger(0, cp - 2), 2 * one, kernel),
            self.hops("cp ring ends", 2 * (cp > 1), one, kernel),
        ]

    def hops(self, name: str, hops, size, kernel: Operation) -> CollectiveOp:
        """So many hops of `size` bytes, each beside one block's kernel."""
        beside, share = kernel if self.stack.cp_overlap else None, hops / self.share.cp
        return CollectiveOp(name, "hops", "cp", hops * size, beside, share=share, hops=hops)

    def ring_merges(self, backward: bool) -> Operation:
        """What Transformer Engine's ring moves beside its kernels (AttnFuncWithCPAndKVP2P and its backward in
        transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py) on the last rank: its
        queries meet every block whole, and others wait for it. Keys and values are copied into a buffer; each
        block has a kernel for the softmax's sums and one for the output, or one for each of three gradients.
        The first block is copied, later ones are added; keys' and values' gradients are of half a block, but
        for the rank's own."""
        cp, rows = self.share.cp, self.share.rows
        heads, kv_heads = self.shape.heads / self.share.tp, self.kv_heads / self.share.tp
        keys_and_values = rows * kv_heads * (self.shape.head_dim + self.shape.value_dim)
        if backward:
            queries = rows * heads * self.shape.head_dim
            moved, kernels = (3 * cp - 1) * queries + (3 + 1.5 * cp) * keys_and_values, 1 + 3 * cp
        else:
            sums = rows * heads * SINGLE / self.itemsize
            moved = (3 * cp - 1) * self.value_elements + (5 * cp - 1) * sums + 2 * keys_and_values
            kernels = 1 + 2 * cp
        there = cp > 1
        return self.elementwise("merge blocks", there * moved, 1, there * kernels)


def kernel_of(core: list[Operation]) -> Operation:
    """The core's first kernel that multiplies, beside which keys and values are on their way."""
    return next(operation for operation in core if operation.kind != "elementwise")
