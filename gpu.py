"""One GPU: its clock, its memory, and the three things it does: compute, send, receive.

Idea   A GPU here moves real numpy arrays, so its results can be checked, and carries a simulated clock, so
       its seconds are those of the modelled hardware: exact, and the same on every computer.
Cost   compute: max(flops / rate, bytes / memory bandwidth) + one overhead a kernel.
       send: n / bandwidth, and the message arrives latency + n / bandwidth after it left.
Limit  Two streams of one GPU never slow one another, though they share its processor and its links. A stream
       receives messages in the order in which the program asks for them, not in which they arrive.
       `--contention` says by how many seconds both would change a step (ndparallel/contention/).

Glossary
    rank      a GPU's number, from 0 on; every rank runs the same program
    stream    a queue of work with its own clock, as in CUDA: "compute", and one for each group it talks to
    link      the wire between two GPUs, inside a node or across: a latency, and the same bandwidth each way
    what      the name of a message; `receive` takes the oldest message of its source with that name
    handle    work under way on another stream; its result is there after `wait()`, and not before

Run `python gpu.py` for the whole project on one screen. Messages, events and errors: ndparallel/base/.
"""

import ndparallel.base.startup  # noqa: F401  before numpy: one BLAS thread a GPU, and a quiet Ctrl-C

# isort: split
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ndparallel.base.events import COLLECTIVE, COMPUTE, MEMORY, MEMORY_KINDS, RECEIVE, SEND, WAIT, Event
from ndparallel.base.gpu_errors import MismatchError, OutOfMemoryError, mismatch, not_held, out_of_memory, say
from ndparallel.base.memory_kinds import BytesByKind
from ndparallel.base.messages import SENT, Mailboxes, Message, as_rank, is_size_only, sent, snapshot, unpack
from ndparallel.base.operation_prices import price_of
from ndparallel.base.options import tell
from ndparallel.base.quantities import si

__all__ = [
    "COLLECTIVE", "COMPUTE", "MEMORY", "MEMORY_KINDS", "RECEIVE", "SEND", "WAIT", "Event",
    "CLASSROOM", "Hardware", "Link", "Operation", "GPU", "Handle", "Pending", "Stream",
    "Mailboxes", "Message", "MismatchError", "OutOfMemoryError", "is_size_only", "say", "si", "snapshot",
]  # fmt: skip


# ----------------------------------------------------------------------------------------------- the hardware


class Operation(NamedTuple):
    """One operation that a GPU computes, with all that its price depends on. `shape` is (m, n, k) for a
    matmul; `bytes` counts what is read and written."""

    name: str
    kind: str = "elementwise"
    shape: tuple = ()
    dtype: str = "float32"
    flops: float = 0
    bytes: float = 0
    kernels: float = 1


@dataclass(frozen=True)
class Link:
    """The link between two GPUs; each direction has the whole bandwidth."""

    latency_seconds: float
    bandwidth_bytes_per_second: float


@dataclass(frozen=True)
class Hardware:
    """A GPU and its two links. GPUs number 0, 1, ... are packed into nodes of `gpus_per_node`."""

    name: str
    flops_per_second: float  # achieved, not the data sheet's peak
    memory_bandwidth_bytes_per_second: float
    kernel_overhead_seconds: float
    memory_bytes: float
    gpus_per_node: int
    inside: Link
    across: Link
    source: str = ""
    disturbances: Any = None  # what if a GPU or a link were slow? ndparallel/hardware/disturbances.py

    def seconds(self, operation: Operation):
        """Price an operation: the only place that does. Its fields are numbers or numpy arrays alike."""
        computing = operation.flops / self.rate(operation)
        moving = operation.bytes / self.memory_bandwidth_bytes_per_second
        numbers = type(computing) is type(moving) is float
        busy = max(computing, moving) if numbers else np.maximum(computing, moving)
        return busy + operation.kernels * self.kernel_overhead_seconds

    def rate(self, operation: Operation):
        """FLOP/s that this operation achieves."""
        return self.flops_per_second

    def link(self, a: int, b: int) -> Link:
        link = self.inside if a // self.gpus_per_node == b // self.gpus_per_node else self.across
        return self.disturbances.link(a, b, link) if self.disturbances else link


_CLASSROOM_LINK = Link(latency_seconds=0.05, bandwidth_bytes_per_second=4 / 0.01)
CLASSROOM = Hardware(
    name="classroom",
    flops_per_second=10,  # 0.1 s a compute unit; a data unit is one float32 and takes 0.01 s
    memory_bandwidth_bytes_per_second=float("inf"),
    kernel_overhead_seconds=0,
    memory_bytes=1e9,
    gpus_per_node=8,
    inside=_CLASSROOM_LINK,
    across=_CLASSROOM_LINK,
    source="round numbers for the blackboard",
)


# ---------------------------------------------------------------------------------------------------- the GPU


@dataclass(slots=True)
class Stream:
    name: str
    now: float = 0.0
    incoming_free: float = 0.0  # when its incoming line has taken in the last message
    incoming_departed: float = 0.0  # when that message left


@dataclass
class Handle:
    """Work under way on another stream, from `start` to `end`, in seconds. `deliver` writes the result and
    returns it."""

    gpu: "GPU"
    what: Any
    start: float
    end: float
    deliver: Callable[[], Any]
    stream: str = ""
    waited: bool = False

    def __post_init__(self) -> None:
        self.follows = len(self.gpu.journal)  # so many actions, of all streams

    def wait(self) -> Any:
        """Move the current stream to the end of the work, and return its result."""
        if not self.waited:
            self.gpu.wait_for(self)
            self.waited, self.result = True, self.deliver()
        return self.result

    def then(self, action: Callable[[Any], Any]) -> "Handle":
        """Apply `action` to the result as soon as it is waited for."""
        deliver = self.deliver
        self.deliver = lambda: action(deliver())
        return self


class Pending(Handle):
    """An announced receive. The message is looked up only at `wait`."""

    def __init__(self, gpu: "GPU", source: int, what: Any, into: np.ndarray | None, stream: str) -> None:
        self.received: list[np.ndarray] = []
        super().__init__(gpu, what, 0, 0, self.received.pop, stream)
        self.source, self.into = source, into

    def wait(self) -> Any:
        if not self.waited:
            with self.gpu.on(self.stream, waits=False) as line:
                self.received.append(self.gpu.receive(self.source, self.what, self.into))
                self.start, self.end = line.incoming_departed, line.incoming_free
        return super().wait()


class On:
    """A context in which the GPU works on another stream: `with gpu.on(name) as stream`."""

    __slots__ = ("gpu", "stream", "caller")

    def __init__(self, gpu: "GPU", stream: Stream) -> None:
        self.gpu, self.stream, self.caller = gpu, stream, gpu.current

    def __enter__(self) -> Stream:
        self.gpu.current = self.stream
        return self.stream

    def __exit__(self, *exception: object) -> None:
        self.gpu.current = self.caller


@dataclass
class GPU:
    """One simulated GPU. `transport` carries its messages; with `keep_events` off it runs faster and leaves
    no trace."""

    rank: int
    hardware: Hardware
    transport: Any
    keep_events: bool = True
    events: list[tuple] = field(default_factory=list)
    held_bytes: dict[str, float] = field(default_factory=BytesByKind)
    peak_bytes: dict[str, float] = field(default_factory=BytesByKind)
    collectives_started: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    call: tuple | None = None  # the collective that is under way
    unwaited: set[tuple] = field(default_factory=set)  # collectives whose results are not there yet

    def __post_init__(self) -> None:
        self.current = Stream(COMPUTE)
        self.streams = {COMPUTE: self.current}
        self.journal: list = []  # ndparallel/engines/journal.py keeps one
        self._prices: dict[Operation, float] = {}
        self._links: dict[int, Link] = {}
        self._most_bytes: float = 0  # held at once: the sum of `peak_bytes`
        self._slowdown = self.hardware.disturbances and self.hardware.disturbances.slowdown(self.rank)

    # ---- the clock

    @property
    def now(self) -> float:
        """The time on the current stream, in seconds."""
        return self.current.now

    @property
    def end(self) -> float:
        """The time on the latest stream, in seconds."""
        return max(stream.now for stream in self.streams.values())

    def on(self, name: str, waits: bool = True) -> On:
        """Work on another stream, which first waits for the caller's; for collectives and handles, lessons
        never need it."""
        stream = self.streams.get(name) or self.streams.setdefault(name, Stream(name))
        if waits and stream.now < self.current.now:
            stream.now = self.current.now
        return On(self, stream)

    def wait_for(self, handle: Handle) -> None:
        """Let the current stream wait for work on another, which the event names as its peer."""
        now = self.current.now
        if handle.end > now:
            self.record(WAIT, handle.what, max(now, handle.start), handle.end, peer=handle.stream)
            self.current.now = handle.end

    def record(
        self, kind: str, what: Any, start: float, end: float, bytes: float = 0, flops: float = 0, peer=None
    ) -> None:
        if self.keep_events:
            self.events.append((self.rank, self.current.name, kind, what, start, end, bytes, flops, peer))

    # ---- compute, send, receive

    def compute(self, operation: Operation, name: str = "") -> None:
        """Move the current stream on by the operation's price; its event has `name`, or the operation's."""
        stream = self.current
        start = stream.now
        stream.now = end = start + self.seconds(operation)
        if self.keep_events:
            what, nbytes, flops = name or operation.name, operation.bytes, operation.flops
            self.events.append((self.rank, stream.name, COMPUTE, what, start, end, nbytes, flops, None))

    def seconds(self, operation: Operation) -> float:
        """Price an operation on this GPU, which may be slow."""
        try:
            seconds = self._prices[operation]
        except (KeyError, TypeError):  # a new one, or one that no dictionary takes
            seconds = self._prices[operation] = price_of(self.rank, operation, self.hardware)
        return seconds * self._slowdown(self.current.name) if self._slowdown else seconds

    def send(self, target: int, array: np.ndarray, what: Any) -> None:
        """Send a copy of the array as it is now. The current stream is busy for n / bandwidth; nobody waits
        for the receiver."""
        if type(array) not in SENT:
            array = sent(self.rank, array, what)
        link = self._links.get(target) or self._find_link(target)
        stream, nbytes = self.current, array.nbytes
        start = stream.now
        wire_seconds = nbytes / link.bandwidth_bytes_per_second
        stream.now = end = start + wire_seconds
        message = (what, self.call, start, start + link.latency_seconds, wire_seconds, array, None)
        self.transport.post(target, message)
        if self.keep_events:
            self.events.append((self.rank, stream.name, SEND, what, start, end, nbytes, 0, target))

    def receive(
        self, source: int, what: Any, into: np.ndarray | None = None, combine: Callable | None = None
    ) -> np.ndarray:
        """Wait for the message `what` of `source` and return its array.

        With `into`, of its shape and dtype, it is written there; with `combine` (np.add, np.maximum) too it
        is combined with what is there, free of charge. Raises MismatchError where sender and receiver name
        different operations, shapes or dtypes."""
        _, call, departed, first_byte, wire_seconds, array, release = self.transport.wait(source, what)
        expected = array if into is None else into  # sizes alone are one array on both sides
        if (call is not self.call and call != self.call) or (
            expected is not array
            and (array.shape != getattr(expected, "shape", None) or array.dtype != expected.dtype)
        ):
            raise mismatch(what, (self.rank, self.call, into), (source, call, array))
        stream = self.current
        free, now = stream.incoming_free, stream.now
        stream.incoming_departed = departed
        stream.incoming_free = done = (first_byte if first_byte > free else free) + wire_seconds
        if done > now:
            stream.now = done
        if self.keep_events:
            start, end = departed if departed > now else now, stream.now
            start = start if start < end else end
            self.events.append((self.rank, stream.name, RECEIVE, what, start, end, array.nbytes, 0, source))
        if expected is array and release is None and (combine is None or into is not None):
            return array
        return unpack(array, release, into, combine)

    def isend(self, target: int, array: np.ndarray, what: Any, stream: str = "p2p") -> Handle:
        """Send on another stream; the handle's wait waits until the array has left."""
        with self.on(stream) as other:
            start = other.now
            self.send(target, array, what)
        return Handle(self, what, start, other.now, lambda: None, stream)

    def irecv(self, source: int, what: Any, into: np.ndarray | None = None, stream: str = "p2p") -> Handle:
        """Announce a receive on another stream; the handle's wait returns the array."""
        return Pending(self, source, what, into, stream)

    def _find_link(self, target: int) -> Link:
        return self._links.setdefault(target, self.hardware.link(self.rank, as_rank(self.rank, target)))

    # ---- memory

    def allocate(self, kind: str, nbytes: float) -> None:
        """Count memory of one of MEMORY_KINDS. Raises OutOfMemoryError, with the breakdown, where it does not
        fit."""
        self.held_bytes[kind] += nbytes
        total = sum(self.held_bytes.values())
        if not total <= self.hardware.memory_bytes:  # nor is NaN
            raise out_of_memory(self.rank, self.hardware.memory_bytes, kind, nbytes, self.held_bytes)
        if total > self._most_bytes:
            self.peak_bytes, self._most_bytes = dict(self.held_bytes), total
        self.record(MEMORY, kind, self.now, self.now, self.held_bytes[kind])

    def free(self, kind: str, nbytes: float) -> None:
        self.held_bytes[kind] -= nbytes
        if self.held_bytes[kind] < 0:
            raise not_held(self.rank, kind, nbytes, self.held_bytes[kind] + nbytes)
        self.record(MEMORY, kind, self.now, self.now, self.held_bytes[kind])


# ---------------------------------------------------------------------------------------------- demonstration


def demonstration() -> dict[str, float]:
    """Train 16 items of 20 units on one GPU, then on four that must sum 500 units: seconds by name."""
    one = GPU(0, CLASSROOM, Mailboxes().of(0))
    one.compute(Operation("16 items of 20 units", flops=16 * 20))
    return {
        "one GPU": one.now,
        "four GPUs, sum passed on whole": four_gpus(pass_on_whole),
        "four GPUs, ring": four_gpus(ring),
    }


def four_gpus(all_reduce: Callable[[list[GPU], list[np.ndarray]], None]) -> float:
    boxes = Mailboxes()
    gpus = [GPU(rank, CLASSROOM, boxes.of(rank)) for rank in range(4)]
    gradients = [np.full(500, rank + 1, np.float32) for rank in range(4)]
    for gpu in gpus:
        gpu.compute(Operation("4 items of 20 units", flops=4 * 20))
    all_reduce(gpus, gradients)
    assert all((gradient == 1 + 2 + 3 + 4).all() for gradient in gradients)
    return max(gpu.now for gpu in gpus)


def pass_on_whole(gpus: list[GPU], gradients: list[np.ndarray]) -> None:
    """Three hops add up the sum, three more hand it on, and one GPU talks at a time."""
    for hop, (here, there) in enumerate([(0, 1), (1, 2), (2, 3), (3, 0), (0, 1), (1, 2)]):
        gpus[here].send(there, gradients[here], hop)
        gpus[there].receive(here, hop, into=gradients[there], combine=np.add if hop < 3 else None)


def ring(gpus: list[GPU], gradients: list[np.ndarray]) -> None:
    """Every GPU sends a quarter to its right at every hop: three hops to sum, three to hand the sums on."""
    quarters = [np.split(gradient, 4) for gradient in gradients]
    for hop in range(6):
        for gpu in gpus:
            gpu.send((gpu.rank + 1) % 4, quarters[gpu.rank][(gpu.rank - hop) % 4], hop)
        for gpu in gpus:
            quarter = quarters[gpu.rank][(gpu.rank - hop - 1) % 4]
            gpu.receive((gpu.rank - 1) % 4, hop, into=quarter, combine=np.add if hop < 3 else None)


def story() -> str:
    seconds = demonstration()
    rows = (f"{name:<32} {its:5.1f} s   {seconds['one GPU'] / its:.2f}x\n" for name, its in seconds.items())
    return (
        "16 items of 20 units, gradients of 500 units;\n"
        "0.1 s a compute unit, 0.05 s latency, 0.01 s a data unit\n\n"
        f"{''.join(rows)}\n"
        "Four GPUs are slower than one until they share the talking:\n"
        "all four links of the ring are busy at once.\n"
    )


if __name__ == "__main__":
    raise SystemExit(tell("gpu.py", __doc__, story))
