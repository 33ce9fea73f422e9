"""The published schedules, each as the few lines that its figure shows.

Idea   The classic schedules are one sentence, "some forwards, then one forward and one backward by turns,
       then the backwards that are left", and differ in how many forwards come first and in the order of the
       chunks. Zero-bubble schedules split the backward into I and W, and put W, which nobody waits for, where
       a rank would wait.
Cost   More microbatches in flight cost memory, more chunks cost messages.
Limit  The orders are drawn for even stages, and W no longer than I; `search` makes an order for the times
       that there are.

Glossary: see `ndparallel.pipeline.actions`; `at` is one rank's side of the schedule. P ranks, V chunks, M
microbatches, r the rank.
"""

from functools import lru_cache
from itertools import chain, islice, pairwise

import numpy as np

from ndparallel.pipeline.actions import Layout
from ndparallel.pipeline.building_blocks import (
    ALWAYS,
    NEVER,
    PERIOD,
    WEIGHT,
    packed,
    packed_blocks,
    slow_down,
    straight,
)
from ndparallel.pipeline.recipe import RECIPES, Program, RankSide, Recipe, register

__all__ = ["RECIPES"]  # with all schedules of this file in it
ZERO_BUBBLE = "arXiv 2401.10241"
CONTROLLABLE_MEMORY = "arXiv 2405.15362"


def by_turns(forwards: Program, backwards: Program, first: int) -> Program:
    """`first` forwards, then one forward and one backward by turns, then the backwards that are left."""
    return chain(islice(forwards, first), chain.from_iterable(zip(forwards, backwards)), backwards)


def one_chunk(at: RankSide, first: int) -> Program:
    return by_turns((at.F() for _ in range(at.microbatches)), (at.B() for _ in range(at.microbatches)), first)


@register(
    "naive",
    source="arXiv 1811.06965, figure 2b",
    peak_in_flight=lambda m, r, p, v: 1,
    peaks_before_backward=True,
    one_at_a_time=True,
    spelled="naive",
)
def naive(at: RankSide) -> Program:
    """One microbatch after another, forward through all ranks and back: one rank works at a time."""
    return one_chunk(at, first=0)


@register(
    "gpipe",
    source="arXiv 1811.06965, drawn as in arXiv 2104.04473, figure 3",
    peak_in_flight=lambda m, r, p, v: m,
    peaks_before_backward=True,
    names={"torchtitan": "GPipe"},
    spelled="gpipe|afab|fthenb|allforward",
)
def gpipe(at: RankSide) -> Program:
    """All forwards, then all backwards."""
    return one_chunk(at, first=at.microbatches)


@register(
    "1f1b",
    source="PipeDream-Flush, arXiv 2006.09503; drawn as in arXiv 2104.04473, figure 4",
    peak_in_flight=lambda m, r, p, v: np.minimum(m, p - r),
    peaks_before_backward=True,
    waits_on_messages=True,
    names={
        "torchtitan": "1F1B",
        "megatron": "forward_backward_pipelining_without_interleaving",
        "deepspeed": "TrainSchedule",
    },
    spelled="^(?!.*(gpipe|afab|fthenb|allforward)).*(1f1b|pipedream|dapple|flush)",
)
def one_f_one_b(at: RankSide) -> Program:
    """As many forwards as ranks follow, then F and B by turns: rank r of P holds at most P - r microbatches,
    not M."""
    return one_chunk(at, first=at.below)


@register(
    "eager-1f1b",
    source="arXiv 2211.05322",
    peak_in_flight=lambda m, r, p, v: np.minimum(m, 2 * (p - r) - 1),
    peaks_before_backward=True,
    spelled="eager",
)
def eager_1f1b(at: RankSide) -> Program:
    """1F1B with twice as many forwards ahead, so that a message has the time of one action to arrive."""
    return one_chunk(at, first=2 * at.below)


def group_size(microbatches, ranks: int):
    """The smallest groups that Megatron-Core takes (`--microbatch-group-size-per-virtual-pipeline-stage`):
    all are as large but the last, and none has fewer microbatches than there are ranks, which would wait."""
    whole = np.asarray(microbatches).astype(int)  # whose remainders take a third of the time of floats'
    size = np.minimum(whole, ranks)
    while np.any(short := ((left := whole % size) > 0) & (left < ranks)):
        size = size + short
    return size


@register(
    "interleaved",
    source="Megatron-LM, arXiv 2104.04473, figure 4",
    chunks=None,
    group=group_size,
    chunk_by_chunk=lambda m, p: m < 2 * p,  # which are one group
    peak_in_flight=lambda m, r, p, v: np.minimum(m * v, (v - 1) * group_size(m, p) + 2 * (p - 1 - r) + 1),
    peaks_before_backward=True,
    names={"torchtitan": "Interleaved1F1B", "megatron": "forward_backward_pipelining_with_interleaving"},
    spelled="^(?!.*eager).*(interleav|1f1bi|vpp|virtual)",
)
def interleaved(at: RankSide) -> Program:
    """1F1B over V chunks in a loop: P microbatches through one chunk, the same P through the next: the
    pipeline fills V times sooner."""
    groups = [*range(0, at.microbatches, at.group), at.microbatches]
    chunks = [
        chunk for first, end in pairwise(groups) for chunk in range(at.chunks) for _ in range(first, end)
    ]
    forwards = (at.F(chunk) for chunk in chunks)
    backwards = (at.B(at.chunks - 1 - chunk) for chunk in chunks)
    return by_turns(forwards, backwards, first=(at.chunks - 1) * at.group + 2 * at.below)


@register(
    "looped-bfs",
    source="arXiv 2211.05953",
    chunks=None,
    chunk_by_chunk=lambda m, p: True,
    peak_in_flight=lambda m, r, p, v: m * v,
    peaks_before_backward=True,
    names={"torchtitan": "LoopedBFS"},
    spelled="bfs|breadthfirst",
)
def looped_bfs(at: RankSide) -> Program:
    """GPipe over V chunks in a loop, breadth first: all microbatches through one chunk before the next."""
    forwards = (at.F(chunk) for chunk in range(at.chunks) for _ in range(at.microbatches))
    backwards = (at.B(chunk) for chunk in reversed(range(at.chunks)) for _ in range(at.microbatches))
    return by_turns(forwards, backwards, first=at.microbatches * at.chunks)


def zero_bubble(at: RankSide, depth: int) -> Program:
    """1F1B with B split: rank r starts `depth` times as many forwards ahead, and lets `depth` * r weight
    gradients wait for the end."""
    first, waiting = depth * at.below, depth * at.rank
    for k in range(at.microbatches + first):
        if k < at.microbatches:
            yield at.F()
        if k >= first:
            yield at.I()
        if k >= first + waiting:
            yield at.W()
    for _ in range(min(waiting, at.microbatches)):
        yield at.W()


@register(
    "zb-h1",
    source=f"{ZERO_BUBBLE}, figure 3",
    peak_in_flight=lambda m, r, p, v: np.minimum(m, p),
    head_start=lambda p: p,
    splits=True,
    spelled="zb|zerobubble",
)
def zb_h1(at: RankSide) -> Program:
    """Zero bubble with 1F1B's memory: every rank holds P; a third of the bubble is left when F, I and W take
    the same time."""
    return zero_bubble(at, depth=1)


@register(
    "zb-h2",
    source=f"{ZERO_BUBBLE}, figure 3",
    peak_in_flight=lambda m, r, p, v: np.minimum(m, 2 * p - 1),
    head_start=lambda p: 2 * p - 1,
    splits=True,
    spelled="zbh2|zerobubbleh2",
)
def zb_h2(at: RankSide) -> Program:
    """Zero bubble with about twice 1F1B's memory, 2P - 1: when F, I and W take the same time, nobody waits
    once it has begun."""
    return zero_bubble(at, depth=2)


def in_kinds(at: RankSide, kinds: list[int]) -> Program:
    """Actions of a V by their kinds, see `ndparallel.pipeline.building_blocks`."""
    for kind in kinds:
        yield (at.F(kind) if kind < 2 else at.W() if kind == WEIGHT else at.I(3 - kind))


@register(
    "zb-v",
    source=f"{ZERO_BUBBLE}, section on ZB-V",
    chunks=2,
    layout="v",
    peak_in_flight=lambda m, r, p, v: np.minimum(2 * m, 2 * p),
    splits=True,
    names={"torchtitan": "ZBVZeroBubble"},
    spelled="zbv|zerobubblev|zbvpp",
)
def zb_v(at: RankSide) -> Program:
    """Zero bubble with 1F1B's memory: two chunks in a V, so that rank 0 also has the head, and begins the
    first backward itself."""
    if at.microbatches < 2 * at.ranks - 1:
        yield from in_kinds(at, few_zb_v(at.ranks, at.microbatches)[at.rank])
    else:
        yield from drawn_zb_v(at)


def drawn_zb_v(at: RankSide) -> Program:
    for _ in range(2 * at.below + 1):  # until the first microbatch comes back up the other side of the V
        yield at.F(0)
    for _ in range(at.rank):
        yield from (at.F(1), at.F(0))
    for _ in range(at.below + 1):  # until its gradient comes up in turn
        yield from (at.F(1), at.I(1), at.W())
    turns = at.microbatches - at.ranks
    for turn in range(turns):
        if turn < turns - at.below:
            yield at.F(0)
        yield from (at.I(0), at.W(), at.F(1), at.I(1), at.W())
    for _ in range(at.rank):  # the gradients that others wait for, before the weights
        yield from (at.I(0), at.I(1))
    for _ in range(at.below + 1):
        yield from (at.I(0), at.W())
    for _ in range(2 * at.rank):
        yield at.W()


@lru_cache(maxsize=8)
def few_zb_v(ranks: int, microbatches: int) -> list[list[int]]:
    """Every rank's kinds where there are too few microbatches for the drawn W: F and I as they are drawn, and
    W where a rank would wait."""
    plans = []
    for rank in range(ranks):
        at = RankSide(Layout("v", ranks, 2), rank, microbatches)
        chunk = {at.rank: 0, 2 * at.ranks - 1 - at.rank: 1}  # by stage
        drawn = [each for each in drawn_zb_v(at) if each.op != "W" and each.microbatch < microbatches]
        kinds = [chunk[each.stage] if each.op == "F" else 3 - chunk[each.stage] for each in drawn]
        plans.append(list(enumerate(kinds)))
    return packed(plans, room=2 * ranks, ordered_from=ALWAYS)


@register(
    "dualpipev",
    source="github.com/deepseek-ai/DualPipe",
    chunks=2,
    fewest=lambda p: 2 * p,  # asserted in dualpipe/dualpipev.py, DualPipeV.step
    layout="v",
    peak_in_flight=lambda m, r, p, v: np.minimum(np.minimum(2 * m, 2 * p + 1), m + 1 + r),
    splits=True,
    pairs=True,
    names={"torchtitan": "DualPipeV"},
    spelled="dualpipe",
)
def dualpipev(at: RankSide) -> Program:
    """Two chunks in a V; in the steady part each forward runs as one with a backward of the other chunk, so
    that the messages between experts of one hide behind the other's compute."""
    for _ in range(2 * at.below):
        yield at.F(0)
    for _ in range(at.rank + 1):
        yield from (at.F(0), at.F(1))
    for _ in range(at.below):  # W at once: there is nothing to run beside it yet
        yield from (at.I(1), at.W(), at.F(1))
    for turn in range(at.microbatches - 2 * at.ranks + at.rank + 1):
        # nothing runs on the last rank yet, and its first forward should leave soon
        apart = turn == 0 and at.below == 0
        yield from (at.F(0), at.B(1)) if apart else at.fused(at.F(0), at.B(1))
        yield from at.fused(at.F(1), at.B(0))
    for _ in range(at.below):  # no microbatch is left for the first chunk
        yield at.B(1)
        yield from at.fused(at.F(1), at.B(0))
    yield from _dualpipev_end(at)


def _dualpipev_end(at: RankSide) -> Program:
    """The backwards that are left, the later ones split, so that weight gradients fill the gaps."""
    for k in range(2 * at.rank + 2):
        backward = at.B if k <= at.rank else at.I
        yield backward(1 - k % 2)
    for _ in range(at.below):
        yield from (at.W(), at.I(0))
    for _ in range(at.rank + 1):
        yield at.W()


@register(
    "v-half",
    source=f"{CONTROLLABLE_MEMORY}, section 3",
    chunks=2,
    layout="v",
    peak_in_flight=lambda m, r, p, v: np.minimum(2 * m, 2 * ((p + 2) // 2)),
    splits=True,
    by_name_only=True,
    spelled="vhalf",
)
def v_half(at: RankSide) -> Program:
    """On many ranks half of 1F1B's memory and half of its bubble: a block goes slowly down the V and fast
    up."""
    turn, room = (0 if at.ranks % 2 else 3), 2 * ((at.ranks + 2) // 2)
    block = slow_down(at.ranks, turn)
    full = NEVER if at.ranks % 2 else block[-1] - PERIOD // 2  # when the first microbatch is nearly back
    yield from in_kinds(at, packed_blocks(at.microbatches, block, room, full)[at.rank])


@register(
    "v-min",
    source=f"{CONTROLLABLE_MEMORY}, section 3",
    chunks=2,
    layout="v",
    peak_in_flight=lambda m, r, p, v: np.minimum(2 * m, 2 * ((p + 4) // 3)),
    splits=True,
    by_name_only=True,
    spelled="vmin",
)
def v_min(at: RankSide) -> Program:
    """On many ranks a third of 1F1B's memory, the least, and about two thirds of its bubble: a block never
    waits on its way."""
    turn, room = (2, 0, 3)[at.ranks % 3], 2 * ((at.ranks + 4) // 3)
    memory_binds = at.microbatches >= room - 1
    ordered_from = ALWAYS if at.ranks % 3 == 1 and memory_binds else NEVER
    block = straight(at.ranks, turn)
    yield from in_kinds(at, packed_blocks(at.microbatches, block, room, ordered_from)[at.rank])


# ------------------------------------------- orders that are searched for, see ndparallel.pipeline.search


def searched_within(times: int) -> Recipe:
    """The zero-bubble order that is found where a rank may have so many times p microbatches in flight."""
    return Recipe(
        program=None,
        source=f"{ZERO_BUBBLE}, section 3.1",
        peak_in_flight=lambda m, r, p, v: np.minimum(m, times * p),
        memory_limit=lambda p: times * p,
        head_start=lambda p: times * p,
        spelled=f"zb{times}p",
    )


RECIPES["zb-1p"], RECIPES["zb-2p"] = searched_within(1), searched_within(2)
