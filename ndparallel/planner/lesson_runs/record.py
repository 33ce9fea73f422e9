"""What one rank of the lessons' software does, recorded from the layers themselves: operations, collectives
and memory in program order.

Idea   There is one model. Its layers run on a GPU that writes down what it is asked for, with arrays that are
       only sizes and neighbours who answer at once; what they leave is the list that the planner times. So a
       prediction of an executed cluster is true to the last digit (tests/ladder/test_rung3_scale.py).
Cost   about a millisecond for each class of ranks and kind of unit, once.
Limit  One rank stands for all that have the same work. Of tp ranks the first has the largest part of the
       vocabulary, and otherwise what all have. Experts get the rows that they are said to get, because no
       router decides without content.

Glossary
    kind       of a unit: embedding, block or head
    pass       "forward", "backward", and "weight" where it is apart from the backward pass
    rows       tokens at their experts, see ndparallel/model/experts.py

    rank = LessonRank(ModelConfig(), Mesh(tp=2), batch=1)
    rank.passes("block")["forward"]      -> [Operation, CollectiveOp, Start, Wait, Hold, ...]
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from collectives import Group
from gpu import CLASSROOM, COLLECTIVE, GPU, Handle, Operation
from ndparallel.base.size_only import SizeOnly, numpy_dtype
from ndparallel.model.experts import MoELayer
from ndparallel.model.layers import Block, Mlp
from ndparallel.model.units import ModelConfig, SizeOnlyContext, Unit
from ndparallel.model.vocabulary import Embedding, Head
from ndparallel.parallel.context import ContextParallel
from ndparallel.parallel.expert import ExpertParallel, TokenDispatcher
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.tensor import TensorParallel
from ndparallel.planner.layers.operations import CollectiveOp, Hold, Start, Wait
from ndparallel.planner.step.streams import Item

SHORT = {  # how the planner's tables call a collective
    "cp all_gather": "cp gather",
    "cp reduce_scatter": "cp scatter",
    "gradients of keys and values": "their gradients",
}


PASSES = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}  # by a schedule's op


class Recorder(GPU):
    """A GPU that writes down what it is asked for. Messages need no receiver and no sender."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank, CLASSROOM, transport=None)
        self.items: list[Item] = []
        self.under_way: dict[Any, CollectiveOp] = {}
        self.sent: dict[Any, np.ndarray] = {}

    def take(self) -> list[Item]:
        """Return what was written down since the last time."""
        items, self.items = self.items, []
        return items

    def compute(self, operation: Operation, name: str = "") -> None:
        self.items.append(operation)

    def allocate(self, kind: str, nbytes: float) -> None:
        self.items.append(Hold(kind, nbytes))

    def free(self, kind: str, nbytes: float) -> None:
        self.items.append(Hold(kind, -nbytes))

    def send(self, target: int, array: np.ndarray, what: Any) -> None:
        pass

    def receive(self, source: int, what: Any, into: Any = None, combine: Any = None) -> Any:
        return into

    def isend(self, target: int, array: np.ndarray, what: Any, stream: str = "p2p") -> Handle:
        """Send to the right neighbour; as much comes from the left."""
        block, hop = what
        name = f"{stream} {SHORT.get(block, block)} {hop}"
        self.start(what, CollectiveOp(name, "shift", stream, array.nbytes))
        self.sent[what] = array
        return Handle(self, None, 0, 0, lambda: None)

    def irecv(self, source: int, what: Any, into: Any = None, stream: str = "p2p") -> Handle:
        return Handle(self, what, 0, 0, lambda: self.sent.pop(what))

    def record(self, kind: str, what: Any, *rest: Any, **more: Any) -> None:
        """Write down a collective; a reduce-scatter says the bytes of one rank's part."""
        if kind == COLLECTIVE:
            (group, _, collective, _), (*_, nbytes, _, ranks) = what, rest
            whole = nbytes * len(ranks) if collective == "reduce_scatter" else nbytes
            name = f"{group} {collective}"
            self.start(what, CollectiveOp(SHORT.get(name, name), collective, group, whole))

    def start_now(self, collective: CollectiveOp, result: np.ndarray) -> Handle:
        """Write down the start of a collective that needs no messages."""
        what = object()
        self.start(what, collective)
        return Handle(self, what, 0, 0, lambda: result)

    def start(self, what: Any, collective: CollectiveOp) -> None:
        self.under_way[what] = collective
        self.items.append(Start(collective))

    def wait_for(self, handle: Handle) -> None:
        """Write down a wait; a collective that is waited for at once is a blocking one."""
        collective = self.under_way.pop(handle.what, None)
        if collective is None:
            return
        last = self.items[-1]
        if isinstance(last, Start) and last.exchange is collective and not has_own_wait(collective):
            self.items[-1] = collective
        else:
            self.items.append(Wait(collective))


def has_own_wait(collective: CollectiveOp) -> bool:
    """Whether the layers do something between start and wait, if there is something to do."""
    return collective.collective == "shift" or collective.name.startswith(("ep to experts", "tp part"))


class RecordedSize(SizeOnly):
    """An array that is only a size, of dimensions that may be fractions or arrays (one number for each of
    many ranks). Nothing of it is remembered."""

    __hash__ = None  # type: ignore[assignment]

    def __new__(cls, shape: Sequence, dtype: Any) -> "RecordedSize":
        made = object.__new__(cls)
        made.shape, made.dtype = tuple(shape), numpy_dtype(dtype)
        return made


class RecordingContext(SizeOnlyContext):
    """A context whose experts may have fractions or arrays of rows."""

    array = RecordedSize

    @cached_property
    def price(self):
        return lambda make, *sizes: for_rows(make(*sizes, dtype=self.dtype))


def for_rows(operation: Operation) -> Operation:
    """The operation; where its sizes are arrays, on those ranks that have rows for it. The others skip it."""
    rows: Any = np.prod(np.broadcast_arrays(*operation.shape), axis=0) if operation.shape else 1
    if not np.ndim(rows):
        return operation
    moved: Any = np.where(rows, operation.bytes, 0)
    kernels: Any = np.where(rows, operation.kernels, 0)
    return operation._replace(bytes=moved, kernels=kernels)


class RecordedTensorParallel(TensorParallel):
    """Tensor parallelism that numbers the parts under way."""

    def reduce(self, x: np.ndarray, op: str = "sum", async_op: bool = False) -> Any:
        if not async_op or self.overlaps:
            return super().reduce(x, op, async_op)
        recorder = cast(Recorder, self.gpu)
        number = sum(each.name.startswith("tp part") for each in recorder.under_way.values())
        return recorder.start_now(CollectiveOp(f"tp part {number}", "all_reduce", "tp", x.nbytes), x)


# ---------------------------------------------------------------------------------------------------- experts


class Rows(NamedTuple):
    """How many rows travel: numbers, fractions, or arrays over many ranks."""

    leaving: list  # from the rank, by the ep rank that they go to
    received: list  # by the rank, by the ep rank that they come from
    by_etp_rank: list  # that its experts work on, by the etp rank that they came to
    by_expert: list  # that its experts work on


def equal_rows(rows: float, mesh: Mesh, experts: int) -> Rows:
    """Every rank sends `rows` rows to every expert."""
    local = experts // mesh.ep
    leaving, received = [rows * local] * mesh.ep, [rows * local] * mesh.ep
    return Rows(leaving, received, [rows * local * mesh.ep] * mesh.etp, [rows * mesh.ep * mesh.etp] * local)


@dataclass
class RecordedExpertParallel(ExpertParallel):
    """Expert parallelism whose rows are known beforehand."""

    rows: Rows | None = None

    def sum_over_sequence(self, counts: np.ndarray) -> Handle:
        """One rank alone says it too, though it takes no time."""
        collective = CollectiveOp("balance", "all_reduce", "tp_cp", counts.nbytes)
        return cast(Recorder, self.gpu).start_now(collective, counts)

    def dispatcher(self, counts: np.ndarray) -> TokenDispatcher:
        """The counts travel, whatever they are."""
        recorder = cast(Recorder, self.gpu)
        before = len(recorder.items)
        self.exchange_counts(counts)
        recorder.items[before:] = [
            item._replace(name=f"{item.group} counts", itemsize=counts.dtype.itemsize)
            for item in recorder.items[before:]
            if isinstance(item, CollectiveOp)
        ]
        assert self.rows
        return RecordedDispatcher(self, self.rows)


class RecordedDispatcher(TokenDispatcher):
    """Known rows on their way; the verbs are the lessons'."""

    def __init__(self, ep: ExpertParallel, rows: Rows) -> None:
        self.ep, self.sent = ep, []
        self.leaving, self.received, self.by_etp_rank, self.by_expert = rows

    @property
    def needs_sorting(self) -> bool:
        return self.ep.size * self.ep.etp.size > 1

    def busy_experts(self) -> Iterator[tuple[int, slice]]:
        """The local experts, all of which have rows; which ones makes no difference here."""
        return ((expert, slice(0, count)) for expert, count in enumerate(self.by_expert))

    def all_to_all(self, rows: np.ndarray, group: Group, leaving: list, arriving: list) -> Handle:
        """Bytes are those of the whole array; where ranks differ, (ranks, p): what each sends to each."""
        by_rank = isinstance(leaving[0], np.ndarray)
        count = np.stack(leaving, axis=-1) if by_rank else sum(leaving)
        way = "to experts" if leaving is self.leaving else "from experts"
        name = f"{group.name} {way if group.name == 'ep' else 'all_to_all'}"
        nbytes = count * rows.shape[1] * rows.dtype.itemsize
        arrived = np.empty_like(rows, shape=(sum(arriving), rows.shape[1]))
        recorder = cast(Recorder, self.ep.gpu)
        return recorder.start_now(CollectiveOp(name, "all_to_all", group.name, nbytes), arrived)


class RecordedMoE(MoELayer):
    """A mixture of experts whose router's choices are known beforehand."""

    def assign(self, chosen: np.ndarray) -> tuple[Any, Any]:
        rows = cast(RecordedExpertParallel, self.ep).rows
        assert rows
        return RecordedSize((sum(rows.leaving),), np.int32), RecordedSize((self.config.experts,), np.int32)


# --------------------------------------------------------------------------------------------------- a record


@dataclass(frozen=True)
class LessonRank:
    """A class of ranks of the lessons' software: the model, its share of it, and a microbatch of `batch`
    sequences. `mesh` needs tp, cp, dp and ep alone; `rows` are what it sends to each expert."""

    config: ModelConfig
    mesh: Mesh
    batch: int = 1
    sequence_parallel: str = "none"
    context_parallel: str = "ring"
    dtype: str = "float32"
    recompute: str = "none"
    parts: int = 1
    tp_overlap: str = "none"
    rows: float = 0.0
    tp_index: int = 0

    def passes(self, kind: str, deferred: bool = False, rows: Rows | None = None) -> dict[str, list[Item]]:
        """Return the lists of a unit's passes by name. `deferred` backward passes leave the weights'
        gradients to a "weight" pass; `rows` are those of one layer and microbatch where they are known."""
        return recorded(self, kind, deferred) if rows is None else record(self, kind, deferred, rows)

    def items(self, kind: str, op: str, rows: Rows | None = None) -> list[Item]:
        """Return the list of a unit's pass for an op of a schedule: F, B, I or W."""
        return self.passes(kind, op in "IW", rows)[PASSES[op]]

    def unit(self, kind: str) -> Unit:
        """The unit, with its parameters but without content."""
        return make_unit(self, kind, equal_rows(self.rows, self.mesh, self.config.experts))

    @property
    def activation(self) -> RecordedSize:
        """What one block hands to the next, (s, b, h)."""
        return RecordedSize((self.tokens // self.shards, self.batch, self.config.hidden), self.dtype)

    @property
    def shards(self) -> int:
        return 1 if self.sequence_parallel == "none" else self.mesh.tp

    @property
    def tokens(self) -> int:
        """Tokens of one sequence that this rank has."""
        return self.config.sequence // self.mesh.cp

    @property
    def symbols(self) -> RecordedSize:
        return RecordedSize((self.tokens, self.batch), np.uint8)


@lru_cache(maxsize=1024)
def recorded(rank: LessonRank, kind: str, deferred: bool) -> dict[str, list[Item]]:
    return record(rank, kind, deferred, equal_rows(rank.rows, rank.mesh, rank.config.experts))


def record(rank: LessonRank, kind: str, deferred: bool, rows: Rows) -> dict[str, list[Item]]:
    """Run a unit's passes on a rank that writes down what it does."""
    unit = make_unit(rank, kind, rows)
    for each in (unit, *unit.inner):
        flat: Any = RecordedSize((each.size,), rank.dtype)
        each.attach(flat, flat)
    x: Any = rank.symbols if kind == "embedding" else rank.activation
    dy: Any = None if kind == "head" else rank.activation
    recorder = cast(Recorder, unit.gpu)
    unit.forward(x, 0)
    found = {"forward": recorder.take()}
    if not deferred:
        unit.backward(dy, 0)
        return found | {"backward": recorder.take()}
    unit.backward_input(dy, 0)
    found["backward"] = recorder.take()
    unit.backward_weight(0)
    return found | {"weight": recorder.take()}


def make_unit(rank: LessonRank, kind: str, rows: Rows) -> Unit:
    mesh = replace(rank.mesh, pp=1)
    gpu = Recorder(mesh.rank(tp=rank.tp_index))
    group, settings = mesh.group("tp", gpu.rank), (rank.sequence_parallel, rank.parts, rank.tp_overlap)
    tp = RecordedTensorParallel(gpu, group, *settings)
    cp = ContextParallel(gpu, mesh.group("cp", gpu.rank), rank.context_parallel)
    ep = RecordedExpertParallel.on(gpu, mesh, rows=rows)
    targets: Any = {0: rank.symbols}
    context = RecordingContext(gpu, rank.config, tp, cp, ep, rank.dtype, rank.recompute, targets=targets)
    if kind == "block":
        return Block("layers.0", context, RecordedMoE if rank.config.experts else Mlp)
    return (Embedding if kind == "embedding" else Head)(kind, context)
