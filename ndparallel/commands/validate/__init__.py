"""Predictions held against measured training runs: errors by family, of the mean, and of pairs that differ in
one thing; with --runs of every run.

Idea   Errors are (predicted - measured) / measured. A constant TFLOP/s already comes within 7% on some
       tables. So look at the pairs, which no constant can predict.
Limit  Where a run does not state something, a rule fills it for all runs (ndparallel/validation/cases.py);
       such runs are marked with *.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.files import write_atomically
from ndparallel.base.words import count
from ndparallel.commands.validate.here import validate_here
from ndparallel.planner.error_bar import ERRORS, ONE_BAR, TWO_BARS, entry
from ndparallel.results.printing import plain_console, print_json, prose
from ndparallel.results.progress import progress
from ndparallel.results.tables import quiet_table
from ndparallel.validation.cases import express, read_cases
from ndparallel.validation.families import BARS, RunFamily, every_run, families_of
from ndparallel.validation.result import Result
from ndparallel.validation.sweeps import as_json as sweeps_json
from ndparallel.validation.sweeps import sweeps_of
from ndparallel.validation.validate import published_results, summary, validate

FAMILY_COLUMNS = ("family", "runs", "mean", "median", "bias", "in 1 bar", "in 2", "best constant")
UNUSUAL = "!"  # behind a share of runs inside a bar
FEWEST_FAMILIES = 2  # that make a table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases",
        type=Path,
        metavar="FILE",
        help="runs in the format of ndparallel/validation/measured_runs.json (default: those)",
    )
    parser.add_argument("--runs", action="store_true", help="print every run, too")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument(
        "--here", action="store_true", help="train small steps on this machine, and predict them"
    )
    parser.add_argument(
        "--hardware",
        metavar="NAME|FILE",
        help="predict from this hardware, with --here (default: from kernels that are measured too)",
    )
    parser.add_argument("--cpu-time", action="store_true", help="count CPU seconds, with --here")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the runs for --cases, with --here")
    parser.add_argument("--write-errors", action="store_true", help="renew what error bars are made of")


def run(arguments: argparse.Namespace) -> int:
    refuse_contradictions(arguments)
    if arguments.here:
        return validate_here(arguments)
    runs = read_cases(arguments.cases)
    with progress() as announce:
        announce(f"the predictions of {count(len(runs), 'run')}")
        results = validate(runs) if arguments.cases else published_results()
    if arguments.write_errors:
        write_errors(runs, results)
    elif arguments.json:
        print_json(summary(results) | {"sweeps": sweeps_json(sweeps_of(runs, results))})
    else:
        show(results, arguments.runs or len(families_of(results)) < FEWEST_FAMILIES)
        show_sweeps(sweeps_json(sweeps_of(runs, results)))
    return 0


def write_errors(runs: list[dict], results: list[Result]) -> None:
    entries = [
        entry(case.name, case.job, case.plan, error, case.source, result.memory_error)
        for run, result in zip(runs, results)
        if (error := result.step_error) is not None
        for case in [express(run)]
    ]
    lines = ",\n".join(json.dumps(one) for one in entries)
    write_atomically(str(ERRORS), f"[\n{lines}\n]\n")


def refuse_contradictions(arguments: argparse.Namespace) -> None:
    """Raise UserError for options that would be ignored."""
    if not arguments.here and (arguments.save or arguments.cpu_time or arguments.hardware):
        raise UserError("--hardware, --save and --cpu-time are of steps on this machine: give --here too.")
    if arguments.here and (arguments.cases or arguments.runs or arguments.write_errors):
        raise UserError("--here measures runs of its own: leave --cases, --runs and --write-errors out.")
    if arguments.write_errors and (arguments.cases or arguments.runs or arguments.json):
        raise UserError("--write-errors prints nothing, and takes the default runs: give it alone.")


def show_sweeps(found: dict[str, Any] | None) -> None:
    if found:
        console, width = plain_console()
        regret, most, guess = (
            f"{found[name]:.1%}" for name in ("mean_regret", "max_regret", "mean_regret_of_a_guess")
        )
        words = (
            f"{count(found['sweeps'], 'sweep')} of {found['layouts']} layouts: the one predicted to be the "
            f"quickest took on average {regret} longer than the quickest that was measured, {most} at most; "
            f"one taken at random takes {guess} longer."
        )
        console.print(prose(words, width))


def show(results: list[Result], runs: bool) -> None:
    (console, width), found = plain_console(), summary(results)
    if runs:
        columns = ("run", "measured", "predicted", "error", "bar", "memory", "error ")
        console.print(quiet_table(columns, [cells(result) for result in results], width))
        console.print()
    if len(families := families_of(results)) >= FEWEST_FAMILIES:
        lines = [family_cells(family) for family in (*families, every_run(results))]
        console.print(quiet_table(FAMILY_COLUMNS, lines, width))
        console.print()
        console.print(prose(legend(families), width))
        console.print()
    if rows := [contrast_cells(pair) for pair in found["contrasts"]]:
        console.print(quiet_table(("pair", "measured", "predicted", "error"), rows, width))
        console.print()
    for result in results:
        if result.missed:
            console.print(prose(f"{result.name} cannot be predicted: {result.missed}", width))
        for note in result.notes:
            console.print(prose(f"{result.name}: {note}", width))
    console.print(prose(means(found, len(results)), width))


def contrast_cells(pair: dict[str, Any]) -> tuple[str, ...]:
    """Two runs that differ in one thing: by how much they are measured, and predicted, to differ."""
    ratios = (ratio(pair["measured_ratio"]), ratio(pair["predicted_ratio"]))
    return "/".join(pair["pair"]), *ratios, relative(pair)


def means(found: dict, runs: int) -> str:
    if not runs:
        return "There are no runs in this file."
    memory = found["mean_absolute_memory_error"]
    said = "" if memory is None else f" Memory: {memory:.1%} on average."
    mean, most = found["mean_absolute_step_error"], found["max_absolute_step_error"]
    if mean is None:
        return f"{count(runs, 'run')}, none with a measured step.{said}"
    missed = sum("missed" in case for case in found["cases"])
    counted = f" Runs without a prediction, here {missed}, count as 100%." if missed else ""
    errors = f"mean absolute error {mean:.1%}, largest {most:.1%}."
    return f"{count(runs, 'run')}. Step time: {errors}{counted}{said}"


def legend(families: list[RunFamily]) -> str:
    """What the columns mean, and of how many families bars are too wide or too narrow."""
    unusual = sum(not all(family.is_usual(bars) for bars in BARS) for family in families)
    return (
        "bias: below 0, predicted too fast. in 1 bar, in 2: runs whose measured seconds lie inside so many "
        f"error bars, which know no run of the same source; {ONE_BAR:.0%} and {TWO_BARS:.0%} should. "
        f"{UNUSUAL}: a share that chance alone makes once in 20 times, of {unusual} of {len(families)} "
        "families. best constant: the error of the one TFLOP/s a GPU that fits the family best."
    )


def family_cells(family: RunFamily) -> tuple[str, ...]:
    found = family.as_json()
    median, constant = found["median_absolute_step_error"], found["best_constant_error"]
    bars = [f"{share(family.inside(bars))}{' ' if family.is_usual(bars) else UNUSUAL}" for bars in BARS]
    means = (f"{family.mean:.1%}", f"{median:.1%}", percent(found["bias"]))
    return (family.name, str(found["runs"]), *means, *bars, "-" if constant is None else f"{constant:.1%}")


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def cells(result: Result) -> tuple[str, ...]:
    name = result.name + "*" * bool(result.unstated)
    seconds = [
        "-" if value is None else si(value, "s")
        for value in (result.measured_seconds, result.predicted_seconds)
    ]
    memory = "-" if result.measured_bytes is None else si(result.measured_bytes, "B")
    bar = "-" if result.error_bar is None else f"{result.error_bar:.0%}"
    return (name, *seconds, percent(result.step_error), bar, memory, percent(result.memory_error))


def percent(error: float | None) -> str:
    return "-" if error is None else f"{error:+.1%}"


def ratio(value: float) -> str:
    return f"{value:.3f}"


def relative(pair: dict) -> str:
    return percent(pair["predicted_ratio"] / pair["measured_ratio"] - 1)
