"""Three networks for the same messages: the first clock's, one that takes messages in as they arrive, and
one whose ports are shared.

Idea   A message ends twice: it is `sent`, and its sender goes on; it has `arrived`, and its receiver does. A
       network says when.
           ProgramOrder   that of gpu.py. Every stream has an outgoing and an incoming line of its own; the
                          incoming line takes one message after another, as the program receives them
           ArrivalOrder   the same lines, which take messages in the order in which they arrive
           SharedPorts    a GPU has a port to its node and one to other nodes. All messages that leave by
                          a port at the same time share its bandwidth, and so do all that come in; one that
                          gets less keeps its sender busy for longer
Cost   SharedPorts finds rates again wherever a message begins or ends, for all messages that share a port
       with it, or with one that does, and so on.
Limit  Rates change at once, and are fair to messages, not to GPUs. A byte uses both ports at the same time,
       and arrives the latency later. Between the ports nothing is oversubscribed.

Glossary
    limit     what messages share: a port in one direction, or the link between two GPUs, which may be slow
    max-min   fair rates: none could be higher without making one lower that is not higher than it. D.
              Bertsekas, R. Gallager, Data Networks, 2nd edition 1992, section 6.5.2, has this algorithm
    slowed    a message that at some time did not have the whole bandwidth of its link
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpu import Hardware, Link
from ndparallel.contention.agenda import Agenda, Moment

LAST = NEVER = float("inf")
Line = tuple[int, str]  # a rank's stream
Receives = Mapping[Line, Sequence[int]]


@dataclass(eq=False)
class Flow:
    """A message under way since `start`, to the stream `line` of its target, which receives it by the action
    number `entry` of its journal."""

    source: int
    line: Line
    entry: int
    bytes: float
    link: Link
    start: float
    sent: Moment
    arrived: Moment
    what: Any = None  # its name in the journal

    def __post_init__(self) -> None:
        self.target, _ = self.line
        self.first_byte = self.start + self.link.latency_seconds
        self.wire_seconds = self.bytes / self.link.bandwidth_bytes_per_second


# -------------------------------------------------------------------------------------- lines of every stream


class ProgramOrder:
    """`receives` has the actions of every stream that receive something, in the program's order."""

    def __init__(self, agenda: Agenda, hardware: Hardware, receives: Receives) -> None:
        self.agenda, self.expected = agenda, {line: deque(entries) for line, entries in receives.items()}
        self.line_free: dict[Line, float] = defaultdict(float)
        self.there: dict[tuple[int, int], Flow] = {}  # by target and entry

    def send(self, flow: Flow) -> None:
        self.agenda.at(flow.start + flow.wire_seconds, flow.sent.come)
        self.take(flow)

    def take(self, flow: Flow) -> None:
        """Take in all messages whose turn it is."""
        expected = self.expected[flow.line]
        self.there[flow.target, flow.entry] = flow
        while expected and (message := self.there.pop((flow.target, expected[0]), None)):
            expected.popleft()
            self.take_in(message)

    def take_in(self, flow: Flow) -> None:
        """Let the message follow on its line those that were taken in before."""
        done = self.line_free[flow.line] = max(self.line_free[flow.line], flow.first_byte) + flow.wire_seconds
        self.agenda.at(done, flow.arrived.come)


class ArrivalOrder(ProgramOrder):
    def take(self, flow: Flow) -> None:
        """Take a message in when its first byte is there; of several at once, the one that the program
        receives first."""
        self.agenda.at(flow.first_byte, partial(self.take_in, flow), order=flow.entry)


# ----------------------------------------------------------------------------------------------- shared ports


@dataclass(eq=False)
class Transfer:
    """A message on its way through shared ports: since `since`, when `left` bytes were to go, it has gone at
    `rate` bytes a second."""

    flow: Flow
    limits: dict[Hashable, float]
    left: float
    since: float
    rate: float = 0.0
    slowed: bool = False

    def change(self, now: float, rate: float) -> None:
        """Go on at another rate. A message that is never slowed ends when the first clock says, to the last
        digit."""
        flow = self.flow
        self.left = max(self.left - self.rate * (now - self.since), 0.0)
        self.since, self.rate = now, rate
        self.slowed |= rate < flow.link.bandwidth_bytes_per_second
        if self.slowed:
            self.end = now + self.left / rate
            self.arrival = self.end + flow.link.latency_seconds
        else:
            self.end = flow.start + flow.wire_seconds
            self.arrival = flow.first_byte + flow.wire_seconds


class SharedPorts:
    def __init__(self, agenda: Agenda, hardware: Hardware, receives: Receives) -> None:
        self.agenda, self.hardware = agenda, hardware
        self.users: dict[Hashable, dict[Transfer, None]] = defaultdict(dict)  # of each limit
        self.changed: dict[Hashable, float] = {}  # limits that have another number of users now

    def send(self, flow: Flow) -> None:
        transfer = Transfer(flow, self.limits(flow), flow.bytes, flow.start)
        for limit in transfer.limits:
            self.users[limit][transfer] = None
        self.divide_soon(transfer)

    def limits(self, flow: Flow) -> dict[Hashable, float]:
        """The sender's port, the receiver's, and the link between them, each with its bytes a second."""
        per_node = self.hardware.gpus_per_node
        is_inside = flow.source // per_node == flow.target // per_node
        port = self.hardware.inside if is_inside else self.hardware.across
        return {
            ("out", is_inside, flow.source): port.bandwidth_bytes_per_second,
            ("in", is_inside, flow.target): port.bandwidth_bytes_per_second,
            (flow.source, flow.target): flow.link.bandwidth_bytes_per_second,
        }

    def divide_soon(self, transfer: Transfer) -> None:
        """Divide again what this message uses, once all is known that begins and ends at this time."""
        if not self.changed:
            self.agenda.at(self.agenda.now, self.divide, order=LAST)
        self.changed |= transfer.limits

    def divide(self) -> None:
        transfers = self.connected(self.changed)
        self.changed = {}
        for transfer, rate in max_min_rates(transfers).items():
            if rate != transfer.rate:
                transfer.change(self.agenda.now, rate)
                self.agenda.at(transfer.end, partial(self.finish, transfer, transfer.end))

    def connected(self, limits: Iterable[Hashable]) -> list[Transfer]:
        """All that use one of these limits, or a limit of one that does, and so on."""
        found: dict[Transfer, None] = {}
        reached = list(limits)
        seen = set(reached)
        for limit in reached:
            for transfer in self.users[limit]:
                found[transfer] = None
                new = [other for other in transfer.limits if other not in seen]
                reached += new
                seen.update(new)
        return list(found)

    def finish(self, transfer: Transfer, expected: float) -> None:
        """End a message, unless its end has moved since."""
        if transfer.end != expected:
            return
        transfer.end = NEVER  # another appointment may have been made for this very time
        for limit in transfer.limits:
            del self.users[limit][transfer]
        self.divide_soon(transfer)
        self.agenda.at(transfer.arrival, transfer.flow.arrived.come)
        transfer.flow.sent.come()


def max_min_rates(transfers: Iterable[Transfer]) -> dict[Transfer, float]:
    """Divide bandwidth fairly: the limit that has least for each of its users gives them equal parts; what
    they leave of other limits is divided in the same way among the rest."""
    users: dict[Hashable, dict[Transfer, None]] = defaultdict(dict)
    left: dict[Hashable, float] = {}
    for transfer in transfers:
        left |= transfer.limits
        for limit in transfer.limits:
            users[limit][transfer] = None
    rates: dict[Transfer, float] = {}
    while users:
        scarcest = min(users, key=lambda limit: left[limit] / len(users[limit]))
        rate = left[scarcest] / len(users[scarcest])
        for transfer in [*users[scarcest]]:
            rates[transfer] = rate
            for limit in transfer.limits:
                left[limit] -= rate
                del users[limit][transfer]
                if not users[limit]:
                    del users[limit]
    return rates
