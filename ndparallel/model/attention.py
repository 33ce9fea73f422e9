"""The core of attention, where queries meet keys: with all keys at hand, gathered from the context-parallel
ranks, block by block, or for a part of the heads.

Idea   A core mixes the values (s, b, kv_heads, d) for the queries (s, b, heads, d) that its rank has, forward
       and backward. Blocks of keys can be met one after another, because a softmax over two blocks is the
       mean of each block's, weighed by the sums of exponentials (the online softmax: Milakov and Gimelshein
       1805.02867). Backward needs no such care once the sum over all blocks is known: p = exp(score -
       logsum), and dscore = p (dp - d), where d = dmixed . mixed is the sum over all keys that softmax's
       gradient needs.
Cost   Query-key pairs under the causal mask: s (s + 1) / 2 for each sequence and head, divided evenly over
       cp, whatever the core.
Limit  Off the diagonal a block is priced as if it read all queries and all keys, though half of one of them
       is masked.

Glossary
    q, k, v       queries, keys, values of the rank's own tokens, with rotary positions applied
    block         the keys and values of one rank
    diagonal      the block of the rank's own tokens, the only one that needs a mask
    logsum        logarithm of the sum of exponentials of a query's scores
    weights       what a block's probabilities weigh in those over all blocks: exp(the block's logsum -
                  logsum)
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from ndparallel.model import costs, functional
from ndparallel.model.units import Saved, Unit

Tensors3 = tuple[np.ndarray, np.ndarray, np.ndarray]


def attention_core(block: Unit) -> "LocalCore":
    """Return the core for this rank's way of sharing a sequence."""
    cp = block.context.cp
    cores = {"ring": RingCore, "all-gather": GatherCore, "all-to-all": HeadsCore}
    return LocalCore(block) if cp.size == 1 else cores[cp.variant](block)


class LocalCore:
    """Attention of a rank that has all the keys."""

    def __init__(self, block: Unit) -> None:
        self.block, self.context, self.cp = block, block.context, block.context.cp
        self.keeps, self.queries = self.context.recompute != "selective", self.context.positions

    @cached_property
    def bias(self) -> np.ndarray | None:
        return self.context.causal_bias(self.queries, self.context.all_positions)

    def pairs(self, q: np.ndarray) -> int:
        """Query-key pairs that the causal mask keeps, over batch and heads; a rank that has some of the
        queries has their mean."""
        tokens, batch, heads, _ = q.shape
        return batch * heads * tokens * (self.context.config.sequence + 1) // 2

    def mix(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, saved: Saved) -> np.ndarray:
        """Let every token look at the tokens before it, (s, b, heads, d), and keep what the backward pass
        reads."""
        mixed = self.attend(q, k, v, saved)
        saved.keep(q=q, k=k, v=v)
        return mixed

    def mix_backward(self, dmixed: np.ndarray, mixed: np.ndarray, saved: Saved) -> Tensors3:
        """Return the gradients of q, k and v."""
        q, k, v = saved.take_all("q", "k", "v")
        return self.attend_backward(dmixed, mixed, (q, k, v), saved)

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, saved: Saved) -> np.ndarray:
        probabilities = self.probabilities(q, k)
        self.products("values", self.pairs(q), q, tensors=2)
        if self.keeps:
            saved.keep(probabilities=probabilities)
        return functional.attention_values(probabilities, v)

    def attend_backward(self, dmixed: np.ndarray, mixed: np.ndarray, qkv: Tensors3, saved: Saved) -> Tensors3:
        q, k, v = qkv
        probabilities = saved.take("probabilities") if self.keeps else self.recomputed(q, k)
        pairs = self.pairs(q)
        self.products("values", pairs, q, tensors=3, products=2)
        dprobabilities, dv = functional.attention_values_backward(dmixed, probabilities, v)
        self.block.elementwise("softmax", pairs, 3)
        dscores = functional.softmax_backward(dprobabilities, probabilities)
        self.products("scores", pairs, q, tensors=4, products=2)
        return *functional.attention_scores_backward(dscores, q, k), dv

    def probabilities(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        pairs = self.pairs(q)
        self.products("scores", pairs, q, tensors=2)
        self.block.elementwise("softmax", pairs, 2)
        return functional.softmax(functional.attention_scores(q, k), self.bias)

    def recomputed(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        with self.context.within("recompute"):
            return self.probabilities(q, k)

    def products(self, name: str, pairs: int, q: np.ndarray, tensors: int, products: int = 1) -> None:
        """Charge for matmuls over query-key pairs that also move `tensors` arrays as large as q."""
        self.block.charge(costs.attention, name, pairs, q.shape[-1], tensors, q.size, products)


class GatherCore(LocalCore):
    """The keys of all ranks are gathered, forward and again backward; their gradients are reduced and
    scattered."""

    def attend(self, q, k, v, saved):
        return super().attend(q, *self.gather(k, v), saved)

    def attend_backward(self, dmixed, mixed, qkv, saved):
        q, k, v = qkv
        dq, dk, dv = super().attend_backward(dmixed, mixed, (q, *self.gather(k, v)), saved)
        blocks = np.stack([dk.reshape(self.cp.size, *k.shape), dv.reshape(self.cp.size, *v.shape)], axis=1)
        return dq, *self.cp.scatter(blocks)

    def gather(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys of all ranks, one rank after another along the sequence, and the values."""
        blocks = self.cp.gather(np.stack([k, v]))
        return np.concatenate(blocks[:, 0]), np.concatenate(blocks[:, 1])


class HeadsCore(LocalCore):
    """Each rank attends with a part of the heads, for all tokens: an all-to-all brings these, and another
    takes the results to the ranks of their tokens (Ulysses). Where there are fewer heads of keys than ranks,
    several ranks get a copy of one, and its gradients are summed."""

    def __init__(self, block: Unit) -> None:
        super().__init__(block)
        self.queries = self.context.all_positions
        kv_heads = max(1, self.context.config.kv_heads // self.context.tp.size)
        self.copies = max(1, self.cp.size // kv_heads)

    def mix(self, q, k, v, saved):
        k, v = (np.repeat(each, self.copies, axis=2) for each in (k, v))
        q, k, v = map(self.to_heads, (q, k, v))
        return self.to_tokens(super().mix(q, k, v, saved))

    def mix_backward(self, dmixed, mixed, saved):
        dq, *copies = map(self.to_tokens, super().mix_backward(self.to_heads(dmixed), mixed, saved))
        return dq, *map(self.sum_copies, copies)

    def to_heads(self, array: np.ndarray) -> np.ndarray:
        self.block.elementwise("order heads", array.size, 2)
        return self.cp.to_heads(array)

    def to_tokens(self, array: np.ndarray) -> np.ndarray:
        arrived = self.cp.to_tokens(array)
        self.block.elementwise("order heads", arrived.size, 2)
        return arrived

    def sum_copies(self, dcopies: np.ndarray) -> np.ndarray:
        """Return the gradients of the heads of keys, or values, that had so many copies."""
        tokens, batch, heads, d = dcopies.shape
        return dcopies.reshape(tokens, batch, heads // self.copies, self.copies, d).sum(axis=3)


class RingCore(LocalCore):
    """Keys and values come round the ring, block by block; their gradients travel on with them, and so come
    home."""

    def __init__(self, block: Unit) -> None:
        super().__init__(block)
        self.steps = [ring_step(len(self.queries), self.cp.index, source) for source in range(self.cp.size)]
        own = self.steps[self.cp.index]._replace(bias=self.context.causal_bias(self.queries, self.queries))
        self.steps[self.cp.index] = own

    def attend(self, q, k, v, saved):
        logsums: list[tuple[RingStep, np.ndarray]] = []
        for source, (keys, values) in self.cp.travel(np.stack([k, v])):
            here = self.steps[source]
            scores = self.scores(here, q, keys)
            probabilities, block_logsum = functional.softmax_with_logsum(scores, here.bias)
            if self.keeps:
                saved.keep(**{here.saved: probabilities})
            self.products(here.name("values"), self.pairs_of(here, q), q, tensors=2)
            block = functional.attention_values(probabilities, values[here.keys])
            if not logsums:  # the diagonal: every query sees at least itself
                mixed, logsum = block, block_logsum.copy()
            else:
                self.block.elementwise("block merge", q.size, 3)
                functional.attention_merge(
                    mixed[here.queries], logsum[..., here.queries, :], block, block_logsum
                )
            logsums.append((here, block_logsum))
        saved.keep(**({"weights": self.weights(logsums, logsum)} if self.keeps else {"logsum": logsum}))
        return mixed

    def pairs_of(self, here: "RingStep", q: np.ndarray) -> int:
        """Query-key pairs of one block: half of all off the diagonal, and on it what is left."""
        tokens, batch, heads, _ = q.shape
        off_diagonal = batch * heads * tokens**2 // 2
        return off_diagonal if here.bias is None else self.pairs(q) - (self.cp.size - 1) * off_diagonal

    def scores(self, here: "RingStep", q: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Scores that the mask and a softmax follow, and its price with theirs."""
        pairs = self.pairs_of(here, q)
        self.products(here.name("scores"), pairs, q, tensors=2)
        self.block.elementwise(here.name("softmax"), pairs, 2)
        return functional.attention_scores(q[here.queries], keys[here.keys])

    def weights(self, logsums: list, logsum: np.ndarray) -> np.ndarray:
        """Return what each block's probabilities weigh in the whole, (cp, b, kv_heads, group, s, 1); 0 for
        queries that took no part."""
        weights = np.zeros_like(logsum, shape=(self.cp.size, *logsum.shape))
        for here, block_logsum in logsums:
            weights[here.source][..., here.queries, :] = np.exp(block_logsum - logsum[..., here.queries, :])
        return weights

    def attend_backward(self, dmixed, mixed, qkv, saved):
        q, k, v = qkv
        row_sums = functional.grouped(np.sum(dmixed * mixed, axis=-1, keepdims=True), k.shape[2])
        rows = saved.take("weights" if self.keeps else "logsum")
        dq, on_their_way = np.zeros_like(q), None
        for hop, (source, block) in enumerate(self.cp.travel(np.stack([k, v]))):
            here = self.steps[source]
            probabilities = (
                here.weighed(saved, rows) if self.keeps else self.recomputed_block(here, q, block[0], rows)
            )
            dqueries, dblock = self.block_backward(here, dmixed, row_sums, probabilities, q, block)
            dq[here.queries] += dqueries
            if on_their_way:
                dblock += on_their_way.wait()
            on_their_way = self.cp.pass_on(dblock, "gradients of keys and values", hop)
        assert on_their_way, "there is more than one block"
        return dq, *on_their_way.wait()

    def recomputed_block(
        self, here: "RingStep", q: np.ndarray, keys: np.ndarray, logsum: np.ndarray
    ) -> np.ndarray:
        """Return the probabilities over all blocks, from the scores."""
        with self.context.within("recompute"):
            scores = self.scores(here, q, keys)
        scores -= logsum[..., here.queries, :]
        if here.bias is not None:
            scores += here.bias
        return np.exp(scores, out=scores)

    def block_backward(
        self, here: "RingStep", dmixed, row_sums, probabilities, q, block
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of the queries that took part, and of the block."""
        dblock, pairs = np.zeros_like(block), self.pairs_of(here, q)
        self.products(here.name("values"), pairs, q, tensors=3, products=2)
        dmixed, values = dmixed[here.queries], block[1, here.keys]
        dprobabilities, dblock[1, here.keys] = functional.attention_values_backward(
            dmixed, probabilities, values
        )
        self.block.elementwise(here.name("softmax"), pairs, 3)
        dprobabilities -= row_sums[..., here.queries, :]
        dprobabilities *= probabilities
        self.products(here.name("scores"), pairs, q, tensors=4, products=2)
        dqueries, dblock[0, here.keys] = functional.attention_scores_backward(
            dprobabilities, q[here.queries], block[0, here.keys]
        )
        return dqueries, dblock


class RingStep(NamedTuple):
    """Which of a rank's queries see which keys of the rank `source`: all of them, or half of one side, and
    then every pair counts."""

    source: int
    queries: slice
    keys: slice
    bias: np.ndarray | None = None  # of the diagonal alone

    @property
    def saved(self) -> str:
        return f"probabilities {self.source}"

    def name(self, operation: str) -> str:
        return operation if self.bias is not None else f"block {operation}"

    def weighed(self, saved: Saved, weights: np.ndarray) -> np.ndarray:
        """Return the probabilities over all blocks, from those over this one."""
        probabilities = saved.take(self.saved)
        probabilities *= weights[self.source][..., self.queries, :]
        return probabilities


def ring_step(tokens: int, index: int, source: int) -> RingStep:
    """Early and late halves of zigzag parts: a rank's early queries see no late keys, and the late ones those
    early that are before them.

    Of a rank to the left (source < index) all queries see the early keys; of one to the right the late
    queries see all keys.
    """
    everything, half = slice(None), tokens // 2
    if source == index:
        return RingStep(source, everything, everything)
    if source < index:
        return RingStep(source, everything, slice(half))
    return RingStep(source, slice(half, None), everything)
