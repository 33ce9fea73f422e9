"""What an operation costs: FLOPs, and bytes that it moves through memory.

Idea   Pure functions of sizes, which may be numbers or numpy arrays (a thousand plans at once). The executed
       layers call them beside their mathematics; the planner prices its own lists of real layers with them.
Cost   matmul (m, k) x (k, n): 2mnk FLOPs. Attention prices the query-key pairs that the causal mask keeps.
Limit  Bytes are what a kernel must read and write once; what it reads again because its caches are small is
       not counted.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from gpu import Operation

RECOMPUTE = ("none", "selective", "full")  # what a layer computes again in its backward pass
BEYOND_NUMPY = {"bfloat16": 2, "float8": 1, "fp8-block": 1, "mxfp8": 1, "nvfp4": 0.5}


@lru_cache
def itemsize(dtype: str) -> Any:
    """Bytes of a number, of the types that numpy lacks too."""
    return BEYOND_NUMPY.get(dtype) or np.dtype(dtype).itemsize


def matmul(name: str, m, n, k, dtype: str = "float32", batch=1, result_bytes: int | None = None) -> Operation:
    """Price `batch` products of (m, k) and (k, n); `result_bytes` are moved for each number of the result, by
    default one number's."""
    size = itemsize(dtype)
    moved = (m * k + k * n) * size + m * n * (size if result_bytes is None else result_bytes)
    return Operation(name, "matmul", (m, n, k), dtype, 2 * batch * m * n * k, batch * moved)


def part(operation: Operation, parts: int) -> Operation:
    """One of `parts` equal parts, by rows, of a matmul."""
    m, n, k = operation.shape
    return matmul(operation.name, m // parts, n, k, operation.dtype)


def elementwise(name: str, elements, passes: float, dtype: str = "float32", kernels: float = 1) -> Operation:
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


def adamw(name: str, parameters, dtype: str = "float32") -> Operation:
    """Read weight, gradient and both moments; write weight and moments."""
    return elementwise(name, parameters, 7, dtype)


def rounding(name: str, parameters) -> Operation:
    """Read float32 masters, write bfloat16 weights."""
    return elementwise(name, parameters, 1.5, "float32")


def sgd(name: str, parameters, dtype: str = "float32") -> Operation:
    return elementwise(name, parameters, 3, dtype)
