"""Collectives: what a group of GPUs does together, on nothing but `gpu.send` and `gpu.receive`.

Idea   Cut the array into as many pieces as there are ranks and pass the pieces round a ring: every link is busy at every step, and no
       rank ever sends more than about twice what it holds, however many ranks there are.
Cost   Beside each algorithm stands its closed form, for p ranks that start together on one tier of links, pieces of equal size,
       a = latency, b = n / bandwidth. ndparallel/lockstep.py has what holds for mixed links, uneven pieces and different starts.
Limit  An asynchronous collective exchanges its messages when it is called (its seconds pass on the group's own stream, its result appears
       at `wait`): the members of a group must call their collectives in the same order between their other messages.

Glossary
    p, n       ranks in the group, bytes of the whole array
    piece      the part of the array that one rank of the group owns in the end (or from the start)
    reduce     combine the arrays of all ranks, element by element: sum, average or max

Arrays have any shape and dtype; sizes that p does not divide are cut as np.array_split cuts. All raise MismatchError where the ranks of
the group do not call the same collective with the same shapes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpu import COLLECTIVE, GPU, Handle, snapshot

REDUCTIONS: dict[str, Callable] = {"sum": np.add, "average": np.add, "max": np.maximum}


@dataclass(frozen=True)
class Group:
    """Ranks that work together. The stream of their messages has the group's name."""

    name: str
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.ranks)

    def index(self, rank: int) -> int:
        return self.ranks.index(rank)


@dataclass
class Member:
    """One rank's part in one collective call: members are numbered 0 .. p-1, and messages are named by call and step."""

    gpu: GPU
    group: Group
    number: int

    @cached_property
    def size(self) -> int:
        return self.group.size

    @cached_property
    def index(self) -> int:
        return self.group.index(self.gpu.rank)

    def send(self, to: int, array: np.ndarray, step: Any) -> None:
        self.gpu.send(self.group.ranks[to % self.size], array, ((self.group.name, self.number), step))

    def receive(self, source: int, step: Any, into: np.ndarray, combine: Callable | None = None) -> None:
        self.gpu.receive(self.group.ranks[source % self.size], ((self.group.name, self.number), step), into, combine)


# ------------------------------------------------------------------------------------------- what the algorithms do


def ring_reduce_scatter(me: Member, pieces: list[np.ndarray], combine: Callable) -> None:
    """Pass on the piece combined last and add to the next: after p - 1 steps, rank r has the whole sum of piece r."""
    p, r = me.size, me.index
    for step in range(p - 1):
        me.send(r + 1, pieces[(r - step - 1) % p], step)
        me.receive(r - 1, step, pieces[(r - step - 2) % p], combine)


def ring_reduce_scatter_seconds(p, a, b):
    return (p - 1) * (a + b / p)


def ring_all_gather(me: Member, pieces: list[np.ndarray]) -> None:
    """Pass on the piece received last: after p - 1 steps everybody has all."""
    p, r = me.size, me.index
    for step in range(p - 1):
        me.send(r + 1, pieces[(r - step) % p], ("gather", step))
        me.receive(r - 1, ("gather", step), pieces[(r - step - 1) % p])


def ring_all_gather_seconds(p, a, b):
    return (p - 1) * (a + b / p)


def ring_all_reduce(me: Member, whole: np.ndarray, combine: Callable) -> None:
    """Reduce-scatter, then all-gather: each rank sends 2 (p-1)/p n."""
    pieces = np.array_split(whole, me.size)
    ring_reduce_scatter(me, pieces, combine)
    ring_all_gather(me, pieces)


def ring_all_reduce_seconds(p, a, b):
    return 2 * (p - 1) * (a + b / p)


def naive_all_reduce(me: Member, whole: np.ndarray, combine: Callable) -> None:
    """All send to rank 0, whose door is the bottleneck; it adds up and sends the sum to each in turn."""
    if me.index == 0:
        for other in range(1, me.size):
            me.receive(other, "gather", whole, combine)
    else:
        me.send(0, whole, "gather")
    one_by_one_broadcast(me, whole, 0)


def naive_all_reduce_seconds(p, a, b):
    return 2 * a * (p > 1) + 2 * (p - 1) * b


def one_by_one_broadcast(me: Member, whole: np.ndarray, root: int) -> None:
    """The root sends to each in turn."""
    if me.index == root:
        for other in range(1, me.size):
            me.send(root + other, whole, "broadcast")
    else:
        me.receive(root, "broadcast", whole)


def one_by_one_broadcast_seconds(p, a, b):
    return a * (p > 1) + (p - 1) * b


def direct_all_to_all(me: Member, outputs: list[np.ndarray], inputs: list[np.ndarray]) -> None:
    """Send to every rank what is its, to the next one first; then take in what comes."""
    p, r = me.size, me.index
    outputs[r][...] = inputs[r]
    for distance in range(1, p):
        me.send(r + distance, inputs[(r + distance) % p], "all-to-all")
    for distance in range(1, p):
        me.receive(r - distance, "all-to-all", outputs[(r - distance) % p])


def direct_all_to_all_seconds(p, a, b):
    return a * (p > 1) + (p - 1) / p * b


def dissemination_barrier(me: Member) -> None:
    """In round k everybody tells the rank 2^k to its right: after ceil(log2 p) rounds all have heard of all."""
    nothing, distance = np.empty(0, np.uint8), 1
    while distance < me.size:
        me.send(me.index + distance, nothing, distance)
        me.receive(me.index - distance, distance, nothing)
        distance *= 2


def dissemination_barrier_seconds(p, a, b=0):
    return np.ceil(np.log2(p)) * a


ALL_REDUCE = {"ring": ring_all_reduce, "naive": naive_all_reduce}
BROADCAST = {"one-by-one": one_by_one_broadcast}


# -------------------------------------------------------------------------------------------------- what users call


def all_reduce(gpu: GPU, array: np.ndarray, group: Group, op: str = "sum", algorithm: str = "ring", async_op: bool = False):
    """Give every rank the combination of all ranks' arrays, in `array`. Returns it, or a Handle with `async_op`."""
    work = _flat(array, copy=async_op)

    def body(me: Member) -> None:
        ALL_REDUCE[algorithm](me, work, REDUCTIONS[op])
        _average(work, op, group)

    return _call(gpu, group, ("all_reduce", algorithm, op, array.shape, array.dtype.str), body, array, work, async_op)


def reduce_scatter(gpu: GPU, output: np.ndarray, array: np.ndarray, group: Group, op: str = "sum", async_op: bool = False):
    """Give rank r the combination of all ranks' piece r of `array`, in `output` (which has that piece's size)."""
    work = _flat(array, copy=True)
    pieces = np.array_split(work, group.size)
    mine = pieces[group.index(gpu.rank)]

    def body(me: Member) -> None:
        ring_reduce_scatter(me, pieces, REDUCTIONS[op])
        _average(mine, op, group)

    return _call(gpu, group, ("reduce_scatter", "ring", op, array.shape, array.dtype.str), body, output, mine, async_op)


def all_gather(gpu: GPU, output: np.ndarray, piece: np.ndarray, group: Group, async_op: bool = False):
    """Give every rank all ranks' pieces, one after another, in `output`; piece r has the size np.array_split gives it."""
    work = np.empty(output.size, output.dtype) if async_op or not output.flags.c_contiguous else _flat(output, copy=False)
    pieces = np.array_split(work, group.size)
    _write(pieces[group.index(gpu.rank)], piece)

    def body(me: Member) -> None:
        ring_all_gather(me, pieces)

    return _call(gpu, group, ("all_gather", "ring", output.shape, output.dtype.str), body, output, work, async_op)


def broadcast(gpu: GPU, array: np.ndarray, group: Group, root: int = 0, algorithm: str = "one-by-one", async_op: bool = False):
    """Give every rank the array of the group's member `root`, in `array`."""
    work = _flat(array, copy=async_op)

    def body(me: Member) -> None:
        BROADCAST[algorithm](me, work, root)

    return _call(gpu, group, ("broadcast", algorithm, root, array.shape, array.dtype.str), body, array, work, async_op)


def all_to_all(
    gpu: GPU,
    output: np.ndarray,
    array: np.ndarray,
    group: Group,
    output_splits: list[int] | None = None,
    input_splits: list[int] | None = None,
    async_op: bool = False,
):
    """Send piece r of `array` to rank r and put what comes, in the order of the ranks, in `output`; pieces are cut along axis 0."""
    work = np.empty(output.shape, output.dtype)
    outputs, inputs = _cut(work, output_splits, group.size), _cut(snapshot(array), input_splits, group.size)

    def body(me: Member) -> None:
        direct_all_to_all(me, outputs, inputs)

    return _call(gpu, group, ("all_to_all", "direct", array.dtype.str), body, output, work, async_op)


def _cut(array: np.ndarray, sizes: list[int] | None, parts: int) -> list[np.ndarray]:
    return np.array_split(array, parts) if sizes is None else np.split(array, np.cumsum(sizes)[:-1])


def barrier(gpu: GPU, group: Group) -> None:
    """Wait until every rank of the group is here."""
    nothing = np.empty(0, np.uint8)
    _call(gpu, group, ("barrier", "dissemination"), dissemination_barrier, nothing, nothing, False)


def _call(gpu: GPU, group: Group, call: tuple, body: Callable[[Member], None], output: np.ndarray, work: np.ndarray, async_op: bool):
    """Run `body` on the group's stream; `work` becomes the content of `output` when the handle is waited for."""
    member = Member(gpu, group, gpu.collectives_started[group.name])
    gpu.collectives_started[group.name] += 1
    label = (group.name, member.number, *call[:2])
    with gpu.on(group.name) as stream:
        start, outer, gpu.call = stream.now, gpu.call, call
        body(member)
        gpu.call = outer
        if group.size > 1:
            gpu.record(COLLECTIVE, label, start, stream.now, work.nbytes, 0, group.ranks)
    handle = Handle(gpu, label, start, stream.now, lambda: _write(output, work))
    return handle if async_op else handle.wait()


def _flat(array: np.ndarray, copy: bool) -> np.ndarray:
    """One dimension, in the array's own memory where that is possible and a copy is not asked for."""
    return snapshot(array).reshape(-1) if copy else array.reshape(-1)


def _write(output: np.ndarray, work: np.ndarray) -> np.ndarray:
    if output.flags.writeable and not np.may_share_memory(output, work):
        output[...] = work.reshape(output.shape)
    return output


def _average(array: np.ndarray, op: str, group: Group) -> None:
    if op == "average" and array.flags.writeable:
        array /= group.size
