"""How often each axis of the mesh communicates, how much and over which link, counted from a run's own
events.

Idea   Every stream but compute belongs to one axis of the mesh. What it sends and what the compute stream
       waits for it says how that axis loads the network, and how much of it is hidden.
Limit  An axis' figures are means over the GPUs; links are those that its messages really took.

Glossary
    call           a collective, or a message that belongs to none: between pipeline stages, or round the ring
                   of CP
    hidden         share of an axis' communication time that no GPU waited for
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpu import COLLECTIVE, RECEIVE, SEND, WAIT, Event, Hardware, Link
from ndparallel.base.events import RankRun, of_kinds
from ndparallel.hardware.disturbances import undisturbed
from ndparallel.results.measure import length, minus, union

TRAFFIC = (SEND, RECEIVE, COLLECTIVE, WAIT)
AXES = ("tp", "cp", "ep", "pp", "dp")
NAMES = {"dp_cp": "dp", "expert_dp": "dp", "etp": "tp", "tied": "pp", "tp_cp": "ep", "p2p": "pp"}


@lru_cache
def axis_of(stream: str) -> str:
    """The axis that a stream's messages run along: "pp send forward" is pp's."""
    first = stream.split()[0]
    return NAMES.get(first, first)


def hierarchy(runs: Sequence[RankRun], hardware: Hardware, steps: int = 1) -> list[dict[str, Any]]:
    """One row for each axis with messages, the most frequent first: figures of one step, as means over the
    GPUs."""
    step_seconds = max(run.end_seconds for run in runs) / steps
    hardware = undisturbed(hardware)  # a slow link is no third kind of link
    axes = {name: AxisTraffic(name) for name in AXES}
    for run in runs:
        for name, events in by_axis(run.events).items():
            axes[name].add(events, hardware)
    rows = [axis.row(len(runs) * steps, step_seconds, hardware) for axis in axes.values() if axis.calls]
    return sorted(rows, key=lambda row: row["between calls_seconds"])


def by_axis(events: Iterable[tuple]) -> dict[str, list[Event]]:
    """One GPU's messages, collectives and waits for them, by their axis."""
    found: dict[str, list[Event]] = {name: [] for name in AXES}
    for event in of_kinds(events, *TRAFFIC):
        axis = axis_of(event.peer if event.kind == WAIT else event.stream)
        found.get(axis, []).append(event)
    return found


@dataclass
class AxisTraffic:
    """What all GPUs sent along one axis: calls, bytes, seconds under way, seconds of those that were
    waited for."""

    axis: str
    calls: int = 0
    bytes_sent: float = 0.0
    busy_seconds: float = 0.0
    exposed_seconds: float = 0.0
    links: set[Link] = field(default_factory=set)

    def add(self, events: Sequence[Event], hardware: Hardware) -> None:
        """Add one GPU's events along this axis."""
        mine = [event for event in events if event.kind != WAIT]
        waits = union((event.start, event.end) for event in events if event.kind == WAIT)
        spans = union((event.start, event.end) for event in mine)
        sends = [event for event in mine if event.kind == SEND]
        self.calls += calls_in(mine)
        self.bytes_sent += sum(event.bytes for event in sends)
        self.busy_seconds += length(spans)
        self.exposed_seconds += length(spans) - length(minus(spans, waits))
        self.links |= {
            hardware.link(*ends) for ends in {(event.rank, event.peer) for event in sends if event.bytes}
        }

    def row(self, runs: int, step_seconds: float, hardware: Hardware) -> dict[str, Any]:
        inside = hardware.inside in self.links
        return {
            "axis": self.axis,
            "links": "both" if len(self.links) > 1 else "inside" if inside else "across",
            "calls": round(self.calls / runs, 1),
            "sent per call_bytes": self.bytes_sent / self.calls,
            "sent_bytes": self.bytes_sent / runs,
            "between calls_seconds": step_seconds * runs / self.calls,
            "hidden share": 1 - self.exposed_seconds / self.busy_seconds if self.busy_seconds else None,
        }


def calls_in(events: Iterable[Event]) -> int:
    """Collectives, and messages that belong to none."""
    return sum(
        event.kind == COLLECTIVE or (event.kind == SEND and not is_of_collective(event.what))
        for event in events
    )


def is_of_collective(what: Any) -> bool:
    match what:
        case ((str(), int()), _):
            return True
    return False
