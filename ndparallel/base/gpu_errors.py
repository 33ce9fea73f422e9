"""Errors of a GPU, in sentences: a message that is not the one expected, and memory that is full."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ndparallel.base.quantities import si
from ndparallel.base.quoting import brief


class MismatchError(RuntimeError):
    """Two ranks disagree about the message between them."""


class OutOfMemoryError(RuntimeError):
    """The GPU's memory is full."""


def say(what: Any) -> str:
    """Name a message in words."""
    match what:
        case ((str(group), int(number)), hop):
            return f"hop {hop} of collective {number} of group {group!r}"
        case ("F", int(stage), int(microbatch)):
            return f"activations of microbatch {microbatch} for stage {stage}"
        case ("B", int(stage), int(microbatch)):
            return f"gradients of microbatch {microbatch} for stage {stage}"
    return repr(what) if isinstance(what, str) else f"message {brief(what)}"


def mismatch(
    what: Any,
    receiver: tuple[int, tuple | None, np.ndarray | None],
    sender: tuple[int, tuple | None, np.ndarray],
) -> MismatchError | TypeError:
    """Return the error of a message that sender and receiver take for different things. Each side is its
    rank, the collective it is in, and its array, which the receiver's may not even be."""
    (rank, here, into), (source, there, array) = receiver, sender
    if into is not None and not hasattr(into, "dtype"):
        return TypeError(
            f"rank {rank} receives {say(what)} into {brief(into)}, which is of the type "
            f"{type(into).__name__}: give a numpy array, as np.empty(...) makes it."
        )
    return MismatchError(
        f"rank {rank} and rank {source} disagree about {say(what)}: rank {rank} waits for "
        f"{_described(into, here)}, rank {source} sent {_described(array, there)}."
    )


def not_held(rank: int, kind: str, nbytes: float, held_bytes: float) -> ValueError:
    """Return the error of memory that is freed and not held."""
    return ValueError(
        f"GPU {rank} frees {si(nbytes, 'B')} of {kind}, and holds {si(held_bytes, 'B')}: is something freed "
        "twice?"
    )


def _described(array: np.ndarray | None, call: tuple | None) -> str:
    payload = "it" if array is None else f"{array.dtype}{list(array.shape)}"
    return f"{payload} in {' '.join(map(str, call)) if call else 'a point-to-point message'}"


def out_of_memory(
    rank: int, memory_bytes: float, kind: str, nbytes: float, held_bytes: Mapping[str, float]
) -> OutOfMemoryError:
    """Return the error of `nbytes` more of one kind that do not fit; they are counted in `held_bytes`."""
    whole = sum(held_bytes.values())
    makes = f"{si(whole, 'B')}, {si(whole - memory_bytes, 'B')} too much"
    held = ", ".join(f"{name} {si(size, 'B')}" for name, size in held_bytes.items() if size)
    return OutOfMemoryError(
        f"GPU {rank} has {si(memory_bytes, 'B')} of memory, and ran out of it before the step was done: "
        f"{si(nbytes, 'B')} more of {kind} would make {makes} ({held})"
    )
