"""Seconds of a collective on the links that its group really runs on, with the algorithm that NCCL would
choose.

Idea   A group of p ranks, `stride` apart, has some members in every node. A ring crosses each node's border
       over as many rails as it has members there, so its bandwidth is the smaller of the link inside and of
       all those rails. Small sums take a tree instead, as NCCL compares them (src/graph/tuning.cc: for an
       all_reduce ring and tree by latency + bytes / bandwidth, for the others a ring).
Cost   ring all_gather and reduce_scatter: START + hops' latency + (p-1)/p * n / bandwidth; all_reduce twice
       that without START. Between nodes the first two take the protocol LL128 where that is quicker: shorter
       hops, less bandwidth.
Limit  Groups do not slow one another: every member has a rail of its own. NCCL has LL128 where NVLink joins
       the GPUs of a node, and here it is everywhere. All arguments may be numpy arrays.

Glossary
    n        bytes of the whole array (of all_to_all: what one rank sends)
    rail     the network ports of the same number in all nodes: one for each GPU of a node
    START    what any collective costs before the first byte moves
"""

from dataclasses import replace
from typing import Any

from ndparallel.hardware.accelerator import Accelerator
from ndparallel.hardware.collective_links import on_links_of
from ndparallel.planner.groups import GroupLinks
from ndparallel.planner.numbers import doublings, either, larger, smaller

# NCCL on 8 B200, all_gather and reduce_scatter: MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json
START_SECONDS = 23e-6

# a hop of NCCL's tree for few bytes, protocol LL (src/graph/tuning.cc, hwLatencies)
LL_INSIDE_SECONDS, LL_ACROSS_SECONDS = 0.6e-6, 5e-6

# NCCL's protocol LL128 beside Simple (src/graph/tuning.cc): a hop of a ring to another node, in Simple's, and
# where a node has one rank (hwLatencies: ring 4.0, tree 8.5 and 14.0 us); what it takes longer before the
# first byte (baseLatencies: 14.0 and 8.4 us); its bandwidth (ncclTopoTuneModel)
LL128_HOP, LL128_HOP_OF_ONE = 4.0 / 14.0, 8.5 / 14.0
LL128_START_SECONDS = 5.6e-6
LL128_BANDWIDTH = 0.92


def lost_to(collective, compute, slowdown):
    """Seconds that a GPU computes longer because of a collective under way for `collective` seconds, in which
    less than that gets done."""
    return slowdown * smaller(collective / (1 + slowdown), compute)


def collective_seconds(collective: str, nbytes, links: GroupLinks):
    """Seconds of one collective of `nbytes` in a group; 0 for a group of one."""
    start, links = start_and_links(collective, links)
    seconds = start + _BY_NAME[collective](nbytes, links)
    if start and collective in ("all_gather", "reduce_scatter") and isinstance(links.hardware, Accelerator):
        seconds = either(links.nodes > 1, smaller(seconds, start + _in_ll128(nbytes, links)), seconds)
    return either((links.ranks > 1) & (nbytes > 0), seconds, 0.0)


def message_price(links: GroupLinks) -> tuple[Any, Any]:
    """What a message of each rank of a group to the next one costs, where that is slowest: its seconds before
    the first byte is there, and the bytes a second from then on."""
    start, links = start_and_links("point_to_point", links)
    return start + links.hop_latency, links.hop_bandwidth


def hops_seconds(nbytes, hops, links: GroupLinks):
    """Seconds of so many messages of each rank to the next one, of `nbytes` together, one after another; 0 in
    a group of one."""
    latency, bandwidth = message_price(links)
    return either((links.ranks > 1) & (nbytes > 0), hops * latency + nbytes / bandwidth, 0.0)


def start_and_links(collective: str, links: GroupLinks) -> tuple[float, GroupLinks]:
    """What a collective costs before the first byte moves, and its links: where it was measured, its own,
    whose latency has the start in it."""
    own = on_links_of(links.hardware, collective)
    return (START_SECONDS, links) if own is None else (0.0, replace(links, hardware=own))


def _wire(nbytes, links: GroupLinks):
    return (links.ranks - 1) / links.ranks * nbytes / links.bandwidth


def _all_gather(nbytes, links: GroupLinks):
    return links.ring_latency_seconds + _wire(nbytes, links)


def _in_ll128(nbytes, links: GroupLinks):
    """An all_gather between nodes in LL128. A hop inside a node is as it was measured, whatever its
    protocol."""
    across = (links.nodes - 1) * links.hardware.across.latency_seconds
    saved = across * (1 - either(links.per_node > 1, LL128_HOP, LL128_HOP_OF_ONE))
    return LL128_START_SECONDS + links.ring_latency_seconds - saved + _wire(nbytes, links) / LL128_BANDWIDTH


def _all_reduce(nbytes, links: GroupLinks):
    ring = 2 * (links.ring_latency_seconds + _wire(nbytes, links))
    tree = 2 * (links.tree_latency_seconds + nbytes / links.bandwidth)
    return smaller(ring, tree)


def _few_bytes(nbytes, links: GroupLinks):
    """An all_reduce of some KB: down and up a tree, in the protocol of the shortest latency."""
    return 2 * ((links.per_node - 1) * LL_INSIDE_SECONDS + doublings(links.nodes) * LL_ACROSS_SECONDS)


def _all_to_all(nbytes, links: GroupLinks):
    """Every rank sends as much to each: inside over the node's links, across over its own rail."""
    each = nbytes / links.ranks
    inside = each * (links.per_node - 1) / links.inside_bandwidth
    across = each * (links.ranks - links.per_node) / links.spread_bandwidth
    return larger(inside, across) + links.hop_latency


_BY_NAME = {
    "all_gather": _all_gather,
    "reduce_scatter": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "few bytes": _few_bytes,
}
