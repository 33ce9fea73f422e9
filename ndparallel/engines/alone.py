"""The transport of a GPU that is alone: it can talk to itself, and is told where it would wait for ever."""

import sys
from collections import deque
from typing import Any

from gpu import snapshot
from ndparallel.engines.failures import DeadlockError
from ndparallel.engines.inbox import no_such_rank, take
from ndparallel.engines.waiting import report, waiting


class Alone:
    misuse = None

    def __init__(self) -> None:
        self.inbox: deque[tuple] = deque()

    def post(self, target: int, message: tuple) -> None:
        if target:
            no_such_rank(0, target, 1)
        *head, array, release = message
        self.inbox.append((*head, snapshot(array), release))

    def wait(self, source: int, what: Any) -> tuple:
        if source:
            no_such_rank(0, source, 1)
        message = take(self.inbox, what)
        if message is None:
            raise DeadlockError(report([waiting(0, (0, what), sys._getframe(), {0: self.inbox})]))
        return message
