"""What Megatron-Bridge's adapters multiply beside a frozen matrix, and what their tp ranks send.

Idea   tp cuts both matrices of an adapter (ParallelLinearAdapter in src/megatron/bridge/peft/utils.py): A of
       a row matrix by its inputs, so that its parts are summed, any other A by its rank, so that its parts
       are gathered; B always by its outputs. What B gives is added to what a column matrix gives. Of another
       matrix ranks first gather it, as wide as the model: with sequence parallelism each then takes its
       rows, whose gradients are gathered. One pair multiplies the rows of all experts of a rank, and ep ranks
       sum its gradients in the backward pass (_allreduce_shared_expert_grad).
Cost   Both directions together, without sequence parallelism: beside a column matrix a sum as wide as its
       input, beside a row matrix a gather as wide as its output; with it a gather beside a row matrix each
       way, and beside a column matrix nothing, as adapters read what Transformer Engine has gathered
       (return_layernorm_output_gathered). Where that gathers in chunks, they gather and scatter it again.
Limit  Adapters of experts are taken to send nothing over tp. Adapters of shared experts, which gather their
       input themselves, are priced as a dense MLP's.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from gpu import Operation
from ndparallel.model import costs
from ndparallel.planner.layers.layer_kernels import LayerKernels
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.numbers import anywhere

ADD = 3  # passes of adding what an adapter gives: read both, write one


class Pair(NamedTuple):
    """An adapter beside one matrix: the rows that it multiplies, the inputs and outputs of a rank's A and B,
    the outputs of B on all tp ranks; how tp cuts the matrix, and whether it is of experts."""

    name: str
    rows: Any
    a_inputs: Any
    a_outputs: Any
    b_outputs: Any
    outputs: Any
    split: str
    of_experts: bool


class BridgeAdapters(LayerKernels):
    """Writes the products and messages of adapters of one layer."""

    def beside(self, item: Operation, split: str, share: float) -> Iterator[Any]:
        """What the adapter of a part of a matrix does beside one of the matrix's products."""
        pair, side = self.pair(item, split, share), item.name.rpartition(" ")[2]
        yield from {"forward": self.forward, "dgrad": self.dgrad, "wgrad": self.wgrad}[side](pair)

    def pair(self, item: Operation, split: str, share: float) -> Pair:
        side, of_experts = item.name.rpartition(" ")[2], item.name.startswith("experts ")
        m, n, k = item.shape
        rows, inputs, outputs = {"forward": (m, k, n), "dgrad": (m, n, k), "wgrad": (k, n, m)}[side]
        rows = rows * (item.flops / (2 * m * n * k))  # of all experts
        ranks = self.cut_by(of_experts)
        a_outputs = self.rank / (1 if split == "rows" else ranks)
        wide = share * outputs * (ranks if split == "columns" else 1)
        name = f"adapter of {item.name}"
        return Pair(name, rows, inputs, a_outputs, wide / ranks, wide, split, of_experts)

    @property
    def rank(self) -> int:
        assert self.share.adapters
        return self.share.adapters.rank

    def cut_by(self, of_experts: bool):
        return self.share.tp if self.stack.expert_tp or not of_experts else 1

    # ---- the three products

    def forward(self, pair: Pair) -> Iterator[Any]:
        column, row = pair.split == "columns", pair.split == "rows"
        if self.gathers_input(pair):
            yield from self.sent("all_gather", pair, pair.a_inputs)
        yield self.narrow(pair, pair.rows, pair.a_outputs, pair.a_inputs)
        yield from self.sent("all_reduce" if row else "all_gather", pair, self.rank)
        yield self.narrow(pair, pair.rows, pair.b_outputs, self.rank)
        if not column:
            yield from self.sent("all_gather", pair, pair.outputs)
        own = pair.b_outputs if column or (row and self.cuts_rows(pair)) else pair.outputs
        yield self.added(pair, own)

    def dgrad(self, pair: Pair) -> Iterator[Any]:
        row = pair.split == "rows"
        if row and self.cuts_rows(pair):
            yield from self.sent("all_gather", pair, pair.outputs)
        yield self.narrow(pair, pair.rows, self.rank, pair.b_outputs)
        yield from self.sent("all_reduce", pair, self.rank)
        yield self.narrow(pair, pair.rows, pair.a_inputs, pair.a_outputs)
        if self.gathers_input(pair):
            yield from self.sent("reduce_scatter", pair, pair.a_inputs)
        elif not row and not self.share.sequence_parallel:
            yield from self.sent("all_reduce", pair, pair.a_inputs)
        yield self.added(pair, pair.a_inputs / (self.share.tp if self.gathers_input(pair) else 1))

    def wgrad(self, pair: Pair) -> Iterator[Any]:
        yield self.narrow(pair, pair.b_outputs, self.rank, pair.rows)
        yield self.narrow(pair, pair.a_outputs, pair.a_inputs, pair.rows)
        if pair.of_experts and anywhere(self.share.ep > 1):
            for elements in (self.rank * pair.b_outputs, pair.a_outputs * pair.a_inputs):
                yield CollectiveOp("ep all_reduce", "all_reduce", "ep", elements * self.itemsize)

    # ---- what they are made of

    def cuts_rows(self, pair: Pair) -> bool:
        return self.share.sequence_parallel and not pair.of_experts

    def gathers_input(self, pair: Pair) -> bool:
        """Whether an adapter gathers its rows for itself: where Transformer Engine's product gathers them in
        chunks (ub_overlap_ag in get_adapter_attributes_from_linear, src/megatron/bridge/peft/utils.py)."""
        in_chunks = self.stack.tp_overlap == "all"
        return pair.split == "columns" and in_chunks and self.cuts_rows(pair)

    def narrow(self, pair: Pair, m, n, k) -> Operation:
        return costs.matmul(pair.name, m, n, k, self.share.dtype)

    def added(self, pair: Pair, width) -> Operation:
        return self.elementwise("add adapter", pair.rows * width, ADD)

    def sent(self, collective: str, pair: Pair, width) -> list[CollectiveOp]:
        """A collective of all rows, of numbers of `width` each, which nothing hides."""
        if pair.of_experts or not anywhere(self.share.tp > 1):
            return []
        return [CollectiveOp(f"tp {collective}", collective, "tp", pair.rows * width * self.itemsize)]
