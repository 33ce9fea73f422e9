"""The core of attention, where queries meet keys: one fused kernel, or scores, softmax and values one after
another, with the keys and values of the cp ranks.

Idea   What the kernel multiplies and moves is decided by the stack's `attention`; how keys and values come
       from the other cp ranks by its `cp_gathers`. A ring meets the blocks one by one: a fused kernel is then
       launched for each of them, as fast as it is on so short a sequence, and its results are merged.
Cost   Flash: 2 products forward and 5 backward for each query-key pair that the causal mask keeps. Masked: 2
       and 4, and every score through memory. Unfused: 2 and 4 of all pairs.
Limit  A masked list by blocks has as many items as cp says, so there cp is a number, and no array. Blocks
       without a mask, whose kernel is up to a tenth quicker, have the rate of those with one; what is merged
       is in 16 bits, in fp8 attention too. Layers with and without a window have the seconds of their mean;
       software without fused attention, or masked block by block, computes what is outside of windows too.

Glossary
    pairs        query-key pairs that the causal mask and windows keep, over the rank's heads
    block        the keys and values of one cp rank;  diagonal: the rank's own, the only one with a mask
    shift        a block handed to the right neighbour while another comes from the left
"""

from functools import partial
from typing import NamedTuple

from gpu import Operation
from ndparallel.model import costs
from ndparallel.planner.layers.operations import SCORE_DROPOUT, SINGLE, CollectiveOp, Start, Wait
from ndparallel.planner.layers.parts import LayerParts
from ndparallel.planner.numbers import anywhere, larger

SHORT_ATTENTION = ("cudnn-fp8", "float8")  # Blackwell's kernel, and the type of what it multiplies


class BlockMerge(NamedTuple):
    """What merges one block in float32: passes over the rank's part of attention's result, and kernels."""

    passes: int
    kernels: int


# (forward, backward), in plain PyTorch: a cast, two differences and a product, and half of the time a join of
# two halves; sums and a join of keys' and values' gradients, and a sum of queries'
MERGES = (BlockMerge(passes=16, kernels=8), BlockMerge(passes=23, kernels=8))
# the same, each compiled to one chain
COMPILED_MERGES = (BlockMerge(passes=5, kernels=2), BlockMerge(passes=15, kernels=3))


class AttentionLists(LayerParts):
    """Writes the core of attention for one share and one stack."""

    def core(self, backward: bool) -> list:
        """The core, with the keys and values of the cp ranks. They go round a ring beside it, their gradients
        too (Liu et al. 2310.01889), or are gathered before it, and their gradients scattered behind it (Llama
        3, 2407.21783, 3.3.2)."""
        if self.stack.attention == "masked" and not self.stack.cp_gathers:
            return self.ring_backward() if backward else self.ring_forward()
        core = self.core_backward() if backward else self.core_forward()
        if not anywhere(self.share.cp > 1):
            return core
        size = self.keys_and_values_bytes
        sent = size * self.key_bytes / self.itemsize
        if self.stack.cp_gathers and self.stack.cp_merges:
            return self.merged(core, backward)
        if self.stack.cp_gathers:
            scatter = [CollectiveOp("cp scatter", "reduce_scatter", "cp", size)] if backward else []
            return [CollectiveOp("cp gather", "all_gather", "cp", sent), *core, *scatter]
        merges = [self.ring_merges(backward)] * self.stack.flash
        return [*self.ring_hops(kernel_of(core), backward), *core, *merges]

    @property
    def keys_and_values_bytes(self):
        """Bytes of the keys and values of all cp ranks."""
        kv = 2 * self.kv_heads / self.share.tp * self.shape.head_dim
        return self.share.micro_batch * self.share.sequence * kv * self.itemsize

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

    @property
    def pairs(self):
        """Query-key pairs under the causal mask and in windows, a mean over the layers, over the rank's
        heads; cp ranks share them evenly."""
        heads, length = self.shape.heads / self.share.tp, self.share.sequence
        causal = self.share.micro_batch * heads * length * (length + 1) / 2 / self.share.cp
        return causal * self.shape.seen_share(length)

    def core_forward(self) -> list[Operation]:
        """Scores, softmax, values."""
        if self.stack.flash:
            return [self.flash("forward", 1, 1, 1)]
        if self.stack.attention == "masked":
            return [operation for block in self.blocks_forward() for operation in block]
        unmasked = self.unmasked
        return [
            unmasked("scores", "qk", self.shape.head_dim),
            self.elementwise("softmax", self.scores, 2),
            *self.score_dropout(),
            unmasked("values", "pv", self.shape.value_dim),
            self.elementwise("heads to rows", self.value_elements, 2),
        ]

    def core_backward(self) -> list[Operation]:
        if self.stack.flash:
            return [self.flash("backward", 3, 2, 2)]
        if self.stack.attention == "masked":
            return [operation for block in self.blocks_backward() for operation in block]
        unmasked = self.unmasked
        return [
            unmasked("values dgrad", "qk", self.shape.value_dim),
            unmasked("values wgrad", "pv", self.shape.value_dim),
            *self.score_dropout(),
            self.elementwise("softmax", self.scores, 3),
            unmasked("queries", "pv", self.shape.head_dim),
            unmasked("keys", "pv", self.shape.head_dim),
            self.elementwise("rows to heads", self.value_elements, 4),
        ]

    def core_again(self) -> list[Operation]:
        """What selective recomputation runs of the core."""
        core = self.core(False) if self.stack.flash else self.core_forward()
        if not self.stack.keeps_mixed:
            return core
        return [operation for operation in core if operation.name in ("scores", "softmax")]

    def kept_of_core(self, again: bool):
        """Numbers kept beside queries, keys, values and what they give: all probabilities where they do not
        come `again`; round a ring in blocks also what each block weighs, or the sum over all of them."""
        if self.stack.flash:
            return 0
        if self.stack.attention == "masked" and not self.stack.cp_gathers:
            return self.kept_of_blocks(again)
        return 0 if again else self.scores

    @property
    def value_elements(self):
        """Elements of the values mixed for the rank's tokens."""
        return self.share.rows * self.shape.heads / self.share.tp * self.shape.value_dim

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

    # ---- one fused kernel, or one for each block

    def flash(self, direction: str, query_products: int, value_products: int, times: int) -> Operation:
        """Fused kernels: (pairs x head_dim) products of queries and keys, and of probabilities and values.
        A block off the diagonal has all of one side and half of the other, so of each query as many pairs as
        the diagonal has in the mean."""
        heads, kv_heads = self.shape.heads / self.share.tp, self.kv_heads / self.share.tp
        flops = (
            2.0 * self.pairs * (query_products * self.shape.head_dim + value_products * self.shape.value_dim)
        )
        met = heads * self.blocks + kv_heads * (1 + self.blocks) / 2
        arrays = times * self.share.rows * met * (self.shape.head_dim + self.shape.value_dim)
        short = self.stack.fp8_attention and self.share.number_type.kernels and not self.share.transposes
        kernel, dtype = (self.stack.attention, self.share.dtype) if not short else SHORT_ATTENTION
        name, moved = f"{kernel} {direction}", arrays * self.itemsize
        shape = (self.pairs, self.share.sequence / self.blocks, self.shape.head_dim)
        return Operation("attention", name, shape, dtype, flops, moved, times * self.blocks)

    # ---- over all pairs

    @property
    def scores(self):
        return (
            self.share.micro_batch
            * self.shape.heads
            / self.share.tp
            * self.share.sequence
            * self.share.sequence
            / self.share.cp
        )

    def unmasked(self, name: str, side: str, width: int) -> Operation:
        """A product over all pairs: into scores (qk), or from them (pv)."""
        length, mine = self.share.sequence, self.share.sequence / self.share.cp
        n, k = (length, width) if side == "qk" else (width, length)
        heads = self.share.micro_batch * self.shape.heads / self.share.tp
        return self.matmul(name, mine, n, k, self.share.dtype, heads)

    def score_dropout(self) -> list[Operation]:
        if not self.stack.dropout:
            return []
        return [self.elementwise("score dropout", self.scores, SCORE_DROPOUT)]

    # ---- over the pairs that the mask keeps, block by block

    @property
    def blocks(self):
        """Blocks of keys that a rank's queries meet one after another."""
        return self.share.cp if self.stack.cp_merges or not self.stack.cp_gathers else 1

    def block_pairs(self) -> list:
        """Pairs of each block: the diagonal's, and those that come round, of which half are masked."""
        heads, mine = self.shape.heads / self.share.tp, self.share.sequence / self.share.cp
        other = self.share.micro_batch * heads * mine * mine / 2
        return [self.pairs - (self.blocks - 1) * other, *[other] * (self.blocks - 1)]

    def kept_of_blocks(self, again: bool):
        """Bytes kept as `kept_of_core` counts them; of blocks off the diagonal no half that is masked is
        computed."""
        queries, others = self.share.rows * self.shape.heads / self.share.tp, self.blocks - 1
        mine = self.share.sequence / self.share.cp
        scores = queries * (mine + others * mine / 2)
        weights = (1 if again else self.blocks) * (self.blocks > 1)
        return queries * weights + (0 if again else scores)

    def over_pairs(self, name: str, pairs, tensors: int, products: int = 1) -> Operation:
        """Price `products` over pairs, which also move the scores and so many `tensors` of the rank's
        tokens."""
        dim, elements = self.shape.head_dim, self.value_elements
        return costs.attention(name, pairs, dim, tensors, elements, dtype=self.share.dtype, products=products)

    def blocks_forward(self) -> list[list[Operation]]:
        """Block by block: scores, softmax, values, and their sum with those of the blocks before."""
        merge = self.elementwise("merge", self.value_elements, 3)
        return [
            [
                self.over_pairs("scores", pairs, 2),
                self.elementwise("softmax", pairs, 2),
                self.over_pairs("values", pairs, 2),
                *[merge] * (number > 0),
            ]
            for number, pairs in enumerate(self.block_pairs())
        ]

    def blocks_backward(self) -> list[list[Operation]]:
        return [
            [
                self.over_pairs("values", pairs, 3, products=2),
                self.elementwise("softmax", pairs, 3),
                self.over_pairs("scores", pairs, 4, products=2),
            ]
            for pairs in self.block_pairs()
        ]

    def ring_forward(self) -> list:
        """A block is met while the next is on its way."""
        items: list = []
        for hop, block in enumerate(self.blocks_forward()):
            keys = self.shifts("keys and values", [hop] if hop < self.blocks - 1 else [])
            items += [*map(Start, keys), *block, *map(Wait, keys)]
        return items

    def ring_backward(self) -> list:
        """Gradients follow their block: each rank adds its own to those that come, and hands them on."""
        items: list = []
        gradients = partial(self.shifts, "their gradients")
        for hop, block in enumerate(self.blocks_backward()):
            keys = self.shifts("keys and values", [hop] if hop < self.blocks - 1 else [])
            items += [*map(Start, keys), *block, *map(Wait, gradients([hop - 1] if hop else []))]
            items += [*map(Start, gradients([hop])), *map(Wait, keys)]
        return [*items, *map(Wait, gradients([self.blocks - 1]))]

    def shifts(self, what: str, hops: list[int]) -> list[CollectiveOp]:
        size = self.keys_and_values_bytes / self.share.cp
        return [CollectiveOp(f"cp {what} {hop}", "shift", "cp", size) for hop in hops]


def kernel_of(core: list[Operation]) -> Operation:
    """The core's first kernel that multiplies, beside which keys and values are on their way."""
    return next(operation for operation in core if operation.kind != "elementwise")
