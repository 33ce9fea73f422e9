"""How a run fails, told to the user once: which rank, what happened, and where.

Glossary
    failure   what a rank's program raised, in words, so that it can travel between processes
    kept      kinds of error that a caller may want to tell apart; they are raised again as what they were
"""

import errno
import os
import signal
import traceback
from typing import NamedTuple

from gpu import MismatchError, OutOfMemoryError
from ndparallel.base.errors import RunEnded, UserError


class DeadlockError(RuntimeError):
    """Ranks wait for messages that nobody will ever send."""


class RankError(RuntimeError):
    """A rank failed. `kind` is the name of what it raised, or of the signal that killed it; `said` is what it
    raised in one line."""

    def __init__(self, rank: int, kind: str, text: str, said: str = "") -> None:
        super().__init__(text)
        self.rank, self.kind, self.said = rank, kind, said


class RankKilled(RankError, RunEnded):
    """A rank's process ended without a word."""


KEPT = {kind.__name__: kind for kind in (OutOfMemoryError, MismatchError, DeadlockError, UserError, RunEnded)}
PATIENCE_SECONDS = 10  # after a failure, with ranks that neither fail, end nor wait
HERE = os.path.dirname(os.path.abspath(__file__))


class Failure(NamedTuple):
    rank: int
    kind: str
    kept: str | None
    message: str
    said: str
    traceback: str

    def error(self) -> Exception:
        """The exception that tells the user: a kept kind as itself, with a note, and anything else as a
        RankError."""
        if self.kept is None:
            text = f"rank {self.rank} raised {self.kind}\n\n{self.traceback}"
            return RankError(self.rank, self.kind, text, self.said)
        error = KEPT[self.kept](self.message)
        error.add_note(f"raised in rank {self.rank}:\n{self.traceback}")
        return error


def failure_of(rank: int, error: BaseException) -> Failure:
    kept = next((name for name, kind in KEPT.items() if isinstance(error, kind)), None)
    message = error_message(error)
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        kept = RunEnded.__name__
        message = f"rank {rank} found no memory ({message.rstrip('.')}), and the other ranks were ended."
    said = " ".join("".join(traceback.format_exception_only(error)).split())
    return Failure(rank, type(error).__name__, kept, message, said, _program_traceback(error))


def killed(rank: int, exit_code: int | None, hint: str = "") -> RankKilled:
    """Say how a rank's process ended that ended without a word. A negative exit code is the number of a
    signal."""
    if exit_code is not None and exit_code < 0:
        name = signal.Signals(-exit_code).name
        return RankKilled(rank, name, f"rank {rank} was killed by {name}, and the other ranks were ended.")
    return RankKilled(
        rank,
        "exit",
        f"rank {rank} left with exit code {exit_code} in mid-program, and the other ranks were ended.{hint}",
    )


def error_message(error: BaseException) -> str:
    """What an error says, also where saying it fails."""
    try:
        return str(error)
    except Exception as second:
        return f"an error that cannot be told: {type(second).__name__}"


def _program_traceback(error: BaseException) -> str:
    """The traceback from the program's own first line on."""
    trace = error.__traceback__
    while trace and trace.tb_next and trace.tb_frame.f_code.co_filename.startswith(HERE):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))
