"""Other programs that keep cores busy while a benchmark runs."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """Keep so many cores busy with programs that never wait."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield
    finally:
        for program in spinning:
            program.kill()
            program.wait()
