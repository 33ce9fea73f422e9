"""Collectives: what a group of GPUs does together, with nothing but `gpu.send` and `gpu.receive`.

Idea   Cut the array into as many pieces as there are ranks and pass the pieces round a ring: every link is
       busy at every hop, and no rank ever sends more than about twice what it holds. Other ways, for small
       arrays and for several nodes, are in ndparallel/collective/algorithms.py.
Cost   Above each algorithm stands its closed form, of numbers or numpy arrays, for p ranks that start
       together on one tier of links and pieces of equal size: a = latency, b = n / bandwidth.
       ndparallel/collective/lockstep.py has what holds for mixed links, uneven pieces and different starts.
Limit  An asynchronous collective exchanges its messages when it is called (its seconds pass on the group's
       own stream, its result appears at `wait`): the members of a group must call their collectives in the
       same order between their other messages. Adding up, and copying within a GPU, cost no time.

Glossary
    p, n       ranks in the group, bytes of the whole array
    piece      the part of the array that one rank of the group owns in the end (or from the start)
    reduce     combine the arrays of all ranks, element by element: sum, average or max
    root       the member that a collective starts from or ends at, by its number in the group

Run `python collectives.py` to see what each does, and how long it takes.

Arrays have any shape and dtype; sizes that p does not divide are cut as np.array_split cuts. All raise
MismatchError where the ranks of the group do not call the same collective with the same shapes, and
ValueError or TypeError for arguments that make no sense.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from gpu import CLASSROOM, COLLECTIVE, GPU, Handle, is_size_only  # before numpy: one BLAS thread a GPU

# isort: split
import numpy as np

from ndparallel.base.algorithms import ALGORITHMS, Algorithm, register
from ndparallel.base.groups import REDUCTIONS, Group, average, check_size, checked_splits, given, reduction
from ndparallel.base.options import tell
from ndparallel.base.pieces import Array, cut, flat, is_view, rows_of, split, split_sizes, work_array, write
from ndparallel.base.words import WIDTH, hanging

__all__ = [
    "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "reduce", "reduce_scatter",
    "scatter", "ALGORITHMS", "REDUCTIONS", "Algorithm", "Array", "Group", "Member", "register",
    "cut", "split", "split_sizes", "write",
]  # fmt: skip


class Member:
    """One rank's part in one collective call. Members are numbered 0 .. p-1; what passes from one to another
    is named by call and hop."""

    def __init__(self, gpu: GPU, group: Group, number: int) -> None:
        self.gpu, self.group, self.number = gpu, group, number
        self.ranks, self.size, self.index = group.ranks, group.size, group.index(gpu.rank)
        self.call = (group.name, number)
        # by rank, the hops of the messages still to come
        self.outgoing: dict[int, Iterator[int]] = defaultdict(count)
        self.incoming: dict[int, Iterator[int]] = defaultdict(count)

    def within(self, members: Sequence[int]) -> "Member":
        """The same rank's part in a smaller group, of these members."""
        part = Member(
            self.gpu, Group(self.group.name, tuple(self.ranks[member] for member in members)), self.number
        )
        part.outgoing, part.incoming = self.outgoing, self.incoming
        return part

    def send(self, to: int, array: Array) -> None:
        rank = self.ranks[to % self.size]
        self.gpu.send(rank, array, (self.call, next(self.outgoing[rank])))

    def receive(self, source: int, into: Array, combine: Callable | None = None) -> None:
        rank = self.ranks[source % self.size]
        self.gpu.receive(rank, (self.call, next(self.incoming[rank])), into, combine)


# ----------------------------------------------------------------------------------------------------- rings


@register("reduce_scatter", "ring", lambda p, a, b: (p - 1) * (a + b / p), ring_passes=1)
def ring_reduce_scatter(me: Member, pieces: list[Array], combine: Callable) -> None:
    """Pass on the piece combined last and add to the next: after p-1 hops, rank r has the whole sum of
    piece r."""
    p, r = me.size, me.index
    for hop in range(p - 1):
        me.send(r + 1, pieces[(r - hop - 1) % p])
        me.receive(r - 1, pieces[(r - hop - 2) % p], combine)


@register("all_gather", "ring", lambda p, a, b: (p - 1) * (a + b / p), ring_passes=1)
def ring_all_gather(me: Member, pieces: list[Array]) -> None:
    """Pass on the piece received last: after p-1 hops everybody has all."""
    p, r = me.size, me.index
    for hop in range(p - 1):
        me.send(r + 1, pieces[(r - hop) % p])
        me.receive(r - 1, pieces[(r - hop - 1) % p])


@register("all_reduce", "ring", lambda p, a, b: 2 * (p - 1) * (a + b / p), ring_passes=2)
def ring_all_reduce(me: Member, whole: Array, combine: Callable) -> None:
    """Reduce-scatter, then all-gather: each rank sends 2 (p-1)/p n."""
    pieces = split(whole, me.size)
    ring_reduce_scatter(me, pieces, combine)
    ring_all_gather(me, pieces)


# ------------------------------------------------------------------ each message straight to where it belongs


@register("broadcast", "one-by-one", lambda p, a, b: a * (p > 1) + (p - 1) * b)
def one_by_one_broadcast(me: Member, whole: Array, root: int) -> None:
    """The root sends to each in turn."""
    if me.index == root:
        for other in range(1, me.size):
            me.send(root + other, whole)
    else:
        me.receive(root, whole)


@register("reduce", "one-by-one", lambda p, a, b: a * (p > 1) + (p - 1) * b)
def one_by_one_reduce(me: Member, whole: Array, root: int, combine: Callable) -> None:
    """All send to the root, whose incoming line is the bottleneck; it adds up."""
    if me.index == root:
        for other in range(1, me.size):
            me.receive(root + other, whole, combine)
    else:
        me.send(root, whole)


@register("all_reduce", "naive", lambda p, a, b: 2 * a * (p > 1) + 2 * (p - 1) * b)
def naive_all_reduce(me: Member, whole: Array, combine: Callable) -> None:
    """All send to rank 0, whose incoming line is the bottleneck; it adds up, and sends each the sum."""
    one_by_one_reduce(me, whole, 0, combine)
    one_by_one_broadcast(me, whole, 0)


@register("gather", "direct", lambda p, a, b: a * (p > 1) + (p - 1) / p * b)
def direct_gather(me: Member, pieces: list[Array], root: int) -> None:
    """All send to the root, which takes their pieces in one after another."""
    if me.index == root:
        for other in range(1, me.size):
            me.receive(root + other, pieces[(root + other) % me.size])
    else:
        me.send(root, pieces[me.index])


@register("scatter", "direct", lambda p, a, b: a * (p > 1) + (p - 1) / p * b)
def direct_scatter(me: Member, pieces: list[Array], root: int) -> None:
    """The root sends each its piece."""
    if me.index == root:
        for other in range(1, me.size):
            me.send(root + other, pieces[(root + other) % me.size])
    else:
        me.receive(root, pieces[me.index])


@register("all_to_all", "direct", lambda p, a, b: a * (p > 1) + (p - 1) / p * b)
def direct_all_to_all(me: Member, outgoing: list[Array], incoming: list[Array]) -> None:
    """Each sends a part to each, and sends all before it looks at what comes: no incoming line is idle, and
    latency is paid once."""
    p, r = me.size, me.index
    for distance in range(1, p):
        me.send(r + distance, outgoing[(r + distance) % p])
    for distance in range(1, p):
        me.receive(r - distance, incoming[(r - distance) % p])


@register("barrier", "dissemination", lambda p, a, b=0: np.ceil(np.log2(p)) * a)
def dissemination_barrier(me: Member) -> None:
    """Tell the rank 2^k to the right in round k: after ceil(log2 p) rounds all have heard of all."""
    nothing, distance = np.empty(0, np.uint8), 1
    while distance < me.size:
        me.send(me.index + distance, nothing)
        me.receive(me.index - distance, nothing)
        distance *= 2


# -------------------------------------------------------------------------------------------- what users call


def all_reduce(
    gpu: GPU, array: Array, group: Group, op: str = "sum", algorithm: str = "ring", async_op: bool = False
):
    """Give every rank the combination of all arrays, in `array`. Returns it, or a Handle with `async_op`."""
    run = _checked_algorithm("all_reduce", algorithm, group)
    work, combine = flat(array, copy=async_op), reduction(op, array)

    def body(me: Member) -> None:
        run(me, work, combine)
        average(work, op, group)

    call = ("all_reduce", algorithm, op, array.shape, array.dtype)
    return _call(gpu, group, call, body, array, work, async_op)


def reduce(
    gpu: GPU,
    array: Array,
    group: Group,
    root: int = 0,
    op: str = "sum",
    algorithm: str = "one-by-one",
    async_op: bool = False,
):
    """Give the root the combination of all ranks' arrays, in its `array`; the others' stay as they are."""
    run = _checked_algorithm("reduce", algorithm, group)
    is_root = group.index(gpu.rank) == group.valid_root(root)
    work, combine = flat(array, copy=async_op or not is_root), reduction(op, array)

    def body(me: Member) -> None:
        run(me, work, root, combine)
        average(work, op, group)

    call = ("reduce", algorithm, root, op, array.shape, array.dtype)
    return _call(gpu, group, call, body, array, work if is_root else array, async_op)


def reduce_scatter(
    gpu: GPU,
    output: Array,
    array: Array,
    group: Group,
    op: str = "sum",
    algorithm: str = "ring",
    async_op: bool = False,
):
    """Give rank r the combination of all ranks' piece r of `array`, in `output`, which has its size."""
    run = _checked_algorithm("reduce_scatter", algorithm, group)
    pieces, combine = split(flat(array, copy=True), group.size), reduction(op, array)
    mine = pieces[group.index(gpu.rank)]
    check_size("output", output, mine.size)

    def body(me: Member) -> None:
        run(me, pieces, combine)
        average(mine, op, group)

    call = ("reduce_scatter", algorithm, op, array.shape, array.dtype)
    return _call(gpu, group, call, body, output, mine, async_op)


def all_gather(
    gpu: GPU, output: Array, piece: Array, group: Group, algorithm: str = "ring", async_op: bool = False
):
    """Give every rank all pieces, one after another, in `output`; np.array_split says the size of each."""
    run = _checked_algorithm("all_gather", algorithm, group)
    work = work_array(output, async_op)
    pieces = split(work, group.size)
    mine = pieces[group.index(gpu.rank)]
    check_size("piece", piece, mine.size)
    write(mine, piece)
    call = ("all_gather", algorithm, output.shape, output.dtype)
    return _call(gpu, group, call, lambda me: run(me, pieces), output, work, async_op)


def broadcast(
    gpu: GPU, array: Array, group: Group, root: int = 0, algorithm: str = "one-by-one", async_op: bool = False
):
    """Give every rank the root's array, in `array`."""
    run = _checked_algorithm("broadcast", algorithm, group)
    work = flat(array, copy=async_op)
    call = ("broadcast", algorithm, group.valid_root(root), array.shape, array.dtype)
    return _call(gpu, group, call, lambda me: run(me, work, root), array, work, async_op)


def gather(gpu: GPU, output: Array | None, piece: Array, group: Group, root: int = 0, async_op: bool = False):
    """Give the root all ranks' pieces in `output`, of which others need none; sizes as in `all_gather`."""
    index = Group.valid(group).index(gpu.rank)
    pieces: Sequence[Array] = [flat(piece, copy=False)] * group.size
    work = output
    if index == group.valid_root(root):
        work = work_array(given("output", output), async_op)
        pieces = split(work, group.size)
        check_size("piece", piece, pieces[index].size)
        write(pieces[index], piece)
    call = ("gather", "direct", root, piece.dtype)
    return _call(gpu, group, call, lambda me: direct_gather(me, pieces, root), output, work, async_op)


def scatter(
    gpu: GPU, output: Array, array: Array | None, group: Group, root: int = 0, async_op: bool = False
):
    """Give rank r piece r of the root's `array`, in `output`; the others need no array."""
    index = Group.valid(group).index(gpu.rank)
    pieces: Sequence[Array] = [work_array(output, async_op)] * group.size
    if index == group.valid_root(root):
        pieces = split(flat(given("array", array), copy=True), group.size)
        check_size("output", output, pieces[index].size)
    call = ("scatter", "direct", root, output.dtype)
    return _call(
        gpu, group, call, lambda me: direct_scatter(me, pieces, root), output, pieces[index], async_op
    )


def all_to_all(
    gpu: GPU,
    output: Array,
    array: Array,
    group: Group,
    output_splits: Sequence[int] | Array | None = None,
    input_splits: Sequence[int] | Array | None = None,
    async_op: bool = False,
):
    """Give every rank a part of every rank's array: `output` is what comes, in the order of the ranks.

    Parts are rows (axis 0): `input_splits[r]` of them go to rank r, `output_splits[r]` come from it. Without
    them all ranks have the same shape, which is cut as np.array_split cuts.
    """
    index = Group.valid(group).index(gpu.rank)
    even = split_sizes(rows_of(array, output), group.size)
    leaving = even if input_splits is None else input_splits
    outgoing = cut(array, checked_splits("input_splits", leaving, array, group))
    in_place = not output.flags.writeable or not (async_op or np.may_share_memory(output, array))
    work = output if in_place else np.empty_like(output)
    coming = [even[index]] * group.size if output_splits is None else output_splits
    incoming = cut(work, checked_splits("output_splits", coming, output, group))
    here, there = outgoing[index].shape, incoming[index].shape
    if here != there:
        raise ValueError(f"rank {gpu.rank} sends itself rows of shape {here} and expects {there}.")
    write(incoming[index], outgoing[index])
    call = ("all_to_all", "direct", array.shape[1:], array.dtype)
    return _call(
        gpu, group, call, lambda me: direct_all_to_all(me, outgoing, incoming), output, work, async_op
    )


def barrier(gpu: GPU, group: Group, async_op: bool = False):
    """Wait until every rank of the group is here."""
    call = ("barrier", "dissemination")
    return _call(gpu, Group.valid(group), call, dissemination_barrier, None, None, async_op)


def _call(
    gpu: GPU,
    group: Group,
    call: tuple,
    body: Callable,
    output: Array | None,
    work: Array | None,
    async_op: bool,
):
    """Run `body` on the group's stream; `work` becomes the content of `output` when the handle is waited
    for."""
    if output is not None and not output.flags.writeable and not is_size_only(output) and output.size:
        raise ValueError(f"the result of {call[0]} cannot be written: its array is read-only.")
    member = Member(gpu, group, gpu.collectives_started[group.name])
    gpu.collectives_started[group.name] += 1
    label = (group.name, member.number, *call[:2])
    gpu.unwaited.add(label)
    with gpu.on(group.name) as stream:
        start, outer, gpu.call = stream.now, gpu.call, (*call, group.words)
        body(member)
        gpu.call = outer
        if group.size > 1:
            nbytes = 0 if work is None else work.nbytes
            gpu.record(COLLECTIVE, label, start, stream.now, nbytes, 0, group.ranks)

    def finish() -> Array | None:
        gpu.unwaited.discard(label)
        return output if is_view(work, output) else write(output, work)

    handle = Handle(gpu, label, start, stream.now, finish, stream.name)
    return handle if async_op else handle.wait()


def _checked_algorithm(collective: str, name: str, group: Group) -> Callable[..., None]:
    """Return what runs the algorithm. Refuses what is no algorithm of the collective, or no group."""
    known, room = ALGORITHMS[collective], "ndparallel.collective.algorithms"
    Group.valid(group)
    if not isinstance(name, str) or name not in known:
        more = "" if room in sys.modules else f", and more once {room} is imported"
        raise ValueError(f"{collective} has no algorithm {name!r}; it has {', '.join(known)}{more}.")
    return known[name].run


# ---------------------------------------------------------------------------------------------- demonstration


def story() -> str:
    """What each algorithm of this file does, and its seconds by its closed form on gpu.py's links."""
    link = CLASSROOM.inside
    a, b = link.latency_seconds, 500 * np.float32().nbytes / link.bandwidth_bytes_per_second
    rows = (
        hanging(f"{collective:<15}{name:<14}{known.seconds(4, a, b):5.2f} s  ", known.summary, WIDTH)
        for collective, algorithms in ALGORITHMS.items()
        for name, known in algorithms.items()
    )
    return (
        "Four GPUs, and an array of 500 units, as in `python gpu.py`:\n"
        "0.05 s latency, 0.01 s a data unit\n\n"
        + "\n".join(rows)
        + f"\n\nThe whole sum that `python gpu.py` passes on takes {6 * (a + b):.1f} s: six messages\n"
        "follow one another, each with its latency. Naive takes in as many bytes, but three messages\n"
        "come at once, so it waits for latency twice, not six times.\n\n"
        "`ndparallel collective all_reduce --ranks 4 --show` draws every hop.\n"
    )


if __name__ == "__main__":
    raise SystemExit(tell("collectives.py", __doc__, story))
