"""The comparison with the single GPU: does a parallel run compute the same?

Idea   Every rank reports flat slices of named parameters; each is held against the same slice of the single
       GPU's whole tensor.
Limit  Gradients are the first step's alone: after it, weights differ by rounding already. Weights are those
       after the last step. A tensor that is zero but for rounding, as the gradient of a router whose experts
       are in balance, is held to the size of the largest.

Glossary
    difference     max |g - g0| / max |g0| of one tensor; a run's is the largest over tensors and ranks
"""

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate

import numpy as np

from ndparallel.base.bfloat16 import NAME as BFLOAT16
from ndparallel.base.bfloat16 import UNIT_ROUNDOFF
from ndparallel.parallel.slices import views
from ndparallel.training.job import Job
from ndparallel.training.replica import Holding, Outcome

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
# of a layer, one after another, from a weight to its gradient: 8 forward, and twice as many back
KERNELS = 24


class Tensors(dict[str, np.ndarray]):
    """Whole tensors by name."""

    @cached_property
    def scales(self) -> dict[str, float]:
        """What each tensor's difference is relative to: its largest element; that of all tensors where its
        own is within the rounding of theirs, and so would be zero."""
        largest = {name: float(np.abs(tensor).max()) for name, tensor in self.items()}
        most = max(largest.values(), default=0.0)
        rounding = {name: most * np.finfo(tensor.dtype).eps for name, tensor in self.items()}
        return {name: own if own > rounding[name] else most for name, own in largest.items()}


def tolerance_of(job: Job) -> float:
    """Return how far a run's numbers may be from the single GPU's, relative to a tensor's largest.

    In bfloat16 every kernel rounds what it writes, by the unit roundoff u = 2^-8 at most. Where GPUs take
    parts of a sum these are rounded otherwise, and what differs goes on through all kernels behind it: the
    roundings of K of them add up as a random walk does, to sqrt(K) u. For 8 layers that is 5.4e-2; measured
    over all strategies are 5e-3 for data parallelism and pipelines, 1.6e-2 for tensor and context
    parallelism. A part that is left out or counted twice, of 8 GPUs, differs by more.
    """
    if job.dtype == BFLOAT16:
        return UNIT_ROUNDOFF * math.sqrt(KERNELS * job.model.layers)
    return TOLERANCE[job.dtype]


def whole_tensors(holdings: Iterable[Holding]) -> Tensors:
    """Return the tensors of a run in which one rank holds all, by name."""
    return Tensors(
        (parameter.name, view)
        for holding in holdings
        for parameter, view in views(holding.parameters, holding.array)
    )


def gradient_difference(outcomes: Iterable[Outcome], reference: Tensors) -> float:
    return largest_difference((holding for outcome in outcomes for holding in outcome.gradients), reference)


def weight_difference(outcomes: Iterable[Outcome], reference: Tensors) -> float:
    return largest_difference((holding for outcome in outcomes for holding in outcome.weights), reference)


def largest_difference(holdings: Iterable[Holding], reference: Tensors) -> float:
    """Return the largest relative difference of any tensor on any rank; NaN where one has a NaN."""
    return worst(each for holding in holdings for each in differences(holding, reference))


def differences(holding: Holding, reference: Tensors) -> Iterator[float]:
    """Yield max |rank's part - reference| / its scale of every tensor that has elements in a holding; one
    subtraction serves all."""
    if not holding.array.size:
        return
    parts = [(parameter, elements) for parameter, elements, _ in holding.pieces()]
    right = [reference[each.name][each.index].reshape(-1)[elements] for each, elements in parts]
    distances = holding.array - np.concatenate(right)
    starts = [0, *accumulate(part.size for part in right[:-1])]
    most = np.maximum.reduceat(np.abs(distances, out=distances), starts).tolist()
    for (parameter, _), distance in zip(parts, most):
        scale = reference.scales[parameter.name]
        yield distance / scale if scale else distance


def worst(differences: Iterable[float]) -> float:
    """Return the largest value; NaN counts as larger than everything."""
    return max(differences, key=lambda value: math.inf if math.isnan(value) else value, default=math.nan)
