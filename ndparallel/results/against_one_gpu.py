"""A lesson's measurements held against one GPU that does the same work: how much faster, and whether equal.

Idea   speedup = the single GPU's step / this step; and every difference from the single GPU's numbers is told
       in one tolerance, which grows with every step as rounding does.
Limit  A number that is not finite never passes for one.

Glossary: see `ndparallel.results.report`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
# 6e-8, 1e-16, 1e-12; and, in learning rates, 3e-3 and 0.3. AdamW divides a gradient by its own size, so where
# that is nearly zero rounding decides which way a weight goes: in float32 that moves it as far as the step
# itself, and says nothing. But most of a tensor go the same way; and one that a step leaves out, or takes
# twice, is a learning rate away.
WEIGHT_TOLERANCE = {
    ("float32", "sgd"): WeightTolerance("max_weight_difference", 1e-6),
    ("float64", "sgd"): WeightTolerance("max_weight_difference", 1e-12),
    ("float64", "adamw"): WeightTolerance("max_weight_difference", 1e-9),
    ("float32", "adamw"): WeightTolerance("weight_step_difference", 0.05, " of a step"),
    ("bfloat16", "adamw"): WeightTolerance("weight_step_difference", 0.5, " of a step"),
}


@dataclass(frozen=True)
class AgainstOneGpu:
    """The measurements of one lesson. `tolerance` is relative, as the dtype allows: 1e-5 in float32, 1e-12 in
    float64, and in bfloat16 what its roundings add up to (ndparallel/training/gradient_check.py);
    `weight_tolerance` is that of stepped weights, with what is held to it; None where nothing is.
    `notes` are said before the numbers' own remarks."""

    lesson: str
    hardware: dict[str, Any]
    model: dict[str, Any]
    strategies: tuple[Measurement, ...]
    baseline: Measurement | None = None
    tolerance: float = 1e-5
    weight_tolerance: WeightTolerance | None = None
    lessons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    contention: bool = False  # whether it was asked for

    def speedup(self, row: Measurement) -> float | None:
        """Step of the single GPU / step of this strategy; None where one of them has none."""
        base = self.seconds_alone(row)
        return base / row.step_seconds if base and row.step_seconds else None

    def seconds_alone(self, row: Measurement) -> float | None:
        """Step of the single GPU that does the same work."""
        baseline = row.baseline or self.baseline
        return baseline.step_seconds if baseline else None

    def efficiency(self, row: Measurement) -> float | None:
        """Speedup / GPUs."""
        speedup = self.speedup(row)
        return None if speedup is None else speedup / row.gpus

    def difference(self, row: Measurement) -> float | None:
        """The largest relative difference from the single GPU: of the first step's gradients, of all losses
        and of the stepped weights, each over how many times the tolerance it may be; None where nothing was
        compared, NaN where there is a number that is not finite."""
        if row.not_finite or row.max_gradient_difference is None:
            return math.nan if row.not_finite else None
        differences = [self.numbers_difference(row), self.weights_difference(row)]
        return math.nan if any(map(math.isnan, differences)) else max(differences)

    def numbers_difference(self, row: Measurement) -> float:
        """The larger of those of gradients and losses; NaN where one is."""
        losses = [loss / self.growth(step) for step, loss in enumerate(self.loss_differences(row))]
        return float(np.max([row.max_gradient_difference or 0.0, *losses]))

    def loss_differences(self, row: Measurement) -> list[float]:
        """Every step's loss against the single GPU's, relative; none where one of them has no losses."""
        baseline = row.baseline or self.baseline
        if not row.losses or not baseline or not baseline.losses:
            return []
        pairs = zip(row.losses, baseline.losses, strict=True)
        return [abs(loss - base) / abs(base or 1) for loss, base in pairs]

    def max_loss_difference(self, row: Measurement) -> float | None:
        return max(self.loss_differences(row), default=None)

    def weights_difference(self, row: Measurement) -> float:
        """The difference of the stepped weights, in the tolerance of all others; 0 where they are not held
        against the single GPU's."""
        found = self.weights_found(row)
        return 0.0 if found is None else found / self.weights_allowed * self.tolerance

    def weights_found(self, row: Measurement) -> float | None:
        """The figure that the stepped weights are held to."""
        return getattr(row, self.weight_tolerance.figure) if self.weight_tolerance else None

    @property
    def weights_allowed(self) -> float:
        most = self.weight_tolerance.most if self.weight_tolerance else math.inf
        return most * self.growth(self.model.get("steps", 1) - 1)

    def growth(self, step: int) -> float:
        """How many times the tolerance a difference may be, `step` steps after the first."""
        return min(GROWTH**step, max(PARTED / self.tolerance, 1.0))

    def equal(self) -> bool:
        """Whether everything that was compared is what one GPU computes; a difference that is not a number is
        not equal."""
        return all(
            difference is None or difference <= self.tolerance
            for difference in map(self.difference, self.strategies)
        )

    def label(self, row: Measurement) -> str:
        """The strategy's name, with its lesson where strategies of several are compared."""
        return f"{self.lessons[row.name]} {row.name}" if row.name in self.lessons else row.name

    def equality(self, row: Measurement) -> str | None:
        """The difference in words: "=" within the tolerance; None where nothing was compared."""
        difference = self.difference(row)
        if difference is None:
            return None
        return "NaN" if row.not_finite else "=" if difference <= self.tolerance else f"{difference:.0e}"
