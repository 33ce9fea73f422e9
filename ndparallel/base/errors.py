"""Errors meant for people: what is wrong, with which values, and what would do instead."""

import argparse
import atexit
import difflib
import gc
import os
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn


class UserError(ValueError):
    """Something that the user can put right. The command line prints its sentence and exits with 2; anything
    else is our bug."""


class Parser(argparse.ArgumentParser):
    """One that raises UserError, and does not print all its options before saying what is wrong with one of
    them."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{in_words(message)} ({self.prog} --help tells what there is).")


def in_words(message: str) -> str:
    """What argparse says of a number, in words that are not Python's."""
    return message.replace("invalid float value:", "not a number:").replace(
        "invalid int value:", "not a whole number:"
    )


def unknown(kind: str, name: str, choices: Iterable[str]) -> UserError:
    """Say that there is no such `kind`, which one is nearest, and which there are."""
    by_lower = {choice.lower(): choice for choice in choices}
    begun = [choice for choice in by_lower if name and choice.startswith(name.lower())]
    near = begun or difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    hint = f" Did you mean {by_lower[near[0]]!r}?" if near else ""
    return UserError(f"unknown {kind} {name!r}.{hint} There are: {', '.join(by_lower.values())}.")


# what a shell says of a program that SIGPIPE ended: `| head` is no mistake, and nothing to complain of
READ_ENOUGH = 141


def guarded(work: Callable[[], int]) -> int:
    """Do `work` and turn the errors meant for people into one sentence and exit code 2."""
    # or Python would look for garbage once more, in memory that is given back anyway
    atexit.register(gc.freeze)
    open_what_is_closed()
    try:
        code = ended(work)
        sys.stdout.flush()  # here, where it can still be said that nobody reads it
        return code
    except BrokenPipeError:
        give_up_output()
        return READ_ENOUGH
    except OSError as error:
        give_up_output()
        return told(
            f"{error.filename!r} cannot be used: {(error.strerror or '').lower()}."
            if error.filename
            else str(error)
        )
    except UserError as error:
        return told(str(error))
    except KeyboardInterrupt:
        return 130


def ended(work: Callable[[], int]) -> int:
    """The exit code of `work`, also where it ends by itself: --help does, and rich where nobody reads on."""
    try:
        return work()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def open_what_is_closed() -> None:
    """Python has None for what the shell has closed (>&-); what is written there goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  for as long as the process lives


def told(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2


def give_up_output() -> None:
    """Let Python not try once more, at its end, to write what could not be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
