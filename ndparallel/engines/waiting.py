"""Who waits for whom, and when that is a deadlock.

Idea   A rank waits for one other rank at a time, so the waits form chains. A chain that runs into itself, or
       to a rank that has ended, will never move: that is a deadlock, and a fact, not a guess made after a
       while.
Cost   One walk over the ranks that wait.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import dropwhile, takewhile
from types import FrameType
from typing import Any, NamedTuple

import gpu
from gpu import MismatchError
from ndparallel.base.words import count

HERE = os.path.dirname(os.path.abspath(__file__))
FLOORS = os.path.dirname(os.path.abspath(gpu.__file__))
COLLECTIVES = (os.path.join(FLOORS, "collectives.py"), os.path.join(os.path.dirname(HERE), "collective"))
PACKAGE = os.path.dirname(HERE) + os.sep
TRANSPORT = (HERE, os.path.join(FLOORS, "gpu.py"), contextlib.__file__)
MACHINERY = (*TRANSPORT, *COLLECTIVES)
MOST_NAMED = 8  # ranks of a circle, or unread messages of a rank, that a report names


class Waiting(NamedTuple):
    """One rank that waits, in words: `what` for from `source`, at `place` in its program, while `unread`
    messages lie there."""

    rank: int
    source: int
    what: str
    place: str
    unread: list[str]


class Unread(NamedTuple):
    """What a rank has not read when all have ended, in words: each message, its sender and its collective."""

    rank: int
    unread: list[str]


def deadlocked(waits_for: Mapping[int, int], has_ended: Callable[[int], bool]) -> list[int]:
    """Find ranks that will wait for ever: a circle from its lowest rank on, or one that waits for a rank that
    has ended.

    `waits_for` holds the waits to which no message is on its way. Returns an empty list where every chain can
    still move.
    """
    harmless: set[int] = set()
    for start in sorted(waits_for):
        chain: dict[int, None] = {}
        rank = start
        while rank in waits_for and rank not in chain and rank not in harmless:
            chain[rank] = None
            rank = waits_for[rank]
        if rank in chain:
            return _circle(rank, waits_for)
        if chain and has_ended(rank):
            return [list(chain)[-1]]
        harmless.update(chain)
    return []


def _circle(start: int, waits_for: Mapping[int, int]) -> list[int]:
    circle = [start]
    while (rank := waits_for[circle[-1]]) != start:
        circle.append(rank)
    first = circle.index(min(circle))
    return circle[first:] + circle[:first]


def report(waits: list[Waiting]) -> str:
    """Tell a deadlock in words: a circle, or one rank that waits for a rank that has ended."""
    ended = waits[-1].source not in {wait.rank for wait in waits}
    links = [f"in {wait.place}, waits for {wait.what} from rank {wait.source}" for wait in waits]
    if len(links) > MOST_NAMED:
        links[MOST_NAMED - 1 : -1] = [
            f"waits ... and so on through {count(len(links) - MOST_NAMED, 'more rank')}, the last of which"
        ]
    chain = f"rank {waits[0].rank}, " + ", which, ".join(links) + (", which has ended" if ended else "")
    return "\n".join([f"deadlock: {chain}."] + [_unread(wait) for wait in waits[:MOST_NAMED] if wait.unread])


def waiting(
    rank: int, awaits: tuple[int, Any], frame: FrameType | None, inboxes: Mapping[int, Iterable[tuple]]
) -> Waiting:
    """Say what a rank waits for, (source, what), where its frame stands, and what lies unread there, by
    sender: in what order messages of several came is chance."""
    source, what = awaits
    unread = [named(sender, name) for sender, inbox in sorted(inboxes.items()) for name, *_ in inbox]
    return Waiting(rank, source, awaited(what, frame), place(frame), unread)


def unread_in(inboxes: Mapping[int, Iterable[tuple]]) -> list[str]:
    """Name the messages that lie in a rank's inboxes, each with the collective that its sender was in."""
    return [
        named(source, what) + (f", sent in {' '.join(map(str, call))}" if call else "")
        for source, inbox in sorted(inboxes.items())
        for what, call, *_ in inbox
    ]


def nobody_read(unread: Iterable[Unread]) -> MismatchError:
    """Say that all ranks have ended and messages are left: what would hang on real GPUs, or go unnoticed."""
    lines = [_unread(rank) for rank in sorted(unread)[:MOST_NAMED]]
    return MismatchError(
        "all ranks have ended, and not all that was sent has been received: every send needs its receive, "
        "every irecv its wait(), and all ranks of a group have to call the same collectives, with the same "
        "root.\n" + "\n".join(lines)
    )


def _unread(wait: Waiting | Unread) -> str:
    shown = wait.unread[:MOST_NAMED]
    more = f" and {len(wait.unread) - len(shown)} more" if len(wait.unread) > len(shown) else ""
    return f"Rank {wait.rank} has not read: {'; '.join(shown)}{more}."


def named(source: int, what: Any) -> str:
    return f"{gpu.say(what)} from rank {source}"


def awaited(what: Any, frame: FrameType | None) -> str:
    """Name the message that the frame of a rank waits for, and the collective that the rank is in."""
    while frame is not None and frame.f_code is not gpu.GPU.receive.__code__:
        frame = frame.f_back
    call = frame.f_locals["self"].call if frame else None
    return f"{gpu.say(what)}, {' '.join(call[:2])}," if call else gpu.say(what)


def place(frame: FrameType | None) -> str:
    """The line of code that a frame stands on: the first one outside the machinery that carries messages, or
    else of the algorithm of a collective; and where that is the package's own, the line of the rank's program
    that called it."""
    lines = lines_above(frame, is_machinery) or lines_above(frame, is_transport)
    if not lines:
        return "unknown place"
    program = next((each for each in lines if not path_of(each).startswith(PACKAGE)), lines[0])
    return where(lines[0]) + (f", called in {where(program)}" if program is not lines[0] else "")


def lines_above(frame: FrameType | None, is_below: Callable[[FrameType], bool]) -> list[FrameType]:
    """The frames that called what is below, up to the engine that called them."""
    return list(
        takewhile(lambda each: not path_of(each).startswith(HERE), dropwhile(is_below, callers(frame)))
    )


def is_machinery(frame: FrameType) -> bool:
    return path_of(frame).startswith(MACHINERY)


def is_transport(frame: FrameType) -> bool:
    return path_of(frame).startswith(TRANSPORT) or frame.f_code.co_qualname.startswith("Member.")


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, the one that called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def path_of(frame: FrameType) -> str:
    return os.path.abspath(frame.f_code.co_filename)


def where(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
