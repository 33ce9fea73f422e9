"""What the tests of collectives share: a case, a rank program that performs it, and what numpy says it must
give."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

import collectives
from collectives import ALGORITHMS, Group
from gpu import SEND, Hardware, Link, Operation
from ndparallel.collective.algorithms import nodes_of
from ndparallel.engines.launch import launch

PAIRS = [(collective, name) for collective, algorithms in ALGORITHMS.items() for name in algorithms]
REDUCING, ROOTED = ("all_reduce", "reduce", "reduce_scatter"), ("reduce", "broadcast", "gather", "scatter")


def hardware(gpus_per_node=64, inside=(1e-6, 1e9), across=(7e-6, 1e8)) -> Hardware:
    """A GPU that computes one FLOP in a second."""
    return Hardware("test", 1, float("inf"), 0, 1e15, gpus_per_node, Link(*inside), Link(*across))


@dataclass(frozen=True)
class Case:
    """One collective over `ranks`, whose member i starts after `starts[i]` seconds. `only_size` takes arrays
    without content."""

    collective: str
    algorithm: str
    ranks: tuple[int, ...]
    size: int = 12
    dtype: str = "float64"
    op: str = "sum"
    root: int = 0
    starts: tuple[float, ...] = ()
    async_op: bool = False
    only_size: bool = False

    @property
    def group(self) -> Group:
        return Group("test", self.ranks)

    def inputs(self) -> list[np.ndarray]:
        """What each member brings: small whole numbers, so that every sum is exact in every dtype and
        order."""
        return [
            (np.arange(self.size) * 7 % 11 + 3 * member).astype(self.dtype)
            for member in range(len(self.ranks))
        ]

    def array(self, values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.zeros((), values.dtype), values.shape) if self.only_size else values.copy()


def perform(gpu, *cases):
    """The rank program: the cases one after another. Returns each case's (result, time)."""
    return [_perform(gpu, case) for case in cases if gpu.rank in case.ranks]


def _perform(gpu, case):
    member, p = case.group.index(gpu.rank), len(case.ranks)
    if case.starts:
        gpu.compute(Operation("work", flops=case.starts[member]))
    mine = case.array(case.inputs()[member])
    piece = np.array_split(mine, p)[member]
    options = {"async_op": case.async_op}
    if len(ALGORITHMS[case.collective]) > 1:
        options["algorithm"] = case.algorithm
    if case.collective in REDUCING:
        options["op"] = case.op
    if case.collective in ROOTED:
        options["root"] = case.root
    call = getattr(collectives, case.collective)
    match case.collective:
        case "barrier":
            result = call(gpu, case.group, **options)
        case "all_reduce" | "reduce" | "broadcast":
            result = call(gpu, mine, case.group, **options)
        case "reduce_scatter" | "scatter":
            result = call(gpu, case.array(np.zeros_like(piece)), mine, case.group, **options)
        case "all_gather" | "gather":
            result = call(gpu, case.array(np.zeros_like(mine)), piece, case.group, **options)
        case "all_to_all":
            result = call(gpu, case.array(np.zeros(piece.size * p, case.dtype)), mine, case.group, **options)
    return result.wait() if case.async_op else result, gpu.now


def expected(case: Case) -> list[np.ndarray]:
    """What each member must have in the end."""
    inputs, p = case.inputs(), len(case.ranks)
    pieces = [np.array_split(array, p) for array in inputs]
    reduced = np.max(inputs, axis=0) if case.op == "max" else np.sum(inputs, axis=0)
    reduced = (reduced / p if case.op == "average" else reduced).astype(case.dtype)
    gathered = np.concatenate([pieces[member][member] for member in range(p)])
    zeros = np.zeros_like(gathered)
    match case.collective:
        case "all_reduce":
            return [reduced] * p
        case "reduce":
            return [reduced if member == case.root else inputs[member] for member in range(p)]
        case "reduce_scatter":
            return np.array_split(reduced, p)
        case "broadcast":
            return [inputs[case.root]] * p
        case "all_gather":
            return [gathered] * p
        case "gather":
            return [gathered if member == case.root else zeros for member in range(p)]
        case "scatter":
            return pieces[case.root]
        case "all_to_all":
            return [np.concatenate([pieces[source][member] for source in range(p)]) for member in range(p)]
    raise AssertionError(case.collective)


def execute(machine: Hardware, *cases: Case, engine: str = "inline"):
    """Run the cases one after another; their groups may differ. Returns what every rank leaves behind."""
    return launch(
        perform, 1 + max(rank for case in cases for rank in case.ranks), machine, *cases, engine=engine
    )


def bytes_sent(result) -> float:
    return sum(event[6] for event in result.events if event[2] == SEND)


def messages_sent(result) -> int:
    return sum(event[2] == SEND for event in result.events)


# --------------------------------------------------------------------------------------------- for hypothesis

KINDS = [
    (["float16", "float32", "float64", "complex128"], ["sum", "average"]),
    (["uint8", "int32", "int64", "float32"], ["sum", "max"]),
]
LINKS = st.tuples(st.floats(0, 1e-3), st.floats(3, 12).map(lambda digits: 10.0**digits))


@st.composite
def groups(draw):
    """Ranks in any order, and the size of the nodes they are in, which may hold equally many of them or
    not."""
    if draw(st.booleans()):
        return draw(st.lists(st.integers(0, 10), min_size=1, max_size=8, unique=True)), draw(
            st.integers(1, 11)
        )
    nodes, members, gpus_per_node = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(4, 5))
    return draw(
        st.permutations([node * gpus_per_node + member for node in range(nodes) for member in range(members)])
    ), gpus_per_node


@st.composite
def sequences(draw, pairs=tuple(PAIRS), most=1):
    """The size of the nodes, and up to `most` collectives of any kind, one after another in one group."""
    ranks, gpus_per_node = draw(groups())
    if len({len(node) for node in nodes_of(Group("", tuple(ranks)), gpus_per_node)}) > 1:
        pairs = [pair for pair in pairs if pair[1] != "hierarchical"]
    return gpus_per_node, [draw(one_case(tuple(ranks), pairs)) for _ in range(draw(st.integers(1, most)))]


@st.composite
def one_case(draw, ranks, pairs):
    dtypes, ops = draw(st.sampled_from(KINDS))
    collective, algorithm = draw(st.sampled_from(pairs))
    return Case(
        collective,
        algorithm,
        ranks,
        size=draw(st.integers(0, 40)),
        dtype=draw(st.sampled_from(dtypes)),
        op=draw(st.sampled_from(ops)),
        root=draw(st.integers(0, len(ranks) - 1)),
        starts=tuple(draw(st.lists(st.floats(0, 1e-2), min_size=len(ranks), max_size=len(ranks)))),
        async_op=draw(st.booleans()),
    )


def perform_on_some(gpu, case):
    """The rank program in which only some members perform the case: the others, or this one, wait for
    ever."""
    root_needs_others = case.collective in ("reduce", "gather")
    if (
        (gpu.rank != len(case.ranks) - 1)
        if root_needs_others or case.collective not in ROOTED
        else gpu.rank > 0
    ):
        _perform(gpu, case)
