"""What was measured of one run, and what is predicted.

Glossary
    bars away    how many error bars lie between the predicted and the measured seconds
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """The measured and the predicted values of one case. Errors are signed fractions; None where nothing
    was measured."""

    name: str
    measured_seconds: float | None = None
    predicted_seconds: float | None = None
    measured_bytes: float | None = None
    predicted_bytes: float | None = None
    unstated: tuple[str, ...] = ()
    missed: str = ""
    family: str = ""
    error_bar: float | None = None  # a share of the predicted seconds
    model_flops: float = 0.0  # of the step on one GPU
    notes: tuple[str, ...] = ()  # on what the run states and nobody here knows

    @property
    def counts(self) -> bool:
        """Whether the run has a measured step, or was missed."""
        return bool(self.missed or self.measured_seconds)

    @property
    def counted_error(self) -> float:
        """The step's error; of a run that cannot be predicted, 100%."""
        return 1.0 if self.missed else self.step_error or 0.0

    @property
    def rate(self) -> float:
        """The measured model FLOP/s of one GPU; 0 where the run is no whole step."""
        return self.model_flops / self.measured_seconds if self.measured_seconds else 0.0

    @property
    def bars_away(self) -> float | None:
        """How many error bars lie between the predicted and the measured seconds."""
        if not (self.error_bar and self.measured_seconds and self.predicted_seconds):
            return None
        return abs(self.measured_seconds / self.predicted_seconds - 1) / self.error_bar

    @property
    def step_error(self) -> float | None:
        return _error(self.predicted_seconds, self.measured_seconds)

    @property
    def memory_error(self) -> float | None:
        return _error(self.predicted_bytes, self.measured_bytes)

    def as_json(self) -> dict[str, Any]:
        said = {"missed": self.missed, "notes": list(self.notes)}
        return {
            "id": self.name,
            "family": self.family,
            "measured_seconds": self.measured_seconds,
            "predicted_seconds": self.predicted_seconds,
            "step_error": self.step_error,
            "error_bar": self.error_bar,
            "measured_memory_bytes": self.measured_bytes,
            "predicted_memory_bytes": self.predicted_bytes,
            "memory_error": self.memory_error,
        } | {key: words for key, words in said.items() if words}


def _error(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or measured is None else predicted / measured - 1
