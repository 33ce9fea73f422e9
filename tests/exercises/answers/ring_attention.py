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
    """positions() gives token 0 to 4 GPUs: give each of the tokens 0 to 255 to exactly one."""

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
    """With 3 GPUs and 96 tokens: positions() gives token 96 to 1 GPU: give each of the tokens 0 to 95"""

    @staticmethod
    def positions(rank, ranks, sequence):
        return in_order(rank, 4, 256)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        return ring(gpu, q, k, v, ranks, sequence, OnlyFor256Tokens.positions)


class PositionsInFractions:
    """positions() returned [0.0, 1.0, 2.0,"""

    @staticmethod
    def positions(rank, ranks, sequence):
        return in_order(rank, ranks, sequence).astype(float)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        return ring(gpu, q, k, v, ranks, sequence, PositionsInFractions.positions)


class NoPositions:
    """positions() returned None for GPU 0: return an array of whole numbers."""

    @staticmethod
    def positions(rank, ranks, sequence):
        pass

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        return ring(gpu, q, k, v, ranks, sequence, in_order)


class AddsUp:
    """And has merge() joined the results?"""

    positions = staticmethod(positions)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        mine, block, result = positions(gpu.rank, ranks, sequence), np.stack([k, v]), (0, 0, 0)
        for hop in range(ranks):
            gpu.isend((gpu.rank + 1) % ranks, block, hop)
            theirs = positions((gpu.rank - hop) % ranks, ranks, sequence)
            part = attend(gpu, q, block[0], block[1], mine, theirs)
            result = (result[0] + part[0], result[1] + part[1], part[2])
            block = gpu.irecv((gpu.rank - 1) % ranks, hop).wait()
        return result


class DividesByTheWeights:
    """GPU 0: its values are divided by the weights already: return them as merge() does."""

    positions = staticmethod(positions)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        values, weights, largest = ring(gpu, q, k, v, ranks, sequence, positions)
        return values / weights[:, None], weights, largest


class ReturnsTheQuotient:
    """attention() returned one ndarray: return a partial result, as merge() does."""

    positions = staticmethod(positions)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        values, weights, _ = ring(gpu, q, k, v, ranks, sequence, positions)
        return values / weights[:, None]


class Empty:
    """attention() returned None, None and None: return a partial result"""

    positions = staticmethod(positions)

    @staticmethod
    def attention(gpu, q, k, v, ranks, sequence):
        return None, None, None


class Ragged:
    """positions() returned '[[0, 1], [2]]' for GPU 0: return an array of whole numbers"""

    @staticmethod
    def positions(rank, ranks, sequence):
        return [[0, 1], [2]]

    attention = staticmethod(Empty.attention)
