"""PyTorch's caching allocator with expandable segments (c10/cuda/CUDACachingAllocator.cpp): each stream has
one segment, a tensor takes the smallest hole that it fits into, and else the segment grows.

Limit  Holes are not given back; tensors below 1 MiB have a pool of their own there, and here none.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

BLOCK, PAGE = 512, 20 * 2**20  # kMinBlockSize, kLargeBuffer


@dataclass(frozen=True)
class Tensor:
    stream: str
    start: int
    bytes: int


@dataclass
class Segment:
    end: int = 0
    holes: dict[int, int] = field(default_factory=dict)  # bytes by where they begin

    def take(self, size: int) -> int:
        """Where a block of this size begins; the hole at the end is the last choice, for it can grow."""
        fitting = [(self.is_last(start), hole, start) for start, hole in self.holes.items() if hole >= size]
        start = min(fitting)[2] if fitting else self.grow(size)
        if rest := self.holes.pop(start) - size:
            self.holes[start + size] = rest
        return start

    def is_last(self, start: int) -> bool:
        return start + self.holes[start] == self.end

    def grow(self, size: int) -> int:
        start = next(filter(self.is_last, self.holes), self.end)
        more = -(-(size - self.holes.get(start, 0)) // PAGE) * PAGE
        self.holes[start] = self.holes.get(start, 0) + more
        self.end += more
        return start

    def give_back(self, start: int, size: int) -> None:
        size += self.holes.pop(start + size, 0)
        before = next((each for each, hole in self.holes.items() if each + hole == start), None)
        if before is None:
            self.holes[start] = size
        else:
            self.holes[before] += size


class CachingAllocator:
    """Counts what `torch.cuda` prints: `allocated` bytes of tensors at their peak, and `reserved` ones."""

    def __init__(self) -> None:
        self.segments: dict[str, Segment] = defaultdict(Segment)
        self.held = self.allocated = 0

    @property
    def reserved(self) -> int:
        return sum(segment.end for segment in self.segments.values())

    def new(self, size: float, stream: str = "compute") -> Tensor:
        blocks = -(-int(size) // BLOCK) * BLOCK
        self.held += blocks
        self.allocated = max(self.allocated, self.held)
        return Tensor(stream, self.segments[stream].take(blocks), blocks)

    def free(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            self.held -= tensor.bytes
            self.segments[tensor.stream].give_back(tensor.start, tensor.bytes)

    @contextmanager
    def some(self, *sizes: float) -> Iterator[None]:
        """Tensors that are there for a while."""
        tensors = [self.new(size) for size in sizes]
        yield
        self.free(*tensors)
