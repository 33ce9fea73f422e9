"""How many activations a schedule lets a rank keep, in closed form.

Idea   What a rank keeps follows from how many forwards it is ahead of its backwards. Tests hold each form to
       its schedule's own list.
Cost   nothing: a list of a long pipeline takes a tenth of a second to write.
Limit  Of a schedule that is searched for it is what the search may use.

Glossary
    m, r, p, v   microbatches, rank (these two may be arrays), ranks and chunks of the pipeline
    held         chunks of one microbatch that a rank keeps at the same time, at the most
"""

from collections.abc import Callable
from typing import Any

import numpy as np

PEAK_IN_FLIGHT: dict[str, Callable[[Any, Any, int, int], Any]] = {
    "naive": lambda m, r, p, v: 1,
    "gpipe": lambda m, r, p, v: m,
    "1f1b": lambda m, r, p, v: np.minimum(m, p - r),
    "eager-1f1b": lambda m, r, p, v: np.minimum(m, 2 * (p - r) - 1),
    "interleaved": lambda m, r, p, v: np.minimum(m * v, (v - 1) * p + 2 * (p - 1 - r) + 1),
    "looped-bfs": lambda m, r, p, v: m * v,
    "zb-h1": lambda m, r, p, v: np.minimum(m, p),
    "zb-h2": lambda m, r, p, v: np.minimum(m, 2 * p - 1),
    "zb-v": lambda m, r, p, v: np.minimum(np.minimum(2 * m, 2 * p), m + 1 + r),
    "dualpipev": lambda m, r, p, v: np.minimum(np.minimum(2 * m, 2 * p + 1), m + 1 + r),
    "zb-1p": lambda m, r, p, v: np.minimum(m, p),  # at the most: what is searched for may hold less
    "zb-2p": lambda m, r, p, v: np.minimum(m, 2 * p),
}
