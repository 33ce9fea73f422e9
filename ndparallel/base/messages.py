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

from ndparallel.base.gpu_errors import say


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
UFUNC = np.ufunc  # which can write into its first argument
SENT: set[type] = {np.ndarray}  # kinds of arrays that can be sent; others enter at their first message


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


def sent(rank: int, array: Any, what: Any) -> np.ndarray:
    """Return what a rank sends: one of numpy's numbers as an array. Raises TypeError for what is no array, or
    has more than a message carries."""
    if isinstance(array, np.generic):
        return np.asarray(array)
    if not hasattr(array, "strides") or isinstance(array, np.ma.MaskedArray | np.matrix):
        raise TypeError(
            f"rank {rank} sends {say(what)}, which is of the type {type(array).__name__}: send a numpy "
            "array, as np.array(...) makes it."
        )
    SENT.add(type(array))
    return array


def as_rank(rank: int, target: Any) -> int:
    """Return the rank that another one sends to. Raises TypeError for what is no whole number."""
    if not hasattr(target, "__index__"):
        raise TypeError(f"rank {rank} sends to {target!r}: a rank is a whole number, from 0 on.")
    return target


def snapshot(array: np.ndarray) -> np.ndarray:
    """Copy an array, unless it is only a size and has no content to protect."""
    return array if is_size_only(array) else copied(array)


def copied(array: np.ndarray) -> np.ndarray:
    """Copy an array that is sent. Raises TypeError for one of Python objects, which no link can carry."""
    if array.dtype.hasobject:
        raise holds_objects(array.dtype)
    return array.copy()


def holds_objects(dtype: np.dtype) -> TypeError:
    return TypeError(f"arrays of dtype {dtype} cannot be sent: they hold Python objects.")


def unpack(
    array: np.ndarray, release: Callable[[], None] | None, into: np.ndarray | None, combine: Callable | None
) -> np.ndarray:
    """Return the array of a message in memory of the receiver's own: in `into` where it is given, combined
    with what is there where `combine` is, np.add or another function of two arrays. Then `release` gives the
    transport its memory back. Raises ValueError where the message could not be written, or combined with
    anything."""
    if into is None:
        if combine is not None:
            raise ValueError("`combine` has nothing to combine a message with: give an array as `into`.")
        into = array.copy()
    elif not into.flags.writeable:
        if into.size > 1 and not is_size_only(into):  # a size has no content to write
            raise ValueError("a message cannot be written into `into`: that array is read-only.")
    elif combine is None:
        into[...] = array
    elif type(combine) is UFUNC:
        combine(into, array, out=into)
    elif not callable(combine):
        raise TypeError(f"`combine` is {combine!r}: give a function of two arrays, as np.add.")
    else:
        into[...] = combine(into, array)
    if release is not None:
        release()
    return into
