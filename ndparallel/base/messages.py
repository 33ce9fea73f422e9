"""Messages between GPUs: their record, the smallest transport, and arrays that are only sizes.

Idea   A transport has two calls: `post(target, message)`, which never waits, and `wait(source, what)`, which
       returns the oldest message of that source with that name.
Cost   none: seconds are the clock's, in gpu.py.
Limit  Mailboxes carries messages between GPUs that one thread drives in turn; engines/ has the others.

Glossary
    size only   an array of one element that is broadcast over a shape: it can be sent and timed, and has no
                content
"""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Message(NamedTuple):
    """An array under way. GPUs pass plain tuples of this shape. `what` names the message; `call` is the
    collective it belongs to, so that a mismatch can name both sides."""

    what: Any
    call: tuple | None
    departed: float
    first_byte: float
    wire_seconds: float
    array: np.ndarray
    release: Callable[[], None] | None = None  # given where the array is only lent by the transport


ARRAY = Message._fields.index("array")  # its place in such a tuple


class Mailboxes:
    """The smallest transport: all GPUs in one process, a queue for every (target, source, what)."""

    def __init__(self) -> None:
        self.boxes: dict[tuple, deque[Message]] = defaultdict(deque)

    def of(self, rank: int) -> "Mailbox":
        return Mailbox(self.boxes, rank)


class Mailbox(NamedTuple):
    boxes: dict[tuple, deque[Message]]
    rank: int

    def post(self, target: int, message: tuple) -> None:
        message = Message(*message)
        self.boxes[target, self.rank, message.what].append(message._replace(array=snapshot(message.array)))

    def wait(self, source: int, what: Any) -> tuple:
        return self.boxes[self.rank, source, what].popleft()


def is_size_only(array: np.ndarray) -> bool:
    """Whether an array is only a size: one element broadcast over a shape, as np.broadcast_to(np.float32(0),
    shape) makes it."""
    return not array.flags.writeable and not any(array.strides)


def snapshot(array: np.ndarray) -> np.ndarray:
    """Copy an array, unless it is only a size and has no content to protect."""
    return array if is_size_only(array) else array.copy()


def unpack(
    array: np.ndarray, release: Callable[[], None] | None, into: np.ndarray | None, combine: Callable | None
) -> np.ndarray:
    """Return the array of a message in memory of the receiver's own: in `into` where it is given, combined
    with what is there where `combine` is. Then `release` gives the transport its memory back."""
    if into is None:
        into = array.copy()
    elif not into.flags.writeable:
        pass  # only a size: no content to write
    elif combine is None:
        into[...] = array
    else:
        combine(into, array, out=into)
    if release is not None:
        release()
    return into
