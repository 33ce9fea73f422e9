"""An inbox: messages from one rank to another, in the order in which they were sent.

Idea   Ranks mostly ask for messages in the order in which they were sent, so the first one is looked at
       first.
Cost   Constant for the message sent first; otherwise in proportion to the unread messages of that one sender.
"""

from collections import deque
from collections.abc import Collection
from pickle import HIGHEST_PROTOCOL, PicklingError, dumps
from typing import Any, NoReturn

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.base.quoting import brief

NAMES = (str, int, tuple)  # types of nearly all names, which need no second look


def take(inbox: deque[tuple], what: Any) -> tuple | None:
    """Take the oldest message of that name out, or return None."""
    try:
        if inbox and inbox[0][0] == what:
            return inbox.popleft()
        for index, message in enumerate(inbox):
            if message[0] == what:
                del inbox[index]
                return message
    except ValueError:  # arrays are neither equal nor different
        raise no_name() from None
    return None


def check_awaited(rank: int, source: Any, what: Any, ranks: Collection[int]) -> None:
    """Check what a rank is about to wait for: a message of one of the ranks, by its name."""
    if not hasattr(source, "__index__") or source not in ranks:
        no_such_rank(rank, source, len(ranks))
    if isinstance(what, np.ndarray):
        raise no_name()
    if type(what) not in NAMES:
        pickled_name(what, rank)


def pickled_name(what: Any, rank: int) -> bytes:
    """Pickle the name of a message. Raises TypeError for a function, or what else only this process knows."""
    try:
        return dumps(what, HIGHEST_PROTOCOL)
    except (AttributeError, PicklingError, TypeError):
        raise TypeError(
            f"rank {rank} names a message {brief(what)}, which no other rank can know: take a word, a "
            "number, or a tuple of them."
        ) from None


def no_name() -> TypeError:
    return TypeError(
        "an array is no name of a message: it is gpu.send(target, array, what) and "
        "gpu.receive(source, what, into), where `what` is the name."
    )


def in_a_second_thread(transport: Any) -> NoReturn:
    """Raise UserError in a thread that a rank's program has started, and leave it for the program's end."""
    transport.misuse = UserError(
        f"rank {transport.rank} receives in a second thread: its messages come to the thread that runs its "
        "program, and to no other."
    )
    raise transport.misuse


def no_such_rank(rank: int, other: Any, world_size: int) -> NoReturn:
    named = f"{other}" if hasattr(other, "__index__") else repr(other)
    raise ValueError(
        f"rank {rank} has a message for or from rank {named}, but the ranks are 0 to {world_size - 1}."
    )
