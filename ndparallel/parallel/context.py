"""Context parallelism: every rank has a part of each sequence, and attention alone needs the others' keys and
values.

Idea   Cut the sequence in 2 cp chunks and give rank r the chunks r and 2 cp - 1 - r ("zigzag"): under the
       causal mask early tokens see few keys and late ones many, so an early and a late chunk together are the
       same work on every rank. Keys and values then go round a ring, one rank's block at a time, while
       queries meet the block that came before (Liu et al. 2310.01889); or are gathered at once, before any
       query starts (Llama 3, 2407.21783, section 3.3.2); or an all-to-all gives each rank all tokens of a
       part of the heads, and another brings the results back (Ulysses: Jacobs et al. 2309.14509).
       ndparallel/model/attention.py has the mathematics.
Cost   ring: cp - 1 blocks sent forward; backward cp - 1 again, and cp blocks of their gradients.
       all-gather: the same bytes, less one block of gradients, in one all-gather forward, and one more and a
       reduce-scatter backward; nothing hides them.
       all-to-all: (cp - 1) / cp of a rank's own queries, keys, values and results forward, and of their
       gradients backward: less with every rank, where the others send the whole sequence.
Limit  2 cp divides the sequence; of an all-to-all cp divides the heads, too.

Glossary
    cp            ranks that share a sequence
    block         keys and values of one rank's tokens: (2, s/cp, b, kv_heads, head_dim)
    hop           every block goes right: after hop i a rank has the block of the rank i places to its left
    positions     where in the sequence a rank's tokens stand; a run is a slice of them without gaps
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from collectives import all_gather, all_to_all, reduce_scatter
from gpu import Handle
from ndparallel.parallel.axis import AxisOperators
from ndparallel.parallel.slices import part

VARIANTS = ("ring", "all-gather", "all-to-all")
# Megatron's words for them
CP_COMM_TYPES = {"p2p": "ring", "all_gather": "all-gather", "allgather": "all-gather", "a2a": "all-to-all"}


def in_order(sequence: int, parts: int, index: int) -> tuple[slice, ...]:
    """Return the run of part `index`: the first tokens for part 0, the next for part 1, and so on."""
    return (part(sequence, parts, index),)


def zigzag(sequence: int, parts: int, index: int) -> tuple[slice, ...]:
    """Return the runs of part `index`: one chunk counted from the start of the sequence, one from the end."""
    if parts == 1:
        return (slice(0, sequence),)
    chunk = sequence // (2 * parts)
    return tuple(slice(at * chunk, (at + 1) * chunk) for at in (index, 2 * parts - 1 - index))


@lru_cache(maxsize=256)
def zigzag_positions(sequence: int, parts: int, index: int) -> tuple[int, ...]:
    """Return the positions of part `index` in zigzag, one by one."""
    return tuple(np.r_[zigzag(sequence, parts, index)].tolist())


@dataclass
class ContextParallel(AxisOperators):
    """The context-parallel operators of one rank: its positions, and how keys and values reach it."""

    variant: str = "ring"

    def positions(self, sequence: int) -> tuple[int, ...]:
        return zigzag_positions(sequence, self.size, self.index)

    def all_positions(self, sequence: int) -> tuple[int, ...]:
        """Return the positions of all ranks' tokens in the order in which `gather` puts them."""
        return sum((zigzag_positions(sequence, self.size, index) for index in range(self.size)), ())

    def travel(self, own: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (rank's index, its block), this rank's first. The next block is sent while the caller
        computes with this one."""
        block = own
        for hop in range(self.size - 1):
            on_their_way = self.pass_on(block, "keys and values", hop)
            yield (self.index - hop) % self.size, block
            block = on_their_way.wait()
        yield (self.index + 1) % self.size, block

    def pass_on(self, block: np.ndarray, what: str, hop: int) -> "RingExchange":
        """Send a block to the right and announce one from the left."""
        ranks, name = self.group.ranks, self.group.name
        leaving = self.gpu.isend(ranks[(self.index + 1) % self.size], block, (what, hop), name)
        into = np.empty_like(block)
        return RingExchange(leaving, self.gpu.irecv(ranks[self.index - 1], (what, hop), into, name))

    def gather(self, own: np.ndarray) -> np.ndarray:
        """Return the blocks of all ranks, (cp, *own.shape)."""
        return all_gather(self.gpu, np.empty_like(own, shape=(self.size, *own.shape)), own, self.group)

    def scatter(self, blocks: np.ndarray) -> np.ndarray:
        """Sum over the ranks and keep this rank's block."""
        return reduce_scatter(self.gpu, np.empty_like(blocks, shape=blocks.shape[1:]), blocks, self.group)

    def to_heads(self, own: np.ndarray) -> np.ndarray:
        """Give every rank all tokens of a part of the heads: (s/cp, b, heads, d) becomes (s, b, heads/cp, d),
        in the order of `all_positions`."""
        arrived = self.exchange(np.stack(np.split(own, self.size, axis=2)))
        return arrived.reshape(-1, *arrived.shape[2:])

    def to_tokens(self, own: np.ndarray) -> np.ndarray:
        """And back: (s, b, heads/cp, d) becomes (s/cp, b, heads, d)."""
        return np.concatenate(self.exchange(own.reshape(self.size, -1, *own.shape[1:])), axis=2)

    def exchange(self, parts: np.ndarray) -> np.ndarray:
        """Send part i to rank i; return what the ranks sent, in their order."""
        return all_to_all(self.gpu, np.empty_like(parts), parts, self.group)


class RingExchange(NamedTuple):
    """One hop: a block sent to the right and one received from the left."""

    leaving: Handle
    arriving: Handle

    def wait(self) -> np.ndarray:
        self.leaving.wait()
        return self.arriving.wait()
