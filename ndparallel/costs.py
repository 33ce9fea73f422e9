"""What a layer costs, said once: its operations, and the tensors it keeps for the backward pass, as pure functions of its sizes.

Idea   The executed layers look their operations up here by name, charge the clock with them and fail where an array does not have the
       priced shape; the planner sums the very same lists. Sizes may be numbers or numpy arrays (a thousand plans at once).
Cost   matmul (m, k) x (k, n): 2mnk FLOPs. Attention prices the query-key pairs that the causal mask keeps.
Limit  Bytes are what a kernel must read and write once; what it reads again because its caches are small is not counted.

Glossary
    tokens         sequence * batch, as the matmuls see them
    shard_tokens   tokens in norms and residuals: tokens / tp under sequence parallelism
    kept_tokens    tokens of a matmul's normed input that stay until the backward pass: all, or the shard where it is gathered again
    pairs          query-key pairs that the causal mask keeps, over batch and heads
    scores         query-key pairs that numpy holds: masked ones too
    input, weight  the two halves of a backward pass: gradients of inputs (I), gradients of weights (W)
"""

from dataclasses import dataclass

import numpy as np

from gpu import Operation

BEYOND_NUMPY = {"bfloat16": 2, "float8": 1}


def itemsize(dtype: str) -> int:
    """Bytes of a number, of the types that numpy lacks too."""
    return BEYOND_NUMPY.get(dtype) or np.dtype(dtype).itemsize


def matmul(name: str, m, n, k, dtype: str = "float32", batch=1, result_bytes: int | None = None) -> Operation:
    """Price `batch` products of (m, k) and (k, n); `result_bytes` are moved for each number of the result, by default one number's."""
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


def attention(name: str, pairs, head_dim, tensors: int, elements, dtype: str = "float32", products: int = 1) -> Operation:
    """Price `products` matmuls over query-key pairs that also move the scores and `tensors` arrays of `elements`."""
    size = itemsize(dtype)
    return Operation(name, "attention", (pairs, head_dim), dtype, 2 * products * pairs * head_dim, (pairs + tensors * elements) * size)


@dataclass(frozen=True)
class Sizes:
    """The sizes of one layer on one rank: heads, kv_heads, ffn and vocab are the rank's own share."""

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

    @property
    def qkv(self):
        return (self.heads + 2 * self.kv_heads) * self.head_dim


# ------------------------------------------------------------------------------------------- the transformer block


def block_forward(z: Sizes) -> list[Operation]:
    return attention_forward(z) + mlp_forward(z)


def block_backward(z: Sizes) -> list[Operation]:
    return mlp_backward(z) + attention_backward(z)


def block_backward_input(z: Sizes) -> list[Operation]:
    return mlp_backward_input(z) + attention_backward_input(z)


def block_backward_weight(z: Sizes) -> list[Operation]:
    return mlp_backward_weight(z) + attention_backward_weight(z)


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
    """Scores, softmax, values: what selective recomputation runs again."""
    return [
        attention("scores", z.pairs, z.head_dim, 2, z.tokens * z.heads * z.head_dim, z.dtype),
        elementwise("softmax", z.pairs, 2, z.dtype),
        attention("values", z.pairs, z.head_dim, 2, z.tokens * z.heads * z.head_dim, z.dtype),
    ]


def attention_backward_input(z: Sizes) -> list[Operation]:
    return [
        matmul("out", z.tokens, z.heads * z.head_dim, z.hidden, z.dtype),
        attention("values", z.pairs, z.head_dim, 3, z.tokens * z.heads * z.head_dim, z.dtype, products=2),
        elementwise("softmax", z.pairs, 3, z.dtype),
        attention("scores", z.pairs, z.head_dim, 4, z.tokens * z.heads * z.head_dim, z.dtype, products=2),
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
        matmul("gate_up", z.tokens, 2 * z.ffn, z.hidden, z.dtype),
        elementwise("swiglu", z.tokens * z.ffn, 3, z.dtype),
        matmul("down", z.tokens, z.hidden, z.ffn, z.dtype),
        elementwise("add2", z.shard_tokens * z.hidden, 3, z.dtype),
    ]


def mlp_backward_input(z: Sizes) -> list[Operation]:
    return [
        matmul("down", z.tokens, z.ffn, z.hidden, z.dtype),
        elementwise("swiglu", z.tokens * z.ffn, 5, z.dtype),
        matmul("gate_up", z.tokens, z.hidden, 2 * z.ffn, z.dtype),
        norm_backward("norm2", z),
        elementwise("add2", z.shard_tokens * z.hidden, 3, z.dtype),
    ]


def mlp_backward_weight(z: Sizes) -> list[Operation]:
    return [
        matmul("down weight", z.hidden, z.ffn, z.tokens, z.dtype),
        matmul("gate_up weight", 2 * z.ffn, z.hidden, z.tokens, z.dtype),
    ]


def mlp_backward(z: Sizes) -> list[Operation]:
    return mlp_backward_input(z) + mlp_backward_weight(z)


def norm_forward(name: str, z: Sizes) -> Operation:
    return elementwise(name, z.shard_tokens * z.hidden, 2, z.dtype)


def norm_backward(name: str, z: Sizes) -> Operation:
    return elementwise(name, z.shard_tokens * z.hidden, 3, z.dtype)


def core_recompute(z: Sizes) -> list[Operation]:
    """What selective recomputation runs again: the probabilities. What they gave (the mixed values) was kept."""
    return core_forward(z)[:2]


def attention_saved(z: Sizes, selective: bool = False) -> dict[str, int]:
    """Elements kept from forward to backward, by tensor. `kept_tokens` says how much of a gathered input stays.

    Redone after Korthikanti et al. 2205.05198, section 4.1, without dropout.
    """
    heads, kv_heads = z.tokens * z.heads * z.head_dim, z.tokens * z.kv_heads * z.head_dim
    saved = {"x": z.shard_tokens * z.hidden, "normed": z.kept_tokens * z.hidden, "q": heads, "k": kv_heads, "v": kv_heads, "mixed": heads}
    return saved if selective else saved | {"probabilities": z.scores}


def mlp_saved(z: Sizes) -> dict[str, int]:
    tokens = z.tokens
    return {"x": z.shard_tokens * z.hidden, "normed": z.kept_tokens * z.hidden, "gate_up": tokens * 2 * z.ffn, "activated": tokens * z.ffn}


def block_saved(z: Sizes, recompute: str = "none") -> dict[str, int]:
    """A block's tensors with recomputation none, selective (no probabilities) or full (its input only)."""
    if recompute == "full":
        return {"x": z.shard_tokens * z.hidden}
    attention = {f"attention {name}": size for name, size in attention_saved(z, recompute == "selective").items()}
    return attention | {f"mlp {name}": size for name, size in mlp_saved(z).items()}


# ------------------------------------------------------------------------------------- embedding, head and optimizer


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
    return {"x": z.shard_tokens * z.hidden, "normed": z.kept_tokens * z.hidden, "probabilities": z.tokens * z.vocab}


def adamw(name: str, parameters, dtype: str = "float32") -> Operation:
    """Read weight, gradient and both moments; write weight and moments."""
    return elementwise(name, parameters, 7, dtype)


def sgd(name: str, parameters, dtype: str = "float32") -> Operation:
    return elementwise(name, parameters, 3, dtype)
