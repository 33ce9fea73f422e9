"""Errors meant for people: what is wrong, with which values, and what would do instead."""

import atexit
import codecs
import gc
import io
import os
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ndparallel.base.quoting import MOST_SHOWN, brief, visible, without_long_words
from ndparallel.base.startup import INTERRUPTED
from ndparallel.base.words import WIDTH, listed, paragraph


class UserError(ValueError):
    """An error that the user can correct. The command line prints its sentence and exits with 2; every
    other exception is a bug."""


MANY = 20  # choices that nobody reads through where the nearest are named


class RunEnded(RuntimeError):
    """Something outside the program has ended a run: a signal, or no memory. The command line prints its
    sentence and exits with 1."""


def unknown(kind: str, name: str, choices: Iterable[str], listed_by: str = "") -> UserError:
    """Return a UserError that names the unknown value, the choices that begin with it or else its nearest
    neighbour, and all choices, of which some have commas of their own. Of many choices the nearest three will
    do; where a command lists all, `listed_by`, it is named, and they are never listed here."""
    import difflib  # for what is misspelled alone

    by_lower = {choice.lower(): choice for choice in choices}
    begun = [choice for choice in by_lower if name and choice.startswith(name.lower())]
    are_many = len(by_lower) > MANY or bool(listed_by)
    most = 3 if are_many else 1
    near = begun or difflib.get_close_matches(name[:MOST_SHOWN].lower(), by_lower, n=most)
    hint = f" Did you mean {listed([repr(by_lower[choice]) for choice in near], 'or')}?" if near else ""
    comma = ";" if any("," in choice for choice in by_lower) else ","
    there_are = f"There are: {f'{comma} '.join(by_lower.values())}."
    if near and are_many:
        there_are = f"There are {len(by_lower)}."
    listing = f"{listed_by} lists all {len(by_lower)}." if listed_by else there_are
    return UserError(f"unknown {kind} {brief(name)}.{hint} {listing}")


def check_known(kind: str, name: object, choices: Collection[str]) -> None:
    """Raise UserError, in the words of `unknown`, for a name that is none of the choices."""
    if name not in choices:
        raise unknown(kind, str(name), choices)


def refusal_of(work: Callable[..., object], *given: Any) -> str:
    """Say what a call raises UserError for; "" where it raises none."""
    try:
        work(*given)
    except UserError as error:
        return str(error)
    return ""


def find_choice(kind: str, name: str, choices: Collection[str]) -> str:
    """Return the choice of that name, in whatever case it is written. Raises UserError where none has it."""
    by_lower = {choice.lower(): choice for choice in choices}
    if name.lower() not in by_lower:
        raise unknown(kind, name, choices)
    return by_lower[name.lower()]


def check_whole(name: str, value: object, least: int = 1, words: str = "it must be") -> None:
    """Raise UserError for what is no whole number of at least so much. `words` say what it is, for those
    below."""
    if reason := fault_of_whole(name, value, least, words):
        raise UserError(reason)


def fault_of_whole(name: str, value: Any, least: int = 1, words: str = "it must be") -> str:
    """Say what is wrong with what should be a whole number of at least so much; "" of one that is."""
    if not hasattr(value, "__index__"):
        return f"{name} is {brief(value)}; it must be a whole number."
    return f"{name} is {value}; {words} at least {least}." if value < least else ""


# what a shell says of a program that SIGPIPE ended: `| head` is no mistake, and nothing to complain of
READ_ENOUGH = 141
PLAIN = dict(zip("─│·→←…▁▂▃▄▅▆▇█", "-|.><.12345678"))


def guarded(work: Callable[[], int | None]) -> int:
    """Run `work` and return its exit code, 0 where it names none; print a UserError as one sentence and
    return 2."""
    # or Python would look for garbage once more, in memory that is given back anyway
    atexit.register(gc.freeze)
    open_what_is_closed()
    write_what_cannot_be_encoded()
    try:
        code = ended(work)
        sys.stdout.flush()  # here, where it can still be said that nobody reads it
        return code
    except BrokenPipeError:
        give_up_output()
        return READ_ENOUGH
    except OSError as error:
        give_up_output()
        return print_error(
            f"{error.filename!r} cannot be used: {(error.strerror or '').lower()}."
            if error.filename
            else f"{error.strerror or error}."
        )
    except UserError as error:
        return print_error(str(error))
    except RunEnded as error:
        return print_error(str(error), code=1)
    except MemoryError as error:
        return print_error(
            f"no memory is left{f': {error}' if str(error) else ''}.".replace("..", "."), code=1
        )
    except KeyboardInterrupt:
        return INTERRUPTED


def ended(work: Callable[[], int | None]) -> int:
    """Return the exit code of `work`, also where it raises SystemExit, as --help does."""
    try:
        return work() or 0
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def open_what_is_closed() -> None:
    """Give Python somewhere to write where the shell closed standard output or error (>&-)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  for as long as the process lives


def write_what_cannot_be_encoded() -> None:
    """Let plain characters stand for what a Latin-1 or ASCII terminal, or a pipe on Windows, does not have:
    digits for pictures' blocks."""
    codecs.register_error("plainly", plainly)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="plainly")


def plainly(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for that which cannot be encoded, and where to go on, as `codecs` asks for it."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(each, "?") for each in error.object[error.start : error.end]), error.end


def print_error(sentence: str, code: int = 2) -> int:
    print(fitted(f"error: {visible(without_long_words(sentence))}"), file=sys.stderr)
    return code


def fitted(message: str) -> str:
    """Break a message into lines for a terminal; in a file or a pipe it stays one line."""
    if not sys.stderr.isatty():
        return message
    from shutil import get_terminal_size

    return paragraph(message, min(get_terminal_size((WIDTH, 24)).columns, WIDTH))


def give_up_output() -> None:
    """Keep Python from writing the rest of the output once more when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
