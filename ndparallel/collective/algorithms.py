"""More ways to do what collectives.py does: chains, trees, halving and doubling, and hierarchies for nodes of
several GPUs.

Idea   Ring and naive collectives take as many steps as there are ranks. A tree takes log2 p, each with the
       whole array; halving and doubling takes 2 log2 p and sends no more bytes than a ring. A hierarchy sends
       over the slow links between nodes only what it has first reduced within them, on as many links at once
       as a node has members.
Cost   Above each algorithm stands its closed form, as in collectives.py.
Limit  Every message costs latency and bytes and nothing else: a chain's chunks can be as small as you like
       here, and not on real GPUs. A hierarchy needs equally many members in every node.

Glossary
    place      a member's number counted from the root
    rail       the members that have the same place in every node: across nodes they talk only among
               themselves
    pack       pieces that lie apart, put side by side to be sent as one message
    g, m       members in each node, nodes
    a, b       latency and n / bandwidth of the links inside nodes;   A, B  of those across
"""

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from collectives import (
    ALGORITHMS,
    Group,
    Member,
    cut,
    register,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    write,
)
from gpu import Hardware, is_size_only

CHUNKS = 8  # of a chained broadcast


@register("broadcast", "chain", lambda p, a, b, m=CHUNKS: ((p - 1) * (a + b / m) + (m - 1) * b / m) * (p > 1))
def chain_broadcast(me: Member, whole: np.ndarray, root: int, chunks: int = CHUNKS) -> None:
    """Hand the array along in m chunks: while a rank sends one on, the next is on its way to it."""
    place = (me.index - root) % me.size
    for chunk in np.array_split(whole, chunks):
        if place > 0:
            me.receive(me.index - 1, chunk)
        if place < me.size - 1:
            me.send(me.index + 1, chunk)


# ------------------------------------------------------------------------------------------------------ trees


def binomial_seconds(p, a, b):
    """Member r is reached after popcount(r) a + bit_length(r) b. The latest r < p is either all ones or the
    longest with most ones."""
    rounds = np.floor(np.log2(p))
    rest = p - 2**rounds
    ones = 1 + np.floor(np.log2(np.maximum(rest, 1)))
    return np.maximum(rounds * (a + b), (rest > 0) * (ones * a + (rounds + 1) * b))


@register("broadcast", "binomial", binomial_seconds)
def binomial_broadcast(me: Member, whole: np.ndarray, root: int) -> None:
    """In round k each of the 2^k members that have the array sends it 2^k members further."""
    place, reach = (me.index - root) % me.size, 1
    while reach < me.size:
        if place < reach and place + reach < me.size:
            me.send(me.index + reach, whole)
        elif reach <= place < 2 * reach:
            me.receive(me.index - reach, whole)
        reach *= 2


@register("reduce", "binomial", binomial_seconds)
def binomial_reduce(me: Member, whole: np.ndarray, root: int, combine: Callable) -> None:
    """The broadcast backwards: in every round the further members send what they have added up to the nearer
    ones."""
    place, reach = (me.index - root) % me.size, 1 << (me.size - 1).bit_length()
    while reach > 1:
        reach //= 2
        if place < reach and place + reach < me.size:
            me.receive(me.index + reach, whole, combine)
        elif reach <= place < 2 * reach:
            me.send(me.index - reach, whole)


@register("all_reduce", "tree", lambda p, a, b: 2 * binomial_seconds(p, a, b))
def tree_all_reduce(me: Member, whole: np.ndarray, combine: Callable) -> None:
    """Up a binomial tree to its root, which then has the sum, and down again."""
    binomial_reduce(me, whole, 0, combine)
    binomial_broadcast(me, whole, 0)


def halving_doubling_seconds(p, a, b):
    rounds = np.floor(np.log2(p))
    core = 2**rounds
    return 2 * rounds * a + 2 * (core - 1) / core * b + (core < p) * 2 * (a + b)


@register("all_reduce", "halving-doubling", halving_doubling_seconds)
def halving_doubling_all_reduce(me: Member, whole: np.ndarray, combine: Callable) -> None:
    """Swap halves with a partner, then quarters, eighths, ..., and back. Members beyond a power of two let
    another do it for them."""
    core = 1 << me.size.bit_length() - 1
    if me.index >= core:
        me.send(me.index - core, whole)
        me.receive(me.index - core, whole)
        return
    if me.index + core < me.size:
        me.receive(me.index + core, whole, combine)
    halve_and_double(me.within(range(core)), whole, combine)
    if me.index + core < me.size:
        me.send(me.index + core, whole)


def halve_and_double(me: Member, whole: np.ndarray, combine: Callable) -> None:
    """Swap halves of the array with the partner in the other half of the members, let each half do its own,
    and swap back."""
    if me.size == 1:
        return
    half = me.size // 2
    upper, partner = me.index // half, me.index ^ half
    mine, theirs = np.array_split(whole, 2)[:: 1 - 2 * upper]
    me.send(partner, theirs)
    me.receive(partner, mine, combine)
    halve_and_double(me.within(range(upper * half, upper * half + half)), mine, combine)
    me.send(partner, mine)
    me.receive(partner, theirs)


# ------------------------------------------------ in the node, across nodes on all rails at once, in the node
# Closed forms for g members in each of m nodes: a and b of the links inside, A and B of those across.


@register(
    "reduce_scatter",
    "hierarchical",
    lambda g, m, a, b, A, B: (g - 1) * (a + b / g) + (m - 1) * (A + B / g / m),
    by_node=True,
)
def hierarchical_reduce_scatter(me: Member, pieces: list[np.ndarray], combine: Callable) -> None:
    """In the node, each gets the node's sum of all that its rail will own; across nodes, its own piece of
    that."""
    node, rail, rails = _levels(me)
    packs = [_pack([pieces[member] for member in members]) for members in rails]
    ring_reduce_scatter(node, packs, combine)
    mine = [pieces[member] for member in rails[node.index]]
    _unpack(packs[node.index], mine)
    ring_reduce_scatter(rail, mine, combine)


@register(
    "all_gather",
    "hierarchical",
    lambda g, m, a, b, A, B: (g - 1) * (a + b / g) + (m - 1) * (A + B / g / m),
    by_node=True,
)
def hierarchical_all_gather(me: Member, pieces: list[np.ndarray]) -> None:
    """Across nodes first, so that every piece enters a node once; what a rail has gathered then goes round
    the node."""
    node, rail, rails = _levels(me)
    ring_all_gather(rail, [pieces[member] for member in rails[node.index]])
    packs = [_pack([pieces[member] for member in members]) for members in rails]
    ring_all_gather(node, packs)
    for members, pack in zip(rails, packs):
        _unpack(pack, [pieces[member] for member in members])


@register(
    "all_reduce",
    "hierarchical",
    lambda g, m, a, b, A, B: 2 * (g - 1) * (a + b / g) + 2 * (m - 1) * (A + B / g / m),
    by_node=True,
)
def hierarchical_all_reduce(me: Member, whole: np.ndarray, combine: Callable) -> None:
    """What is reduced within a node goes once across: of n bytes, n / g on each rail."""
    node, rail, _ = _levels(me)
    pieces = np.array_split(whole, node.size)
    ring_reduce_scatter(node, pieces, combine)
    ring_all_reduce(rail, pieces[node.index], combine)
    ring_all_gather(node, pieces)


@lru_cache(maxsize=4096)
def nodes_of(group: Group, gpus_per_node: int) -> list[tuple[int, ...]]:
    """The members in each node, node by node."""
    nodes = defaultdict(list)
    for member, rank in enumerate(group.ranks):
        nodes[rank // gpus_per_node].append(member)
    return [tuple(members) for members in nodes.values()]


def are_even(nodes: list[tuple[int, ...]]) -> bool:
    return len({len(node) for node in nodes}) == 1


def candidates(collective: str, group: Group, hardware: Hardware) -> list[str]:
    """The algorithms to choose from: those by node where there are several nodes with equally many members,
    more than one."""
    nodes = nodes_of(group, hardware.gpus_per_node)
    layered = are_even(nodes) and len(nodes) > 1 and len(nodes[0]) > 1
    return [name for name, known in ALGORITHMS[collective].items() if layered or not known.by_node]


def usual_algorithm(group: Group, hardware: Hardware) -> str:
    """Return the algorithm of gradients' and weights' collectives where no other is asked for."""
    return "hierarchical" if "hierarchical" in candidates("all_reduce", group, hardware) else "ring"


def _levels(me: Member) -> tuple[Member, Member, list[tuple[int, ...]]]:
    """This rank's part in its node and in its rail, and the members of every rail."""
    nodes = nodes_of(me.group, me.gpu.hardware.gpus_per_node)
    if not are_even(nodes):
        sizes = ", ".join(str(len(node)) for node in nodes)
        raise ValueError(
            f"a hierarchy needs as many members in every node; group {me.group.name!r} has {sizes}: choose "
            "another algorithm."
        )
    rails = list(zip(*nodes))
    node, rail = (next(part for part in parts if me.index in part) for parts in (nodes, rails))
    return me.within(node), me.within(rail), rails


def _pack(parts: list[np.ndarray]) -> np.ndarray:
    if any(map(is_size_only, parts)):
        return np.broadcast_to(np.zeros((), parts[0].dtype), sum(part.size for part in parts))
    return np.concatenate(parts)


def _unpack(pack: np.ndarray, parts: list[np.ndarray]) -> None:
    for part, content in zip(parts, cut(pack, [part.size for part in parts])):
        write(part, content)
