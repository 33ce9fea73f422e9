"""Parameters: their names, which slice of the whole a rank holds, and the flat arrays they live in.

Idea   A unit (embedding, block, head) keeps all its parameters in one flat array; named parameters are views
       of it. Buckets, ZeRO shards and FSDP gathers are slices of flat arrays. Weights are drawn by name and
       then sliced, so that no layout changes them.
"""

import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.random import default_rng  # numpy loads it late: once here, and not in every rank

from ndparallel.base.bfloat16 import as_dtype


@dataclass
class Parameter:
    """A named tensor of shape `whole`, of which this rank holds `index`. With `deviation` None it starts as
    ones.

    `shared_by` consecutive tp ranks hold the same slice and compute a part of its gradient each, which
    they must sum.
    """

    name: str
    whole: tuple[int, ...]
    index: tuple[slice, ...]
    deviation: float | None = None
    shared_by: int = 1

    def __post_init__(self) -> None:
        self.shape = tuple([part.stop - part.start for part in self.index])
        self.size = math.prod(self.shape)
        self.short_name = self.name.rsplit(".", 1)[-1]

    def draw(self, seed: int, dtype: str) -> np.ndarray:
        """Return this rank's slice of the initial weights."""
        return drawn(self.name, self.whole, self.deviation, seed, dtype)[self.index]


@lru_cache(maxsize=512)
def drawn(name: str, shape: tuple[int, ...], deviation: float | None, seed: int, dtype: str) -> np.ndarray:
    if deviation is None:
        return as_dtype(np.ones(shape), dtype)
    generator = default_rng([seed, zlib.crc32(name.encode())])
    return as_dtype(deviation * generator.standard_normal(shape), dtype)


def whole(*shape: int) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in shape)


def part(size: int, parts: int, index: int) -> slice:
    """Return the index-th of `parts` parts of a dimension; where `parts` does not divide it, the first
    parts are one larger."""
    base, extra = divmod(size, parts)
    start = index * base + min(index, extra)
    return slice(start, start + base + (index < extra))


def pieces(
    parameters: Iterable[Parameter], start: int, array: np.ndarray
) -> Iterator[tuple[Parameter, slice, np.ndarray]]:
    """Cut a flat array, which begins at element `start` of these parameters, at their borders: (parameter,
    which elements of its flattened slice, those elements)."""
    stop, base = start + array.size, 0
    for parameter in parameters:
        first, last = max(start, base), min(stop, base + parameter.size)
        if first < last:
            yield parameter, slice(first - base, last - base), array[first - start : last - start]
        base += parameter.size


def views(parameters: list[Parameter], flat: np.ndarray) -> Iterator[tuple[Parameter, np.ndarray]]:
    """Yield every parameter with its view of a flat array."""
    start = 0
    for parameter in parameters:
        stop = start + parameter.size
        yield parameter, flat[start:stop].reshape(parameter.shape)
        start = stop
