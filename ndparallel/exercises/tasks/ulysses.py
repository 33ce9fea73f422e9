"""Heads instead of blocks.

A sequence is too long for one GPU, so four GPUs have 64 of its 256 tokens each, GPU 0 the first ones:
their queries, keys and values, of all 8 heads. Every query must meet the keys and values of all
tokens before its own. In a ring these travel. But heads do not look at one another. So let each GPU
attend with two heads alone, for all tokens, and bring what it finds to the GPUs of the tokens:

        GPU 0   its tokens, all heads   ->   all tokens, heads 0 and 1   ->   its tokens, all heads
        GPU 1   its tokens, all heads   ->   all tokens, heads 2 and 3   ->   its tokens, all heads

Given   q, k, v                     (tokens, heads, width) of this GPU's tokens
        attend(gpu, q, k, v)        causal attention of a whole sequence, with any number of heads: an array
                                    like q; its price grows with the heads and with the pairs of tokens
        gpu.send(target, array, what), gpu.receive(source, what)    receive returns the array
        np.split(array, ranks, axis), np.concatenate(arrays, axis), np.stack(arrays)

Right is the attention of this GPU's tokens, with all heads, on 2 and 3 GPUs too. Then the bytes count,
and the seconds: every message has its latency.
"""

import numpy as np

from gpu import GPU, Operation
from ndparallel.base.words import listed
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import (
    as_array,
    attempt_of,
    described,
    first_fault,
    missing_work,
    on_gpus,
    right_everywhere,
)
from ndparallel.hardware.pocket import POCKET

WORLDS = ((4, 256, 8), (3, 96, 6), (2, 64, 2))  # GPUs, tokens and heads: the first is measured
WIDTH = 8


def attention(gpu: GPU, q: np.ndarray, k: np.ndarray, v: np.ndarray, ranks: int) -> np.ndarray:
    """Return what causal attention gives for this GPU's tokens, (tokens, heads, width)."""

    def exchange(parts: list[np.ndarray], what: str) -> list[np.ndarray]:
        arrived = list(parts)
        for distance in range(1, ranks):
            target = (gpu.rank + distance) % ranks
            gpu.send(target, parts[target], what)
        for distance in range(1, ranks):
            source = (gpu.rank - distance) % ranks
            arrived[source] = gpu.receive(source, what)
        return arrived

    some_heads = exchange(np.split(np.stack([q, k, v]), ranks, axis=2), "to the heads")
    found = attend(gpu, *np.concatenate(some_heads, axis=1))
    return np.concatenate(exchange(np.split(found, ranks), "to the tokens"), axis=1)


def attend(gpu: GPU, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Let the queries of a whole sequence meet its keys, head by head."""
    tokens, heads, width = q.shape
    gpu.compute(Operation("forward attention", flops=2 * heads * tokens * (tokens + 1) * width))
    scores = np.einsum("qhw,khw->hqk", q, k) * width**-0.5
    scores += np.triu(np.full((tokens, tokens), -np.inf, scores.dtype), 1)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.einsum("hqk,khw->qhw", weights / weights.sum(axis=2, keepdims=True), v)


def problem(tokens: int, heads: int) -> np.ndarray:
    """Queries, keys and values of the whole sequence."""
    return np.random.default_rng(0).standard_normal((3, tokens, heads, WIDTH)).astype(np.float32)


def attempt(answer) -> Attempt:
    return right_everywhere(
        lambda *world: in_world(answer, *world), "With {} GPUs, {} tokens and {} heads", *WORLDS
    )


def in_world(answer, ranks: int, tokens: int, heads: int) -> Attempt:
    qkv = problem(tokens, heads)

    def program(gpu: GPU) -> np.ndarray:
        q, k, v = (part.copy() for part in np.split(qkv, ranks, axis=1)[gpu.rank])
        return answer.on(gpu.rank).attention(gpu, q, k, v, ranks)

    results = on_gpus(program, ranks, POCKET)
    (alone,) = on_gpus(lambda gpu: attend(gpu, *qkv.astype(np.float64)), 1, POCKET)
    right = np.split(alone.value, ranks)
    wrong = first_fault(fault(result.rank, result.value, right[result.rank], ranks) for result in results)
    return attempt_of(results, ("step_seconds", "bytes_sent"), wrong or missing_work(results, [alone]))


def fault(rank: int, found: object, right: np.ndarray, ranks: int) -> str:
    found = as_array(found)
    if not isinstance(found, np.ndarray) or found.shape != right.shape:
        tokens, heads, width = right.shape
        return (
            f"GPU {rank} returns {described(found)}, and should return its {tokens} tokens with all {heads} "
            f"heads: ({tokens}, {heads}, {width})."
        )
    close = np.abs(found - right).max(axis=2) <= 1e-4
    if close.all():
        return ""
    each = right.shape[1] // ranks
    bad = sorted({int(head) // each for head in np.flatnonzero(~close.all(axis=0))})
    gpus = f"GPU{'s' * (len(bad) > 1)} {listed([str(gpu) for gpu in bad])}"
    return (
        f"GPU {rank}: its tokens have wrong results in the heads of {gpus}. Do keys and "
        "values stand in the order of the tokens, those of GPU 0 first? And do the heads, when they have "
        "come back?"
    )


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["bytes_sent"] > 1.2 * par.figures["bytes_sent"]:
        return (
            "Numbers travel that nobody needs: a GPU needs other tokens' queries, keys and values of its own "
            "heads alone, and sends a token's result to that token's GPU alone. It sends nothing to itself, "
            "and all as float32."
        )
    if yours.figures["step_seconds"] > 3 * par.figures["step_seconds"]:
        return "A GPU attends with heads that another one has, too: give each its own."
    return (
        "A GPU waits: put queries, keys and values for one GPU into one message, send to all before you "
        "receive from any, and begin with the next GPU, so that not all send to the same one at once."
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="CP",
    minutes=25,
    asks={"attention": attention},
    attempt=attempt,
    hints=(
        "np.split(q, ranks, axis=1)[other] are the queries that GPU `other` needs of your tokens; what comes "
        "from GPU i are the tokens of GPU i.",
        "np.concatenate(arrived) in the order of the GPUs is the whole sequence, with your heads. After "
        "attend() np.split(found, ranks)[other] are the tokens of GPU `other`.",
        "Both ways are the same exchange: send parts[other] to each other GPU, then receive one part from "
        "each; np.stack([q, k, v]) makes one message of three.",
    ),
    learned="Ulysses is two all-to-alls around attention as it is on one GPU. It needs no merge and no "
    "zigzag, a GPU sends less the more there are, and there are no more GPUs than heads.",
    page="docs/book/cp.md",
    over_par=over_par,
    given=("attend",),
    known_better="With several heads on a GPU there is a better way: let the results of one head travel "
    "while the next is computed.",
)
