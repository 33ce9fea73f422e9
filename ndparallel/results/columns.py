"""The figures of a strategy, each one row in one list: a column of the table, a key of the JSON, or both.

Glossary: see `ndparallel.results.report`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gpu import si
from ndparallel.results.against_one_gpu import AgainstOneGpu
from ndparallel.results.measure import Contention, Measurement

LEAST_SHARE = 0.0005  # of a step: what is shorter cannot change the step's three digits, and is shown as 0


class Column(NamedTuple):
    """One figure of a strategy: its `head` in the table and its key in `json`; one of the two may be missing.
    The value is the field of Measurement with that key, unless `value` computes it; `cell` writes it, and
    None is "-". `wide` columns are shown with --wide alone; the seconds of a `part` of the step are 0 where
    they are too few to change what is shown of the step."""

    head: str = ""
    json: str = ""
    cell: Callable[[Any], str] = str
    value: Callable[[AgainstOneGpu, Measurement], Any] | None = None
    wide: bool = False
    part: bool = False
    has: Callable[[AgainstOneGpu, Measurement], Any] = lambda report, row: True  # whether JSON has the key

    def of(self, report: AgainstOneGpu, row: Measurement) -> Any:
        return self.value(report, row) if self.value else getattr(row, self.json)

    def text(self, report: AgainstOneGpu, row: Measurement) -> str:
        value = self.of(report, row)
        if self.part and value is not None and value < LEAST_SHARE * (row.step_seconds or 0.0):
            value = 0.0
        return "-" if value is None else self.cell(value)


def contention_column(key: str) -> Column:
    return Column(
        json=key,
        value=lambda report, row: row.contention and getattr(row.contention, key),
        has=lambda report, row: report.contention,
    )


seconds, size = partial(si, unit="s"), partial(si, unit="B")
COLUMNS = [  # the order is that of the table and of JSON's keys
    Column("strategy", value=AgainstOneGpu.label),
    Column(json="name"),
    Column(json="model", has=lambda report, row: row.model),
    Column("GPUs", "gpus"),
    Column("step", "step_seconds", seconds),
    Column("speedup", "speedup", "{:.2f}x".format, AgainstOneGpu.speedup),
    Column("efficiency", "efficiency", "{:.0%}".format, AgainstOneGpu.efficiency, wide=True),
    Column("compute", "compute_seconds", seconds, wide=True),
    Column("exposed", "exposed_communication_seconds", seconds, part=True),
    Column("hidden", "hidden_communication_seconds", seconds, wide=True, part=True),
    Column("bubble", "bubble_seconds", seconds, part=True),
    Column("sent", "bytes_sent_per_gpu", size),
    Column(json="bytes_sent_max"),
    Column("memory", "peak_memory_bytes", lambda peak: size(peak["total"])),
    Column("loss", "loss", "{:.3f}".format, wide=True),
    Column("=0D", value=AgainstOneGpu.equality),
    Column(json="max_gradient_difference"),
    Column(json="max_loss_difference", value=AgainstOneGpu.max_loss_difference),
    Column(json="max_weight_difference"),
    Column(json="weight_step_difference"),
    Column(json="gradient_norm", has=lambda report, row: row.gradient_norm is not None),
    Column(json="error"),
    Column(json="undisturbed_step_seconds", has=lambda report, row: "disturbances" in report.hardware),
    *map(contention_column, Contention._fields),
    Column(json="not_finite", has=lambda report, row: row.not_finite),
]


def shown_columns(wide: bool) -> list[Column]:
    return [column for column in COLUMNS if column.head and (wide or not column.wide)]


def heads(wide: bool = False) -> list[str]:
    return [column.head for column in shown_columns(wide)]
