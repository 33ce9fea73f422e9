"""The pieces that lists of layers are made of: norms, residuals, matrices, and what tensor parallelism says
between them.

Idea   Attention, MLP and experts are written with these words (attention.py, dense.py, experts.py); what the
       software fuses and overlaps is decided here.
Limit  Biases and norms' weights are not priced.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpu import Operation
from ndparallel.model import costs
from ndparallel.planner.job import Share
from ndparallel.planner.launches import SmallKernel, small_kernels
from ndparallel.planner.layers.operations import PASSES, CollectiveOp, Start, Wait
from ndparallel.planner.models.shape import NORM_PLACES, Linear, ModelShape
from ndparallel.planner.numbers import anywhere, larger
from ndparallel.planner.stack import Stack

ATTENTION, MLP = 0, 1  # the halves of a layer
IN_CHUNKS = ("all", "products")  # of tp_overlap: where products are cut, and collectives with them
# chunks of Transformer Engine's pipelined reduce_scatter (num_splits in get_default_config of initialize_ub,
# transformer_engine/pytorch/module/base.py)
SPLITS = 4
TO_RANKS = ("query_down", "kv_down")  # from hidden to latent attention's ranks
KEEP_DTYPE = ("router", "shared_gate", "logits")  # too sensitive for fp8


@dataclass(frozen=True)
class LayerParts:
    """Pieces of the lists for one share and one stack."""

    shape: ModelShape
    share: Share
    stack: Stack

    @cached_property
    def itemsize(self) -> int:
        """Bytes of a number in activations."""
        return costs.itemsize(self.share.dtype)

    def matmul(self, name: str, m, n, k, dtype: str, batch=1, accumulate: bool = False) -> Operation:
        """Price `batch` products of (m, k) and (k, n); one that accumulates reads and writes a gradient that
        stays."""
        result = 2 * self.stack.gradient_bytes if accumulate else self.itemsize
        return costs.matmul(name, m, n, k, dtype, batch, result)

    def elementwise(self, name: str, elements, passes: float, kernels: float = 1) -> Operation:
        """Price kernels that move `passes` arrays of `elements` through memory."""
        return costs.elementwise(name, elements, passes, self.share.dtype, kernels)

    def passes(self, kernel: str, backward: bool) -> float:
        return PASSES[self.stack.fusion][kernel][backward]

    def norm(self, backward: bool) -> Operation:
        return self.elementwise("norm", self.share.shard * self.shape.hidden, self.passes("norm", backward))

    def norms_before(self, half: int, backward: bool) -> list[Operation]:
        """What a half of a layer (0 attention, 1 MLP) begins with: its norm, wherever among its matrices,
        unless the other half's serves both."""
        return [self.norm(backward)] * min(1, NORM_PLACES[self.shape.norms][half])

    def norms_behind(self, half: int, backward: bool) -> list[Operation]:
        """A second norm, on what the half adds."""
        return [self.norm(backward)] * (NORM_PLACES[self.shape.norms][half] - 1)

    def residual(self, backward: bool) -> Operation:
        """Dropout, and the sum with what bypassed the half."""
        dropout = self.passes("dropout", backward) if self.stack.dropout else 0
        return self.elementwise(
            "residual", self.share.shard * self.shape.hidden, self.passes("residual", backward) + dropout
        )

    def activation(self, elements, backward: bool) -> Operation:
        kind = "gated" if self.shape.gated else "plain"
        return self.elementwise(self.shape.activation, elements, self.passes(kind, backward))

    def product(self, matrix: Linear, side: str, rows=None) -> Operation:
        """The matmul of one matrix: forward, dgrad or wgrad."""
        rows = self.rows_of(matrix) if rows is None else rows
        inputs = matrix.inputs / (self.share.tp if matrix.split == "rows" else 1)
        outputs = matrix.outputs / (self.share.tp if matrix.split == "columns" else 1)
        m, n, k = matmul_shape(side, rows, inputs, outputs)
        keeps = matrix.name in KEEP_DTYPE and not (matrix.name == "logits" and self.stack.fp8_head)
        dtype = self.share.dtype if keeps else self.share.linear_dtype
        return self.matmul(
            f"{matrix.name} {side}", m, n, k, dtype, accumulate=side == "wgrad" and self.stack.accumulates
        )

    def rows_of(self, matrix: Linear):
        """The rows that a matrix multiplies: a shard's, where its result is gathered and not its input."""
        return self.rows_of_ranks if matrix.name in TO_RANKS else self.share.rows

    @property
    def rows_of_ranks(self):
        return self.share.shard if self.gathers_ranks else self.share.rows

    @property
    def gathers_ranks(self) -> bool:
        """Whether tp ranks gather latent attention's ranks, and not what these are made of."""
        return self.stack.latent_on_shards and self.shape.latent is not None

    def weights(self, matrices) -> list:
        """The gradients of matrices, which are given in the order of the forward pass."""
        ordered = reversed(matrices) if self.stack.in_order else matrices
        return [item for matrix in ordered for item in self.weight(matrix)]

    def weight(self, matrix: Linear) -> list:
        product = self.product(matrix, "wgrad")
        again = self.stack.regathers and matrix.split == "columns"
        return [*self.gather(product), product] if again else [product]

    def with_residual(self, half: list) -> list:
        """The backward pass of a half of a layer, and of the sum that it is added to."""
        residual = self.residual(True)
        return [*half, residual] if self.stack.in_order else [residual, *half]

    # ---- two matrices with an activation between them

    def gated_forward(self, matrices: tuple[Linear, ...]) -> list:
        """An MLP of these matrices, without norm and residual."""
        up, down = (self.product(matrix, "forward") for matrix in matrices)
        middle = self.activation(self.share.rows * matrices[1].inputs / self.share.tp, False)
        return [*self.gather(up, 1 + self.shape.gated), up, middle, *self.summed(down, down)]

    def gated_backward(self, matrices: tuple[Linear, ...]) -> list:
        up, down = matrices
        down_back, up_back = self.product(down, "dgrad"), self.product(up, "dgrad")
        return [
            *self.gather(down_back),
            down_back,
            self.activation(self.share.rows * down.inputs / self.share.tp, True),
            *self.gather_again(up_back),
            *self.summed(up_back, self.product(up, "wgrad"), True, 1 + self.shape.gated),
        ]

    # ---- kernels that move little

    def small(self, of: str, backward: bool) -> list[Operation]:
        """The kernels of the software's ledger in one part of a pass. Nobody waits to know how many rows come
        where a mixture drops those above its capacity."""
        kernels = small_kernels(self.stack.ledger, of, backward)
        there = [kernel for kernel in kernels if kernel.when in self.features]
        return [self.small_kernel(kernel) for kernel in there if self.share.dropless or not kernel.waits]

    def small_kernel(self, kernel: SmallKernel) -> Operation:
        if kernel.calls or kernel.waits:
            kind = "wait" if kernel.waits else "host"
            return Operation(kernel.name, kind, (kernel.calls,), self.share.dtype, 0.0, 0.0, kernel.launches)
        elements = self.elements_of_small(kernel.elements)
        there = 1 * (elements > 0) if kernel.elements else 1
        return self.elementwise(kernel.name, elements, kernel.passes, kernel.launches * there)

    def elements_of_small(self, name: str):
        """Numbers of the array that a small kernel moves."""
        if (heads := self.heads_of_small(name)) is not None:
            return self.share.rows * heads / self.share.tp * self.shape.head_dim
        widths = {"hidden": self.shape.hidden, "ffn": self.shape.ffn / self.share.tp, "": 0.0}
        return (self.share.shard if name == "hidden" else self.share.rows) * widths[name]

    def heads_of_small(self, name: str):
        """Heads, of all tp ranks together, whose numbers a small kernel moves."""
        if name == "queries":
            return self.shape.heads * self.grouped_heads
        return {"qkv": self.shape.heads + 2 * self.kv_heads, "values": self.kv_heads}.get(name)

    @cached_property
    def features(self) -> set[str]:
        """What the model and the software have of all that small kernels may need."""
        stack = self.stack
        there = {
            "": True,
            "rotary": self.shape.position == "rotary",
            "rotary_heads": self.rotary_heads,
            "grouped_heads": anywhere(self.grouped_heads),
            "latent": self.latent,
            "dropout": stack.dropout,
            "unfused": not stack.flash,
            "score dropout": stack.dropout and not (stack.flash or self.share.sequence_parallel),
            "fused router" if stack.fused_router else "plain router": True,
            stack.dispatcher: True,
            f"{'fused' if stack.fused_permutation else 'plain'} {stack.dispatcher}": True,
            f"{'one-kernel' if stack.fused_mask else 'masked'} {stack.dispatcher}": True,
        }
        return {*self.shape.biases, *(feature for feature, has in there.items() if has)}

    @property
    def latent(self) -> bool:
        return self.shape.latent is not None

    @property
    def rotary_heads(self) -> bool:
        """Whether queries and keys, cut out of one array with the values, are turned by their positions into
        arrays of their own."""
        return self.shape.position == "rotary" and not self.latent

    @property
    def grouped_heads(self):
        """Whether no view of that array has the queries alone: they lie group by group between keys and
        values, and a rank has several groups of several heads."""
        return self.rotary_heads * (self.kv_heads > self.share.tp) * (self.shape.heads > self.kv_heads)

    # ---- the heads of keys and values

    @cached_property
    def kv_heads(self):
        """Heads of keys and values on all tp ranks together."""
        heads = self.shape.kv_heads
        return larger(heads, self.share.tp) if self.stack.copies_kv_heads else heads

    def attention(self) -> tuple[Linear, ...]:
        """The matrices of attention, with the copies that tp ranks hold."""
        matrices = self.shape.attention()
        if not self.stack.copies_kv_heads:
            return matrices
        outputs = (self.shape.heads + 2 * self.kv_heads) * self.shape.head_dim
        return tuple(
            matrix._replace(outputs=outputs) if matrix.name == "qkv" else matrix for matrix in matrices
        )

    # ---- tensor parallelism (Korthikanti et al. 2205.05198, sections 3 and 4.2)

    def gather(self, beside: Operation, matrices: int = 1, width: int = 0) -> list:
        """Gather the rows, of `width` numbers (0: hidden), of a column matrix, or of several side by side:
        without sequence parallelism every rank has all of them already. A compiler sees that matrices gather
        the same."""
        if not self.share.sequence_parallel:
            return []
        one = self.exchange("all_gather", beside, width=width)
        if self.stack.tp_overlap in IN_CHUNKS:
            one = self.in_ring(one, beside)
        times = matrices if self.stack.tp_by_matrix and self.stack.fusion != "compiled" else 1
        return [*self.staged(one), one, *self.joined(one, self.share.micro_batch > 1)] * times

    def sum_parts(self, beside: Operation, backward: bool = False, matrices: int = 1, width: int = 0) -> list:
        """Sum the parts that a row matrix makes, or the dgrad of column matrices."""
        if not anywhere(self.share.tp > 1):
            return []
        collective = "reduce_scatter" if self.share.sequence_parallel else "all_reduce"
        one = self.beside_sum(self.exchange(collective, beside, width=width), beside, backward, matrices)
        cut = self.joined(one, True) if self.share.sequence_parallel else []
        return [*cut, one, *self.added_up(one)] * (matrices if self.stack.tp_by_matrix else 1)

    def beside_sum(self, one: CollectiveOp, beside: Operation, backward: bool, matrices: int) -> CollectiveOp:
        """A sum of parts and what hides it: backward the whole product of the weights' gradients; forward the
        product whose parts they are, if it is a reduce_scatter, which alone is cut into chunks
        (ub_overlap_rs_fprop in transformer_engine/pytorch/module/linear.py, fuse_matmul_reduce_scatter in
        torch/_inductor/fx_passes/micro_pipeline_tp.py)."""
        overlap = self.stack.tp_overlap
        if backward and overlap in ("backward", "all"):
            return one._replace(beside=beside)
        if not self.share.sequence_parallel:
            return one
        if overlap == "all":
            return self.in_splits(one, beside)
        return self.in_ring(one, beside) if overlap == "products" and not (backward and matrices > 1) else one

    def in_ring(self, one: CollectiveOp, beside: Operation) -> CollectiveOp:
        """A collective as tp - 1 messages, each beside the product of another rank's rows: of an all_gather a
        rank's own rows come first, of a reduce_scatter last (CommOverlapP2PBase::split_overlap_ag in
        transformer_engine/common/comm_gemm_overlap/comm_gemm_overlap.cpp;
        _pipelined_multi_all_gather_and_consume and _pipelined_produce_and_all2all in
        torch/distributed/_symmetric_memory)."""
        return one._replace(beside=beside, share=(self.share.tp - 1) / self.share.tp)

    def in_splits(self, one: CollectiveOp, beside: Operation) -> CollectiveOp:
        """A reduce_scatter of the product's columns part by part, each beside the next part's product, the
        last beside none (CommOverlapBase::split_overlap_rs in the same file)."""
        return one._replace(beside=beside, share=(SPLITS - 1) / SPLITS, chunks=SPLITS)

    def staged(self, one: CollectiveOp) -> list[Operation]:
        """PyTorch's copy of a rank's own shard to where the others read it (copy_shard)."""
        if self.stack.tp_overlap != "products":
            return []
        there = 1 * (self.share.tp > 1)
        return [self.elementwise("copy shard", there * one.bytes / self.share.tp / self.itemsize, 2, there)]

    def added_up(self, one: CollectiveOp) -> list[Operation]:
        """PyTorch's sum of the parts that all ranks have sent (_fused_matmul_reduce_scatter_impl)."""
        if self.stack.tp_overlap != "products" or one.beside is None:
            return []
        passes = 1 + 1 / self.share.tp
        there = 1 * (self.share.tp > 1)
        return [self.elementwise("add parts", there * passes * one.bytes / self.itemsize, 1, there)]

    def joined(self, exchange: CollectiveOp, several: Any) -> list[Operation]:
        """The copy that puts ranks' parts of sequences together, or apart, where nothing overlaps them."""
        if not self.stack.joins_parts or exchange.beside is not None:
            return []
        there = several & (self.share.tp > 1)
        return [self.elementwise("join parts", there * exchange.bytes / self.itemsize, 2, 1 * there)]

    def summed(
        self, product: Operation, beside: Operation, backward: bool = False, matrices: int = 1
    ) -> list:
        """A product whose parts tp ranks sum behind it, or part by part beside the next part."""
        parts = self.stack.tp_parts
        if parts == 1 or self.share.tp == 1:
            return [product, *self.sum_parts(beside, backward, matrices)]
        size = self.activation_bytes / parts
        sums = [CollectiveOp(f"tp part {number}", "all_reduce", "tp", size) for number in range(parts)]
        sent = [item for one in sums for item in (costs.part(product, parts), Start(one))]
        return [*sent, *map(Wait, sums)]

    def gather_again(self, beside: Operation, width: int = 0) -> list[CollectiveOp]:
        """The input of a column matrix, for its wgrad, where only the shard was kept."""
        if not (self.stack.keeps_shards and self.share.sequence_parallel):
            return []
        one = self.exchange("all_gather", beside, width=width)
        return [one if self.stack.tp_overlap == "none" else one._replace(beside=beside)]

    def exchange(self, collective: str, beside: Operation, width: int = 0) -> CollectiveOp:
        """A collective that nothing hides, of what `beside` multiplies."""
        size = self.activation_bytes * (width or self.shape.hidden) / self.shape.hidden
        return CollectiveOp(
            f"tp {collective}", collective, "tp", size * self.share_that_travels(collective, beside)
        )

    def share_that_travels(self, collective: str, beside: Operation) -> float:
        """The share of an activation's bytes that moves: what a product takes in fewer bits is cast before it
        is gathered (transformer_engine/pytorch/distributed.py, gather_along_first_dim; torchao/float8,
        float8_tensor_parallel.py). Sums are in 16 bits."""
        kind = self.share.number_type
        short = collective == "all_gather" and beside.dtype == kind.dtype and kind.travels
        return kind.copy / self.itemsize if short else 1.0

    @cached_property
    def activation_bytes(self):
        """Bytes of one vector for each of the rows that tp ranks multiply together."""
        return self.share.rows * self.shape.hidden * self.itemsize


def matmul_shape(side: str, rows, inputs, outputs) -> tuple[Any, Any, Any]:
    """(m, n, k) of a matrix's forward, dgrad or wgrad."""
    if side == "wgrad":
        return outputs, inputs, rows
    return (rows, outputs, inputs) if side == "forward" else (rows, inputs, outputs)
