"""A run on the terminal: a quiet table, the timelines that teach most, and a few points on what to notice."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ndparallel.base.quantities import si_or_dash
from ndparallel.base.quoting import visible
from ndparallel.base.words import NO_BREAK, WIDE, WIDTH, count, listed, paragraph
from ndparallel.drawing.lanes import timeline
from ndparallel.drawing.terminal.timelines import Timelines
from ndparallel.results.by_axis import hierarchy
from ndparallel.results.columns import heads
from ndparallel.results.contention import contention_rows, most_lengthened
from ndparallel.results.outputs import drawn_strategies, narration, write_files
from ndparallel.results.printing import plain_console, print_json, prose
from ndparallel.results.report import MEMORY_HEADS, Run, Sweep
from ndparallel.results.table_columns import least_width
from ndparallel.results.tables import quiet_table


def show(
    title: str,
    run: Run,
    arguments: argparse.Namespace,
    contrast: Sequence[str],
    notice: Callable[[Run], Sequence[str]],
    talker: str | None = None,
) -> None:
    """Write and print a run as the options ask: files, tables, the traffic of each axis in the strategy
    `talker`, the timelines of the strategies in `contrast`, what there is to notice."""
    console, width = plain_console(WIDE if arguments.wide else WIDTH)
    drawn = drawn_strategies(run, contrast, arguments)
    narrated = narration(run, contrast, arguments, min(width, WIDTH))
    written = [*map(visible, write_files(run, drawn, arguments))]
    if arguments.json:
        print_json(run.report.as_dict())
        print("".join(f"{line}\n" for line in written), end="", file=sys.stderr)
        return
    console.print(prose(title, width, bold=title))
    console.print(prose(headline(run), width))
    for part in parts(run, arguments, drawn, notice, talker, width):
        console.print()
        console.print(part)
    for lines in ([paragraph(line, min(width, WIDTH)) for line in written], [*map(visible, narrated)]):
        if lines:
            print("", *lines, sep="\n")


def parts(
    run: Run, arguments: argparse.Namespace, drawn, notice, talker, width: int
) -> Iterator[RenderableType]:
    """What is printed under the headline, each after an empty line."""
    yield from strategies_table(run, arguments.wide, width)
    width = min(width, WIDTH)
    if arguments.memory:
        yield quiet_table(MEMORY_HEADS, list(run.report.memory_rows()), width)
    yield from (prose(remark, width) for remark in run.report.remarks())
    if talker:
        yield from traffic(run, talker, width)
    if drawn and arguments.timeline != "none":
        yield Timelines(tuple(timeline(name, run.results[name]) for name in drawn))
    if noticed := notice(run):
        yield bullets("What to notice", [noticed] if isinstance(noticed, str) else noticed, width)
    if run.report.contention:
        yield from contended(run, width)
    if run.hardware.disturbances:
        yield from damage(run, width)


def strategies_table(run: Run, wide: bool, width: int) -> Iterator[RenderableType]:
    """The table of all strategies. A wide one that finds no room is printed without its further columns, and
    that is said."""
    least = least_width(heads(wide), list(run.report.rows(wide)))
    fits = not wide or least <= width
    yield quiet_table(heads(wide and fits), list(run.report.rows(wide and fits)), width)
    if not fits:
        missing = listed([head for head in heads(wide) if head not in heads()])
        yield prose(f"--wide needs {least} columns, and has {width}: {missing} are left out.", width)


def contended(run: Run, width: int) -> Iterator[RenderableType]:
    """What arrival order and shared ports add to every strategy's step."""
    rows = contention_rows(run.report.strategies)
    if not rows:
        yield prose("Contention: no GPU here sends anything to another.", width, bold="Contention:")
        return
    yield prose(
        "Contention: what it adds to a step if messages are taken in as they arrive, and if all messages of "
        "a GPU then share its ports, one to its node and one to others.",
        width,
        bold="Contention:",
    )
    yield table_of(rows, width)
    yield prose(most_lengthened(run.report.strategies), width)


def damage(run: Run, width: int) -> Iterator[RenderableType]:
    """What the disturbances cost every strategy."""
    from ndparallel.results.slowdowns import damages, sentences

    disturbances = run.hardware.disturbances
    rows = damages(run.report.strategies)
    if rows:
        yield prose(
            f"What it costs: {disturbances}. The single GPU that speedups are against is not disturbed.",
            width,
            "What it costs:",
        )
        yield table_of(rows, width)
    if words := " ".join(sentences(rows, disturbances, run.results)):
        yield prose(words, width)


def bullets(title: str, sentences: Sequence[str], width: int) -> Text:
    """A title in bold, and a point for each sentence under it."""
    lines = (f"- {paragraph(visible(words), width - 2)}".replace("\n", "\n  ") for words in sentences)
    return Text.assemble((title, "bold"), *(f"\n{line}" for line in lines))


def headline(run: Run) -> str:
    hardware, model = run.report.hardware, run.report.model
    where = f"on {hardware['name']} ({count(hardware['gpus_per_node'], 'GPU')} a node)".replace(" ", NO_BREAK)
    return (
        f"{model['layers']} layers, hidden {model['hidden']}, batch {model['batch']} x {model['sequence']}, "
        f"{model['dtype']}, {where}"
    )


def traffic(run: Run, talker: str, width: int) -> Iterator[RenderableType]:
    """How often each axis communicates, how much and over which link, in `talker`; where that did not run, in
    the first strategy of several GPUs."""
    for name in (talker, *run.results):
        if run.has_events(name) and run[name].gpus > 1:
            yield prose(
                f"Who talks how often, how much, over which link, in {name}: one step, the mean of all GPUs",
                width,
            )
            yield table_of(hierarchy(run.results[name], run.hardware, run.report.model["steps"]), width)
            return


def table_of(rows: Sequence[dict[str, Any]], width: int) -> Table:
    """Rows of values by name as a table."""
    cells = [[cell(*item) for item in row.items()] for row in rows]
    return quiet_table([heading(key) for key in rows[0]], cells, width)


# ----------------------------------------------------------------------------------------------------- sweeps

UNITS = {"_seconds": "s", "_bytes": "B"}
NO_VALUE = {"capacity_factor": "none"}  # where it is a choice, and not a number that is missing


def show_sweep(sweep: Sweep, as_json: bool) -> None:
    """Print a sweep's table and its sentence, or its rows as JSON."""
    if as_json:
        print_json({"sweep": sweep.title, "rows": sweep.rows})
        return
    console, width = plain_console()
    console.print(prose(sweep.title, width, bold=sweep.title), end="\n\n")
    console.print(table_of(sweep.rows, width))
    console.print()
    console.print(prose(f"Notice: {sweep.sentence}", width, bold="Notice:"))


def heading(key: str) -> str:
    for suffix in UNITS:
        key = key.removesuffix(suffix)
    return key.replace("_", " ")


def cell(key: str, value: float | str | None) -> str:
    """A value as its key says: seconds and bytes with prefixes, shares in percent, calls with one decimal,
    other floats as factors."""
    if value is None or isinstance(value, str):
        return value or NO_VALUE.get(key, "-")
    for suffix, unit in UNITS.items():
        if key.endswith(suffix):
            return si_or_dash(value, unit)
    if isinstance(value, int):
        return str(value)
    if key == "calls":
        return f"{value:.1f}"
    return f"{value:.1%}" if key.endswith(("share", "ratio", "efficiency")) else f"{value:.2f}x"
