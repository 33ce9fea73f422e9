"""Run one program on many ranks and collect what each leaves behind.

Idea   `launch(program, 4, hardware, *arguments)` calls `program(gpu, *arguments)` once per rank, on the
       engine of your choice, and returns a RankResult of each: the value it returned, its events, its clock,
       its memory.
Limit  `Ranks` keeps its processes between runs of the same size; a run that failed ends them, and the next
       one starts new ones.
"""

import argparse
import inspect
import sys
from collections.abc import Sequence
from typing import Any

from gpu import Hardware
from ndparallel.base import startup
from ndparallel.base.errors import UserError, unknown
from ndparallel.engines.failures import DeadlockError, RankError
from ndparallel.engines.system import can_run_processes, note_once
from ndparallel.engines.task import PendingRun, Program, RankResult, Task
from ndparallel.engines.world import default_engine, is_open_mpi, launched_rank, launched_size, world

__all__ = [
    "ENGINES",
    "DeadlockError",
    "RankError",
    "RankResult",
    "Ranks",
    "PendingRun",
    "check_ranks",
    "join",
    "launch",
]

ENGINES = ("processes", "inline", "mpi")


class Ranks:
    """Ranks 0 to world_size - 1, to run programs on. Use it with `with`: processes start there, and none
    outlives the block.

    On the engine "mpi" only rank 0 of what mpirun has started gets past here; the other processes serve it,
    and end with it. `start_method` is multiprocessing's, for processes: "fork" on Linux and "spawn" elsewhere
    where it is not given.
    """

    def __init__(self, world_size: int, engine: str = "processes", start_method: str | None = None) -> None:
        if not hasattr(world_size, "__index__") or world_size < 1:
            raise UserError(f"{world_size!r} ranks cannot run anything: choose a whole number, 1 or more.")
        if startup.numpy_came_first:
            note_once(
                "numpy was imported before gpu, so every rank may use several BLAS threads, which makes "
                "ranks slow and may change last digits: import gpu first, or set OPENBLAS_NUM_THREADS=1."
            )
        self.engine = _make_engine(engine, world_size, start_method)
        self.underway = PendingRun(list)

    def run(self, program: Program, hardware: Hardware, *arguments: Any, **keep: Any) -> list[RankResult]:
        """Call `program(gpu, *arguments)` on every rank and return what they leave behind, in the order of
        the ranks.

        Every rank gets a copy of the arguments of its own. What to `keep`, events or a journal, is a Task's
        choice. Raises RankError where a rank's program raised or its process was killed; DeadlockError,
        MismatchError, OutOfMemoryError and UserError as themselves. Of several that fail the lowest rank is
        told. In every case all ranks have ended then.
        """
        return self.begin(program, hardware, *arguments, **keep).results()

    def begin(self, program: Program, hardware: Hardware, *arguments: Any, **keep: Any) -> PendingRun:
        """Begin what `run` does, once these ranks have finished what they were given before. Only processes
        run ahead of `results`."""
        if not callable(program):
            raise UserError(f"{program!r} is no rank program: give a function that takes a GPU.")
        if inspect.isgeneratorfunction(program) or inspect.iscoroutinefunction(program):
            raise UserError(
                f"{program.__name__} would return before it has run: a rank program is a plain function, "
                "without yield and async."
            )
        self.underway.settle()
        self.underway = self.engine.begin(program, Task(hardware, arguments, **keep))
        return self.underway

    def end(self) -> None:
        """Let the ranks end once they have finished, without waiting for that: nothing more is to be run on
        them. What is run all the same starts new ones."""
        self.underway.settle()
        self.engine.end()

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> "Ranks":
        self.engine.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def launch(
    program: Program,
    world_size: int,
    hardware: Hardware,
    *arguments: Any,
    engine: str = "processes",
    **keep: Any,
) -> list[RankResult]:
    """Run a program once on `world_size` ranks; see Ranks.run."""
    with Ranks(world_size, engine) as ranks:
        return ranks.run(program, hardware, *arguments, **keep)


def join(argv: Sequence[str] | None) -> None:
    """Under mpirun, keep all but rank 0 from going on: they serve it, or end where an option names another
    engine."""
    words = sys.argv[1:] if argv is None else argv
    if launched_size() == 1 and not any("mpi" in word for word in words):
        return
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--engine", default=default_engine())
    try:
        if parser.parse_known_args(words)[0].engine == "mpi":
            from ndparallel.engines.mpi import serve_unless_first

            serve_unless_first(world())
    except (argparse.ArgumentError, UserError):
        pass  # rank 0 will say so
    if launched_rank():
        if not is_open_mpi():
            note_once(
                f"PMI_RANK says that a launcher has started this as rank {launched_rank()} of "
                f"{launched_size()}, so rank 0 prints. If none has, unset PMI_RANK and PMI_SIZE."
            )
        sys.exit()


def check_ranks(engine: str, largest: int) -> None:
    """Raise UserError where an engine that cannot start ranks itself has not as many as the largest strategy
    takes."""
    if engine == "mpi":
        from ndparallel.engines.mpi import check_size

        check_size(world().size, largest)


def _make_engine(name: str, world_size: int, start_method: str | None) -> Any:
    if name == "processes" and not can_run_processes():
        note_once(
            f"{sys.platform} has not what ranks need as processes: they run inline, with equal results."
        )
        name = "inline"
    match name:  # imported only where used: each needs what the other does not
        case "inline":
            from ndparallel.engines.inline import Inline

            return Inline(world_size)
        case "processes":
            from ndparallel.engines.processes import Processes

            return Processes(world_size, start_method)
        case "mpi":
            from ndparallel.engines.mpi import MPI

            return MPI(world_size)
    raise unknown("engine", name, ENGINES)
