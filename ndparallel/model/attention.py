"""The core of attention, where queries meet keys: with all keys at hand, gathered from the context-parallel
ranks, or block by block.

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
    again         the price list of what is computed a second time under selective recomputation
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ndparallel.model import functional
from ndparallel.model.units import Charge, Context, Saved

Tensors3 = tuple[np.ndarray, np.ndarray, np.ndarray]


def attention_core(context: Context) -> "LocalCore":
    """The core for this rank's way of sharing a sequence."""
    if context.cp.size == 1:
        return LocalCore(context)
    return RingCore(context) if context.cp.variant == "ring" else GatherCore(context)


class LocalCore:
    """All the keys are here."""

    def __init__(self, context: Context) -> None:
        self.cp, self.keeps = context.cp, context.recompute != "selective"
        self.context, self.queries = context, context.positions

    @cached_property
    def bias(self) -> np.ndarray | None:
        return functional.causal_bias(
            self.queries, self.cp.all_positions(self.context.config.sequence), self.context.dtype
        )

    def mix(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, saved: Saved, charge: Charge) -> np.ndarray:
        """Let every token look at the tokens before it: (s, b, heads, d)."""
        probabilities = self.probabilities(q, k, charge)
        charge("values")
        if self.keeps:
            saved.keep(probabilities=probabilities)
        return functional.attention_values(probabilities, v)

    def mix_backward(
        self,
        dmixed: np.ndarray,
        mixed: np.ndarray,
        qkv: Tensors3,
        saved: Saved,
        charge: Charge,
        again: Charge,
    ) -> Tensors3:
        """The gradients of q, k and v."""
        q, k, v = qkv
        probabilities = saved.take("probabilities") if self.keeps else self.probabilities(q, k, again)
        charge("values")
        dprobabilities, dv = functional.attention_values_backward(dmixed, probabilities, v)
        charge("softmax")
        dscores = functional.softmax_backward(dprobabilities, probabilities)
        charge("scores")
        return *functional.attention_scores_backward(dscores, q, k), dv

    def probabilities(self, q: np.ndarray, k: np.ndarray, charge: Charge) -> np.ndarray:
        charge("scores")
        charge("softmax")
        return functional.softmax(functional.attention_scores(q, k), self.bias)[0]


class GatherCore(LocalCore):
    """The keys of all ranks are gathered, forward and again backward; their gradients are reduced and
    scattered."""

    def mix(self, q, k, v, saved, charge):
        k, v = self.gather(k, v)
        return super().mix(q, k, v, saved, charge)

    def mix_backward(self, dmixed, mixed, qkv, saved, charge, again):
        q, k, v = qkv
        dq, dk, dv = super().mix_backward(dmixed, mixed, (q, *self.gather(k, v)), saved, charge, again)
        blocks = np.stack([dk.reshape(self.cp.size, *k.shape), dv.reshape(self.cp.size, *v.shape)], axis=1)
        return dq, *self.cp.scatter(blocks)

    def gather(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ranks' keys, one rank after another along the sequence, and so their values."""
        blocks = self.cp.gather(np.stack([k, v]))
        return np.concatenate(blocks[:, 0]), np.concatenate(blocks[:, 1])


class RingCore(LocalCore):
    """Keys and values come round the ring, block by block; their gradients travel on with them, and so come
    home."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.meetings = [
            meeting(self.queries, self.cp.index, source, context.dtype) for source in range(self.cp.size)
        ]

    def mix(self, q, k, v, saved, charge):
        logsums: list[tuple[RingStep, np.ndarray]] = []
        for source, (keys, values) in self.cp.travel(np.stack([k, v])):
            here = self.meetings[source]
            probabilities, block_logsum = functional.softmax(here.scores(q, keys, charge), here.bias)
            if self.keeps:
                saved.keep(**{here.saved: probabilities})
            here.charge(charge, "values")
            block = functional.attention_values(probabilities, values[here.keys])
            if not logsums:  # the diagonal: every query sees at least itself
                mixed, logsum = block, block_logsum.copy()
            else:
                here.charge(charge, "merge")
                functional.attention_merge(
                    mixed[here.queries], logsum[..., here.queries, :], block, block_logsum
                )
            logsums.append((here, block_logsum))
        saved.keep(**({"weights": self.weights(logsums, logsum)} if self.keeps else {"logsum": logsum}))
        return mixed

    def weights(self, logsums: list, logsum: np.ndarray) -> np.ndarray:
        """What each block's probabilities weigh in the whole, (cp, b, kv_heads, group, s, 1); 0 for queries
        that took no part."""
        weights = np.zeros((self.cp.size, *logsum.shape), logsum.dtype)
        for here, block_logsum in logsums:
            weights[here.source][..., here.queries, :] = np.exp(block_logsum - logsum[..., here.queries, :])
        return weights

    def mix_backward(self, dmixed, mixed, qkv, saved, charge, again):
        q, k, v = qkv
        row_sums = functional.grouped(np.sum(dmixed * mixed, axis=-1, keepdims=True), k.shape[2])
        rows = saved.take("weights" if self.keeps else "logsum")
        dq, on_their_way = np.zeros_like(q), None
        for hop, (source, block) in enumerate(self.cp.travel(np.stack([k, v]))):
            here = self.meetings[source]
            probabilities = (
                here.weighed(saved, rows) if self.keeps else here.recomputed(q, block[0], rows, again)
            )
            dqueries, dblock = here.backward(dmixed, row_sums, probabilities, q, block, charge)
            dq[here.queries] += dqueries
            if on_their_way:
                dblock += on_their_way.wait()
            on_their_way = self.cp.pass_on(dblock, "gradients of keys and values", hop)
        assert on_their_way, "there is more than one block"
        return dq, *on_their_way.wait()


@dataclass(frozen=True)
class RingStep:
    """Which of a rank's queries see which keys of the rank `source`: all of them, or half of one side, and
    then every pair counts."""

    source: int
    queries: slice
    keys: slice
    bias: np.ndarray | None = None

    @property
    def saved(self) -> str:
        return f"probabilities {self.source}"

    def charge(self, charge: Charge, what: str) -> None:
        charge(what if self.bias is not None else f"block {what}")

    def scores(self, q: np.ndarray, keys: np.ndarray, charge: Charge) -> np.ndarray:
        """Scores that the mask and a softmax follow, and its price with theirs."""
        self.charge(charge, "scores")
        self.charge(charge, "softmax")
        return functional.attention_scores(q[self.queries], keys[self.keys])

    def weighed(self, saved: Saved, weights: np.ndarray) -> np.ndarray:
        """The probabilities over all blocks, from those over this one."""
        probabilities = saved.take(self.saved)
        probabilities *= weights[self.source][..., self.queries, :]
        return probabilities

    def recomputed(self, q: np.ndarray, keys: np.ndarray, logsum: np.ndarray, charge: Charge) -> np.ndarray:
        """The probabilities over all blocks, from the scores."""
        scores = self.scores(q, keys, charge)
        scores -= logsum[..., self.queries, :]
        if self.bias is not None:
            scores += self.bias
        return np.exp(scores, out=scores)

    def backward(
        self, dmixed, row_sums, probabilities, q, block, charge: Charge
    ) -> tuple[np.ndarray, np.ndarray]:
        """The gradients of the queries that took part, and of the block."""
        dblock = np.zeros_like(block)
        self.charge(charge, "values")
        dmixed, values = dmixed[self.queries], block[1, self.keys]
        dprobabilities, dblock[1, self.keys] = functional.attention_values_backward(
            dmixed, probabilities, values
        )
        self.charge(charge, "softmax")
        dprobabilities -= row_sums[..., self.queries, :]
        dprobabilities *= probabilities
        self.charge(charge, "scores")
        dqueries, dblock[0, self.keys] = functional.attention_scores_backward(
            dprobabilities, q[self.queries], block[0, self.keys]
        )
        return dqueries, dblock


def meeting(positions: tuple[int, ...], index: int, source: int, dtype: str) -> RingStep:
    """Early and late halves of zigzag parts: a rank's early queries see no late keys, and the late ones those
    early that are before them.

    Of a rank to the left (source < index) all queries see the early keys; of one to the right the late
    queries see all keys.
    """
    everything, half = slice(None), len(positions) // 2
    if source == index:
        return RingStep(source, everything, everything, functional.causal_bias(positions, positions, dtype))
    if source < index:
        return RingStep(source, everything, slice(half))
    return RingStep(source, slice(half, None), everything)
