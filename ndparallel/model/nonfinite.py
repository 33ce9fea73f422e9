"""Numbers that are none: whether a run has NaN or infinity in it, and which operation of which GPU made the
first.

Idea   Whether there is one shows when a run is over, in its losses, gradients and weights. Where it began is
       found by running it again and looking at every product, which gives the same numbers: runs that are
       well pay nothing.
Limit  Looks at the results of matrix multiplications and at losses: what another operation spoils shows in
       the next of these.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpu import GPU, si

# numpy's warnings, one from every rank, would only be in the way of the one sentence that says where it began
warnings.filterwarnings(
    "ignore", "(overflow|invalid value|divide by zero) encountered", RuntimeWarning, r"ndparallel\."
)


class Origin(NamedTuple):
    """Where the first NaN or infinity was seen: when, on which GPU, in the result of which operation."""

    seconds: float
    rank: int
    operation: str

    def __str__(self) -> str:
        return f"first in {self.operation} on GPU {self.rank} at {si(self.seconds, 's')}"


class NonFiniteWatch:
    """Looks at one rank's results until one of them is not finite."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu
        self.origin: Origin | None = None

    def see(self, operation: str, result: np.ndarray | float) -> None:
        if self.origin is None and not np.isfinite(result).all():
            self.origin = Origin(self.gpu.now, self.gpu.rank, operation)


def first_trace(outcomes: Sequence[Any]) -> str | None:
    """Where a run's outcomes have a NaN or infinity, in words, or None."""
    return next(
        (f"in {what} on GPU {rank}" for rank, outcome in enumerate(outcomes) for what in traces(outcome)),
        None,
    )


def traces(outcome: Any) -> Iterator[str]:
    """Yield the parts of one rank's outcome that are not finite."""
    if not np.isfinite(outcome.losses).all():
        yield "the loss"
    for kind in ("gradients", "weights"):
        for holding in getattr(outcome, kind):
            if not np.isfinite(holding.array).all():
                yield f"the {kind} of {holding.parameters[0].name.rsplit('.', 1)[0]}"


def earliest(outcomes: Iterable[Any]) -> Origin | None:
    """Return the earliest origin that any rank's watch saw; of equal times the lowest rank's."""
    return min((outcome.origin for outcome in outcomes if outcome.origin), default=None)
