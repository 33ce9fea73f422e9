"""Run one collective and measure it: message by message on an engine, or in lockstep on clocks alone.

Idea   Arrays are only sizes, of one byte an element, so a run needs no memory for what it sends, however
       large and however many ranks.
Cost   Some 2 us a message on the inline engine, 0.03 us in lockstep.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from collectives import ALGORITHMS, Group, Member
from gpu import GPU, Hardware
from ndparallel.base.messages import ARRAY
from ndparallel.base.size_only import SizeOnly
from ndparallel.collective.clocks import start_clocks
from ndparallel.collective.lockstep import advance
from ndparallel.collective.prices import closed_form_seconds
from ndparallel.collective.signatures import SIGNATURES
from ndparallel.engines.launch import launch

LOCKSTEP = "lockstep"


@dataclass(frozen=True)
class Measured:
    """The seconds, bytes and messages of one algorithm; a rank's is the most of any rank's. `formula_seconds`
    is None where no closed form holds."""

    algorithm: str
    engine: str
    seconds: float
    formula_seconds: float | None
    bytes_sent_per_rank: int
    messages_per_rank: int
    bytes_sent_total: int


def measure(
    collective: str, algorithm: str, group: Group, hardware: Hardware, nbytes: int, engine: str
) -> Measured:
    """Run a collective of `nbytes` in all, over a group of ranks 0 .. p-1 that start together; `engine` may
    be LOCKSTEP."""
    run = in_lockstep if engine == LOCKSTEP else partial(executed, engine)
    seconds, bytes_sent, messages = run(collective, algorithm, group, hardware, nbytes)
    formula = closed_form_seconds(collective, algorithm, group, hardware, nbytes)
    return Measured(
        algorithm=algorithm,
        engine=engine,
        seconds=float(max(seconds)),
        formula_seconds=None if formula is None else float(formula),
        bytes_sent_per_rank=int(max(bytes_sent)),
        messages_per_rank=int(max(messages)),
        bytes_sent_total=int(sum(bytes_sent)),
    )


def in_lockstep(collective: str, algorithm: str, group: Group, hardware: Hardware, nbytes: int) -> tuple:
    clocks = start_clocks(hardware, group.ranks)
    advance(clocks, collective, algorithm, nbytes)
    return clocks.now, clocks.bytes_sent, clocks.messages


def executed(
    engine: str, collective: str, algorithm: str, group: Group, hardware: Hardware, nbytes: int
) -> tuple:
    results = launch(
        perform, group.size, hardware, collective, algorithm, group, nbytes, engine=engine, keep_events=False
    )
    return tuple(zip(*((result.end_seconds, *result.value) for result in results)))


class Counted:
    """A transport that counts what is sent through it."""

    def __init__(self, transport: Any) -> None:
        self.forward, self.wait = transport.post, transport.wait
        self.bytes_sent = self.messages = 0

    def post(self, target: int, message: tuple) -> None:
        self.bytes_sent += message[ARRAY].nbytes
        self.messages += 1
        self.forward(target, message)


def perform(gpu: GPU, collective: str, algorithm: str, group: Group, nbytes: int) -> tuple[int, int]:
    """The rank program. Returns the bytes and the messages that this rank has sent."""
    gpu.transport = counted = Counted(gpu.transport)
    me, whole = Member(gpu, group, 0), cast(Any, SizeOnly((nbytes,), np.uint8))
    play(me, collective, algorithm, whole, [np.array_split(whole, me.size)[me.index]] * me.size)
    return counted.bytes_sent, counted.messages


def play(me: Member, collective: str, algorithm: str, whole: np.ndarray, arriving: list[np.ndarray]) -> None:
    """Run an algorithm on `whole`, from or to member 0 where it has a root; an all-to-all puts what it gets
    into `arriving`."""
    pieces = np.array_split(whole, me.size)
    signature = SIGNATURES[collective]
    arguments = signature.arguments(0, np.add, whole=[whole], pieces=[pieces], parts=[pieces, arriving])
    ALGORITHMS[collective][algorithm].run(me, *arguments)
