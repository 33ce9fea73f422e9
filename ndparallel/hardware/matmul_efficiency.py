"""What share of a GPU's best rate a matrix multiplication reaches: by its tiles, or along a curve that was
measured.

Idea   A multiprocessor computes one tile of the result at a time, so a result that is no whole number of
       tiles, or whose tiles are no whole number of waves, leaves some of them idle. A GPU that was
       measured has a few points instead: FLOPs and share of the peak.
Limit  One tile size; a curve knows a matmul by its FLOPs alone.

Glossary
    tile       the block of the result that one multiprocessor computes
    wave       one tile on every multiprocessor
    curve      pairs (FLOPs, share), the FLOPs rising; between them the share is a straight line over the
               FLOPs' logarithm
"""

from typing import Any

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.base.quantities import LEAST, MOST
from ndparallel.base.quoting import brief

# rows and columns: the largest tile of CUTLASS's default kernels, from the A100 to the B200
# (cutlass/media/docs)
TILE = (128, 256)
Curve = tuple[tuple[float, float], ...]


def tile_fill(shape: tuple, multiprocessors: int, batch=1):
    """Return the share of the SMs' work that is needed when `batch` results (m, n) are cut into tiles, in the
    better of both directions; takes arrays too.

    A matmul with fewer tiles than SMs is cut along k as well ("split-k"), so that only the padding of its
    tiles is lost.
    """
    m, n, _ = shape
    one_way, other_way = _fill(m, n, multiprocessors, batch), _fill(n, m, multiprocessors, batch)
    return max(one_way, other_way) if isinstance(one_way, float) else np.maximum(one_way, other_way)


def _fill(m, n, multiprocessors: int, batch):
    """Return the share of all waves' work that the result needs. Python's own operators are quicker for
    numbers and take arrays too; -(-a // b) rounds a / b up."""
    tiles = batch * -(-m // TILE[0]) * -(-n // TILE[1])
    whole_waves = -(-tiles // multiprocessors) * multiprocessors
    used = whole_waves - (tiles < multiprocessors) * (multiprocessors - tiles)
    return batch * m * n / (used * TILE[0] * TILE[1])


def along(curve: Curve, flops):
    """Return the curve's share for a matmul of so many FLOPs; beyond the ends of the curve, that of the
    nearest end."""
    sizes, shares = zip(*curve)
    return np.interp(np.log(np.maximum(flops, 1.0)), np.log(sizes), shares)


def checked_curve(subject: str, given: Any) -> Curve:
    """Return a curve read from a file. Raises UserError unless it is pairs of rising FLOPs and shares
    above 0 and up to 1."""
    try:
        curve = tuple((float(flops), float(share)) for flops, share in given)
    except (TypeError, ValueError, OverflowError):
        raise UserError(
            f"{subject} must be pairs of FLOPs and a share of the peak, as in [[1e9, 0.3], [1e12, 0.7]]."
        ) from None
    rising = all(before[0] < after[0] for before, after in zip(curve, curve[1:]))
    if not (rising and all(LEAST <= flops <= MOST and LEAST <= share <= 1 for flops, share in curve)):
        raise UserError(
            f"{subject}: FLOPs must rise from pair to pair, and shares be above 0 and up to 1, "
            f"not {brief(given)}."
        )
    return curve
