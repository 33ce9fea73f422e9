"""What every rank is given, and what it gives back.

Idea   A program travels to another process as (file, function name), so that lessons work under spawn too:
       file names like 1d_data_parallel.py cannot be imported. A module that is already loaded from that file
       is used as it is.
Limit  A program is a function at the top level of a file; its arguments and its value can be pickled.
"""

import inspect
import os
import pickle
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from pathlib import Path
from types import CoroutineType, GeneratorType, ModuleType
from typing import Any, NamedTuple

from gpu import GPU, Handle, Hardware
from ndparallel.base.errors import UserError
from ndparallel.base.functions import load_module
from ndparallel.engines.failures import RankError
from ndparallel.engines.journal import Journal, JournalGPU
from ndparallel.engines.time_limit import limited_to

Program = Callable[..., Any]


class Task(NamedTuple):
    """What every rank calls its program with: `program(gpu, *arguments)`, on a GPU of this hardware that
    keeps its events, and a journal if that is asked for. A program that computes beyond the `limit` of its
    file is ended by TooLong."""

    hardware: Hardware
    arguments: tuple = ()
    keep_events: bool = True
    keep_journal: bool = False
    limit: "Limit | None" = None


class Limit(NamedTuple):
    """How long what is in a file may compute, in each process that runs ranks."""

    cpu_seconds: float
    file: Path


def in_limit(task: Task) -> AbstractContextManager[None]:
    """Raise TooLong where the task's program computes beyond its limit, if it has one."""
    return limited_to(*task.limit) if task.limit else nullcontext()


STAYS_HERE = (CoroutineType, GeneratorType, GPU, Handle, ModuleType)  # what no engine lets a program return


class RankResult(NamedTuple):
    """What one rank leaves behind: its program's value, its events, the time on its latest stream, its memory
    by kind, its journal, which is empty unless it was asked for, and the collectives that it began and did
    not wait for: (group, number, collective, algorithm)."""

    rank: int
    value: Any
    events: list[tuple]
    end_seconds: float
    peak_bytes: dict[str, float]
    held_bytes: dict[str, float]
    journal: Journal = []
    unwaited: Collection[tuple] = ()


class PendingRun:
    """A run that has been begun. `finish` waits for its end, `opened` makes the ranks' results of what that
    returns."""

    def __init__(self, finish: Callable[[], list], opened: Callable[[list], list[RankResult]] = list) -> None:
        self.finish, self.opened = finish, opened
        self.outcome: tuple[list, Exception | None] | None = None

    def settle(self) -> None:
        """Wait for its end; should it have failed, `results` will say so."""
        if self.outcome is None:
            try:
                self.outcome = self.finish(), None
            except Exception as error:
                self.outcome = [], error

    def results(self) -> list[RankResult]:
        """Wait for its end, and return what the ranks leave behind. Raises what has ended it, if that was an
        error."""
        self.settle()
        outcome, error = self.outcome or ([], None)
        if error:
            raise error
        return self.opened(outcome)


def pickled(value: Any) -> bytes:
    """Pickle what ranks are given. Raises UserError for what cannot be copied to them."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise UserError(
            f"the arguments cannot be copied to the ranks ({error}): give what pickle can copy, so no open "
            "files, locks, or functions made by lambda."
        ) from None


def unpickled_result(rank: int, outcome: bytes) -> RankResult:
    """A rank's result. Raises RankError where the value that it returned does not survive the journey."""
    try:
        return pickle.loads(outcome)
    except Exception as error:
        kind = type(error).__name__
        raise RankError(
            rank, kind, f"rank {rank} returned a value that cannot be read again: {kind}: {error}"
        ) from None


def run_rank(rank: int, program: Program, task: Task, transport: Any) -> RankResult:
    make = JournalGPU if task.keep_journal else GPU
    gpu = make(rank, task.hardware, transport, task.keep_events)
    value = program(gpu, *task.arguments)
    if transport.misuse:
        raise transport.misuse
    if isinstance(value, STAYS_HERE):
        raise UserError(cannot_leave(rank, f"it is a {type(value).__name__}"))
    return RankResult(
        rank, value, gpu.events, gpu.end, gpu.peak_bytes, gpu.held_bytes, gpu.journal, gpu.unwaited
    )


def perform(rank: int, reference: "ProgramReference", task: bytes, transport: Any) -> bytes:
    """Run a program on a pickled Task, as this rank. Returns the RankResult, pickled. Raises UserError where
    the program's value cannot be."""
    program = load(reference)  # first: the arguments may be of kinds that its file defines
    given = pickle.loads(task)
    with in_limit(given):
        result = run_rank(rank, program, given, transport)
    try:
        return pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise UserError(cannot_leave(rank, str(error))) from None


def cannot_leave(rank: int, why: str) -> str:
    return (
        f"rank {rank} returned a value that cannot be pickled ({why}): return numbers and arrays, and of a "
        "handle what its wait() returns."
    )


class ProgramReference(NamedTuple):
    """Where a function is found: the file, the name its module goes by, and the function's name in it."""

    file: str
    module: str
    function: str


def reference_to(program: Program) -> ProgramReference:
    """Say where a program is found. Raises UserError for one that another process could not find there."""
    if not inspect.isfunction(program) or "<" in program.__qualname__:
        raise UserError(_cannot_travel(getattr(program, "__qualname__", repr(program))))
    module = sys.modules.get(program.__module__)
    file = os.path.realpath(getattr(module, "__file__", None) or program.__code__.co_filename)
    reference = ProgramReference(file, program.__module__, program.__qualname__)
    here = _loaded(reference)
    if not os.path.isfile(file) or (here and attrgetter(reference.function)(here) is not program):
        raise UserError(_cannot_travel(reference.function))
    return reference


def _cannot_travel(name: str) -> str:
    return (
        f"the program {name} cannot be found by file and name, so no other process can run it:"
        " define it with def at the top level of a file, or choose engine='inline' (--engine inline)."
    )


def load(reference: ProgramReference) -> Program:
    """Find the function that a reference names, and load its file where this process has not yet done so."""
    return attrgetter(reference.function)(_loaded(reference) or _load_file(reference))


def _loaded(reference: ProgramReference) -> ModuleType | None:
    for module in (sys.modules.get(reference.module), *sys.modules.values()):
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if (
            file
            and os.path.basename(file) == os.path.basename(reference.file)
            and os.path.realpath(file) == reference.file
        ):
            return module
    return None


def _load_file(reference: ProgramReference) -> ModuleType:
    stem = os.path.splitext(os.path.basename(reference.file))[0]
    name = stem if reference.module == "__main__" else reference.module
    return load_module(name, reference.file)
