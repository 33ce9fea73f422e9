"""How many ranks and nodes a token goes to, and seconds of a dispatch that sends it to each node once.

Idea   A router may keep each token to some groups of experts (arXiv 2412.19437, section 2.1.2). It chooses a
       group by the sum of the group's top_k / top_groups best scores, so as many experts are taken of each
       group that it keeps. The places where these are is a mean over all sets of groups.
Cost   A token's bytes: once for each other node that it goes to, once more for each rank inside one.
Limit  All sets of groups are as likely, and all experts of a group. A simulated router whose scores are
       independent of one another reaches from 1% to 5% fewer places.

Glossary
    place     a rank, or a node, with an equal part of the experts
    kept      of a group: the router may choose its experts for a token
    missed    of a place: no expert of a token is there
"""

from functools import cache
from math import ceil, comb

import numpy as np

from ndparallel.base.sums import sum_of
from ndparallel.planner.groups import GroupLinks
from ndparallel.planner.layers.collective_time import START_SECONDS
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.numbers import either, larger, power


def distinct(places, experts: Experts):
    """How many of so many ranks, or nodes, a token's experts are on: a mean."""
    if experts.top_groups == experts.groups:
        return places * (1 - power(1 - 1 / places, experts.top_k))
    if isinstance(places, np.ndarray):
        some, which = np.unique(places, return_inverse=True)
        return np.array([distinct_of_groups(int(each), experts) for each in some])[which].reshape(
            places.shape
        )
    return distinct_of_groups(int(places), experts)


@cache
def distinct_of_groups(places: int, experts: Experts) -> float:
    return sum_of(
        1 - missed(shares_of_groups(place, places, experts.groups), experts) for place in range(places)
    )


def shares_of_groups(place: int, places: int, groups: int) -> list[float]:
    """Which share of its experts each group has on the place, of the groups that have any there."""
    first, last = place * groups, (place + 1) * groups  # a group is as long as there are places
    there = range(first // places, ceil(last / places))
    return [(min(last, (group + 1) * places) - max(first, group * places)) / places for group in there]


def missed(shares: list[float], experts: Experts) -> float:
    """How likely no expert of a token is on the place."""
    each, chances = experts.top_k / experts.top_groups, [1.0]  # by how many of its groups are kept
    for share in shares:
        kept = [chance * (1 - share) ** each for chance in chances]
        chances = [one + other for one, other in zip([*chances, 0.0], [0.0, *kept])]
    sets, others = comb(experts.groups, experts.top_groups), experts.groups - len(shares)
    ways = [comb(others, experts.top_groups - number) / sets for number in range(experts.top_groups + 1)]
    return sum_of(chance * way for chance, way in zip(chances, ways))


def dispatch_seconds(nbytes, experts: Experts, links: GroupLinks):
    """Seconds of an all_to_all whose rows, of top_k experts each, cross to a node once, and are copied on
    inside it to each rank once (DeepEP, HybridEP)."""
    tokens = nbytes / experts.top_k
    crossing = distinct(links.nodes, experts) * (links.nodes - 1) / links.nodes
    copied = distinct(links.ranks, experts) * (links.per_node - 1) / links.per_node
    across = tokens * crossing / links.spread_bandwidth
    inside = tokens * copied / links.inside_bandwidth
    return either(links.ranks > 1, START_SECONDS + links.hop_latency + larger(inside, across), 0.0)
