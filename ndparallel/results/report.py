"""A lesson's numbers as a table for people and as JSON for programs, and what there is to notice in them.

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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpu import MEMORY_KINDS
from ndparallel.base.json_text import json_text, json_value
from ndparallel.base.quantities import si_or_dash
from ndparallel.base.quoting import markup
from ndparallel.results.against_one_gpu import AgainstOneGpu
from ndparallel.results.columns import COLUMNS, heads, shown_columns
from ndparallel.results.measure import Measurement
from ndparallel.results.remarks import remarks

MEMORY_HEADS = ("strategy", "peak memory", *MEMORY_KINDS)


@dataclass(frozen=True)
class Report(AgainstOneGpu):
    """The comparison, told to people and to programs."""

    def as_dict(self) -> dict[str, Any]:
        """The report in JSON's types, with the stable keys; what is not finite is None."""
        head = {"lesson": self.lesson, "hardware": self.hardware, "model": self.model}
        return json_value(head | {"strategies": [self._strategy(row) for row in self.strategies]})

    def json(self) -> str:
        return json_text(self.as_dict())

    def _strategy(self, row: Measurement) -> dict[str, Any]:
        columns = (column for column in COLUMNS if column.json and column.has(self, row))
        return {column.json: column.of(self, row) for column in columns}

    def rows(self, wide: bool = False) -> Iterator[tuple[str, ...]]:
        """The table's cells, in the order of `heads`."""
        for row in self.strategies:
            yield tuple(column.text(self, row) for column in shown_columns(wide))

    def memory_rows(self) -> Iterator[tuple[str, ...]]:
        """Peak memory by kind, on the fullest GPU when it was fullest: the cells of `MEMORY_HEADS`."""
        for row in self.strategies:
            peak = row.peak_memory_bytes or {}
            yield self.label(row), *(si_or_dash(peak.get(kind), "B") for kind in ("total", *MEMORY_KINDS))

    def remarks(self) -> list[str]:
        """What a reader of the table must not miss, each as one sentence."""
        return remarks(self)

    def _repr_html_(self) -> str:
        row = "".join(f"<th>{markup(head)}</th>" for head in heads(wide=True))
        body = "".join(
            "<tr>" + "".join(f"<td>{markup(cell)}</td>" for cell in cells) + "</tr>"
            for cells in self.rows(wide=True)
        )
        notes = "".join(f"<p>{markup(remark)}</p>" for remark in self.remarks())
        return f"<table><thead><tr>{row}</tr></thead><tbody>{body}</tbody></table>{notes}"
