"""One attention over one long sequence: the smallest model that needs context parallelism. Queries, keys and
values are themselves what is trained, and what attention makes of them is held against a target.

Idea   A lesson cuts the sequence by hand. Every query meets the keys before it, in tiles: this rank's queries
       and the keys of some ranks. A tile knows its part of the causal mask, and so its price.
Cost   2 products over query-key pairs forward and 5 backward, which computes the scores once more, as
       FlashAttention does (Dao et al. 2205.14135): s (s + 1) / 2 pairs in all.
Limit  One head, as wide as the model, and the batch as one sequence. A tile is one kernel each way.

Glossary
    s, d         tokens of the whole sequence, width of a query
    positions    where in the sequence a rank's tokens stand
    block        keys and values of one rank: (2, tokens, d)
    tile         the part of the causal mask where this rank's queries meet some ranks' keys
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from gpu import GPU
from ndparallel.base.bfloat16 import wide_dtype
from ndparallel.base.size_only import SizeOnly
from ndparallel.model import costs
from ndparallel.parallel.context import ContextParallel
from ndparallel.training.by_hand import ByHand, Slice
from ndparallel.training.job import Job

FAR_BELOW = -1e30  # what a pair's score becomes under the mask: finite, for rows without keys
Positions = Callable[[int, int, int], tuple[int, ...]]  # of (sequence, ranks, rank), in rising order


class LongAttention(ByHand):
    """The tokens of one rank, at the `positions` that it gets: its queries, keys and values."""

    def __init__(self, gpu: GPU, job: Job, positions: Positions) -> None:
        super().__init__(gpu, job)
        self.cp = ContextParallel(gpu, job.mesh.group("cp", gpu.rank))
        self.positions = [positions(self.tokens, self.cp.size, rank) for rank in range(self.cp.size)]
        self.queries, self.keys, self.values = (self.hold_tokens(name) for name in ("q", "k", "v"))
        self.target = self.drawn((self.tokens, job.model.hidden))[self.mine]
        self.tiles = [Tile(self, [rank]) for rank in range(self.cp.size)]

    @property
    def mine(self) -> Any:
        """Where this rank's tokens stand; of what is only a size, the first ones."""
        mine = self.positions[self.cp.index]
        return slice(len(mine)) if self.job.sizes_only else np.array(mine)

    def hold_tokens(self, name: str) -> Slice:
        whole = (self.tokens, self.job.model.hidden)
        places = [(run, slice(0, whole[1])) for run in runs(self.positions[self.cp.index])]
        return self.hold(name, whole, *places, deviation=1.0)

    @property
    def q(self) -> np.ndarray:
        return self.queries.weight

    @property
    def block(self) -> np.ndarray:
        """Keys and values of this rank's tokens, as one message."""
        return np.stack([self.keys.weight, self.values.weight])

    def travel(self) -> Iterator[np.ndarray]:
        """Yield the blocks of all ranks, this rank's first, each sent on before the caller computes with
        it."""
        return (block for _, block in self.cp.travel(self.block))

    def tile(self, hop: int) -> "Tile":
        """Return the tile of the block that is here after so many hops to the right."""
        return self.tiles[(self.cp.index - hop) % self.cp.size]

    @cached_property
    def whole_tile(self) -> "Tile":
        """Return the tile of all ranks' keys, one rank after another."""
        return Tile(self, range(self.cp.size))

    def set_aside(self, blocks: int) -> None:
        """Count memory for blocks of other ranks, and as many of gradients."""
        keys_and_values = (self.keys, self.values)
        block = sum(each.weight.nbytes + each.gradient.nbytes for each in keys_and_values)
        self.gpu.allocate("buffers", blocks * block)

    def loss_gradient(self, mixed: np.ndarray) -> np.ndarray:
        """The gradient of half the mean square distance from the target; the loss is noted."""
        return self.distance_gradient(mixed, self.target, self.cp.size)

    def add_gradients(self, dq: np.ndarray, dblock: np.ndarray) -> None:
        for part, gradient in zip(self.held, (dq, *dblock)):
            part.gradient += gradient


class Tile:
    """Where the queries of one rank meet the keys of `sources`."""

    def __init__(self, attention: LongAttention, sources: Any) -> None:
        self.attention = attention
        self.rows = np.array(attention.positions[attention.cp.index])
        self.columns = np.array([*chain.from_iterable(attention.positions[source] for source in sources)])

    @cached_property
    def pairs(self) -> int:
        """Query-key pairs that the causal mask keeps."""
        return int(np.searchsorted(np.sort(self.columns), self.rows, side="right").sum())

    @cached_property
    def mask(self) -> Any:
        """What is added to the scores: 0 for a key at the query's place or before it, else far below 0."""
        dtype = wide_dtype(self.attention.job.dtype)
        if self.attention.job.sizes_only:
            return SizeOnly((len(self.rows), len(self.columns)), dtype)
        return np.where(self.rows[:, None] >= self.columns, 0, FAR_BELOW).astype(dtype)

    def charge(self, name: str, products: int) -> None:
        """Charge for a kernel of so many products over the pairs; a tile without pairs is left out."""
        if self.pairs:
            job, numbers = self.attention.job, self.attention.q.size
            price = costs.attention(name, self.pairs, job.model.hidden, 4, numbers, products, job.dtype)
            self.attention.gpu.compute(price)


def runs(positions: tuple[int, ...]) -> list[slice]:
    """Return positions as slices of neighbours."""
    places = np.array(positions)
    neighbours = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    return [slice(int(run[0]), int(run[-1]) + 1) for run in neighbours]
