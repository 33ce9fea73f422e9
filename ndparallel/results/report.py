"""What a lesson leaves behind: its numbers as a table for people and as JSON for programs, with what there is
to notice in them; the run that they are of, or a sweep over one setting.

Idea   One row a strategy, measured against one GPU that does the same work: speedup = its step / this step.
Limit  What could not be measured is "-" in the table and null in JSON; a number that is not finite never
       passes for one.

Glossary
    baseline     the single GPU's measurement
    efficiency   speedup / GPUs
    lesson       where a strategy comes from, as 1D; named where a table has strategies of several lessons
    =0D          "=" where every step's loss, the first step's gradients and the weights after the last step
                 are the single GPU's within the tolerance, which grows with every step as rounding does, else
                 how far they are from them; NaN where a loss, gradient or weight is not finite. How weights
                 are compared depends on the optimizer: see WEIGHT_TOLERANCE
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from gpu import MEMORY_KINDS, Hardware
from ndparallel.base.json_text import json_value
from ndparallel.base.quantities import si_or_dash
from ndparallel.base.quoting import markup
from ndparallel.engines.task import RankResult
from ndparallel.results.against_one_gpu import AgainstOneGpu, Tolerance
from ndparallel.results.columns import COLUMNS, Column, heads, shown_columns
from ndparallel.results.measure import Measurement
from ndparallel.results.remarks import remarks

MEMORY_HEADS = ("strategy", "peak memory", *MEMORY_KINDS)


@dataclass(frozen=True)
class Report:
    """The measurements of one lesson, told to people and to programs. `lessons` are those that strategies of
    several lessons come from, `notes` are said before the numbers' own remarks, `contention` is whether it
    was asked for."""

    lesson: str
    hardware: dict[str, Any]
    model: dict[str, Any]
    strategies: tuple[Measurement, ...]
    baseline: Measurement | None = None
    tolerance: Tolerance = Tolerance()
    lessons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    contention: bool = False

    @cached_property
    def against_one_gpu(self) -> list[AgainstOneGpu]:
        """Every strategy beside the single GPU that does the same work."""
        return [
            AgainstOneGpu(self.label(row), row, row.baseline or self.baseline, self.tolerance)
            for row in self.strategies
        ]

    def label(self, row: Measurement) -> str:
        """The strategy's name, with its lesson where strategies of several are compared."""
        return f"{self.lessons[row.name]} {row.name}" if row.name in self.lessons else row.name

    def equal(self) -> bool:
        """Whether all that was compared, of every strategy, is what one GPU computes."""
        return all(one.is_equal for one in self.against_one_gpu)

    def as_dict(self) -> dict[str, Any]:
        """The report in JSON's types, with the stable keys; what is not finite is None."""
        head = {"lesson": self.lesson, "hardware": self.hardware, "model": self.model}
        return json_value(head | {"strategies": [*map(self._strategy, self.against_one_gpu)]})

    def _strategy(self, one: AgainstOneGpu) -> dict[str, Any]:
        columns = (column for column in COLUMNS if column.json and self._asks(column) and column.has(one.row))
        return {column.json: column.of(one) for column in columns}

    def _asks(self, column: Column) -> bool:
        asked = {"contention": self.contention, "disturbances": "disturbances" in self.hardware}
        return asked.get(column.asked, True)

    def rows(self, wide: bool = False) -> Iterator[tuple[str, ...]]:
        """The table's cells, in the order of `heads`."""
        for one in self.against_one_gpu:
            yield tuple(column.text(one) for column in shown_columns(wide))

    def memory_rows(self) -> Iterator[tuple[str, ...]]:
        """Peak memory by kind, on the fullest GPU when it was fullest: the cells of `MEMORY_HEADS`."""
        for row in self.strategies:
            peak = row.peak_memory_bytes or {}
            yield self.label(row), *(si_or_dash(peak.get(kind), "B") for kind in ("total", *MEMORY_KINDS))

    def remarks(self) -> list[str]:
        """What a reader of the table must not miss, each as one sentence."""
        return [*self.notes, *remarks(self.against_one_gpu, self.baseline)]

    def _repr_html_(self) -> str:
        row = "".join(f"<th>{markup(head)}</th>" for head in heads(wide=True))
        body = "".join(
            "<tr>" + "".join(f"<td>{markup(cell)}</td>" for cell in cells) + "</tr>"
            for cells in self.rows(wide=True)
        )
        notes = "".join(f"<p>{markup(remark)}</p>" for remark in self.remarks())
        return f"<table><thead><tr>{row}</tr></thead><tbody>{body}</tbody></table>{notes}"


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
