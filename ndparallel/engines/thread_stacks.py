"""Stacks made of threads, for the engine inline where greenlet is not installed.

Idea   Every stack is a thread, and only the one that holds the baton runs. `switch` hands it on and waits
       until it comes back. The order of the switches is the engine's, so all results are those of greenlet.
Cost   A thread a rank, and a switch of threads where greenlet switches stacks: ten times as long.
Limit  A thread that waits for the baton cannot be interrupted: Ctrl-C is raised in the one that runs.
"""

import ctypes
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ndparallel.base.errors import UserError

LONGEST_WAIT_SECONDS = 0.5  # of the main thread, without a look for signals


class StackExit(BaseException):
    """Raised in a stack that is to be left, so that its `finally`s run."""


class MainStack:
    """The stack of the thread that starts all others; it goes on when one of them has ended."""

    def __init__(self) -> None:
        self.running: MainStack | ThreadStack = self
        self.error: BaseException | None = None  # what has ended a stack, to be raised here
        self.baton = threading.Lock()
        self.baton.acquire()

    def switch(self) -> None:
        """Hand the baton to the main stack, and wait until it comes back."""
        hand_over(self, self)

    def wait(self) -> None:
        while not self._acquire():
            if isinstance(self.running, ThreadStack):
                raise_in(self.running.thread.ident or 0, KeyboardInterrupt)
        error, self.error = self.error, None
        if error:
            raise error

    def _acquire(self) -> bool:
        try:
            while not self.baton.acquire(timeout=LONGEST_WAIT_SECONDS):
                pass  # a signal that comes just before a wait is seen only behind it
            return True
        except KeyboardInterrupt:
            return False


class ThreadStack:
    """The part of a greenlet that the engine inline needs."""

    def __init__(self, main: MainStack, run: Callable[..., None]) -> None:
        self.main, self.run = main, run
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.arguments: tuple = ()
        self.is_left = self.has_ended = False
        self.baton = threading.Lock()
        self.baton.acquire()

    def switch(self, *arguments: Any) -> None:
        """Hand the baton to this stack, which begins with these arguments or goes on where it stood."""
        if not self.thread.ident:
            self.arguments = arguments
            self._start()
        hand_over(self.main, self)

    def throw(self) -> None:
        """Leave this stack where it stands. One that has not begun never will."""
        self.is_left = True
        if self.thread.ident and not self.has_ended:
            self.switch()

    @property
    def gr_frame(self) -> FrameType | None:
        return sys._current_frames().get(self.thread.ident or 0)

    def wait(self) -> None:
        self.baton.acquire()
        if self.is_left:
            raise StackExit

    def _start(self) -> None:
        try:
            self.thread.start()
        except RuntimeError:
            raise UserError(
                "the system has no more threads for ranks: choose fewer, or pip install 'ndparallel[inline]'."
            ) from None

    def _run(self) -> None:
        try:
            self.wait()
            self.run(*self.arguments)
        except StackExit:
            pass
        except BaseException as error:
            self.main.error = error
        self.has_ended = True
        self.main.running = self.main
        self.main.baton.release()


def hand_over(main: MainStack, target: MainStack | ThreadStack) -> None:
    """Let `target` run, and the caller's stack wait."""
    here = main.running
    if isinstance(here, ThreadStack) and here.thread is not threading.current_thread():
        raise RuntimeError("only the thread that runs hands the baton on")
    main.running = target
    target.baton.release()
    here.wait()


def raise_in(thread: int, kind: type[BaseException]) -> None:
    """Raise an exception in the thread of this number, at its next line of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
