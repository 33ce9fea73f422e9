"""Ranks on this host, as torchrun starts them, but forked from one process, which imports torch and the
lessons once: each rank by itself would take three seconds to.

Run    python tests/support/forked_ranks.py RANKS SCRIPT [WORD ...]      a script with a function `main`

A rank that fails ends all, and the exit code is its.
"""

import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


def main() -> int:
    ranks, script, *words = sys.argv[1:]
    path = Path(script).resolve()
    sys.path[0], sys.argv = str(path.parent), [script, *words]
    program = importlib.import_module(path.stem).main
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{free_port()}"}
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ranks)
    return wait_for({forked(rank, program) for rank in range(int(ranks))})


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def forked(rank: int, program: Callable[[], int | None]) -> int:
    """Return the number of a process that is this rank, and ends with the program."""
    return os.fork() or become(rank, program)


def become(rank: int, program: Callable[[], int | None]) -> NoReturn:
    os.environ |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}
    sys.exit(program())


def wait_for(ranks: set[int]) -> int:
    """Return the exit code of the first that fails, and end the others; 0 where none does."""
    while ranks:
        rank, status = os.wait()
        ranks.discard(rank)
        if code := os.waitstatus_to_exitcode(status):
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            return abs(code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
