"""Wrong and slow answers to `vocabulary_loss`. The docstring of each is in what its reader is told."""

import numpy as np

from collectives import all_gather, all_reduce


def gathers_the_logits(gpu, logits, targets, first, tp):
    """Whole rows of logits travel"""
    pieces = np.empty((tp.size, *logits.shape), logits.dtype)
    all_gather(gpu, pieces, logits, tp)
    rows = np.concatenate(list(pieces), axis=1)
    rows -= rows.max(axis=1, keepdims=True)
    return np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(len(targets)), targets]


def sums_in_16_bits(gpu, logits, targets, first, tp):
    """is the sum over all symbols and not rounded"""
    largest = all_reduce(gpu, logits.max(axis=1), tp, op="max")
    shifted = logits - largest[:, None]
    sums = all_reduce(gpu, np.exp(shifted).sum(axis=1).astype(np.float16), tp).astype(np.float32)
    here = (targets >= first) & (targets < first + logits.shape[1])
    mine = np.where(here, shifted[np.arange(len(targets)), np.where(here, targets - first, 0)], 0)
    return np.log(sums) - all_reduce(gpu, mine, tp)


def own_maximum(gpu, logits, targets, first, tp):
    """Does every GPU subtract the same largest logit"""
    shifted = logits - logits.max(axis=1, keepdims=True)
    sums = all_reduce(gpu, np.exp(shifted).sum(axis=1), tp)
    here = (targets >= first) & (targets < first + logits.shape[1])
    mine = np.where(here, shifted[np.arange(len(targets)), np.where(here, targets - first, 0)], 0)
    return np.log(sums) - all_reduce(gpu, mine, tp)


def no_maximum(gpu, logits, targets, first, tp):
    """exp overflowed"""
    sums = all_reduce(gpu, np.exp(logits).sum(axis=1), tp)
    here = (targets >= first) & (targets < first + logits.shape[1])
    mine = np.where(here, logits[np.arange(len(targets)), np.where(here, targets - first, 0)], 0)
    return np.log(sums) - all_reduce(gpu, mine, tp)


def keeps_the_target_to_itself(gpu, logits, targets, first, tp):
    """does the GPU that has the target tell the others?"""
    largest = all_reduce(gpu, logits.max(axis=1), tp, op="max")
    shifted = logits - largest[:, None]
    sums = all_reduce(gpu, np.exp(shifted).sum(axis=1), tp)
    here = (targets >= first) & (targets < first + logits.shape[1])
    return np.log(sums) - np.where(
        here, shifted[np.arange(len(targets)), np.where(here, targets - first, 0)], 0
    )


def returns_the_mean(gpu, logits, targets, first, tp):
    """one loss for each of 64 tokens"""
    return float(keeps_the_target_to_itself(gpu, logits, targets, first, tp).mean())


def targets_out_of_bounds(gpu, logits, targets, first, tp):
    """IndexError"""
    return logits[np.arange(len(targets)), targets]


def only_for_64_symbols(gpu, logits, targets, first, tp):
    """With 3 GPUs, 10 tokens and 60 symbols:"""
    largest = all_reduce(gpu, logits.max(axis=1), tp, op="max")
    shifted = logits - largest[:, None]
    sums = all_reduce(gpu, np.exp(shifted).sum(axis=1), tp)
    here = targets // 64 == gpu.rank
    mine = np.where(here, shifted[np.arange(len(targets)), np.where(here, targets - first, 0)], 0)
    return np.log(sums) - all_reduce(gpu, mine, tp)


def a_column(gpu, logits, targets, first, tp):
    """GPU 0 returns an array of shape (64, 1). It should return one loss for each of 64 tokens"""
    return logits.max(axis=1, keepdims=True)
