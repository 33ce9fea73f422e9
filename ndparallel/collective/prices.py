"""What a collective costs on given hardware, and which algorithm to take.

Idea   Where a closed form holds it is the price, of one size or of a whole array of sizes; everywhere else
       the lockstep twin is run.
Cost   A microsecond for a closed form, about 20 us a step for a twin.
Limit  The ranks start together, and pieces count as equal: exact where the algorithm's number of pieces
       divides the size.

Glossary
    hop        of a ring: everybody sends one piece to its right and receives one from its left
    envelope   the fastest algorithm by size
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from collectives import ALGORITHMS, Algorithm, Group
from gpu import Hardware, Link
from ndparallel.base.errors import check_known
from ndparallel.collective import lockstep
from ndparallel.collective.algorithms import are_even, candidates, nodes_of
from ndparallel.collective.clocks import start_clocks

TIE = 1e-9  # relative: what is equal but for rounding goes to the algorithm named first


def closed_form_seconds(collective: str, algorithm: str, group: Group, hardware: Hardware, nbytes):
    """Price a collective of `nbytes` in all (a number or an array) by its closed form; None where none holds
    on this group's links."""
    known, p = find_algorithm(collective, algorithm), group.size
    nodes = nodes_of(group, hardware.gpus_per_node)
    if hardware.disturbances and hardware.disturbances.slows_a_link_among(group.ranks):
        return None
    inside, across = (
        (link.latency_seconds, nbytes / link.bandwidth_bytes_per_second)
        for link in (hardware.inside, hardware.across)
    )
    if known.by_node:
        return known.seconds(len(nodes[0]), len(nodes), *inside, *across) if are_even(nodes) else None
    if len(nodes) == 1 or hardware.inside == hardware.across:
        return known.seconds(p, *inside)
    if len(nodes) == p:
        return known.seconds(p, *across)
    through_nodes = known.ring_passes and are_even(nodes) and are_runs(nodes)
    if not (through_nodes and is_slower(hardware.across, hardware.inside)):
        return None
    (a, b), (A, B), hops = inside, across, known.ring_passes * (p - 1)
    return ring_over_nodes_seconds(hops, len(nodes[0]), a, b / p, A, B / p)


def ring_over_nodes_seconds(hops, g, a, b, A, B):
    """A ring through nodes of g members each: a and b are latency and wire time of a piece inside, A and B
    across, and no smaller.

    What a member waits for is a chain of causes that at every hop stays with a sender, for its wire time, or
    moves on with the message, for latency and wire time. The longest chain stays where a link leaves the node
    (B a hop), and crosses it once (A); or it runs on round the nodes, where that takes longer: through as
    many whole nodes as there is time for, or to the end.
    """
    gain = a + b - B  # of moving over a link inside, against staying
    node = (g - 1) * gain + A
    whole_nodes, crossings = (hops - 1) // g, -(-hops // g)
    running = np.maximum(whole_nodes * node + A, crossings * A + (hops - crossings) * gain)
    return hops * B + np.maximum(A, running)


def lockstep_seconds(collective: str, algorithm: str, group: Group, hardware: Hardware, nbytes):
    """Price a collective (of bytes, cut to the byte) by its recurrence. Takes a number or an array of them,
    as closed forms do."""
    sizes = np.asarray(nbytes)
    clocks = start_clocks(hardware, np.broadcast_to(group.ranks, (*sizes.shape, group.size)))
    lockstep.advance(clocks, collective, algorithm, sizes)
    return clocks.now.max(axis=-1)


def price(collective: str, algorithm: str, group: Group, hardware: Hardware, nbytes):
    """Seconds of a collective of `nbytes` in all, a number or an array: by closed form if one holds, else by
    lockstep."""
    seconds = closed_form_seconds(collective, algorithm, group, hardware, nbytes)
    return lockstep_seconds(collective, algorithm, group, hardware, nbytes) if seconds is None else seconds


# ------------------------------------------------------------------------------------------ which one to take


@lru_cache(maxsize=4096)
def choose_algorithm(collective: str, group: Group, hardware: Hardware, nbytes: float) -> str:
    """Name the fastest algorithm for `nbytes` in all: what is taken where nobody asks for another. All ranks
    choose alike."""
    names = candidates(collective, group, hardware)
    return names[int(fastest(collective, names, group, hardware, np.array([nbytes]))[0])]


def fastest(
    collective: str, names: list[str], group: Group, hardware: Hardware, nbytes: np.ndarray
) -> np.ndarray:
    """Which of the named algorithms is fastest, by its place in `names`, for each size."""
    prices = np.stack(
        [np.broadcast_to(price(collective, name, group, hardware, nbytes), nbytes.shape) for name in names]
    )
    return np.argmax(prices <= prices.min(axis=0) * (1 + TIE), axis=0)


def envelope(collective: str, group: Group, hardware: Hardware) -> list[tuple[int, str]]:
    """Return from how many bytes on which algorithm is the fastest, from 1 B to 1 TB; the first entry is that
    of a byte."""
    names = candidates(collective, group, hardware)
    if len(names) == 1:
        return [(1, names[0])]
    sizes = np.unique(np.geomspace(1, 1e12, 61).astype(np.int64))
    best = [names[place] for place in fastest(collective, names, group, hardware, sizes)]
    changes = [number for number in range(1, len(sizes)) if best[number] != best[number - 1]]

    def change(number: int) -> int:
        rivals = [best[number - 1], best[number]]
        return first(
            lambda between: fastest(collective, rivals, group, hardware, between) == 1,
            sizes[number - 1],
            sizes[number],
        )

    return [(1, best[0]), *((change(number), best[number]) for number in changes)]


def first(holds: Callable[[np.ndarray], np.ndarray], low: int, high: int) -> int:
    """The first size from which on something holds, to one in 10,000: it does not for `low`, and does for
    `high`."""
    while high - low > max(1, low / 10_000):
        sizes = np.unique(np.linspace(low, high, 9).astype(np.int64))
        place = int(np.argmax(holds(sizes)))
        low, high = sizes[place - 1], sizes[place]
    return int(high)


def find_algorithm(collective: str, algorithm: str) -> Algorithm:
    """Return an entry of collectives.ALGORITHMS. Raises UserError for a name that is not in it."""
    check_known("collective", collective, ALGORITHMS)
    check_known(f"algorithm of {collective}:", algorithm, ALGORITHMS[collective])
    return ALGORITHMS[collective][algorithm]


def are_runs(nodes: list[tuple[int, ...]]) -> bool:
    """Whether the members of each node follow one another round the ring."""
    return all(node[-1] - node[0] == len(node) - 1 for node in nodes)


def is_slower(link: Link, other: Link) -> bool:
    slower = link.bandwidth_bytes_per_second <= other.bandwidth_bytes_per_second
    return slower and link.latency_seconds >= other.latency_seconds
