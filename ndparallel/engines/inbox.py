"""An inbox: messages from one rank to another, in the order in which they were sent.

Idea   Ranks mostly ask for messages in the order in which they were sent, so the first one is looked at
       first.
Cost   Constant for the message sent first; otherwise in proportion to the unread messages of that one sender.
"""

from collections import deque
from typing import Any, NoReturn

from ndparallel.base.errors import UserError


def take(inbox: deque[tuple], what: Any) -> tuple | None:
    """Take the oldest message of that name out, or return None."""
    if inbox and inbox[0][0] == what:
        return inbox.popleft()
    for index, message in enumerate(inbox):
        if message[0] == what:
            del inbox[index]
            return message
    return None


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
