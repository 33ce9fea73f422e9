"""A limit on the computing of a reader's file: a loop without end is ended, and its line named.

Limit  A call that does not come back to Python, and a sleep, are not ended.
"""

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ndparallel.base.errors import UserError
from ndparallel.base.functions import line_of
from ndparallel.engines.thread_stacks import raise_in

CPU_SECONDS = 10  # that a reader's file may take, where nothing says how much there is to do
LOOK_SECONDS = 0.05  # between two looks at the seconds


class TooLong(BaseException):
    """A file has used up its seconds: no `except Exception` of the reader's may keep it."""


@contextmanager
def in_time(words: str, path: Path, what: str = "") -> Iterator[None]:
    """Raise UserError, with the line, where the file of these words still computes, and `what`, after
    CPU_SECONDS."""
    try:
        with limited_to(CPU_SECONDS, path):
            yield
    except TooLong as error:
        raise UserError(
            f"{words} was ended: after {CPU_SECONDS} s it was still computing{what} "
            f"(line {line_of(error, path)}). Does a loop end?"
        ) from None


@contextmanager
def limited_to(cpu_seconds: float, path: Path) -> Iterator[None]:
    """Raise TooLong in what is in the file `path` once this process has computed for so long."""
    is_done = threading.Event()
    watching = threading.Thread(target=end_late, args=(cpu_seconds, path, is_done), daemon=True)
    watching.start()
    try:
        yield
        is_done.set()
        watching.join()
    finally:
        is_done.set()


def end_late(cpu_seconds: float, path: Path, is_done: threading.Event) -> None:
    """Raise TooLong in every thread that is in the file: without greenlet every rank is a thread."""
    started = time.process_time()
    while time.process_time() - started < cpu_seconds:
        if is_done.wait(LOOK_SECONDS):
            return
    for thread, frame in sys._current_frames().items():
        if any(each.f_code.co_filename == str(path) for each, _ in traceback.walk_stack(frame)):
            raise_in(thread, TooLong)
