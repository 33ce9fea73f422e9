"""What a lesson leaves behind: a run of several strategies, or a sweep over one setting."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from gpu import Hardware
from ndparallel.engines.task import RankResult
from ndparallel.results.report import Report


@dataclass
class Run:
    """A lesson's measurements and, by strategy, what every rank left behind."""

    report: Report
    hardware: Hardware
    results: dict[str, list[RankResult]]

    def __getitem__(self, name: str) -> Any:
        """Return a strategy's Measurement: Any, as those that ran have no figure that is None."""
        return next(row for row in self.report.strategies if row.name == name)

    def __contains__(self, name: str) -> bool:
        """Whether the strategy was run, and fitted into memory."""
        return bool(self.results.get(name))

    def has_events(self, name: str) -> bool:
        """Whether the strategy was run, and its GPUs have kept their events."""
        return any(result.events for result in self.results.get(name, ()))


class Sweep(NamedTuple):
    """Rows of values by name (units in the names), and a sentence on what they show."""

    title: str
    rows: list[dict[str, Any]]
    sentence: str
