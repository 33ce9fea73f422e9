"""Events: the trace that every operation of a GPU leaves. Timelines, traces and tables are drawn from events
alone.

Glossary
    COMPUTE      an operation, with its FLOPs and bytes
    SEND         a message, for as long as its sender is busy with it
    RECEIVE      a message, from when its receiver waited and it had left until it was there
    COLLECTIVE   one event that spans the messages of a collective
    WAIT         a stream that waits for work on another, which is its `peer`
    MEMORY       bytes held of one of MEMORY_KINDS from here on: `what` is the kind
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

COMPUTE, SEND, RECEIVE = "compute", "send", "receive"
COLLECTIVE, WAIT, MEMORY = "collective", "wait", "memory"
MEMORY_KINDS = ("weights", "gradients", "optimizer", "activations", "buffers")


class Event(NamedTuple):
    """One event of one GPU, kept as a plain tuple of this shape: times in seconds, and what was moved and
    computed in them."""

    rank: int
    stream: str
    kind: str
    what: Any
    start: float
    end: float
    bytes: float = 0
    flops: float = 0
    peer: Any = None  # the other rank of a message, the ranks of a collective, the stream that was waited for


class RankRun(Protocol):
    """The results of one rank that pictures and tables need."""

    @property
    def rank(self) -> int: ...
    @property
    def events(self) -> Sequence[tuple]: ...
    @property
    def end_seconds(self) -> float: ...
    @property
    def peak_bytes(self) -> Mapping[str, float]: ...


KIND = Event._fields.index("kind")  # its place in such a tuple


def of_kinds(events: Iterable[tuple], *kinds: str) -> list[Event]:
    """Those of plain tuples that are of these kinds, as events."""
    return [Event._make(event) for event in events if event[KIND] in kinds]
