"""`ndparallel plan --measured`: a step, or a memory, of one's own beside the prediction."""

import argparse

from rich.console import Console

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.quantities import parse_quantity
from ndparallel.base.words import WIDTH, count
from ndparallel.planner.difference import Difference, differences
from ndparallel.planner.error_bar import usual_errors
from ndparallel.planner.prediction import Prediction
from ndparallel.results.printing import prose
from ndparallel.results.tables import quiet_table

SHOWN = 6  # causes
WHAT = {"seconds": ("step", "s"), "bytes": ("memory of the fullest GPU", "B")}
WAYS = {
    ("seconds", False): "slow",
    ("seconds", True): "fast",
    ("bytes", False): "large",
    ("bytes", True): "small",
}


def measured_from(arguments: argparse.Namespace) -> dict[str, float]:
    """What was measured, by quantity. Raises UserError for what is no time, or no size."""
    given = {
        "seconds": ("--measured", arguments.measured, '"12.3s"'),
        "bytes": ("--measured-memory", arguments.measured_memory, '"71GB"'),
    }
    measured = {
        quantity: parse_quantity(words, quantity, option, example)
        for quantity, (option, words, example) in given.items()
        if words is not None
    }
    for quantity, value in measured.items():
        if not value:
            raise UserError(f"{given[quantity][0]} is 0; give what was measured, as in 12.3s or 71GB.")
    return measured


def differences_from(arguments: argparse.Namespace, found: Prediction) -> list[Difference]:
    measured = measured_from(arguments)
    return differences(found, measured) if measured else []


def show_differences(console: Console, found: Prediction, measured: list[Difference]) -> None:
    width = min(console.width, WIDTH)
    for each in measured:
        console.print()
        console.print(prose(verdict(each), width))
        if not each.inside:
            show_causes(console, each, width)
    if not all(each.inside for each in measured) and (said := of_traits(found)):
        console.print(prose(said, width))


def verdict(one: Difference) -> str:
    (what, unit), by = WHAT[one.quantity], f"{abs(one.error):.1%}"
    said = f"The {what} was measured as {si(one.measured, unit)}, and predicted {by} too {way(one)}"
    if one.inside:
        bar = f"the error bar of {one.bar.fraction:.0%}"
        return f"{said}: inside {bar}, in which no cause can be told from chance."
    return f"{said}: outside the error bar of {one.bar.fraction:.0%}."


def way(one: Difference) -> str:
    return WAYS[one.quantity, one.error < 0]


def show_causes(console: Console, one: Difference, width: int) -> None:
    unit = WHAT[one.quantity][1]
    if not one.causes:
        console.print(prose("Nothing that is known here would explain a part of it.", width))
        return
    rows = [
        (each.change.words, si(each.predicted, unit), f"{each.explained:.0%}", each.change.option)
        for each in one.causes[:SHOWN]
    ]
    console.print()
    console.print(quiet_table(("what alone would explain", "predicted", "of it", "option"), rows, width))
    console.print()
    first = one.causes[0].change
    console.print(prose(f"Look first for {first.words}: {first.look}.", width))


def of_traits(found: Prediction) -> str:
    """How far measured runs like this one were from their predictions; "" where there are too few."""
    words = [
        f"{1 / (1 + error):.2f} times with {trait} ({count(runs, 'run')})"
        for trait, (error, runs) in usual_errors(found.job, found.plan).items()
    ]
    return (
        f"On average, a published step took so many times the predicted one: {', '.join(words)}."
        if words
        else ""
    )
