"""Wrong and slow answers to `ring_attention`. The docstring of each is in what its reader is told."""

from typing import Any

import numpy as np

from ndparallel.exercises.tasks.ring_attention import attend, merge, positions


def in_order(rank, ranks, sequence):
    return np.array_split(np.arange(sequence), ranks)[rank]


def ring(gpu, q, k, v, ranks, sequence, of_rank, waits_first=False, merges_own_positions=False):
    mine, result = of_rank(gpu.rank, ranks, sequence), None
    block: Any = np.stack([k, v])
    for hop in range(ranks):
        arriving, source = None, gpu.rank if merges_own_positions else (gpu.rank - hop) % ranks
        if hop < ranks - 1:
            gpu.isend((gpu.rank + 1) % ranks, block, hop)
            arriving = gpu.irecv((gpu.rank - 1) % ranks, hop)
        following = arriving.wait() if arriving and waits_first else None
        result = merge(result, attend(gpu, q, block[0], block[1], mine, of_rank(source, ranks, sequence)))
        if arriving:
            block = following if waits_first else arriving.wait()
    return result


class TokensInOrder:
    """The GPU with the last tokens has most to do"""

    positions = staticmethod(in_order)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        return ring(gpu, q, k, v, ranks, sequence, in_order)


class WaitsBeforeItComputes:
    """let the next one travel while you compute with this one"""

    positions = staticmethod(positions)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        return ring(gpu, q, k, v, ranks, sequence, positions, waits_first=True)


class OwnPositionsForAll:
    """with the positions of that GPU's tokens?"""

    positions = staticmethod(positions)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        return ring(gpu, q, k, v, ranks, sequence, positions, merges_own_positions=True)


class OwnBlockOnly:
    """Has every query met the block of every GPU once"""

    positions = staticmethod(positions)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        mine = positions(gpu.rank, ranks, sequence)
        return attend(gpu, q, k, v, mine, mine)


class TokensTwice:
    """does not give every token to exactly one GPU"""

    @staticmethod
    def positions(rank, ranks, sequence):
        return np.arange(sequence // ranks)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        return attend(gpu, q, k, v, np.arange(len(q)), np.arange(len(q)))


class TokensByTurns:
    """this is Striped Attention (Brandon et al., arXiv 2311.09431). No GPU waits for a block"""

    @staticmethod
    def positions(rank, ranks, sequence):
        return np.arange(rank, sequence, ranks)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        return ring(gpu, q, k, v, ranks, sequence, TokensByTurns.positions)


class OnlyFor4Gpus:
    """With 3 GPUs and 96 tokens:"""

    positions = staticmethod(positions)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        return ring(gpu, q, k, v, 4, sequence, positions)


class OnlyFor256Tokens:
    """With 3 GPUs and 96 tokens: positions() does not give every token to exactly one GPU"""

    @staticmethod
    def positions(rank, ranks, sequence):
        return in_order(rank, 4, 256)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        return ring(gpu, q, k, v, ranks, sequence, OnlyFor256Tokens.positions)


class ReturnsTheQuotient:
    """attention() returned ndarray: return a partial result, as merge() does."""

    positions = staticmethod(positions)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        values, weights, _ = ring(gpu, q, k, v, ranks, sequence, positions)
        return values / weights[:, None]
