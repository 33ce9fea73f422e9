"""What a layer of the lessons computes and keeps, counted by hand from its sizes: an oracle for the layers,
which price the arrays that they have.

A matmul (m, k) x (k, n) has two in its backward pass, (m, n) x (n, k) and (n, m) x (m, k), of as many FLOPs.
What is kept follows Korthikanti et al. 2205.05198, section 4.1, without dropout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpu import Operation
from ndparallel.model import costs
from ndparallel.model.units import ModelConfig


@dataclass(frozen=True)
class Sizes:
    """One tp rank's share of a layer, for a microbatch of `batch` sequences shared by cp ranks, and experts
    shared out over ep, and cut over etp."""

    config: ModelConfig
    batch: int = 1
    tp: int = 1
    index: int = 0
    sequence_parallel: str = "none"
    dtype: str = "float32"
    cp: int = 1
    variant: str = "ring"
    ep: int = 1
    etp: int = 1

    @property
    def rings(self) -> bool:
        return self.cp > 1 and self.variant == "ring"

    @property
    def exchanges_heads(self) -> bool:
        return self.cp > 1 and self.variant == "all-to-all"

    @property
    def tokens(self) -> int:
        return self.config.sequence // self.cp * self.batch

    @property
    def shard(self) -> int:
        """Activations in norms and residuals."""
        return self.tokens * self.config.hidden // (1 if self.sequence_parallel == "none" else self.tp)

    @property
    def normed(self) -> int:
        """A matmul's normed input that stays: all, or the shard where it is gathered again."""
        return self.shard if self.sequence_parallel == "sp-regather" else self.tokens * self.config.hidden

    @property
    def heads(self) -> int:
        return self.config.heads // self.tp

    @property
    def kv_heads(self) -> int:
        return max(1, self.config.kv_heads // self.tp)

    @property
    def attending_kv_heads(self) -> int:
        """Heads of keys of the rank's tokens, with the copies that a rank of few heads sends."""
        return max(self.kv_heads, self.cp) if self.exchanges_heads else self.kv_heads

    @property
    def vocab(self) -> int:
        least, larger = divmod(self.config.vocab, self.tp)
        return least + (self.index < larger)

    @property
    def routed_tokens(self) -> int:
        return self.tokens // self.tp

    # ---- operations

    def matmul(self, name: str, m, n, k) -> "Passes":
        """A matmul with weights (n, k)."""
        return Passes(
            [costs.matmul(name, m, n, k, self.dtype)],
            [costs.matmul(name, m, k, n, self.dtype)],
            [costs.matmul(f"{name} weight", n, k, m, self.dtype)],
        )

    def elementwise(self, name: str, elements, forward: int, backward: int) -> "Passes":
        """A kernel that moves so many arrays forward, and so many backward; none: it is not in that pass."""
        one, other = (costs.elementwise(name, elements, passes, self.dtype) for passes in (forward, backward))
        return Passes([one] * (forward > 0), [other] * (backward > 0), [])

    def gated(self, tokens, ffn: int) -> "Passes":
        """SwiGLU and its matmuls."""
        h = self.config.hidden
        return in_order(
            self.matmul("gate_up", tokens, 2 * ffn, h),
            self.elementwise("swiglu", tokens * ffn, 3, 5),
            self.matmul("down", tokens, h, ffn),
        )


class Passes(NamedTuple):
    """Operations forward, and of both halves of the backward pass."""

    forward: list[Operation]
    backward_input: list[Operation]
    backward_weight: list[Operation]

    @property
    def backward(self) -> list[Operation]:
        return self.backward_input + self.backward_weight


def in_order(*parts: Passes) -> Passes:
    """One part after another, and backward the other way round."""
    backward = parts[::-1]
    return Passes(
        [operation for part in parts for operation in part.forward],
        [operation for part in backward for operation in part.backward_input],
        [operation for part in backward for operation in part.backward_weight],
    )


# ----------------------------------------------------------------------------------------- operations by unit


def block(z: Sizes) -> Passes:
    """A block, with equally busy experts where it has experts."""
    return in_order(attention(z), experts(z, *balanced(z)) if z.config.experts else mlp(z))


def attention(z: Sizes) -> Passes:
    h, d = z.config.hidden, z.config.head_dim
    return in_order(
        z.elementwise("norm1", z.shard, 2, 3),
        z.matmul("qkv", z.tokens, (z.heads + 2 * z.kv_heads) * d, h),
        z.elementwise("rotary", z.tokens * (z.heads + z.kv_heads) * d, 2, 2),
        core(z),
        z.matmul("out", z.tokens, h, z.heads * d),
        z.elementwise("add1", z.shard, 3, 3),
    )


def core(z: Sizes) -> Passes:
    """Scores, softmax, values, of the pairs that the causal mask keeps; over a ring once for the own block of
    keys, and once for each other, of whose pairs half are kept."""
    whole, tokens = z.config.sequence, z.config.sequence // z.cp
    pairs = z.batch * z.heads * whole * (whole + 1) // (2 * z.cp)
    if z.exchanges_heads:
        queries = z.elementwise("order heads", z.tokens * z.heads * z.config.head_dim, 2, 2)
        keys = z.elementwise("order heads", z.tokens * z.attending_kv_heads * z.config.head_dim, 2, 2)
        return in_order(queries, keys, keys, one_block(z, "", pairs), queries)
    if not z.rings:
        return one_block(z, "", pairs)
    others = z.batch * z.heads * tokens**2 // 2
    merge = z.elementwise("block merge", z.tokens * z.heads * z.config.head_dim, 3, 0)
    other = in_order(one_block(z, "block ", others), merge)
    return in_order(one_block(z, "", pairs - (z.cp - 1) * others), *[other] * (z.cp - 1))


def one_block(z: Sizes, prefix: str, pairs: int) -> Passes:
    def products(name: str, forward: int, backward: int) -> Passes:
        d = z.config.head_dim
        elements = z.tokens * z.heads * d
        return Passes(
            [costs.attention(prefix + name, pairs, d, forward, elements, 1, z.dtype)],
            [costs.attention(prefix + name, pairs, d, backward, elements, 2, z.dtype)],
            [],
        )

    softmax = z.elementwise(f"{prefix}softmax", pairs, 2, 3)
    return in_order(products("scores", 2, 4), softmax, products("values", 2, 3))


def core_recompute(z: Sizes) -> list[Operation]:
    """The probabilities, which selective recomputation does not keep."""
    return [each for each in core(z).forward if each.name.endswith(("scores", "softmax"))]


def mlp(z: Sizes) -> Passes:
    norm, add = z.elementwise("norm2", z.shard, 2, 3), z.elementwise("add2", z.shard, 3, 3)
    return in_order(norm, z.gated(z.tokens, z.config.ffn // z.tp), add)


def experts(z: Sizes, sent, rows: Sequence) -> Passes:
    """A mixture of experts on a rank that sends `sent` rows and whose experts work on `rows` each; those
    without rows cost nothing."""
    c, h, width = z.config, z.config.hidden, z.config.expert_ffn // z.etp
    tokens, dispatched, both = z.routed_tokens * h, sent * h, z.ep * z.etp > 1 and any(rows)
    shared = c.shared_experts * c.expert_ffn // z.tp
    combine = (
        z.elementwise("combine", tokens + dispatched, 1, 0),
        z.elementwise("combine", tokens + 2 * dispatched, 0, 1),
    )
    return in_order(
        z.elementwise("norm2", z.shard, 2, 3),
        z.matmul("router", z.routed_tokens, c.experts, h),
        z.elementwise("route", z.routed_tokens * c.experts, 2, 3),
        z.elementwise("permute", dispatched, 2, 0),
        z.elementwise("permute", tokens + dispatched, 0, 1),
        *[z.gated(z.tokens, shared)] * (shared > 0),
        *[z.elementwise("sort", sum(rows) * h, 2, 2)] * (2 * both),
        *(z.gated(count, width) for count in rows if count),
        *combine,
        z.elementwise("add2", z.shard, 3, 3),
    )


def balanced(z: Sizes) -> tuple[int, list[float]]:
    """Rows that a rank sends, and that each of its experts gets, where all experts are equally busy."""
    local = z.config.experts // z.ep
    rows = z.routed_tokens * z.config.top_k
    return rows, [rows * z.etp / local] * local


def head(z: Sizes) -> Passes:
    return in_order(
        z.elementwise("norm", z.shard, 2, 3),
        z.matmul("logits", z.tokens, z.vocab, z.config.hidden),
        z.elementwise("cross_entropy", z.tokens * z.vocab, 2, 2),
    )


def embedding(z: Sizes) -> Passes:
    elements = z.tokens * z.config.hidden
    weight = costs.elementwise("lookup weight", elements, 3, z.dtype)
    return z.elementwise("lookup", elements, 2, 0)._replace(backward_weight=[weight])


# ----------------------------------------------------------------------------------- elements kept, by tensor


def attention_saved(z: Sizes, selective: bool = False) -> dict[str, int]:
    rows, d, tokens = z.tokens * z.heads, z.config.head_dim, z.config.sequence // z.cp
    seen = tokens * (z.cp + 1) // 2 if z.variant == "ring" else z.config.sequence  # keys, in the mean
    saved = {"x": z.shard, "normed": z.normed, "q and mixed": 2 * rows * d}
    saved["k and v"] = 2 * z.tokens * z.attending_kv_heads * d
    if selective:
        return saved | ({"logsum": rows} if z.rings else {})
    return saved | {"probabilities": rows * seen} | ({"weights": z.cp * rows} if z.rings else {})


def gated_saved(z: Sizes, tokens, ffn: int) -> int:
    return 3 * tokens * ffn


def mlp_saved(z: Sizes) -> dict[str, int]:
    return {"x": z.shard, "normed": z.normed, "gated": gated_saved(z, z.tokens, z.config.ffn // z.tp)}


def experts_saved(z: Sizes, sent, received) -> dict[str, float]:
    """Choices and their order are integers of 4 bytes; without tp the shared experts read what is routed."""
    c, integer = z.config, 4 / np.dtype(z.dtype).itemsize
    width, shared_width = c.expert_ffn // z.etp, c.shared_experts * c.expert_ffn // z.tp
    saved = {
        "x": z.shard,
        "routed": z.routed_tokens * c.hidden,
        "probabilities": z.routed_tokens * c.experts,
        "chosen and order": (z.routed_tokens * c.top_k + sent) * integer,
        "returned": sent * c.hidden,
        "rows": received * c.hidden,
        "experts": gated_saved(z, received, width),
    }
    shared = {"normed": z.normed * (z.tp > 1), "shared": gated_saved(z, z.tokens, shared_width)}
    return saved | (shared if c.shared_experts else {})


def block_saved(z: Sizes, recompute: str = "none") -> float:
    """All of a block's, with recomputation none, selective (no probabilities) or full (its input only)."""
    if recompute == "full":
        return z.shard
    sent, rows = balanced(z) if z.config.experts else (0, [])
    second = experts_saved(z, sent, sum(rows)) if z.config.experts else mlp_saved(z)
    return sum(attention_saved(z, recompute == "selective").values()) + sum(second.values())


def head_saved(z: Sizes) -> int:
    return z.shard + z.normed + z.tokens * z.vocab
