"""What operating systems differ in, and what is done where something is missing.

Limit  Processes as ranks need Linux or another POSIX system. Elsewhere all ranks run in one process.
"""

import ctypes
import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIPE_BUF = getattr(select, "PIPE_BUF", 512)  # bytes that a pipe takes whole or not at all; POSIX promises 512

PR_SET_PDEATHSIG = 1

give_way = getattr(os, "sched_yield", lambda: time.sleep(0))


def can_run_processes() -> bool:
    """Whether the engine "processes" finds what it needs: pipes that can be polled, and POSIX signals."""
    return hasattr(select, "poll") and hasattr(select, "PIPE_BUF") and hasattr(signal, "pthread_sigmask")


def usable_cores() -> list[int]:
    """The cores that this process may run on; an empty list where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def return_freed_memory() -> None:
    """Give free memory back to the kernel, before a fork: a free page that processes share is copied when one
    of them finds a use for it, and a new page is not."""
    if trim := sys.platform == "linux" and getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def keep_to_core(core: int) -> None:
    """Keep this process to one core, where that is possible and allowed."""
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {core})


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back for as long as it could leave a process behind: one not yet known, or not yet ended.
    A process that starts in here holds it back altogether."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with interrupts_noted():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interrupts_noted() -> Iterator[None]:
    """Answer Ctrl-C at the end of the block. The kernel gives it to a thread that does not hold it back, and
    Python then answers in the main thread, whatever that holds back."""
    answer = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or answer is None:  # C's, not Python's
        yield
        return
    noted: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, answer)
        if noted:
            signal.raise_signal(signal.SIGINT)


def end_with_parent(parent: int) -> bool:
    """Let the kernel, on Linux, end this process when the thread that has started it ends, even one that is
    stopped. Return whether it will: not where there is another kernel, or the parent has ended before."""
    if sys.platform != "linux" or os.getppid() != parent:
        return False
    refused = ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return not refused and os.getppid() == parent


@functools.cache
def note_once(sentence: str) -> None:
    """Tell the user something that needs no answer. Nothing is told twice."""
    print(f"note: {sentence}", file=sys.stderr)
