"""CP: context parallelism. The GPUs cut every sequence, and attention alone needs the others' tokens.

Idea    All that a layer does to a token needs that token alone, but for attention: a query needs the keys
        and values of all tokens before its own. So each GPU keeps its tokens' queries, and keys and values
        travel:
            gathered      all of them come at once, before any query starts (Llama 3's way)
            ring          one GPU's block at a time; what a query found in two blocks is merged
            overlapped    the next block travels while the queries meet this one
            Ulysses       an all-to-all gives each GPU all tokens of some heads, and takes the results back
        A query does not look ahead, so early tokens have little to do and late ones much:
            in order      GPU 0 has the first tokens, the last GPU the last ones, and the most work
            zigzag        each GPU has an early part of the sequence and a late one: equal work
Cost    A GPU sends the keys and values of its tokens p - 1 times forward and again backward, and their
        gradients p times: bytes grow with the sequence, the work of attention with its square. By Ulysses it
        sends what is of its own tokens. All GPUs have all weights, whose gradients are averaged as in 1D.
Limit   The sequence: where a GPU has few tokens of it, compute is too short to hide the messages. Of Ulysses
        the heads: p divides them.

Glossary
    p, cp         GPUs that share a sequence
    block         keys and values of one GPU's tokens
    hop           every block goes to the right: after it a GPU has the block of its left neighbour
    mixed         what attention gives: for each query the values, weighed by their probabilities
    logsum        the logarithm of a query's sum of exponentials: how much its `mixed` weighs in a merge
    tile          the part of the causal mask where this GPU's queries meet a block

Run     python cp_context_parallel.py    and with --gpus-per-node 1, --sweep (sequence, hiding, ways)
"""

import sys

from collectives import Array
from gpu import GPU  # before numpy: it sets one BLAS thread a GPU

import numpy as np  # isort: skip
from ndparallel.base.bfloat16 import kernel
from ndparallel.lessons.context_parallel import SWEEPS, mesh, mesh_of_several, notice
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.main import main
from ndparallel.parallel.context import in_order, zigzag
from ndparallel.training.job import Job
from ndparallel.training.long_attention import LongAttention, Tile
from ndparallel.training.overlapped import ddp_overlapped
from ndparallel.training.replica import Outcome


@kernel
def attend(q: Array, block: Array, tile: Tile) -> tuple[Array, Array]:
    """Queries (n, d) meet a block (2, m, d): a softmax over its keys alone. Returns (mixed, logsum)."""
    tile.charge("forward attention", products=2)
    scores = q @ block[0].T * q.shape[1] ** -0.5 + tile.mask
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=1, keepdims=True)
    return weights @ block[1] / total, np.log(total) + top


@kernel
def attend_backward(
    dmixed: Array, mixed: Array, logsum: Array, q: Array, block: Array, tile: Tile
) -> tuple[Array, Array]:
    """Return the gradients of the queries and of the block. `mixed` and `logsum` are those over all blocks:
    with them a block's probabilities are known, and no other block is needed."""
    tile.charge("backward attention", products=5)
    scale = q.shape[1] ** -0.5
    probabilities = np.exp(q @ block[0].T * scale + tile.mask - logsum)
    row_sums = (dmixed * mixed).sum(axis=1, keepdims=True)
    dscores = probabilities * (dmixed @ block[1].T - row_sums) * scale
    return dscores @ block[0], np.stack([dscores.T @ q, probabilities.T @ dmixed])


@kernel
def merge(mixed: Array, logsum: Array, block_mixed: Array, block_logsum: Array) -> tuple[Array, Array]:
    """Make one softmax of two: each side weighs as much as its sum of exponentials."""
    total = np.logaddexp(logsum, block_logsum)
    return mixed * np.exp(logsum - total) + block_mixed * np.exp(block_logsum - total), total


def ring_in_order(gpu: GPU, job: Job) -> Outcome:
    """A ring in which every GPU has one piece of the sequence: the last one has the most pairs."""
    return ring(LongAttention(gpu, job, in_order))


def ring_zigzag(gpu: GPU, job: Job) -> Outcome:
    """The same ring; each GPU has an early piece of the sequence and a late one: equal work."""
    return ring(LongAttention(gpu, job, zigzag))


def ring(attention: LongAttention) -> Outcome:
    """Wait for a block, compute, pass it on. Backward its gradient travels with it, and so comes home."""
    cp, q = attention.cp, attention.q
    attention.set_aside(blocks=2)
    for _ in attention.steps():
        block = attention.block
        mixed, logsum = attend(q, block, attention.tile(0))
        for hop in range(1, cp.size):
            block = cp.pass_on(block, "keys and values", hop).wait()
            mixed, logsum = merge(mixed, logsum, *attend(q, block, attention.tile(hop)))
        dmixed = attention.loss_gradient(mixed)
        block = attention.block
        dq, dblock = attend_backward(dmixed, mixed, logsum, q, block, attention.tile(0))
        for hop in range(1, cp.size):
            block = cp.pass_on(block, "keys and values again", hop).wait()
            dblock = cp.pass_on(dblock, "their gradients", hop).wait()
            more = attend_backward(dmixed, mixed, logsum, q, block, attention.tile(hop))
            dq, dblock = dq + more[0], dblock + more[1]
        dblock = cp.pass_on(dblock, "their gradients", cp.size).wait()
        attention.add_gradients(dq, dblock)
    return attention.outcome


def ring_overlapped(gpu: GPU, job: Job) -> Outcome:
    """The same, but the next block and the last one's gradients travel while the queries meet this block."""
    attention = LongAttention(gpu, job, zigzag)
    cp, q = attention.cp, attention.q
    attention.set_aside(blocks=2)
    for _ in attention.steps():
        blocks = attention.travel()
        mixed, logsum = attend(q, next(blocks), attention.tile(0))
        for hop, block in enumerate(blocks, 1):
            mixed, logsum = merge(mixed, logsum, *attend(q, block, attention.tile(hop)))
        dmixed = attention.loss_gradient(mixed)
        blocks = attention.travel()
        dq, dblock = attend_backward(dmixed, mixed, logsum, q, next(blocks), attention.tile(0))
        for hop, block in enumerate(blocks, 1):
            on_its_way = cp.pass_on(dblock, "their gradients", hop)
            more = attend_backward(dmixed, mixed, logsum, q, block, attention.tile(hop))
            dq, dblock = dq + more[0], on_its_way.wait() + more[1]
        dblock = cp.pass_on(dblock, "their gradients", cp.size).wait()
        attention.add_gradients(dq, dblock)
    return attention.outcome


def gathered(gpu: GPU, job: Job) -> Outcome:
    """All keys and values come before any query starts, and meet them in one kernel; the gradients that all
    GPUs found for them are summed and scattered."""
    attention = LongAttention(gpu, job, zigzag)
    cp, q, tile = attention.cp, attention.q, attention.whole_tile
    attention.set_aside(blocks=cp.size)
    for _ in attention.steps():
        keys_and_values = np.concatenate(cp.gather(attention.block), axis=1)
        mixed, logsum = attend(q, keys_and_values, tile)
        dmixed = attention.loss_gradient(mixed)
        dq, dall = attend_backward(dmixed, mixed, logsum, q, keys_and_values, tile)
        dblock = cp.scatter(np.stack(np.split(dall, cp.size, axis=1)))
        attention.add_gradients(dq, dblock)
    return attention.outcome


def context_parallel(gpu: GPU, job: Job) -> Outcome:
    """The whole model: each GPU runs all layers on its part of every sequence, blocks travel inside attention
    (ndparallel/model/attention.py), and gradients are averaged behind the backward pass, as in 1D."""
    return ddp_overlapped(gpu, job)


STRATEGIES = [
    Strategy("attention, ring in order", ring_in_order, mesh_of_several, reference=gathered),
    Strategy("attention, ring zigzag", ring_zigzag, mesh_of_several, reference=gathered),
    Strategy("attention, gathered", gathered, mesh_of_several, reference=gathered),
    Strategy("attention, overlapped", ring_overlapped, mesh_of_several, reference=gathered),
    Strategy("CP gathered", context_parallel, mesh, {"context_parallel": "all-gather"}),
    Strategy("CP Ulysses", context_parallel, mesh, {"context_parallel": "all-to-all"}),
    Strategy("CP", context_parallel, mesh),
    Strategy("CP across nodes", context_parallel, mesh, hardware={"gpus_per_node": 1}),
]

LESSON = Lesson(
    name="cp_context_parallel",
    title="CP: context parallelism",
    strategies=STRATEGIES,
    contrast=("attention, ring in order", "attention, overlapped"),
    compare=("CP", "CP across nodes"),
    notice=notice,
    sweeps=SWEEPS,
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
