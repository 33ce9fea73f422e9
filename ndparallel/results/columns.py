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
    they are too few to change what is shown of the step. JSON has the key where the run was `asked` for it,
    and where `has` says so."""

    head: str = ""
    json: str = ""
    cell: Callable[[Any], str] = str
    value: Callable[[AgainstOneGpu], Any] | None = None
    wide: bool = False
    part: bool = False
    asked: str = ""
    has: Callable[[Measurement], Any] = lambda row: True

    def of(self, one: AgainstOneGpu) -> Any:
        return self.value(one) if self.value else getattr(one.row, self.json)

    def text(self, one: AgainstOneGpu) -> str:
        value = self.of(one)
        if self.part and value is not None and value < LEAST_SHARE * (one.row.step_seconds or 0.0):
            value = 0.0
        return "-" if value is None else self.cell(value)


def contention_column(key: str) -> Column:
    return Column(
        json=key,
        value=lambda one: one.row.contention and getattr(one.row.contention, key),
        asked="contention",
    )


seconds, size = partial(si, unit="s"), partial(si, unit="B")
COLUMNS = [  # the order is that of the table and of JSON's keys
    Column("strategy", value=lambda one: one.label),
    Column(json="name"),
    Column(json="model", has=lambda row: row.model),
    Column("GPUs", "gpus"),
    Column("step", "step_seconds", seconds),
    Column("speedup", "speedup", "{:.2f}x".format, lambda one: one.speedup),
    Column("efficiency", "efficiency", "{:.0%}".format, lambda one: one.efficiency, wide=True),
    Column("compute", "compute_seconds", seconds, wide=True),
    Column("exposed", "exposed_communication_seconds", seconds, part=True),
    Column("hidden", "hidden_communication_seconds", seconds, wide=True, part=True),
    Column("bubble", "bubble_seconds", seconds, part=True),
    Column("sent", "bytes_sent_per_gpu", size),
    Column(json="bytes_sent_max"),
    Column("memory", "peak_memory_bytes", lambda peak: size(peak["total"])),
    Column("loss", "loss", "{:.3f}".format, wide=True),
    Column("=0D", value=lambda one: one.equality),
    Column(json="max_gradient_difference"),
    Column(json="max_loss_difference", value=lambda one: one.max_loss_difference),
    Column(json="max_weight_difference"),
    Column(json="weight_step_difference"),
    Column(json="gradient_norm", has=lambda row: row.gradient_norm is not None),
    Column(json="error"),
    Column(json="undisturbed_step_seconds", asked="disturbances"),
    *map(contention_column, Contention._fields),
    Column(json="not_finite", has=lambda row: row.not_finite),
]


def shown_columns(wide: bool) -> list[Column]:
    return [column for column in COLUMNS if column.head and (wide or not column.wide)]


def heads(wide: bool = False) -> list[str]:
    return [column.head for column in shown_columns(wide)]
