"""All the processes that mpirun has started, and the frames between them.

Idea   Every process runs the same script, but only rank 0 goes through it: it parses, runs strategies and
       prints. The others serve: they take part in what rank 0 runs, and end when it ends. Whether this is
       such a world is read from the launcher's environment.
Cost   A small array is one message, a larger one two, and its buffer travels as it is. Whoever waits looks
       again and again, and lets others have the core in between.
Limit  Nothing is printed by other ranks than 0 unless a rank program prints.

Glossary
    frame     a pickled tuple, whose first element says what it is; a message is one that holds a frame of
              frame.py
    content   the buffer of an array that is too large for its frame; it follows it
    serve     wait for rank 0's orders, and carry them out
"""

import atexit
import importlib
import os
import pickle
import sys
import time
from collections import deque
from functools import cache
from typing import Any

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.engines.system import give_way

SIZES = {
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
    "PMI_SIZE": "PMI_RANK",
    "MV2_COMM_WORLD_SIZE": "MV2_COMM_WORLD_RANK",
}
FRAME, CONTENT = 1, 2  # tags
EAGER_LOOKS = 50  # before going to sleep for a moment, which then grows
SLEEP_SECONDS, LONGEST_SLEEP_SECONDS = 50e-6, 2e-3
RETURNED = ("back", "ended", "failed")  # frames that say that a rank has come back from a run
FAREWELL_SECONDS = 10  # that ranks which work on are given to notice that all is over


def launched_size() -> int:
    """How many processes the launcher says it has started: Open MPI, MPICH (and its kin), MVAPICH; 1 where
    none says so."""
    return next((int(os.environ[name]) for name in SIZES if os.environ.get(name, "").isdecimal()), 1)


def launched_rank() -> int:
    return next((int(os.environ[name]) for name in SIZES.values() if os.environ.get(name, "").isdecimal()), 0)


def is_open_mpi() -> bool:
    """Whether it is certain that mpirun has started this: other launchers set PMI_RANK for other purposes."""
    return "OMPI_COMM_WORLD_RANK" in os.environ


def default_engine() -> str:
    """What runs ranks where nobody says: processes on Linux, which can fork them, and inline elsewhere."""
    if launched_size() > 1:
        return "mpi"
    return "processes" if sys.platform == "linux" else "inline"


@cache
def world() -> "World":
    """This process' place in the world. Raises UserError where there is no MPI to speak with."""
    try:
        MPI = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"engine 'mpi' needs mpi4py and an MPI ({error}): pip install 'ndparallel[mpi]'."
        ) from None
    return World(MPI)


class World:
    def __init__(self, MPI: Any) -> None:
        self.MPI, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        # (request, what it sends, which must not be altered before it is done)
        self.leaving: list[tuple] = []
        self.arrived: deque[tuple] = deque()  # (source, frame, content)
        self.early: deque[tuple] = deque()  # of runs that this rank has not begun
        self.looks, self.run = 0, 0
        self.absent: set[int] = set()  # ranks that have not come back from the last run
        if self.rank == 0:
            atexit.register(self.end)

    # ---- frames

    def send(self, target: int, frame: tuple, content: np.ndarray | None = None) -> None:
        """Send a frame, and an array's bytes after it. Never blocks; the array is copied."""
        self._isend(target, np.frombuffer(pickle.dumps(frame, pickle.HIGHEST_PROTOCOL), np.uint8), FRAME)
        if content is not None:
            self._isend(target, np.array(content, order="C").reshape(-1).view(np.uint8), CONTENT)

    def _isend(self, target: int, data: np.ndarray, tag: int) -> None:
        self.leaving.append((self.comm.Isend([data, self.MPI.BYTE], target, tag), data))

    def look(self) -> bool:
        """Take in whatever has come, and say whether that was anything; if not, let others have this core."""
        self.leaving = [item for item in self.leaving if not item[0].Test()]
        came = False
        while message := self.comm.improbe(tag=FRAME, status=(status := self.MPI.Status())):
            self.arrived.append(self._take_in(message, status))
            came = True
        self.looks = 0 if came else self.looks + 1
        if not came:
            self._rest()
        return came

    def take_early(self) -> None:
        """Look at the frames of later runs again, in their order and before all that came since: two messages
        of one name may be among them."""
        self.arrived.extendleft(reversed(self.early))
        self.early.clear()

    def _take_in(self, message: Any, status: Any) -> tuple:
        data = np.empty(status.Get_count(self.MPI.BYTE), np.uint8)
        message.Recv([data, self.MPI.BYTE])
        source, frame = status.Get_source(), pickle.loads(data.data)
        content = None
        if frame[0] == "content":  # what its last element counts in bytes comes next
            content = np.empty(frame[-1], np.uint8)
            self.comm.Recv([content, self.MPI.BYTE], source, CONTENT)
        return source, frame, content

    def _rest(self) -> None:
        if self.looks < EAGER_LOOKS:
            give_way()
        else:
            time.sleep(
                min(SLEEP_SECONDS * 2 ** ((self.looks - EAGER_LOOKS) // EAGER_LOOKS), LONGEST_SLEEP_SECONDS)
            )

    # ---- the life of a rank

    def end(self) -> None:
        """Rank 0: send everybody home. Ends all by force where somebody does not come back."""
        deadline = time.monotonic() + FAREWELL_SECONDS
        for target in self.absent:
            self.send(target, ("abandon", self.run))
        while self.absent and time.monotonic() < deadline:
            self.look()
            self.absent -= {
                source for source, frame, _ in self.arrived if frame[0] in RETURNED and frame[1] == self.run
            }
        if self.absent:
            sys.stdout.flush()
            self.comm.Abort(1)
        for target in range(1, self.size):
            self.send(target, ("end", self.run + 1))
        self.farewell()

    def farewell(self) -> None:
        """Wait for all, taking in what comes, so that whatever was sent has been received."""
        while self.leaving:
            self.look()
        barrier = self.comm.Ibarrier()
        while not barrier.Test():
            self.look()
