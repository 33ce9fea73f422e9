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

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpu import MEMORY_KINDS, si
from ndparallel.base.json_text import json_text, json_value
from ndparallel.base.quantities import si_or_dash
from ndparallel.base.quoting import markup
from ndparallel.base.words import ended, listed
from ndparallel.results.contention import sharing_words
from ndparallel.results.measure import Contention, Measurement

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
FEW = 2  # so many strategies slower than one GPU have a sentence each
MEMORY_HEADS = ("strategy", "peak memory", *MEMORY_KINDS)
LEAST_SHARE = 0.0005  # of a step: what is shorter cannot change the step's three digits, and is shown as 0


@dataclass(frozen=True)
class Report:
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

    # ---- for programs

    def as_dict(self) -> dict[str, Any]:
        """The report in JSON's types, with the stable keys; what is not finite is None."""
        head = {"lesson": self.lesson, "hardware": self.hardware, "model": self.model}
        return json_value(head | {"strategies": [self._strategy(row) for row in self.strategies]})

    def json(self) -> str:
        return json_text(self.as_dict())

    def _strategy(self, row: Measurement) -> dict[str, Any]:
        columns = (column for column in COLUMNS if column.json and column.has(self, row))
        return {column.json: column.of(self, row) for column in columns}

    # ---- for people

    def rows(self, wide: bool = False) -> Iterator[tuple[str, ...]]:
        """The table's cells, in the order of `heads`."""
        for row in self.strategies:
            yield tuple(column.text(self, row) for column in shown_columns(wide))

    def label(self, row: Measurement) -> str:
        return f"{self.lessons[row.name]} {row.name}" if row.name in self.lessons else row.name

    def equality(self, row: Measurement) -> str | None:
        difference = self.difference(row)
        if difference is None:
            return None
        return "NaN" if row.not_finite else "=" if difference <= self.tolerance else f"{difference:.0e}"

    def memory_rows(self) -> Iterator[tuple[str, ...]]:
        """Peak memory by kind, on the fullest GPU when it was fullest: the cells of `MEMORY_HEADS`."""
        for row in self.strategies:
            peak = row.peak_memory_bytes or {}
            yield self.label(row), *(si_or_dash(peak.get(kind), "B") for kind in ("total", *MEMORY_KINDS))

    def remarks(self) -> list[str]:
        """What the numbers say that a reader of the table must not miss, each as one sentence."""
        each = (remark for row in self.strategies for remark in self._remarks(row))
        before = *self.notes, *self._missing(), *self._other_work(), *self._slower()
        return [*before, *each, *self._overloaded()]

    def _missing(self) -> Iterator[str]:
        """Why there are no numbers; rows with the same reason together."""
        names: dict[str, list[str]] = {}
        for row in self.strategies:
            if row.error:
                names.setdefault(row.error, []).append(row.name)
        for error, alike in names.items():
            yield f"{listed(alike)} {'has' if len(alike) == 1 else 'have'} no numbers: {ended(error)}"
            if self.baseline and self.baseline.name in alike and any(map(self.speedup, self.strategies)):
                need = si_or_dash((self.baseline.peak_memory_bytes or {}).get("total"), "B")
                yield (
                    f"Speedups are against a {self.baseline.name} that has all the memory it needs ({need})."
                )

    def _other_work(self) -> Iterator[str]:
        """The steps that speedups divide, of work that is not the table's single GPU's."""
        names: dict[str, list[str]] = {}
        for row in self.strategies:
            names.setdefault(si_or_dash(self.seconds_alone(row), "s"), []).append(repr(row.name))
        names.pop(si_or_dash(self.baseline.step_seconds if self.baseline else None, "s"), None)
        if names:
            steps = listed([f"{step} for {', '.join(alike)}" for step, alike in names.items()])
            yield f"Speedups are against one GPU with the same work, whose step is {steps}."

    def _slower(self) -> Iterator[str]:
        """What is slower than one GPU, and where its time goes: a few one by one, many by what they lose most
        to."""
        # as the table has it
        slower = [
            row for row in self.strategies if row.gpus > 1 and float(f"{self.speedup(row) or 1:.2f}") < 1
        ]
        if len(slower) <= FEW:
            for row in slower:
                yield (
                    f"{row.name} is slower on {row.gpus} GPUs than one GPU alone ({self.speedup(row):.2f}x): "
                    f"{where_time_goes(row)}."
                )
            return
        losers: dict[str, list[str]] = {}
        for row in slower:
            losers.setdefault(self._largest_loss(row), []).append(row.name)
        names = listed([f"{row.name} ({self.speedup(row):.2f}x)" for row in slower])
        clauses = "; ".join(f"{loss} for {listed(alike)}" for loss, alike in losers.items())
        most = f"most is {clauses}" if len(losers) > 1 else f"all of them most is {', '.join(losers)}"
        yield f"Slower than one GPU alone are {names}. What costs {most}."

    def _largest_loss(self, row: Measurement) -> str:
        """What takes most of a step beyond the work that is shared out."""
        losses, shared = parts_of(row), (self.efficiency(row) or 0.0) * (row.step_seconds or 0.0)
        losses["compute that more GPUs do not shorten"] = losses.pop("compute") - shared
        return max(losses, key=lambda name: losses[name])

    def _remarks(self, row: Measurement) -> Iterator[str]:
        difference = self.difference(row)
        if row.not_finite:
            yield f"{row.name} has NaN or infinity, {row.not_finite}: it does not count as equal to anything."
        elif difference is not None and not difference <= self.tolerance:
            yield f"{row.name} does not compute what one GPU computes: {self._how_far(row, difference)}."
        if row.overload and row.contention:
            yield f"{row.name}: {row.overload}; the clock lets each have the whole link{sharing_words(row)}"

    def _overloaded(self) -> Iterator[str]:
        """The strategies that ask more of a link than it has, where it is not known what that costs."""
        names = [row.name for row in self.strategies if row.overload and not row.contention]
        if names:
            yield (
                f"In {listed([repr(name) for name in names])} some GPU sends two or more messages over one "
                "link at the same time. The clock lets each have the whole link: --contention says what "
                "sharing it adds to the step."
            )

    def _how_far(self, row: Measurement, difference: float) -> str:
        if self.numbers_difference(row) <= self.tolerance:
            unit = self.weight_tolerance.unit if self.weight_tolerance else ""
            found, allowed = self.weights_found(row) or 0.0, self.weights_allowed
            return f"its stepped weights differ by {found:.1e}{unit}, and {allowed:.0e} is allowed"
        return f"it differs by {difference:.1e}, and {self.tolerance:.0e} is allowed"

    def _repr_html_(self) -> str:
        row = "".join(f"<th>{markup(head)}</th>" for head in heads(wide=True))
        body = "".join(
            "<tr>" + "".join(f"<td>{markup(cell)}</td>" for cell in cells) + "</tr>"
            for cells in self.rows(wide=True)
        )
        notes = "".join(f"<p>{markup(remark)}</p>" for remark in self.remarks())
        return f"<table><thead><tr>{row}</tr></thead><tbody>{body}</tbody></table>{notes}"


# ------------------------------------------------------------------------------------------------ the columns


class Column(NamedTuple):
    """One figure of a strategy: its `head` in the table and its key in `json`; one of the two may be missing.
    The value is the field of Measurement with that key, unless `value` computes it; `cell` writes it, and
    None is "-". `wide` columns are shown with --wide alone; the seconds of a `part` of the step are 0 where
    they are too few to change what is shown of the step."""

    head: str = ""
    json: str = ""
    cell: Callable[[Any], str] = str
    value: Callable[[Report, Measurement], Any] | None = None
    wide: bool = False
    part: bool = False
    has: Callable[[Report, Measurement], Any] = lambda report, row: True  # whether JSON has the key

    def of(self, report: Report, row: Measurement) -> Any:
        return self.value(report, row) if self.value else getattr(row, self.json)

    def text(self, report: Report, row: Measurement) -> str:
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
    Column("strategy", value=Report.label),
    Column(json="name"),
    Column(json="model", has=lambda report, row: row.model),
    Column("GPUs", "gpus"),
    Column("step", "step_seconds", seconds),
    Column("speedup", "speedup", "{:.2f}x".format, Report.speedup),
    Column("efficiency", "efficiency", "{:.0%}".format, Report.efficiency, wide=True),
    Column("compute", "compute_seconds", seconds, wide=True),
    Column("exposed", "exposed_communication_seconds", seconds, part=True),
    Column("hidden", "hidden_communication_seconds", seconds, wide=True, part=True),
    Column("bubble", "bubble_seconds", seconds, part=True),
    Column("sent", "bytes_sent_per_gpu", size),
    Column(json="bytes_sent_max"),
    Column("memory", "peak_memory_bytes", lambda peak: size(peak["total"])),
    Column("loss", "loss", "{:.3f}".format, wide=True),
    Column("=0D", value=Report.equality),
    Column(json="max_gradient_difference"),
    Column(json="max_loss_difference", value=Report.max_loss_difference),
    Column(json="max_weight_difference"),
    Column(json="weight_step_difference"),
    Column(json="gradient_norm", has=lambda report, row: row.gradient_norm is not None),
    Column(json="error"),
    Column(json="undisturbed_step_seconds", has=lambda report, row: "disturbances" in report.hardware),
    *map(contention_column, Contention._fields),
    Column(json="not_finite", has=lambda report, row: row.not_finite),
]


def shown_columns(wide: bool = False) -> list[Column]:
    return [column for column in COLUMNS if column.head and (wide or not column.wide)]


def heads(wide: bool = False) -> list[str]:
    return [column.head for column in shown_columns(wide)]


def parts_of(row: Measurement) -> dict[str, float]:
    """Seconds of a step."""
    seconds = (row.exposed_communication_seconds, row.bubble_seconds, row.compute_seconds)
    return dict(zip(("exposed communication", "bubble", "compute"), (part or 0.0 for part in seconds)))


def where_time_goes(row: Measurement) -> str:
    return (
        ", ".join(f"{si(seconds, 's')} {name}" for name, seconds in parts_of(row).items())
        + f" of {si_or_dash(row.step_seconds, 's')}"
    )
