"""What one rank does in one layer: its operations and its collectives in program order, for real models and
real software.

Idea   A layer is a list of matmuls, attention, kernels bound by memory, and collectives. The list is a pure
       function of the model's shape, the rank's share and the software; sizes may be numpy arrays, so that
       one list prices a thousand plans.
Cost   matmul (m, k) x (k, n): 2mnk FLOPs. Flash attention: 2 products over the pairs that the mask keeps, 5
       in the backward pass; unfused attention multiplies the masked pairs too and moves every score through
       memory several times.
Limit  Kernels move each array once from and to memory; caches are not modelled.

Glossary
    rows        tokens of one microbatch that the rank multiplies: sequence * microbatch / cp
    shard       rows that the rank normalizes: rows / tp under sequence parallelism, else all rows
    pass        one array read or written once
    column, row how tensor parallelism cuts a matrix; before a column one the shards are gathered, after a row
    one parts are summed
    dgrad       the product that gives the gradient of a matrix's input; wgrad gives that of its weights
"""

import math
from typing import Any, NamedTuple

from gpu import Operation
from ndparallel.planner.models.experts import Experts

HALF, SINGLE = 2, 4  # bytes of a bf16 or fp16 number, and of a float32

# Passes over its array that each kernel makes, (forward, backward), by the stack's fusion. Only hand-written
# ones have dropout. Apex reads what a norm's gradients are made of twice, for its input and for its weights
# (csrc/layer_norm_cuda_kernel.cu); Transformer Engine once, for both (rmsnorm_bwd_tuned_kernel in
# transformer_engine/common/normalization/rmsnorm/rmsnorm_bwd_kernels.cuh, and layernorm's beside it). Linear
# attention's "gated norm" is fused where a compiler sees all of it; Megatron-Core's norm is Transformer
# Engine's, and writes what a compiled product reads (_apply_gated_norm in
# megatron/core/ssm/gated_delta_net/common.py); plain PyTorch's goes through 32 bits, one operator after
# another, here in numbers of 16 (RMSNormGated in torchtitan/models/qwen3_5/gdn.py).
MEMORY_PASSES: dict[str, dict[str, tuple[float, float]]] = {
    "fused": {
        "norm": (2, 5),
        "residual": (3, 3),
        "dropout": (0.5, 1.5),
        "rotary": (2, 2),
        "gated": (3, 5),
        "plain": (2, 4),
        "gated norm": (5, 8),
    },
    "eager": {
        "norm": (12, 20),
        "residual": (3, 3),
        "rotary": (10, 10),
        "gated": (5, 8),
        "plain": (2, 4),
        "gated norm": (35, 74),
    },
    "compiled": {
        "norm": (2, 4),
        "residual": (2, 2),
        "rotary": (2, 2),
        "gated": (3, 5),
        "plain": (2, 3),
        "gated norm": (3, 5),
    },
    "minimal": {
        "norm": (2, 3),
        "residual": (3, 3),
        "rotary": (2, 2),
        "gated": (3, 5),
        "plain": (2, 3),
        "gated norm": (3, 5),
    },
}
MEMORY_PASSES["engine"] = MEMORY_PASSES["fused"] | {"norm": (2, 3)}
SCORE_DROPOUT = 2.5  # passes over the scores: read, write, and a mask of one byte


class CollectiveOp(NamedTuple):
    """A collective of a group (tp, cp, ep) on `bytes` in all, beside a `share` of an operation that hides it,
    whole or but for one of `chunks`; or so many `hops`, messages that each rank sends to the next one of a
    ring after another, which `bytes` are of all of."""

    name: str
    collective: str
    group: str
    bytes: Any
    beside: Operation | None = None
    chunks: Any = math.inf
    router: Experts | None = None  # of an all_to_all that crosses to each node once: how tokens choose
    itemsize: int = 0  # bytes of an element where they are not those of the job's dtype
    share: Any = 1.0  # of the seconds of the operation beside
    hops: Any = 0
    host_bytes: Any = 0  # that a GPU copies from its host's memory before, or to it behind


class Start(NamedTuple):
    """Start a collective on its group's stream, and go on."""

    exchange: CollectiveOp


class Wait(NamedTuple):
    """Wait for a collective that was started."""

    exchange: CollectiveOp


class Hold(NamedTuple):
    """Keep so many bytes more of a kind of memory; below 0, give them back."""

    kind: str
    bytes: float


class Layer(NamedTuple):
    """The lists of one layer, by pass."""

    forward: list
    recompute: list
    backward_input: list
    backward_weight: list
