"""Which experts a token goes to: the mathematics of a router in numpy, every backward below its forward.

Idea   A softmax over the experts, the top k of which a token goes to, weighed by their probabilities. A
       second loss keeps the experts equally busy: for each sequence, sum over experts of f P, where f is the
       share of the sequence's choices that fell on the expert, times the number of experts, and P its mean
       probability (Fedus et al. 2101.03961, section 2.2; by sequence and for top k as in DeepSeek-V3,
       2412.19437, section 2.1.2). It is 1 at balance; its gradient flows through P alone.
Limit  Choices are integers and have no gradient; near a tie a rounding error may change one.

Glossary
    t, E, k       tokens, experts, experts of one token
    choice        one token's one expert: a token has k choices, and a row of the experts' matmuls belongs to
                  a choice
    chosen        (t, k): the experts of each token, the most probable first
    gates         (t, k): what each expert's output is weighed by
    order         the choices that experts take, sorted by expert and then by token; choice c is token c // k
    slots         (t * k, h): one row for each choice
"""

import math
from functools import lru_cache

import numpy as np

from ndparallel.base.messages import is_size_only


def top_k(probabilities: np.ndarray, k: int) -> np.ndarray:
    """The k most probable experts of each token (t, E); of equal ones the lower index."""
    return np.argsort(-probabilities, axis=-1, kind="stable")[:, :k].astype(np.int32)


def gates(probabilities: np.ndarray, chosen: np.ndarray, renormalise: bool) -> np.ndarray:
    picked = probabilities.take(places(chosen, probabilities.shape[-1]))
    return picked / picked.sum(axis=-1, keepdims=True) if renormalise else picked


def gates_backward(
    dgates: np.ndarray, probabilities: np.ndarray, chosen: np.ndarray, renormalise: bool
) -> np.ndarray:
    """Return the gradient of the probabilities (t, E)."""
    where = places(chosen, probabilities.shape[-1])
    if renormalise:
        picked = probabilities.take(where)
        total = picked.sum(axis=-1, keepdims=True)
        dgates = (dgates - np.einsum("tk,tk->t", dgates, picked / total)[:, None]) / total
    dprobabilities = np.zeros_like(probabilities)
    dprobabilities.reshape(-1)[where] = dgates
    return dprobabilities


def places(chosen: np.ndarray, experts: int) -> np.ndarray:
    """The places (t, k) of choices (t, k) in the flat array of what every token has of every expert."""
    return chosen if is_size_only(chosen) else chosen + _first_places(len(chosen), experts)


@lru_cache
def _first_places(tokens: int, experts: int) -> np.ndarray:
    return np.arange(0, tokens * experts, experts)[:, None]


def capacity(factor: float | None, tokens: int, k: int, experts: int) -> int:
    """Choices that one expert takes from the tokens of one rank: its even share, times the factor, rounded
    up."""
    return tokens * k if factor is None else math.ceil(factor * tokens * k / experts)


def assign(chosen: np.ndarray, experts: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The choices that are taken, in order, and how many each expert takes (E): of those over its limit the
    later tokens' are dropped."""
    order = np.argsort(chosen.reshape(-1), kind="stable")
    counts = np.bincount(chosen.reshape(-1), minlength=experts)
    if counts.max() > limit and is_size_only(order):
        counts = np.minimum(counts, limit)
        order = order[: counts.sum()]
    elif counts.max() > limit:
        place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        order, counts = order[place < limit], np.minimum(counts, limit)
    return order.astype(np.int32), counts.astype(np.int32)


def permute(x: np.ndarray, order: np.ndarray, k: int) -> np.ndarray:
    """Copy the tokens x (t, h) to one row for each choice in `order`."""
    return x[order // k]


def permute_backward(drows: np.ndarray, order: np.ndarray, tokens: int, k: int) -> np.ndarray:
    return slots(drows, order, tokens, k).sum(axis=1)


def combine(rows: np.ndarray, weights: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The sum of each token's rows, weighed by its gates (t, k); a dropped choice adds nothing."""
    return np.einsum("tk,tkh->th", weights, slots(rows, order, *weights.shape))


def combine_backward(
    dy: np.ndarray, rows: np.ndarray, weights: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of the rows and of the gates."""
    dchoices = permute(dy, order, weights.shape[1])
    dweights = np.zeros_like(weights)
    dweights.reshape(-1)[order] = np.sum(dchoices * rows, axis=-1)
    return dchoices * weights.reshape(-1)[order, None], dweights


def slots(rows: np.ndarray, order: np.ndarray, tokens: int, k: int) -> np.ndarray:
    """Rows in the places of their choices, (t, k, h); zeros where a choice was dropped."""
    placed = np.zeros_like(rows, shape=(tokens * k, rows.shape[-1]))
    placed[order] = rows
    return placed.reshape(tokens, k, -1)


def balance_counts(chosen: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Choices that fell on each expert, and its summed probabilities, by sequence: (2, b, E), of
    probabilities (s, b, E).

    Summed over the ranks that share a sequence they are the whole sequence's.
    """
    s, b, experts = probabilities.shape
    hits = np.zeros_like(probabilities)
    hits.reshape(-1)[places(chosen, experts)] = 1
    counts = np.empty_like(probabilities, shape=(2, b, experts))
    hits.sum(axis=0, out=counts[0])
    probabilities.sum(axis=0, out=counts[1])
    return counts


def balance(counts: np.ndarray, sequence: int, k: int) -> tuple[float, np.ndarray]:
    """The balance loss of whole sequences, their mean, and f (b, E), its gradient by P."""
    hits, summed = counts
    frequencies = hits * (hits.shape[-1] / (k * sequence))
    return float(np.vdot(frequencies, summed)) / (len(hits) * sequence), frequencies
