"""The mathematics of the layers in numpy: every function's backward stands below its forward.

Idea   Pure functions of arrays: no GPU, no clock, no parameters. layers.py prices them and knows where the
       weights are.
Limit  Attention holds all its scores at once, as attention did before it was fused.

Glossary
    s, b, h    sequence, batch, hidden: activations are (s, b, h), so that cutting the sequence cuts
               contiguous memory
    H, K, d    query heads, key-value heads (H is a multiple of K), size of a head
    dy, dx     gradients of the loss by an output and by an input
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ndparallel.base.bfloat16 import kernel, wide_dtype

EPSILON = 1e-5
# from 0, for a score: neither its exponential nor its inverse leaves what float32 can hold, nor does a sum of
# many of them
FAR = 60.0


@kernel
def rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Scale each row of `x` to root mean square 1, then by `weight`."""
    return x * _inverse_rms(x) * weight


@kernel
def rms_norm_backward(dy: np.ndarray, x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of x and of weight."""
    inverse = _inverse_rms(x)
    normed, dnormed = x * inverse, dy * weight
    dx = inverse * (dnormed - normed * (_row_dot(dnormed, normed) / x.shape[-1]))
    return dx, (dy * normed).reshape(-1, len(weight)).sum(axis=0)


def _inverse_rms(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(_row_dot(x, x) / x.shape[-1] + EPSILON)


def _row_dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The dot product of each row of x with its row of y: (..., n) to (..., 1)."""
    return np.einsum("...i,...i->...", x, y)[..., None]


@kernel
def rotary(x: np.ndarray, rotations: np.ndarray) -> np.ndarray:
    """Turn the pairs (i, i + d/2) of each head of x (s, b, heads, d) by angles that grow with the token's
    position."""
    s, b, heads, d = x.shape
    return (x.reshape(s, b * heads, d) @ rotations).reshape(x.shape)


def rotary_backward(dy: np.ndarray, rotations: np.ndarray) -> np.ndarray:
    """Turn back: a rotation's transpose is its inverse."""
    return rotary(dy, rotations.swapaxes(-1, -2))


@lru_cache
def rotations_at(positions: Sequence[int], d: int, dtype: str) -> np.ndarray:
    """One matrix for each position, for rows to be multiplied with: (s, d, d)."""
    angles = np.outer(positions, 10000.0 ** (-np.arange(0, d, 2) / d))
    first, second = np.arange(d // 2), np.arange(d // 2, d)
    rotations = np.zeros((len(positions), d, d), wide_dtype(dtype))
    rotations[:, first, first] = rotations[:, second, second] = np.cos(angles)
    rotations[:, first, second], rotations[:, second, first] = np.sin(angles), -np.sin(angles)
    return rotations


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


@lru_cache
def causal_bias(queries: Sequence[int], keys: Sequence[int], dtype: str) -> np.ndarray:
    """What is added to a score: 0 where the query at a position may see the key at a position, else minus
    infinity. (queries, keys)."""
    return np.where(np.asarray(queries)[:, None] >= np.asarray(keys)[None, :], 0, -np.inf).astype(
        wide_dtype(dtype)
    )


@kernel
def attention_scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """q k / sqrt(d): (b, K, H/K, queries, keys)."""
    scores = merged(grouped(q * q.shape[-1] ** -0.5, k.shape[2])) @ heads_first(k).swapaxes(-1, -2)
    return scores.reshape(*scores.shape[:2], -1, len(q), len(k))


@kernel
def softmax(scores: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """Turn scores (plus bias) into probabilities, in their own memory."""
    return _exponentials(scores, bias)[0]


@kernel
def softmax_with_logsum(scores: np.ndarray, bias: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the same, and the logarithm of each row's sum of exponentials."""
    probabilities, total, top = _exponentials(scores, bias)
    return probabilities, np.log(total) + top


def _exponentials(scores: np.ndarray, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return probabilities, the sum of each row's exponentials, and what was taken off its scores before.

    Where scores are far from 0 each row's largest is taken off first, so that no exponential is too large;
    elsewhere that can be saved.
    """
    is_far = not (scores.min(initial=0) > -FAR and scores.max(initial=0) < FAR)
    if bias is not None:
        scores += bias
    top = scores.max(axis=-1, keepdims=True) if is_far else 0
    if is_far:
        scores -= top
    np.exp(scores, out=scores)
    total = np.einsum("...i->...", scores)[..., None]
    scores /= total
    return scores, total, top


def attention_values(probabilities: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Mix the values (s, b, K, d) by their probabilities: (s, b, H, d)."""
    mixed = merged(probabilities) @ heads_first(v)
    return ungrouped(mixed.reshape(*probabilities.shape[:-1], -1))


def attention_merge(
    mixed: np.ndarray, logsum: np.ndarray, block: np.ndarray, block_logsum: np.ndarray
) -> None:
    """Add, in place, what the same queries (s, b, H, d) found in another block of keys: the online softmax.

    `logsum` (b, K, H/K, s, 1) is the logarithm of the sum of exponentials seen so far; each side weighs as
    much as its own sum.
    """
    total = np.logaddexp(logsum, block_logsum)
    mixed *= ungrouped(np.exp(logsum - total))
    mixed += block * ungrouped(np.exp(block_logsum - total))
    logsum[...] = total


def attention_values_backward(
    dy: np.ndarray, probabilities: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of the probabilities and of v."""
    dy, values = merged(grouped(dy, v.shape[2])), heads_first(v)
    dv = merged(probabilities).swapaxes(-1, -2) @ dy
    return (dy @ values.swapaxes(-1, -2)).reshape(probabilities.shape), sequence_first(dv)


@kernel
def softmax_backward(dy: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Turn the gradient of probabilities y into that of the scores, in its own memory."""
    dy -= _row_dot(dy, y)
    dy *= y
    return dy


def attention_scores_backward(
    dscores: np.ndarray, q: np.ndarray, k: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of q and k."""
    scale, queries = q.shape[-1] ** -0.5, merged(dscores)
    dq = (queries @ heads_first(k)).reshape(*dscores.shape[:-1], -1)
    dk = queries.swapaxes(-1, -2) @ merged(grouped(q * scale, k.shape[2]))
    return ungrouped(dq * scale), sequence_first(dk)


def heads_first(x: np.ndarray) -> np.ndarray:
    """Transpose (s, b, heads, d) to (b, heads, s, d)."""
    return x.transpose(1, 2, 0, 3)


def sequence_first(x: np.ndarray) -> np.ndarray:
    """Transpose (b, heads, s, d) to (s, b, heads, d)."""
    return x.transpose(2, 0, 1, 3)


def grouped(x: np.ndarray, kv_heads: int) -> np.ndarray:
    """Turn (s, b, H, d) into (b, K, H/K, s, d): the query heads of one key-value head stand together."""
    s, b, heads, d = x.shape
    return heads_first(x).reshape(b, kv_heads, heads // kv_heads, s, d)


def merged(x: np.ndarray) -> np.ndarray:
    """Turn (b, K, H/K, s, n) into (b, K, H/K * s, n): one matrix for all queries of a key-value head, of
    which BLAS needs no copies."""
    b, kv_heads, group, s, n = x.shape
    return x.reshape(b, kv_heads, group * s, n)


def ungrouped(x: np.ndarray) -> np.ndarray:
    """Turn (b, K, H/K, s, d) into (s, b, H, d)."""
    b, kv_heads, group, s, d = x.shape
    return sequence_first(x.reshape(b, kv_heads * group, s, d))


@kernel
def swiglu(gate_up: np.ndarray) -> np.ndarray:
    """silu(gate) * up, for gate and up side by side on the last axis."""
    gate, up = _halves(gate_up)
    return gate * _sigmoid(gate) * up


@kernel
def swiglu_backward(dy: np.ndarray, gate_up: np.ndarray) -> np.ndarray:
    gate, up = _halves(gate_up)
    sigmoid = _sigmoid(gate)
    silu = gate * sigmoid
    slope = sigmoid + silu * (1 - sigmoid)
    return np.concatenate([dy * up * slope, dy * silu], axis=-1)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
