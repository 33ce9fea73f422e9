"""How a rank in a process of its own sends and receives: frames through pipes, large arrays through shared
memory.

Idea   Every rank owns one pipe, into which all others write. A frame is written whole or not at all
       (PIPE_BUF), so the pipe needs no lock; what cannot be written now waits in an outbox that every later
       call tries to empty, so that a send never blocks.
Cost   A system call to send, one to receive; one copy of the array to send, none to receive it into another.
       A rank that waits sleeps in that call: were it to look again and again, and yield its core in between,
       another program on that core would run for a time slice at every look.
Limit  A frame holds small arrays itself; larger ones lie in the sender's region of shared memory, and the
       frame says where.

Glossary
    frame     the run, the source, and the message, as frame.py makes it
    outbox    frames that found a pipe full, by target
    run       the number of the task: ranks are kept between tasks, and end where a message is left unread
    early     frames of the next run, from a rank that has begun it before this one
    note      a frame that belongs to no run: a question from the launcher, or the place of a frame too long
              for a pipe
"""

import os
import pickle
import select
import sys
from collections import defaultdict, deque
from multiprocessing.connection import Connection
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from ndparallel.engines.frame import HEADER, NO_RUN, frame_of, header_of, message_of, note, noted
from ndparallel.engines.inbox import check_awaited, in_a_second_thread, no_such_rank, take
from ndparallel.engines.shared import ENDED, FAILED, RUNNING, Arena, Region, SharedFile, Table
from ndparallel.engines.system import PIPE_BUF
from ndparallel.engines.waiting import Unread, Waiting, unread_in, waiting

READ_BYTES = 2 * PIPE_BUF  # at once: for more, memory would have to be found every time
LAUNCHER = -1
# written by the launcher into the pipes of ranks that are stuck, or have ended with messages unread
QUESTION = note(LAUNCHER, "what do you wait for, or what have you not read?")


class Channels(NamedTuple):
    """What all ranks share, made before they start."""

    readers: list[Connection]
    writers: list[Connection]
    file: SharedFile

    def close(self) -> None:
        for end in (*self.readers, *self.writers):
            end.close()
        self.file.close()


class Channel:
    """One rank's transport."""

    def __init__(self, rank: int, wiring: Channels, launcher: Connection) -> None:
        self.rank, self.launcher = rank, launcher
        self.thread, self.misuse = get_ident(), None  # which receives, and an error of one that should not
        self.inlet = wiring.readers[rank].fileno()
        self.outlets = {target: writer.fileno() for target, writer in enumerate(wiring.writers)}
        self.table = Table(wiring.file)
        self.sent, self.taken = self.table.sent(rank), self.table.taken(rank)
        self.arena = Arena(wiring.file, rank)
        # by source: finds the arrays that it lends
        self.array_at = [Region(wiring.file, source).array_at for source in self.outlets]
        self.inboxes: dict[int, deque[tuple]] = defaultdict(deque)
        self.outbox: dict[int, deque[bytes]] = {}
        self.early: list[tuple] = []
        self.received = [0] * len(self.outlets)
        self.rest = b""
        self.run = 0
        self.poll = select.poll()
        self.poll.register(self.inlet, select.POLLIN)

    # ---- sending

    def post(self, target: int, message: tuple) -> None:
        outlet = self.outlets.get(target) or no_such_rank(self.rank, target, len(self.outlets))
        frame = frame_of(self.run, self.rank, message, self.arena.put)
        if len(frame) > PIPE_BUF:  # a very long name: the whole frame travels as an array
            frame = note(self.rank, (self.arena.put(np.frombuffer(frame, np.uint8)), len(frame)))
        self.sent[target] += 1
        if self.outbox or not write_frame(outlet, frame):
            self.outbox.setdefault(target, deque()).append(frame)
            self.flush()

    def flush(self) -> None:
        for target, frames in list(self.outbox.items()):
            while frames and write_frame(self.outlets[target], frames[0]):
                frames.popleft()
            if not frames:
                del self.outbox[target]

    # ---- receiving

    def wait(self, source: int, what: Any) -> tuple:
        inbox = self.inboxes[source]
        while not inbox or (message := take(inbox, what)) is None:
            self._wait_for_any(source, what)
        return message

    def _wait_for_any(self, source: int, what: Any) -> None:
        """Tell the table whom this rank waits for, and take in the next that comes from anybody."""
        if get_ident() != self.thread:
            in_a_second_thread(self)
        check_awaited(self.rank, source, what, self.outlets)
        self.awaits = (source, what)
        self.table.set_waiting(self.rank, source, self.received[source])
        if self.outbox:
            self.idle()
        else:
            self.read()

    def sleep(self, *also: int) -> None:
        """Sleep until something can be read here (or from `also`), or until something in the outbox can be
        written."""
        others = [(self.outlets[target], select.POLLOUT) for target in self.outbox] + [
            (descriptor, select.POLLIN) for descriptor in also
        ]
        for descriptor, event in others:
            self.poll.register(descriptor, event)
        self.poll.poll()
        for descriptor, _ in others:
            self.poll.unregister(descriptor)

    def look(self) -> None:
        """Take in whatever has come, if anything has."""
        if self.poll.poll(0):
            self.read()

    def read(self) -> None:
        """Take in whatever has come; wait for it where nothing has."""
        data = os.read(self.inlet, READ_BYTES)
        if self.rest:
            data = self.rest + data
        start, read = 0, len(data)
        while start + HEADER.size <= read:
            header = header_of(data, start)
            end = start + header[0]
            if end > read:
                break
            self._take_in(header, data[start:end])
            start = end
        self.rest = data[start:]

    def _take_in(self, header: tuple, frame: bytes) -> None:
        run, source = header[1], header[2]
        if run == self.run:
            self.received[source] += 1
            self.inboxes[source].append(message_of(header, frame, self.array_at[source]))
        elif run != NO_RUN:
            self.early.append((header, frame))
        elif source == LAUNCHER:
            self.launcher.send_bytes(pickle.dumps(self.explain()))
        else:
            frame = self._long_frame(source, *noted(frame))
            self._take_in(header_of(frame), frame)

    def _long_frame(self, source: int, block: int, length: int) -> bytes:
        array, release = self.array_at[source](block, np.uint8, (length,))
        frame = array.tobytes()
        release()
        return frame

    def explain(self) -> Waiting | Unread:
        if self.table.state(self.rank) == ENDED:
            return Unread(self.rank, unread_in(self.inboxes))
        return waiting(self.rank, self.awaits, sys._getframe(), self.inboxes)

    # ---- from one task to the next

    def begin(self, run: int) -> None:
        self.misuse = None
        self.run = run
        self.table.set_state(self.rank, RUNNING)
        early, self.early = self.early, []
        for header, frame in early:
            self._take_in(header, frame)

    def end(self, failed: bool) -> None:
        """Send what still waits in the outbox, while taking in what comes; a failure is told first, and
        `idle` sends the rest."""
        self.flush()
        while self.outbox and not failed:
            self.idle()
        if not failed:
            for source, inbox in self.inboxes.items():
                self.taken[source] = self.received[source] - len(inbox)
        self.table.set_state(self.rank, FAILED if failed else ENDED)

    def idle(self, *also: int) -> None:
        """Take in what comes, and send what has to go, once something of that (or from `also`) can be
        done."""
        self.sleep(*also)
        self.look()
        self.flush()


def write_frame(outlet: int, frame: bytes) -> bool:
    """Write a frame into a pipe, if there is room for it now."""
    try:
        return os.write(outlet, frame) > 0
    except BlockingIOError:
        return False
