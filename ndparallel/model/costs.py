"""What a layer costs, said once: its operations, and the tensors it keeps for the backward pass, as pure
functions of its sizes.

Idea   The executed layers look their operations up here by name, charge the clock with them and fail where an
       array does not have the priced shape; the planner sums the very same lists. Sizes may be numbers or
       numpy arrays (a thousand plans at once).
Cost   matmul (m, k) x (k, n): 2mnk FLOPs. Attention prices the query-key pairs that the causal mask keeps.
Limit  Bytes are what a kernel must read and write once; what it reads again because its caches are small is
       not counted.

Glossary
    tokens         sequence * batch, as the matmuls see them
    shard_tokens   tokens in norms and residuals: tokens / tp under sequence parallelism
    kept_tokens    tokens of a matmul's normed input that stay until the backward pass: all, or the shard
                   where it is gathered again
    pairs          query-key pairs that the causal mask keeps, over batch and heads
    scores         query-key pairs that numpy holds: masked ones too
    blocks         ring attention meets the keys in so many blocks; block_pairs are the pairs of one that is
                   not the rank's own
    routed_tokens  tokens whose experts this rank chooses: tokens / tp
    senders        ranks whose tokens come to this rank's experts: ep * tp
    sent, received rows that a rank sends to experts, and that its own experts work on: known only when the
    router has spoken
    input, weight  the two halves of a backward pass: gradients of inputs (I), gradients of weights (W)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from gpu import Operation

RECOMPUTE = ("none", "selective", "full")  # what a layer computes again in its backward pass
BEYOND_NUMPY = {"bfloat16": 2, "float8": 1}


@lru_cache
def itemsize(dtype: str) -> int:
    """Bytes of a number, of the types that numpy lacks too."""
    return BEYOND_NUMPY.get(dtype) or np.dtype(dtype).itemsize


def matmul(name: str, m, n, k, dtype: str = "float32", batch=1, result_bytes: int | None = None) -> Operation:
    """Price `batch` products of (m, k) and (k, n); `result_bytes` are moved for each number of the result, by
    default one number's."""
    size = itemsize(dtype)
    moved = (m * k + k * n) * size + m * n * (size if result_bytes is None else result_bytes)
    return Operation(name, "matmul", (m, n, k), dtype, 2 * batch * m * n * k, batch * moved)


def chunk(operation: Operation, chunks: int) -> Operation:
    """One of `chunks` equal parts, by rows, of a matmul."""
    m, n, k = operation.shape
    return matmul(operation.name, m // chunks, n, k, operation.dtype)


def elementwise(name: str, elements, passes: float, dtype: str = "float32", kernels: int = 1) -> Operation:
    """Price kernels that move `passes` arrays of `elements` through memory, with few FLOPs for each."""
    return Operation(name, "elementwise", (elements,), dtype, 0, passes * elements * itemsize(dtype), kernels)


def attention(
    name: str, pairs, head_dim, tensors: int, elements, products: int = 1, dtype: str = "float32"
) -> Operation:
    """Price `products` matmuls over query-key pairs that also move the scores and `tensors` arrays of
    `elements`."""
    size = itemsize(dtype)
    return Operation(
        name,
        "attention",
        (pairs, head_dim),
        dtype,
        2 * products * pairs * head_dim,
        (pairs + tensors * elements) * size,
    )


@dataclass(frozen=True)
class Sizes:
    """The sizes of one layer on one rank: heads, kv_heads, vocab and every ffn are the rank's own share."""

    tokens: int
    shard_tokens: int
    kept_tokens: int
    pairs: int
    scores: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int = 0
    dtype: str = "float32"
    blocks: int = 1
    block_pairs: int = 0
    routed_tokens: int = 0
    experts: int = 0
    local_experts: int = 0
    senders: int = 1
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0

    @property
    def qkv(self):
        return (self.heads + 2 * self.kv_heads) * self.head_dim


# -------------------------------------------------------------------------------------- the transformer block


def block_forward(z: Sizes) -> list[Operation]:
    """A block's, with equally busy experts where it has experts."""
    return attention_forward(z) + (experts_forward(z, *balanced(z)) if z.experts else mlp_forward(z))


def block_backward(z: Sizes) -> list[Operation]:
    return block_backward_input(z) + block_backward_weight(z)


def block_backward_input(z: Sizes) -> list[Operation]:
    return (
        experts_backward_input(z, *balanced(z)) if z.experts else mlp_backward_input(z)
    ) + attention_backward_input(z)


def block_backward_weight(z: Sizes) -> list[Operation]:
    return (
        experts_backward_weight(z, *balanced(z)) if z.experts else mlp_backward_weight(z)
    ) + attention_backward_weight(z)


def attention_forward(z: Sizes) -> list[Operation]:
    return [
        norm_forward("norm1", z),
        matmul("qkv", z.tokens, z.qkv, z.hidden, z.dtype),
        elementwise("rotary", z.tokens * (z.heads + z.kv_heads) * z.head_dim, 2, z.dtype),
        *core_forward(z),
        matmul("out", z.tokens, z.hidden, z.heads * z.head_dim, z.dtype),
        elementwise("add1", z.shard_tokens * z.hidden, 3, z.dtype),
    ]


def core_forward(z: Sizes) -> list[Operation]:
    """Scores, softmax, values; over a ring, once for the rank's own block of keys, the diagonal, and once for
    each that comes round."""
    merge = elementwise("block merge", z.tokens * z.heads * z.head_dim, 3, z.dtype)
    block = [*meeting_forward("block ", z.block_pairs, z), merge]
    return [*meeting_forward("", diagonal_pairs(z), z), *block * (z.blocks - 1)]


def diagonal_pairs(z: Sizes):
    return z.pairs - (z.blocks - 1) * z.block_pairs


def meeting_forward(prefix: str, pairs, z: Sizes) -> list[Operation]:
    elements = z.tokens * z.heads * z.head_dim
    return [
        attention(f"{prefix}scores", pairs, z.head_dim, 2, elements, dtype=z.dtype),
        elementwise(f"{prefix}softmax", pairs, 2, z.dtype),
        attention(f"{prefix}values", pairs, z.head_dim, 2, elements, dtype=z.dtype),
    ]


def core_backward(z: Sizes) -> list[Operation]:
    return [
        *meeting_backward("", diagonal_pairs(z), z),
        *meeting_backward("block ", z.block_pairs, z) * (z.blocks - 1),
    ]


def meeting_backward(prefix: str, pairs, z: Sizes) -> list[Operation]:
    elements = z.tokens * z.heads * z.head_dim
    return [
        attention(f"{prefix}values", pairs, z.head_dim, 3, elements, products=2, dtype=z.dtype),
        elementwise(f"{prefix}softmax", pairs, 3, z.dtype),
        attention(f"{prefix}scores", pairs, z.head_dim, 4, elements, products=2, dtype=z.dtype),
    ]


def attention_backward_input(z: Sizes) -> list[Operation]:
    return [
        matmul("out", z.tokens, z.heads * z.head_dim, z.hidden, z.dtype),
        *core_backward(z),
        elementwise("rotary", z.tokens * (z.heads + z.kv_heads) * z.head_dim, 2, z.dtype),
        matmul("qkv", z.tokens, z.hidden, z.qkv, z.dtype),
        norm_backward("norm1", z),
        elementwise("add1", z.shard_tokens * z.hidden, 3, z.dtype),
    ]


def attention_backward_weight(z: Sizes) -> list[Operation]:
    return [
        matmul("out weight", z.hidden, z.heads * z.head_dim, z.tokens, z.dtype),
        matmul("qkv weight", z.qkv, z.hidden, z.tokens, z.dtype),
    ]


def attention_backward(z: Sizes) -> list[Operation]:
    return attention_backward_input(z) + attention_backward_weight(z)


def mlp_forward(z: Sizes) -> list[Operation]:
    return [
        norm_forward("norm2", z),
        *gated_forward(z, z.tokens, z.ffn),
        elementwise("add2", z.shard_tokens * z.hidden, 3, z.dtype),
    ]


def gated_forward(z: Sizes, tokens, ffn) -> list[Operation]:
    """SwiGLU and its matmuls: an MLP's for its tokens, or one expert's for its rows."""
    return [
        matmul("gate_up", tokens, 2 * ffn, z.hidden, z.dtype),
        elementwise("swiglu", tokens * ffn, 3, z.dtype),
        matmul("down", tokens, z.hidden, ffn, z.dtype),
    ]


def mlp_backward_input(z: Sizes) -> list[Operation]:
    gated = gated_backward_input(z, z.tokens, z.ffn)
    return [*gated, norm_backward("norm2", z), elementwise("add2", z.shard_tokens * z.hidden, 3, z.dtype)]


def gated_backward_input(z: Sizes, tokens, ffn) -> list[Operation]:
    return [
        matmul("down", tokens, ffn, z.hidden, z.dtype),
        elementwise("swiglu", tokens * ffn, 5, z.dtype),
        matmul("gate_up", tokens, z.hidden, 2 * ffn, z.dtype),
    ]


def mlp_backward_weight(z: Sizes) -> list[Operation]:
    return gated_backward_weight(z, z.tokens, z.ffn)


def gated_backward_weight(z: Sizes, tokens, ffn) -> list[Operation]:
    return [
        matmul("down weight", z.hidden, ffn, tokens, z.dtype),
        matmul("gate_up weight", 2 * ffn, z.hidden, tokens, z.dtype),
    ]


def mlp_backward(z: Sizes) -> list[Operation]:
    return mlp_backward_input(z) + mlp_backward_weight(z)


def norm_forward(name: str, z: Sizes) -> Operation:
    return elementwise(name, z.shard_tokens * z.hidden, 2, z.dtype)


def norm_backward(name: str, z: Sizes) -> Operation:
    return elementwise(name, z.shard_tokens * z.hidden, 3, z.dtype)


def core_recompute(z: Sizes) -> list[Operation]:
    """What selective recomputation runs again: the probabilities. What they gave (the mixed values) was
    kept."""
    return [operation for operation in core_forward(z) if operation.name.endswith(("scores", "softmax"))]


def attention_saved(z: Sizes, selective: bool = False) -> dict[str, int]:
    """Elements kept from forward to backward, by tensor. `kept_tokens` says how much of a gathered input
    stays.

    Redone after Korthikanti et al. 2205.05198, section 4.1, without dropout.
    """
    heads, kv_heads = z.tokens * z.heads * z.head_dim, z.tokens * z.kv_heads * z.head_dim
    saved = {
        "x": z.shard_tokens * z.hidden,
        "normed": z.kept_tokens * z.hidden,
        "q": heads,
        "k": kv_heads,
        "v": kv_heads,
        "mixed": heads,
    }
    rows = z.tokens * z.heads
    if selective:
        return saved if z.blocks == 1 else saved | {"logsum": rows}
    return saved | {"probabilities": z.scores} | ({} if z.blocks == 1 else {"weights": z.blocks * rows})


def mlp_saved(z: Sizes) -> dict[str, int]:
    tokens = z.tokens
    return {
        "x": z.shard_tokens * z.hidden,
        "normed": z.kept_tokens * z.hidden,
        "gate_up": tokens * 2 * z.ffn,
        "activated": tokens * z.ffn,
    }


def block_saved(z: Sizes, recompute: str = "none") -> Mapping[str, float]:
    """A block's tensors with recomputation none, selective (no probabilities) or full (its input only)."""
    if recompute == "full":
        return {"x": z.shard_tokens * z.hidden}
    attention = {
        f"attention {name}": size for name, size in attention_saved(z, recompute == "selective").items()
    }
    if not z.experts:
        return attention | {f"mlp {name}": size for name, size in mlp_saved(z).items()}
    sent, rows = balanced(z)
    return attention | {f"experts {name}": size for name, size in experts_saved(z, sent, sum(rows)).items()}


# ----------------------------------------------------------------------------------------- mixture of experts


def router_forward(z: Sizes) -> list[Operation]:
    """What every token pays for: norm, router and shared experts."""
    return [
        norm_forward("norm2", z),
        matmul("router", z.routed_tokens, z.experts, z.hidden, z.dtype),
        elementwise("route", z.routed_tokens * z.experts, 2, z.dtype),
        *(gated_forward(z, z.tokens, z.shared_ffn) if z.shared_ffn else []),
        elementwise("add2", z.shard_tokens * z.hidden, 3, z.dtype),
    ]


def router_backward_input(z: Sizes) -> list[Operation]:
    return [
        *(gated_backward_input(z, z.tokens, z.shared_ffn) if z.shared_ffn else []),
        elementwise("route", z.routed_tokens * z.experts, 3, z.dtype),
        matmul("router", z.routed_tokens, z.hidden, z.experts, z.dtype),
        norm_backward("norm2", z),
        elementwise("add2", z.shard_tokens * z.hidden, 3, z.dtype),
    ]


def router_backward_weight(z: Sizes) -> list[Operation]:
    router = matmul("router weight", z.experts, z.hidden, z.routed_tokens, z.dtype)
    return [router, *(gated_backward_weight(z, z.tokens, z.shared_ffn) if z.shared_ffn else [])]


def router_backward(z: Sizes) -> list[Operation]:
    return router_backward_input(z) + router_backward_weight(z)


def shared(z: Sizes) -> Sizes:
    return replace(z, ffn=z.shared_ffn)


def rows_forward(z: Sizes, sent) -> list[Operation]:
    """Copy tokens to rows that are sorted by expert, and add up what comes back."""
    tokens, dispatched = z.routed_tokens * z.hidden, sent * z.hidden
    return [
        elementwise("permute", dispatched, 2, z.dtype),
        elementwise("combine", tokens + dispatched, 1, z.dtype),
    ]


def rows_backward(z: Sizes, sent) -> list[Operation]:
    tokens, dispatched = z.routed_tokens * z.hidden, sent * z.hidden
    return [
        elementwise("combine", tokens + 2 * dispatched, 1, z.dtype),
        elementwise("permute", tokens + dispatched, 1, z.dtype),
    ]


def sort_rows(z: Sizes, received) -> list[Operation]:
    """Bring together what several senders have for one expert, or part it again."""
    return [elementwise("sort", received * z.hidden, 2, z.dtype)]


def expert_forward(z: Sizes, rows) -> list[Operation]:
    """One expert on its rows."""
    return gated_forward(z, rows, z.expert_ffn)


def expert_backward_input(z: Sizes, rows) -> list[Operation]:
    return gated_backward_input(z, rows, z.expert_ffn)


def expert_backward_weight(z: Sizes, rows) -> list[Operation]:
    return gated_backward_weight(z, rows, z.expert_ffn)


def expert_backward(z: Sizes, rows) -> list[Operation]:
    return expert_backward_input(z, rows) + expert_backward_weight(z, rows)


def experts_forward(z: Sizes, sent, rows: Sequence) -> list[Operation]:
    """The whole branch on a rank that sends `sent` rows and whose experts work on `rows` each."""
    return router_forward(z) + rows_forward(z, sent) + both_sorts(z, rows) + each(expert_forward, z, rows)


def experts_backward_input(z: Sizes, sent, rows: Sequence) -> list[Operation]:
    return (
        router_backward_input(z)
        + rows_backward(z, sent)
        + both_sorts(z, rows)
        + each(expert_backward_input, z, rows)
    )


def experts_backward_weight(z: Sizes, sent, rows: Sequence) -> list[Operation]:
    return router_backward_weight(z) + each(expert_backward_weight, z, rows)


def each(operations: Callable[..., list[Operation]], z: Sizes, rows: Sequence) -> list[Operation]:
    """An expert without rows costs nothing."""
    return [operation for count in rows if count for operation in operations(z, count)]


def both_sorts(z: Sizes, rows: Sequence) -> list[Operation]:
    return 2 * sort_rows(z, sum(rows)) if z.senders > 1 and any(rows) else []


def balanced(z: Sizes) -> tuple[int, list[float]]:
    """Rows that a rank sends, and that each of its experts gets, where all experts are equally busy and none
    is full."""
    return z.routed_tokens * z.top_k, [z.tokens * z.top_k / z.local_experts] * z.local_experts


def experts_saved(z: Sizes, sent, received) -> dict[str, float]:
    """Elements kept where a rank sends `sent` rows and its experts work on `received`; choices are integers
    of 4 bytes."""
    integer = 4 / np.dtype(z.dtype).itemsize
    saved = {
        "x": z.shard_tokens * z.hidden,
        "routed": z.routed_tokens * z.hidden,
        "probabilities": z.routed_tokens * z.experts,
        "chosen": z.routed_tokens * z.top_k * integer,
        "order": sent * integer,
        "returned": sent * z.hidden,
        "rows": received * z.hidden,
        "expert gate_up": received * 2 * z.expert_ffn,
        "expert activated": received * z.expert_ffn,
    }
    if not z.shared_ffn:
        return saved
    return saved | {name: size for name, size in mlp_saved(shared(z)).items() if name != "x"}


# ------------------------------------------------------------------------------ embedding, head and optimizer


def embedding_forward(z: Sizes) -> list[Operation]:
    return [elementwise("lookup", z.tokens * z.hidden, 2, z.dtype)]


def embedding_backward_weight(z: Sizes) -> list[Operation]:
    return [elementwise("lookup weight", z.tokens * z.hidden, 3, z.dtype)]


def head_forward(z: Sizes) -> list[Operation]:
    return [
        norm_forward("norm", z),
        matmul("logits", z.tokens, z.vocab, z.hidden, z.dtype),
        elementwise("cross_entropy", z.tokens * z.vocab, 2, z.dtype),
    ]


def head_backward_input(z: Sizes) -> list[Operation]:
    return [
        elementwise("cross_entropy", z.tokens * z.vocab, 2, z.dtype),
        matmul("logits", z.tokens, z.hidden, z.vocab, z.dtype),
        norm_backward("norm", z),
    ]


def head_backward_weight(z: Sizes) -> list[Operation]:
    return [matmul("logits weight", z.vocab, z.hidden, z.tokens, z.dtype)]


def head_backward(z: Sizes) -> list[Operation]:
    return head_backward_input(z) + head_backward_weight(z)


def head_saved(z: Sizes) -> dict[str, int]:
    return {
        "x": z.shard_tokens * z.hidden,
        "normed": z.kept_tokens * z.hidden,
        "probabilities": z.tokens * z.vocab,
    }


def adamw(name: str, parameters, dtype: str = "float32") -> Operation:
    """Read weight, gradient and both moments; write weight and moments."""
    return elementwise(name, parameters, 7, dtype)


def sgd(name: str, parameters, dtype: str = "float32") -> Operation:
    return elementwise(name, parameters, 3, dtype)
