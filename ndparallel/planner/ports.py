"""Ports of a GPU that several groups of a plan use at the same time.

Idea   A GPU has a port to its node and one to other nodes, as on the replayed network of
       ndparallel.contention.networks, and what uses one at the same time shares it, max-min fair. All GPUs of
       a pipeline rank do the same at the same time. So one of them stands for all: what it hands to its right
       neighbour in a ring leaves by its port, and as much comes in by it from the left. It sends that to
       itself; messages between stages go from one pipeline rank's GPU to another's. Their journals
       (ndparallel.planner.step.journal) are replayed twice, on ports that are shared and on ports that are
       not.
Cost   Some ten microseconds for each message, on both networks.
Limit  Of GPUs of one pipeline rank whose links or rows differ, the one that is slowest stands for all.

Glossary
    piece   what a GPU sends at once by one port
    round   pieces that a GPU sends before it waits for as many
"""

from collections.abc import Hashable, Sequence
from math import isclose
from typing import Any, NamedTuple

from gpu import CLASSROOM, Link
from ndparallel.contention.networks import Flow, SharedPorts
from ndparallel.contention.replay import Replayed
from ndparallel.engines.journal import Journal, Sent

ROUNDING = 1e-9  # shares of a step that are less are the same seconds, added up in another order


class PortUse(NamedTuple):
    """The share of a collective's seconds in which it keeps a GPU's ports busy: to its node, to others."""

    inside: float
    across: float


class Piece(NamedTuple):
    """What alone takes `seconds`, and this share of the bandwidth of the port "inside" or "across"."""

    port: str
    seconds: float
    share: float = 1.0
    latency_seconds: float = 0.0
    name: Any = ""

    @property
    def size(self) -> float:
        """Seconds of a whole port."""
        return self.share * self.seconds


Round = Sequence[Piece]


def rounds_of(seconds: float, latency: float, use: PortUse) -> list[Round]:
    """A collective that takes so long, of which this is latency, and uses both ports evenly all the time."""
    pieces = [
        Piece(port, seconds - latency, share, latency) for port, share in use._asdict().items() if share
    ]
    return [pieces] if seconds and pieces else []


class ReplayedPlan(Replayed):
    """Journals whose messages have pieces for names: bytes are seconds of a whole port."""

    def link(self, rank: int, action: Sent) -> Link:
        return Link(action.what.latency_seconds, action.what.share)


class PortsAlone(SharedPorts):
    """Every message has all that it can take."""

    def send(self, flow: Flow) -> None:
        self.agenda.at(flow.start + flow.wire_seconds, flow.sent.come)
        self.agenda.at(flow.first_byte + flow.wire_seconds, flow.arrived.come)


class PortsOfPlan(SharedPorts):
    """A port to a GPU's node and one to others, in each direction; a message takes no more than its share."""

    def limits(self, flow: Flow) -> dict[Hashable, float]:
        port, share = flow.what.port, flow.what.share
        limits: dict[Hashable, float] = {("out", port, flow.source): 1.0, ("in", port, flow.target): 1.0}
        return limits if share == 1 else limits | {(flow.source, flow.line, flow.entry): share}


def seconds_added(journals: Sequence[Journal]) -> float:
    """What sharing ports adds to a step, whose pipeline ranks have these journals."""
    alone, shared = (
        max(ReplayedPlan(journals, CLASSROOM, network).ends) for network in (PortsAlone, PortsOfPlan)
    )
    return 0.0 if isclose(alone, shared, rel_tol=ROUNDING) else shared - alone
