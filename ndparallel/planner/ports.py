"""Ports of a GPU that collectives of two groups use at the same time.

Idea   A GPU has a port to its node and one to other nodes, as on the replayed network of
       ndparallel.contention.networks, and what uses one at the same time shares it, max-min fair. So two
       collectives that both fill a port have half of it each while both are under way, and each ends later
       by the seconds of the shorter.
Limit  Three at once are counted in pairs. A collective's latency counts as use of its ports.

Glossary
    pace   of a collective beside another one, as a share of what it has alone
"""

from typing import Any, NamedTuple

from ndparallel.planner.numbers import larger, smaller


class PortUse(NamedTuple):
    """The share of a collective's seconds in which it keeps a GPU's ports busy: to its node, to others."""

    inside: float
    across: float


def paces(one: PortUse, other: PortUse) -> tuple[float, float]:
    """The paces of two collectives while both are under way."""
    return min(map(pace, one, other)), min(map(pace, other, one))


def pace(use: float, other: float) -> float:
    """The pace of one that uses a port, beside another: it has at least half, and what the other leaves."""
    return min(1.0, max(0.5, 1 - other) / use) if use else 1.0


def seconds_of_both(one: Any, other: Any, paces: tuple[float, float]) -> Any:
    """For how long both are under way, of which each alone would have so many seconds to go."""
    return larger(0.0, smaller(one / paces[0], other / paces[1]))
