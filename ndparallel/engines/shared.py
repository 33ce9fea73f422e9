"""Memory that all rank processes share: one anonymous file, with a region for every rank and a table of who
waits for whom.

Idea   A large array is copied once, into its sender's region, and read there by its receiver, who then sets
       the block free. The file has no name from the start, so nothing is left of it when its last process
       ends, in whatever way.
Cost   One copy a message. Pages count as memory only once they have been written.
Limit  A rank can have 64 GiB of unread messages.

Glossary
    region   the part of the file that one rank writes its messages into
    chunk    a region is mapped in chunks, each twice as large as the one before, when they are first needed
    block    one message in a region: a flag (is it lent to a receiver?), then the array; its size is a power
             of two
"""

import mmap
import os
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

REGION_BYTES = 1 << 36
FIRST_CHUNK_BYTES = 1 << 20
HEADER_BYTES = 64  # a cache line: keeps arrays aligned, and the flag off their lines
TRIES = range(4)  # blocks lent out longest that are looked at before a new one is made
RUNNING, WAITING, ENDED, FAILED = range(4)


class SharedFile:
    """A file without a name that processes inherit, by fork or by spawn."""

    def __init__(self, world_size: int) -> None:
        self.table_bytes = (
            -(-8 * world_size * (2 * world_size + Table.COLUMNS) // mmap.ALLOCATIONGRANULARITY)
            * mmap.ALLOCATIONGRANULARITY
        )
        self.world_size = world_size
        self.descriptor = _unnamed_file()
        os.ftruncate(self.descriptor, self.table_bytes + world_size * REGION_BYTES)

    def map(self, start: int, length: int) -> mmap.mmap:
        return mmap.mmap(self.descriptor, length, offset=start)

    def close(self) -> None:
        os.close(self.descriptor)

    def __getstate__(self) -> dict:
        return self.__dict__ | {"descriptor": DupFd(self.descriptor)}

    def __setstate__(self, state: dict) -> None:
        self.__dict__ = state | {"descriptor": state["descriptor"].detach()}


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ndparallel")
    descriptor, path = tempfile.mkstemp()
    os.unlink(path)
    return descriptor


class Table:
    """What every rank does, for the launcher to read: its state, whom it waits for, and how many messages
    passed between them.

    A row is written by its own rank alone. `received` counts the messages that have come from the rank waited
    for; `taken` those that the program has asked for, once it has ended. A rank whose wait is over stays
    entered as waiting: that more was sent than it had received tells that it goes on.
    """

    # state, waits for, received, number of waits; then, by rank, messages sent to it and taken from it
    COLUMNS = 4

    def __init__(self, file: SharedFile) -> None:
        self.map = file.map(0, file.table_bytes)
        self.words = memoryview(self.map).cast("q")
        self.world_size, self.width = file.world_size, 2 * file.world_size + self.COLUMNS

    def close(self) -> None:
        self.words.release()
        self.map.close()

    def set_state(self, rank: int, state: int) -> None:
        self.words[rank * self.width] = state

    def sent(self, rank: int) -> memoryview:
        """The numbers of messages that a rank has sent, by target."""
        start = rank * self.width + self.COLUMNS
        return self.words[start : start + self.world_size]

    def taken(self, rank: int) -> memoryview:
        """The numbers of messages that a rank's program has asked for, by source."""
        start = rank * self.width + self.COLUMNS + self.world_size
        return self.words[start : start + self.world_size]

    def with_unread(self) -> list[int]:
        """The ranks that have ended without asking for all that was sent to them."""
        rows = np.frombuffer(self.words, np.int64, self.world_size * self.width).reshape(-1, self.width)
        sent, taken = np.split(rows[:, self.COLUMNS :], 2, axis=1)
        return np.flatnonzero((taken != sent.T).any(axis=1)).tolist()

    def set_waiting(self, rank: int, source: int, received: int) -> None:
        row = rank * self.width
        self.words[row + 1] = source
        self.words[row + 2] = received
        self.words[row + 3] += 1
        self.words[row] = WAITING

    def state(self, rank: int) -> int:
        return self.words[rank * self.width]

    def idle_wait(self, rank: int) -> tuple[int, int] | None:
        """(whom the rank waits for, the number of its wait) where it waits and nothing from there is on its
        way, else None."""
        state, source, received, number = self.words[rank * self.width : rank * self.width + self.COLUMNS]
        if state != WAITING or self.words[source * self.width + self.COLUMNS + rank] != received:
            return None
        return source, number


class Region:
    """One rank's region, as bytes."""

    def __init__(self, file: SharedFile, rank: int) -> None:
        self.file, self.start = file, file.table_bytes + rank * REGION_BYTES
        self.chunks: dict[int, memoryview] = {}
        # by where a block starts: its chunk, where its array is in that, and what sets it free
        self.places: dict[int, tuple[memoryview, int, Callable[[], None]]] = {}

    def place(self, start: int) -> tuple[memoryview, int, Callable[[], None]]:
        return self.places.get(start) or self.places.setdefault(start, self._find(start))

    def _find(self, start: int) -> tuple[memoryview, int, Callable[[], None]]:
        """Chunk k is as large as its distance from the region's start."""
        chunk_start = max(FIRST_CHUNK_BYTES, 1 << start.bit_length() - 1)
        if chunk_start not in self.chunks:
            self.chunks[chunk_start] = memoryview(self.file.map(self.start + chunk_start, chunk_start))
        chunk, flag = self.chunks[chunk_start], start - chunk_start
        return chunk, flag + HEADER_BYTES, partial(chunk.__setitem__, flag, 0)

    def array_at(
        self, start: int, dtype: Any, shape: tuple[int, ...]
    ) -> tuple[np.ndarray, Callable[[], None]]:
        """The array in a block, and the function that sets the block free again."""
        chunk, offset, release = self.place(start)
        return np.ndarray(shape, dtype, chunk, offset), release


class Arena(Region):
    """The owner's side of a region: it hands out blocks, and takes back those that their receivers have set
    free."""

    def __init__(self, file: SharedFile, rank: int) -> None:
        super().__init__(file, rank)
        self.next = FIRST_CHUNK_BYTES
        # by size: all blocks ever made, those lent out longest first; where each starts, its chunk, and where
        # its array is in that
        self.blocks: dict[int, deque[tuple[int, memoryview, int]]] = defaultdict(deque)

    def put(self, array: np.ndarray) -> int:
        """Copy an array into a block, and return where the block starts."""
        start, chunk, offset = self._block((HEADER_BYTES + array.nbytes - 1).bit_length())
        chunk[offset - HEADER_BYTES] = 1
        np.ndarray(array.shape, array.dtype, chunk, offset)[...] = array
        return start

    def _block(self, bits: int) -> tuple[int, memoryview, int]:
        """A block of 2^bits bytes that is not lent to anybody."""
        blocks = self.blocks[bits]
        for _ in blocks and TRIES:
            blocks.rotate(-1)
            _, chunk, offset = block = blocks[-1]
            if not chunk[offset - HEADER_BYTES]:
                return block
        start = self._new_block(1 << bits)
        blocks.append((start, *self.place(start)[:2]))
        return blocks[-1]

    def _new_block(self, size: int) -> int:
        start = self.next
        room = (1 << start.bit_length()) - start
        if room < size:  # it does not fit into this chunk: begin the next one that it fits into
            start = max(start + room, size)
        if start + size > REGION_BYTES:
            raise MemoryError(
                f"more than {REGION_BYTES >> 30} GiB of messages have been sent and not received."
            )
        self.next = start + size
        return start
