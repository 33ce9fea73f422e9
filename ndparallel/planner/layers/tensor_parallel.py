"""The collectives of tensor parallelism between the matrices of a layer: what is gathered, what is summed,
and what hides that (Korthikanti et al. 2205.05198, sections 3 and 4.2).

Idea   A matrix cut by columns needs all rows, which sequence parallelism gathers before it; one cut by rows
       makes parts, which are summed behind it. How much of that products hide, the stack's `tp_overlap` says.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from functools import cached_property
from typing import Any

from gpu import Operation
from ndparallel.model import costs
from ndparallel.planner.layers.layer_kernels import LayerKernels
from ndparallel.planner.layers.operations import CollectiveOp, Start, Wait
from ndparallel.planner.numbers import anywhere

IN_CHUNKS = ("all", "products")  # of tp_overlap: where products are cut, and collectives with them
# chunks of Transformer Engine's pipelined reduce_scatter (num_splits in get_default_config of initialize_ub,
# transformer_engine/pytorch/module/base.py)
SPLITS = 4


class TensorParallelLists(LayerKernels):
    """Writes the collectives of one layer's tp ranks."""

    def gather(self, beside: Operation, matrices: int = 1, width: int = 0) -> list:
        """Gather the rows, of `width` numbers (0: hidden), of a column matrix, or of several side by side:
        without sequence parallelism every rank has all of them already. A compiler sees that matrices gather
        the same."""
        if not self.share.sequence_parallel:
            return []
        one = self.exchange("all_gather", beside, width)
        if self.stack.tp_overlap in IN_CHUNKS:
            one = self.in_ring(one, beside)
        times = matrices if self.stack.tp_by_matrix and self.stack.fusion != "compiled" else 1
        return [*self.staged(one), one, *self.joined(one, self.share.micro_batch > 1)] * times

    def sum_parts(self, beside: Operation, backward: bool = False, matrices: int = 1, width: int = 0) -> list:
        """Sum the parts that a row matrix makes, or the dgrad of column matrices."""
        if not anywhere(self.share.tp > 1):
            return []
        collective = "reduce_scatter" if self.share.sequence_parallel else "all_reduce"
        one = self.beside_sum(self.exchange(collective, beside, width), beside, backward, matrices)
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
        one = self.exchange("all_gather", beside, width)
        return [one if self.stack.tp_overlap == "none" else one._replace(beside=beside)]

    def exchange(self, collective: str, beside: Operation, width: int) -> CollectiveOp:
        """A collective that nothing hides, of rows of `width` numbers (0: hidden) for `beside`."""
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
