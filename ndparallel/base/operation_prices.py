"""The price of an operation that a GPU computes: seconds that a clock can add, or an error in a sentence.

Limit  A GPU asks once for every operation and keeps the answer, so that no check costs anything later.
"""

from numbers import Real
from typing import Any

NUMBERS = ("flops", "bytes", "kernels")


def price_of(rank: int, operation: Any, hardware: Any) -> float:
    """Return the seconds of an operation. Raises TypeError for what is none, and ValueError for numbers that
    none can have."""
    if not hasattr(operation, "flops"):
        raise TypeError(
            f"GPU {rank} computes {operation!r}, which is no operation: make one, as "
            "Operation('my matmul', flops=2e9)."
        )
    for name in NUMBERS:
        if not isinstance(number := getattr(operation, name), Real) or number < 0:
            raise ValueError(f"GPU {rank} computes {operation}: `{name}` must be a number of at least 0.")
    if not isinstance(operation.shape, tuple):
        raise TypeError(f"GPU {rank} computes {operation}: `shape` must be a tuple, as (m, n, k).")
    seconds = float(hardware.seconds(operation))
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"GPU {rank}: {operation} takes {seconds} s: no clock can add that.")
    return seconds
