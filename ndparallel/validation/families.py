"""Errors by family: runs of one source, number type and GPU, to see where to trust a prediction.

Idea   A family has its mean and median absolute error, its bias, and how often the measured value lies inside
       one and two error bars. Beside it stands the best constant: the one TFLOP/s that fits the family best,
       which a model must beat to show skill inside it.
Limit  The best constant has seen what it predicts; of a family of one run it says nothing. Runs of one family
       err alike, so that chance makes more of the shares inside a bar than the binomial law of single runs.

Glossary
    bias     the mean of the signed errors: below 0, predicted too fast
    inside   the share of runs whose measured seconds lie in the predicted ones +- the bar
    usual    shares inside that a bar which holds what it should has 19 times of 20
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import comb
from statistics import fmean, median
from typing import Any

from ndparallel.planner.error_bar import ONE_BAR, TWO_BARS
from ndparallel.validation.result import Result

BARS = {1: ONE_BAR, 2: TWO_BARS}  # the share of runs that so many bars should hold
RARE = 0.025  # chance of fewer than usual, and of more


@dataclass(frozen=True)
class RunFamily:
    """Runs that are alike, with the errors of their steps."""

    name: str
    results: tuple[Result, ...]

    @property
    def errors(self) -> list[float]:
        return [result.counted_error for result in self.results]

    @property
    def mean(self) -> float:
        return fmean(map(abs, self.errors))

    @property
    def constant(self) -> float | None:
        """The mean absolute error of the one rate that fits best; None where there is one run."""
        rates = [result.rate for result in self.results if result.rate]
        if len(rates) < 2:
            return None
        return min(fmean(abs(rate / constant - 1) for rate in rates) for constant in rates)

    def inside(self, bars: float) -> float | None:
        """The share of runs inside so many bars; None where none has a bar."""
        found = [result.bars_away <= bars for result in self.results if result.bars_away is not None]
        return fmean(found) if found else None

    def usual(self, bars: int) -> tuple[float, float]:
        """The least and the most of its runs that chance leaves inside so many bars, as shares."""
        with_bars = sum(result.bars_away is not None for result in self.results)
        least, most = (edge / max(with_bars, 1) for edge in binomial_range(with_bars, BARS[bars]))
        return least, most

    def is_usual(self, bars: int) -> bool:
        """Whether chance explains the share of runs inside so many bars."""
        share, (least, most) = self.inside(bars), self.usual(bars)
        return share is None or least <= share <= most

    def as_json(self) -> dict[str, Any]:
        return {
            "family": self.name,
            "runs": len(self.results),
            "mean_absolute_step_error": self.mean,
            "median_absolute_step_error": median(map(abs, self.errors)),
            "bias": fmean(self.errors),
            "inside_one_bar": self.inside(1),
            "inside_two_bars": self.inside(2),
            "usual_inside_one_bar": self.usual(1),
            "usual_inside_two_bars": self.usual(2),
            "best_constant_error": self.constant,
        }


def binomial_range(runs: int, share: float) -> tuple[int, int]:
    """The least and the most of so many runs of which each is inside with that chance, 19 times of 20."""
    chances = [
        comb(runs, inside) * share**inside * (1 - share) ** (runs - inside) for inside in range(runs + 1)
    ]
    fewer = [*accumulate(chances)]  # so many or fewer
    least = next(inside for inside, chance in enumerate(fewer) if chance > RARE)
    more = [*accumulate(reversed(chances))]
    return least, runs - next(left for left, chance in enumerate(more) if chance > RARE)


def families_of(results: Sequence[Result]) -> list[RunFamily]:
    """The families of the runs that count, in the order in which they come."""
    counted = [result for result in results if result.counts]
    names = dict.fromkeys(result.family for result in counted)
    return [RunFamily(name, tuple(one for one in counted if one.family == name)) for name in names]


def every_run(results: Sequence[Result]) -> RunFamily:
    """All runs that count, as one family."""
    return RunFamily("all", tuple(result for result in results if result.counts))
