"""A strategy's measurement held against one GPU that does the same work: how much faster, and whether equal.

Idea   speedup = the single GPU's step / this step; and every difference from the single GPU's numbers is told
       in one tolerance, which grows with every step as rounding does.
Limit  A number that is not finite never passes for one.

Glossary: see `ndparallel.results.report`.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ndparallel.results.measure import Measurement

# Measured on 4D for 50 steps of AdamW. In float32 the losses with experts are within 4e-7 of the single GPU's
# until rounding tips a tie of the router, at step 26 to 30; from then on they part, by 7e-4 at step 35, 2e-3
# at step 50. In float64 they stay within 4e-16.
GROWTH, PARTED = 1.2, 0.05  # of the tolerance with every step; of the loss, and no more


class WeightTolerance(NamedTuple):
    """Which figure of a measurement is held, how much it may be after one step, and its unit in words."""

    figure: str
    most: float
    unit: str = ""


# By dtype and optimizer: what is held, and how much it may be after one step. Measured over all strategies:
# 6e-8, 1e-16, 1e-12; and, in learning rates, 3e-3, and 0.3 (with tied embeddings 0.5). AdamW divides a
# gradient by its own size, so where that is nearly zero rounding decides which way a weight goes: in float32
# that moves it as far as the step itself, and says nothing. But most of a tensor go the same way; and one
# that a step leaves out, or takes twice, is a learning rate away.
WEIGHT_TOLERANCE = {
    ("float32", "sgd"): WeightTolerance("max_weight_difference", 1e-6),
    ("float64", "sgd"): WeightTolerance("max_weight_difference", 1e-12),
    ("float64", "adamw"): WeightTolerance("max_weight_difference", 1e-9),
    ("float32", "adamw"): WeightTolerance("weight_step_difference", 0.05, " of a step"),
    ("bfloat16", "adamw"): WeightTolerance("weight_step_difference", 0.7, " of a step"),
}


class Tolerance(NamedTuple):
    """How far a strategy's numbers may be from the single GPU's. `relative` is as the dtype allows: 1e-5 in
    float32, 1e-12 in float64, and in bfloat16 twice what its roundings do to the single GPU
    (ndparallel/training/gradient_check.py); `weights` is that of weights after the last of `steps`, None
    where they are not held against the single GPU's."""

    relative: float = 1e-5
    weights: WeightTolerance | None = None
    steps: int = 1

    def growth(self, step: int) -> float:
        """How many times the tolerance a difference may be, `step` steps after the first."""
        return min(GROWTH**step, max(PARTED / self.relative, 1.0))

    @property
    def weights_allowed(self) -> float:
        """How much the figure of the stepped weights may be."""
        return self.weights.most * self.growth(self.steps - 1) if self.weights else math.inf


@dataclass(frozen=True)
class AgainstOneGpu:
    """A strategy's measurement beside that of one GPU with the same work, where there is one."""

    label: str
    row: Measurement
    alone: Measurement | None
    tolerance: Tolerance

    @property
    def speedup(self) -> float | None:
        """Step of the single GPU / step of this strategy; None where one of them has none."""
        base = self.seconds_alone
        return base / self.row.step_seconds if base and self.row.step_seconds else None

    @property
    def seconds_alone(self) -> float | None:
        """Step of the single GPU that does the same work."""
        return self.alone.step_seconds if self.alone else None

    @property
    def efficiency(self) -> float | None:
        """Speedup / GPUs."""
        return None if self.speedup is None else self.speedup / self.row.gpus

    @property
    def difference(self) -> float | None:
        """The largest relative difference from the single GPU: of the first step's gradients, of all losses
        and of the stepped weights, each over how many times the tolerance it may be; None where nothing was
        compared, NaN where there is a number that is not finite."""
        if self.row.not_finite or self.row.max_gradient_difference is None:
            return math.nan if self.row.not_finite else None
        differences = [self.numbers_difference, self.weights_difference]
        return math.nan if any(map(math.isnan, differences)) else max(differences)

    @property
    def numbers_difference(self) -> float:
        """The larger of those of gradients and losses; NaN where one is."""
        losses = [loss / self.tolerance.growth(step) for step, loss in enumerate(self.loss_differences)]
        return float(np.max([self.row.max_gradient_difference or 0.0, *losses]))

    @property
    def loss_differences(self) -> list[float]:
        """Every step's loss against the single GPU's, relative; none where one of them has no losses."""
        if not self.row.losses or not self.alone or not self.alone.losses:
            return []
        pairs = zip(self.row.losses, self.alone.losses, strict=True)
        return [abs(loss - base) / abs(base or 1) for loss, base in pairs]

    @property
    def max_loss_difference(self) -> float | None:
        return max(self.loss_differences, default=None)

    @property
    def weights_difference(self) -> float:
        """The difference of the stepped weights, in the tolerance of all others; 0 where they are not held
        against the single GPU's."""
        found, tolerance = self.weights_found, self.tolerance
        return 0.0 if found is None else found / tolerance.weights_allowed * tolerance.relative

    @property
    def weights_found(self) -> float | None:
        """The figure that the stepped weights are held to."""
        return getattr(self.row, self.tolerance.weights.figure) if self.tolerance.weights else None

    @property
    def is_equal(self) -> bool:
        """Whether everything that was compared is what one GPU computes; a difference that is not a number is
        not equal."""
        return self.difference is None or self.difference <= self.tolerance.relative

    @property
    def equality(self) -> str | None:
        """The difference in words: "=" within the tolerance; None where nothing was compared."""
        if self.difference is None:
            return None
        return "NaN" if self.row.not_finite else "=" if self.is_equal else f"{self.difference:.0e}"
