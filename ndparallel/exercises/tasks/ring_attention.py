"""Ring attention.

A sequence of 256 tokens is too long for one GPU, so four GPUs have 64 tokens each: their
queries, keys and values. Every query must meet the keys and values of all tokens that stand
before its own. So the blocks of keys and values go round a ring, and each GPU computes with the
block that it has:

        GPU 0   own block      block of 3     block of 2     block of 1
        GPU 1   own block      block of 0     block of 3     block of 2          and so on

A query needs no later key. Under this causal mask early tokens have little to do and late ones
much; which tokens a GPU gets is yours to choose.

Given   attend(gpu, q, k, v, q_positions, k_positions)      a partial result of these queries and keys; its
                                                            price grows with the pairs that the mask allows
        merge(one, other)                                   one partial result of two; `one` may be None
        gpu.isend(target, array, what), gpu.irecv(source, what)      handles; irecv's wait() returns the array
        np.stack([k, v])                                    keys and values in one message

Right is the attention of the whole sequence, and of shorter ones on 2 and 3 GPUs. Then the seconds
count: nobody should wait for a block, nor for a GPU that has more to do.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from gpu import GPU, Operation
from ndparallel.base.errors import UserError
from ndparallel.base.quoting import brief
from ndparallel.base.words import count, listed
from ndparallel.engines.launch import RankResult
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import (
    attempt_of,
    described,
    first_fault,
    missing_work,
    on_gpus,
    right_everywhere,
)
from ndparallel.hardware.pocket import POCKET

WORLDS = ((4, 256), (3, 96), (2, 64))  # GPUs and tokens: the first is measured
WIDTH = 32
STRIPED = "Every GPU has each fourth token: this is Striped Attention (Brandon et al., arXiv 2311.09431)."


def positions(rank: int, ranks: int, sequence: int) -> np.ndarray:
    """Return which tokens a GPU gets: their places in the sequence, in rising order."""
    chunks = np.array_split(np.arange(sequence), 2 * ranks)
    return np.concatenate([chunks[rank], chunks[2 * ranks - 1 - rank]])


def attention(gpu: GPU, q: np.ndarray, k: np.ndarray, v: np.ndarray, ranks: int, sequence: int) -> tuple:
    """Return the partial result of this GPU's queries and all keys and values."""
    right, left = (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
    mine, block = positions(gpu.rank, ranks, sequence), np.stack([k, v])
    result: tuple | None = None
    for hop in range(ranks):
        theirs = positions((gpu.rank - hop) % ranks, ranks, sequence)
        if hop < ranks - 1:
            gpu.isend(right, block, hop)
            arriving = gpu.irecv(left, hop)
        result = merge(result, attend(gpu, q, block[0], block[1], mine, theirs))
        if hop < ranks - 1:
            block = arriving.wait()
    assert result
    return result


def attend(gpu: GPU, q, k, v, q_positions, k_positions) -> tuple:
    """Let queries meet keys: returns (weighted values, sum of weights, largest score) of each query."""
    allowed = np.greater_equal.outer(q_positions, k_positions)
    gpu.compute(Operation("attention", flops=4 * int(allowed.sum()) * q.shape[1]))
    scores = np.where(allowed, q @ k.T / np.sqrt(q.shape[1]), -np.inf)
    largest = np.maximum(scores.max(axis=1), -1e30)
    weights = np.exp(scores - largest[:, None])
    return weights @ v, weights.sum(axis=1), largest


def merge(one: tuple | None, other: tuple) -> tuple:
    """Make one partial result of two of the same queries; `one` may be None."""
    if one is None:
        return other
    largest = np.maximum(one[2], other[2])
    a, b = np.exp(one[2] - largest), np.exp(other[2] - largest)
    return one[0] * a[:, None] + other[0] * b[:, None], one[1] * a + other[1] * b, largest


def problem(sequence: int) -> np.ndarray:
    """Queries, keys and values of the whole sequence."""
    return np.random.default_rng(0).standard_normal((3, sequence, WIDTH)).astype(np.float32)


def whole(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention on one GPU, in float64."""
    scores = q @ k.T / np.sqrt(WIDTH) + np.triu(np.full((len(q), len(k)), -np.inf), 1)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v / weights.sum(axis=1, keepdims=True)


def attempt(answer) -> Attempt:
    return right_everywhere(lambda *world: in_world(answer, *world), "With {} GPUs and {} tokens", *WORLDS)


def in_world(answer, ranks: int, sequence: int) -> Attempt:
    cut = [tokens_of(answer.on(rank).positions(rank, ranks, sequence)) for rank in range(ranks)]
    if wrong := wrong_cut(cut, sequence):
        return Attempt(wrong=wrong)
    q, k, v = problem(sequence)

    def program(gpu: GPU) -> tuple:
        mine = cut[gpu.rank]
        found = answer.on(gpu.rank).attention(gpu, q[mine], k[mine], v[mine], ranks, sequence)
        require_partial(found, q[mine].shape)
        return tuple(found[:2])

    results = on_gpus(program, ranks, POCKET)
    right = whole(*problem(sequence).astype(np.float64))
    wrong = first_fault(fault(result.rank, result.value, right[cut[result.rank]]) for result in results)
    wrong = wrong or missing_work(results, on_one_gpu(sequence))
    done = attempt_of(results, ("step_seconds", "exposed_seconds"), wrong)
    return replace(done, remarks=(STRIPED,) * all(is_striped(part, ranks) for part in cut))


def tokens_of(found: object) -> np.ndarray:
    """Return what positions() returned as an array, which has dtype object where it is none."""
    try:
        return np.asarray(found)
    except ValueError:  # lists of several lengths
        return np.asarray(repr(found), object)


def require_partial(found: object, shape: tuple[int, int]) -> None:
    """Raise UserError for what is no partial result of queries of this shape."""
    shapes = [shape, shape[:1], shape[:1]]
    if not isinstance(found, tuple | list):
        kind = type(found).__name__
        raise UserError(f"attention() returned one {kind}: return a partial result, as merge() does")
    if [getattr(part, "shape", None) for part in found] != shapes:
        parts = listed(list(map(described, found)))
        raise UserError(
            f"attention() returned {parts}: return a partial result, as merge() does, of shapes "
            f"{listed(list(map(str, shapes)))}"
        )


def on_one_gpu(sequence: int) -> list[RankResult]:
    """Attend as it is given, with the whole sequence on one GPU."""
    (q, k, v), places = problem(sequence), np.arange(sequence)
    return on_gpus(lambda gpu: attend(gpu, q, k, v, places, places), 1, POCKET)


def wrong_cut(cut: list[np.ndarray], sequence: int) -> str:
    """Say why a sequence cannot be cut so; nothing where it can."""
    for rank, part in enumerate(cut):
        if part.ndim != 1 or part.dtype.kind not in "iu":
            found = f"positions() returned {brief(part.tolist())} for GPU {rank}"
            return f"{found}: return an array of whole numbers."
    given = Counter(np.concatenate(cut).tolist())
    for token in sorted({*given, *range(sequence)}):
        if given[token] != (token in range(sequence)):
            gets = f"positions() gives token {token} to {count(given[token], 'GPU')}"
            return f"{gets}: give each of the tokens 0 to {sequence - 1} to exactly one."
    lengths = [len(part) for part in cut]
    if len(set(lengths)) > 1:
        return f"positions() gives {lengths} tokens: give all GPUs equally many."
    return ""


def is_striped(tokens: np.ndarray, ranks: int) -> bool:
    """Whether a GPU has every so many-th token."""
    return len(tokens) > 1 and bool((np.diff(tokens) == ranks).all())


def fault(rank: int, found: tuple, right: np.ndarray) -> str:
    values, weights = found
    bad = is_wrong(values / weights[:, None], right)
    if not bad.any():
        return ""
    if not is_wrong(values, right).any():
        return f"GPU {rank}: its values are divided by the weights already: return them as merge() does."
    query = int(np.flatnonzero(bad)[0])
    return (
        f"GPU {rank}: {bad.sum()} of {len(bad)} queries are wrong, the first is its query {query}. Has "
        "every query met the block of every GPU once, with the positions of that GPU's tokens? And has "
        "merge() joined the results?"
    )


def is_wrong(found: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Say of every query whether its values are wrong."""
    return ~(np.abs(found - right).max(axis=1) <= 1e-4)


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["step_seconds"] > 1.4 * par.figures["step_seconds"]:
        return (
            "The GPU with the last tokens has most to do, and the others wait for it: give each an early "
            "part of the sequence and a late one."
        )
    if yours.figures["exposed_seconds"] > par.figures["exposed_seconds"]:
        return "A GPU waits for blocks: let the next one travel while you compute with this one."
    return (
        "No GPU waits for a block, but one has a little more to compute: which two parts of the sequence are "
        "together as much work for every GPU?"
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="CP",
    minutes=30,
    asks={"positions": positions, "attention": attention},
    attempt=attempt,
    hints=(
        "Begin with positions that are right: the first sequence // ranks tokens for GPU 0, the next for GPU "
        "1, and so on. Attend to your own block, pass it on, receive the next, and merge.",
        "After hop i a GPU has the block of GPU (rank - i) % ranks: attend() needs that GPU's positions. "
        "Announce the next block with irecv before you compute, and wait for it afterwards.",
        "For equal work cut the sequence in 2 p parts, and give GPU r the parts r and 2 p - 1 - r: zigzag.",
    ),
    learned="ring attention hides its messages behind its compute, if the sequence is long enough; and under "
    "a causal mask who has which tokens decides who waits.",
    page="docs/book/cp.md",
    over_par=over_par,
    given=("attend", "merge"),
)
