"""The comparison with the single GPU: does a parallel run compute the same?

Idea   Every rank reports flat slices of named parameters; each is held against the same slice of the single
       GPU's whole tensor.
Limit  Gradients are the first step's alone: after it, weights differ by rounding already. Weights are those
       after the last step. A tensor that is zero but for rounding, as the gradient of a router whose experts
       are in balance, is held to the size of the largest.

Glossary
    difference     max |g - g0| / max |g0| of one tensor; a run's is the largest over tensors and ranks
    step difference
                   the root mean square of w - w0 of one tensor, in learning rates a step: AdamW moves every
                   weight by about one
"""

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ndparallel.base.bfloat16 import UNIT_ROUNDOFF
from ndparallel.parallel.slices import views
from ndparallel.training.job import Job
from ndparallel.training.replica import Holding, Outcome

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
# times one run's roundings that two runs may be apart: sqrt(2) where these have nothing to do with each other
APART = 2.0


class Tensors(dict[str, np.ndarray]):
    """Whole tensors by name."""

    @cached_property
    def largest(self) -> dict[str, float]:
        """The largest element of each."""
        return {name: float(np.abs(tensor).max()) for name, tensor in self.items()}

    @cached_property
    def scales(self) -> dict[str, float]:
        """What each tensor's difference is relative to: its largest element; that of all tensors where its
        own is within the rounding of theirs, and so would be zero."""
        return {
            name: own if self.is_more_than_rounding(name) else self.most for name, own in self.largest.items()
        }

    @cached_property
    def most(self) -> float:
        return max(self.largest.values(), default=0.0)

    def is_more_than_rounding(self, name: str) -> bool:
        """Whether a tensor has elements beyond the rounding of the largest of all tensors."""
        return self.largest[name] > self.most * np.finfo(self[name].dtype).eps


def tolerance_of(job: Job, rounding: float) -> float:
    """Return how far a run's numbers may be from the single GPU's, relative to a tensor's largest.

    In bfloat16 every kernel rounds what it writes, and what differs goes on through all kernels behind it.
    How far that leads depends on the model and the batch, so it is measured: `rounding` is the distance of
    the single GPU's gradients from its own in float32. GPUs that take parts of a sum round otherwise, so
    that they are about as far from the single GPU. Measured over 36 models and batches are 0.6 to 1.4 times
    as far for tensor and context parallelism, and less for the others. One rounding is allowed in any case.
    """
    return TOLERANCE.get(job.dtype, max(APART * rounding, UNIT_ROUNDOFF))


def whole_tensors(holdings: Iterable[Holding]) -> Tensors:
    """Return the tensors of a run in which one rank holds all, by name."""
    return Tensors(
        (parameter.name, view)
        for holding in holdings
        for parameter, view in views(holding.parameters, holding.array)
    )


def gradient_difference(outcomes: Iterable[Outcome], reference: Tensors) -> float:
    holdings = (holding for outcome in outcomes for holding in outcome.gradients)
    return largest_difference(distances(holdings, reference), reference)


class Distances(NamedTuple):
    """|rank's part - reference| of all elements of a holding; the tensors that it has parts of, and where
    each begins in it."""

    names: list[str]
    starts: list[int]
    elements: np.ndarray

    def largest(self) -> list[float]:
        """The largest of each tensor."""
        return np.maximum.reduceat(self.elements, self.starts).tolist() if self.names else []

    def root_mean_squares(self) -> list[float]:
        if not self.names:
            return []
        sizes = np.diff([*self.starts, self.elements.size])
        return np.sqrt(np.add.reduceat(self.elements**2, self.starts) / sizes).tolist()


def distances(holdings: Iterable[Holding], reference: Tensors) -> list[Distances]:
    return [distances_of(holding, reference) for holding in holdings]


def distances_of(holding: Holding, reference: Tensors) -> Distances:
    """Subtract all parts of a holding at once."""
    if not holding.array.size:
        return Distances([], [], holding.array)
    parts = [(parameter, elements) for parameter, elements, _ in holding.pieces()]
    right = [reference[each.name][each.index].reshape(-1)[elements] for each, elements in parts]
    found = holding.array - np.concatenate(right)
    starts = [0, *accumulate(part.size for part in right[:-1])]
    return Distances([each.name for each, _ in parts], starts, np.abs(found, out=found))


def largest_difference(found: Iterable[Distances], reference: Tensors) -> float:
    """Return the largest relative difference of any tensor on any rank; NaN where one has a NaN."""
    return worst(each for one in found for each in differences(one, reference))


def differences(found: Distances, reference: Tensors) -> Iterator[float]:
    """Yield max |rank's part - reference| / its scale of every tensor that has elements in a holding."""
    for name, distance in zip(found.names, found.largest()):
        scale = reference.scales[name]
        yield distance / scale if scale else distance


def step_difference(found: Iterable[Distances], gradients: Tensors, learning_rates: float) -> float:
    """Return the largest step difference of weights that were stepped at these learning rates, added up.
    Tensors whose gradients are no more than rounding are left out: AdamW makes whole steps of them."""
    return worst(
        distance / learning_rates
        for one in found
        for name, distance in zip(one.names, one.root_mean_squares())
        if gradients.is_more_than_rounding(name)
    )


def worst(differences: Iterable[float]) -> float:
    """Return the largest value; NaN counts as larger than everything."""
    return max(differences, key=lambda value: math.inf if math.isnan(value) else value, default=math.nan)
