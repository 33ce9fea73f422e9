"""Grading: the answer runs in a process of its own, with limits, beside the model solution.

Idea   Whatever the reader's file does, the grader survives it and can say what happened: a loop without
       end is ended, and its line named; a full memory and a dead process are sentences. What the file has
       started ends with it.
Limit  Where the system cannot fork (Windows, macOS) the file runs in a fresh process, which takes longer to
       start and may fill the memory; on Windows what it has started lives on. A call that does not come back
       to Python is ended with its process, without its line.
"""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ndparallel.base.quoting import shortened
from ndparallel.base.words import ended
from ndparallel.engines.failures import DeadlockError, RankError, error_message
from ndparallel.engines.system import end_with_parent
from ndparallel.engines.time_limit import TooLong, limited_to
from ndparallel.exercises.answer import (
    TOLD,
    Answer,
    ModelAnswer,
    NotBegun,
    NothingChanged,
    ReadersAnswer,
    last_line,
)
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.verdict import NOT_BEGUN, WRONG, Verdict, judge

CPU_SECONDS = 10  # of the answer
WALL_SECONDS = 60  # of the whole: an answer may sleep, and the machine may be busy
MEMORY_BYTES = 4 * 2**30  # more than the grader has
STATM = Path("/proc/self/statm")  # pages that this process has
CAN_FORK = sys.platform == "linux"
LEFT = "The answer ended Python itself (sys.exit, os._exit): return from the function instead."


def grade(exercise: Exercise, path: Path, quiet: bool = False) -> Verdict:
    """Run the answer in a file and hold it against par. With `quiet`, what it prints goes to standard
    error. Raises UserError where the file cannot be read."""
    context: Any = multiprocessing.get_context("fork" if CAN_FORK else "spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=answer_to, args=(theirs, exercise.file, path, quiet), daemon=True)
    process.start()
    theirs.close()
    try:
        outcome = ours.recv() if ours.poll(WALL_SECONDS) else None
    except EOFError:
        process.join(WALL_SECONDS)
        return wrong(exercise, ended_words(process.exitcode))
    finally:
        end_all(process)
        ours.close()
    if outcome is None:
        return wrong(
            exercise,
            f"{path} was still running after {WALL_SECONDS} s, and was ended. Does it sleep, or does a loop "
            "not end?",
        )
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def end_all(process: Any) -> None:
    """End the answer's process, and all that its file has started."""
    process.kill()
    with suppress(AttributeError, ProcessLookupError):  # Windows has no sessions; or it began none yet
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def answer_to(connection: Connection, file: str, path: Path, quiet: bool) -> None:
    """Grade in this process, and send the verdict, or what kept it from one."""
    from ndparallel.exercises.catalog import load_file

    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is the grader's to handle
    end_with_parent(os.getppid())
    limit_memory()
    sys.stdin = open(os.devnull)  # noqa: SIM115  for as long as the process lives
    if quiet:
        sys.stdout = sys.stderr
    try:
        exercise, process = load_file(Path(file)), os.getpid()
        verdict = graded(exercise, path, lambda: ReadersAnswer(path, exercise), par_of(exercise))
        if os.getpid() == process:  # and no copy that the answer has forked
            connection.send(replace(verdict, sentences=tuple(map(shortened, verdict.sentences))))
    except Exception as error:
        error.add_note(traceback.format_exc())
        connection.send(error)


def par_of(exercise: Exercise) -> Attempt:
    return exercise.attempt(ModelAnswer(exercise.asks))


def graded(exercise: Exercise, path: Path, answer: Callable[[], Answer], par: Attempt) -> Verdict:
    """Run the answer, whose lines are in the file `path`, and judge it."""
    try:
        yours = limited(lambda: exercise.attempt(answer()), path)
    except NotBegun as nothing:
        hangs = isinstance(nothing, NothingChanged) and hangs_by(exercise, path)
        return Verdict(exercise.name, NOT_BEGUN, (str(nothing), *(hangs or ())), par=par.figures)
    except RankError as error:
        if error.kind == SystemExit.__name__:
            return wrong(exercise, LEFT)
        return wrong(exercise, unusable(str(error).strip().splitlines()[-1]))
    except TOLD as error:
        return replace(wrong(exercise, str(error)), par=par.figures)
    except MemoryError:
        return wrong(
            exercise, "The answer used up the memory that it may have. Does a list grow without end?"
        )
    except SystemExit:
        return wrong(exercise, LEFT)
    except BaseException as error:
        raised = ": ".join(filter(None, (type(error).__name__, error_message(error))))
        place = last_line(error, path)
        return wrong(exercise, f"{raised} ({place})" if place else unusable(raised))
    return judge(exercise, yours, par)


def hangs_by(exercise: Exercise, path: Path) -> tuple[str, ...]:
    """Say why the file hangs that the reader was given, where it does: then this is the task."""
    try:
        limited(lambda: exercise.attempt(ReadersAnswer(path, exercise, even_unchanged=True)), path)
    except DeadlockError as error:
        return (str(error),)
    except Exception:  # what else it does the reader has not asked yet
        return ()
    return ()


def unusable(raised: str) -> str:
    """Say what was raised outside the reader's file, where the model solution's values do no harm."""
    return f"What the answer returned cannot be used ({raised})."


def limited(run: Callable[[], Attempt], path: Path) -> Attempt:
    """Run with a limit of CPU seconds."""
    try:
        with limited_to(CPU_SECONDS, path):
            return run()
    except TooLong as error:
        place = last_line(error, path)
        where = f" in {place.partition(':')[0]} of {path}" if place else ""
        return Attempt(
            wrong=f"Still computing after {CPU_SECONDS} s, so it was ended{where}. Does a loop end?"
        )


def limit_memory() -> None:
    """Limit the memory of this process, for as long as it lives."""
    if not STATM.exists():  # no Linux
        return
    import resource  # which Windows has not

    held = int(STATM.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES, resource.RLIM_INFINITY))


def wrong(exercise: Exercise, sentence: str) -> Verdict:
    return Verdict(exercise.name, WRONG, (ended(sentence),))


def ended_words(exit_code: int | None) -> str:
    """Say how a process ended that left no verdict."""
    if exit_code is not None and exit_code < 0:
        return f"The answer's process was ended by {signal.Signals(-exit_code).name}: was its memory full?"
    return LEFT
