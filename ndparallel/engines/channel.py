"""How a rank in a process of its own sends and receives: frames through pipes, large arrays through shared memory.

Idea   Every rank owns one pipe, into which all others write. A frame is written whole or not at all (PIPE_BUF), so the pipe needs
       no lock; what cannot be written now waits in an outbox that every later call tries to empty, so that a send never blocks.
Cost   A system call to send and one or two to receive; one copy of the array.
Limit  A frame holds small arrays itself; larger ones lie in the sender's region of shared memory, and the frame says where.

Glossary
    frame     length, then the pickled (run, source, what, call, departed, first byte, wire seconds, dtype, shape, payload)
    payload   what `_pack` returns: bytearray = the content, bytes = one element that stands for all, int = start of a block
    outbox    frames that found a pipe full, by target
    run       number of the task: ranks are kept between tasks, and what a task left unread must not reach the next
"""

import os
import pickle
import select
import struct
import sys
from collections import deque
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from gpu import Message, is_size_only, say
from ndparallel.engines.shared import ENDED, FAILED, RUNNING, Arena, Region, SharedFile, Table
from ndparallel.engines.waiting import Waiting, named, place

LENGTH = struct.Struct("=H")
FRAME_BYTES = select.PIPE_BUF - LENGTH.size
INLINE_BYTES = FRAME_BYTES // 2
LAUNCHER = -1  # the source of the launcher's own frames


class Wiring(NamedTuple):
    """What all ranks share, made before they start."""

    readers: list[Connection]
    writers: list[Connection]
    file: SharedFile


class Channel:
    """One rank's transport."""

    def __init__(self, rank: int, wiring: Wiring, launcher: Connection, spins: int) -> None:
        self.rank, self.launcher, self.spins = rank, launcher, spins
        self.inlet = wiring.readers[rank].fileno()
        self.outlets = [writer.fileno() for writer in wiring.writers]
        self.table = Table(wiring.file)
        self.arena = Arena(wiring.file, rank)
        self.regions = [Region(wiring.file, source) for source in range(len(self.outlets))]
        self.outbox: dict[int, deque[bytes]] = {}
        self.received = [0] * len(self.outlets)
        self.boxes: dict[tuple, deque[Message]] = {}
        self.rest = b""
        self.run = 0
        self.poll = select.poll()
        self.poll.register(self.inlet, select.POLLIN)

    # ---- sending

    def post(self, target: int, what: Any, message: Message) -> None:
        call, departed, first_byte, wire_seconds, array, _ = message
        dtype = array.dtype.str if array.dtype.isbuiltin == 1 else array.dtype
        header = (self.run, self.rank, what, call, departed, first_byte, wire_seconds, dtype, array.shape, self._pack(array))
        self.table.count_sent(self.rank, target)
        self.write(target, self._frame(header))

    def _pack(self, array: np.ndarray) -> bytearray | bytes | int:
        if array.dtype.hasobject:
            raise TypeError(f"arrays of dtype {array.dtype} cannot be sent: they hold Python objects")
        if is_size_only(array):
            return array[(0,) * array.ndim].tobytes()
        return bytearray(array.tobytes()) if array.nbytes <= INLINE_BYTES else self.arena.put(array)

    def _frame(self, header: Any) -> bytes:
        body = pickle.dumps(header, 5)
        if len(body) > FRAME_BYTES:  # a very long name: let the whole frame travel as an array
            body = pickle.dumps((self.rank, self.arena.put(np.frombuffer(body, np.uint8)), len(body)), 5)
        return LENGTH.pack(len(body)) + body

    def write(self, target: int, frame: bytes) -> None:
        waiting = self.outbox.get(target)
        if waiting is not None or not _written(self.outlets[target], frame):
            self.outbox.setdefault(target, deque()).append(frame)
            self.flush()

    def flush(self) -> None:
        for target, frames in list(self.outbox.items()):
            while frames and _written(self.outlets[target], frames[0]):
                frames.popleft()
            if not frames:
                del self.outbox[target]

    # ---- receiving

    def wait(self, source: int, what: Any) -> Message:
        key = (self.run, source, what)
        if key not in self.boxes and not self._arrives(key, self.spins):
            self._sleep_until_there(key)
        box = self.boxes[key]
        message = box.popleft()
        if not box:
            del self.boxes[key]
        return message

    def _arrives(self, key: tuple, spins: int) -> bool:
        for _ in range(1 + spins):
            self.read()
            if key in self.boxes:
                return True
        return False

    def _sleep_until_there(self, key: tuple) -> None:
        _, source, what = key
        while key not in self.boxes:
            self.awaits = (source, what)
            self.table.set_waiting(self.rank, source, self.received[source])
            self.sleep()
            self.table.set_state(self.rank, RUNNING)
            self.read()

    def sleep(self, also: int | None = None) -> None:
        """Wait until something can be read, or written that waits in the outbox; or, for an idle rank, until `also` can be read."""
        self.flush()
        others = [(self.outlets[target], select.POLLOUT) for target in self.outbox] + ([(also, select.POLLIN)] if also is not None else [])
        for descriptor, event in others:
            self.poll.register(descriptor, event)
        self.poll.poll()
        for descriptor, _ in others:
            self.poll.unregister(descriptor)

    def read(self) -> None:
        """Take in whatever has come."""
        try:
            data = self.rest + os.read(self.inlet, 1 << 16)
        except BlockingIOError:
            return
        start = 0
        while start + LENGTH.size <= len(data) and (end := start + LENGTH.size + LENGTH.unpack_from(data, start)[0]) <= len(data):
            self._take_in(pickle.loads(memoryview(data)[start + LENGTH.size : end]))
            start = end
        self.rest = data[start:]

    def _take_in(self, header: tuple) -> None:
        if len(header) == 3:
            header = self._long_header(*header)
        run, source, what, call, departed, first_byte, wire_seconds, dtype, shape, payload = header
        if source == LAUNCHER:
            self.launcher.send_bytes(pickle.dumps(self.explain()))
            return
        array, release = self._unpack(source, dtype, shape, payload)
        self.received[source] += 1
        message = Message(call, departed, first_byte, wire_seconds, array, release)
        self.boxes.setdefault((run, source, what), deque()).append(message)

    def _long_header(self, source: int, start: int, length: int) -> tuple:
        array, release = self.regions[source].array_at(start, np.uint8, (length,))
        header = pickle.loads(array.data)
        release()
        return header

    def _unpack(self, source: int, dtype: Any, shape: tuple[int, ...], payload: bytearray | bytes | int) -> tuple:
        if isinstance(payload, int):
            return self.regions[source].array_at(payload, dtype, shape)
        strides = (0,) * len(shape) if isinstance(payload, bytes) else None
        return np.ndarray(shape, dtype, payload, strides=strides), None

    def explain(self) -> Waiting:
        source, what = self.awaits
        unread = [named(source, what) for (run, source, what), box in self.boxes.items() if run == self.run for _ in box]
        return Waiting(self.rank, source, say(what), place(sys._getframe()), unread)

    # ---- from one task to the next

    def begin(self, run: int) -> None:
        for key in [key for key in self.boxes if key[0] < run]:
            for message in self.boxes.pop(key):
                if message.release:
                    message.release()
        self.run = run
        self.table.set_state(self.rank, RUNNING)

    def end(self, failed: bool) -> None:
        """Send what still waits in the outbox, while taking in what comes."""
        while self.outbox and not failed:
            self.sleep()
            self.read()
        self.table.set_state(self.rank, FAILED if failed else ENDED)


def _written(outlet: int, frame: bytes) -> bool:
    try:
        return os.write(outlet, frame) > 0
    except BlockingIOError:
        return False
