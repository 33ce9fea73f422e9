"""What a run shows: one quiet table, the timelines that teach most, and a sentence on what to notice."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from ndparallel.history import timeline
from ndparallel.lesson import Lesson, Run, Sweep
from ndparallel.report import plain, quantity, quiet_table
from ndparallel.timeline import Timelines


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Say on a terminal what is being run; elsewhere say nothing."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    with Console(stderr=True).status("starting") as status:
        yield lambda name: status.update(f"running {name}")


def show(lesson: Lesson, run: Run, arguments: argparse.Namespace) -> None:
    """Print a lesson's run as the options ask."""
    if arguments.json:
        print(run.report.json())
        return
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(f"[bold]{lesson.title}[/bold]\n{headline(run)}\n")
    console.print(run.report.table())
    if arguments.memory:
        console.print(run.report.memory_table())
    for remark in run.report.remarks():
        console.print(f"\n{remark}")
    shown = [name for name in timelines_shown(lesson, arguments.timeline) if run.results.get(name)]
    if shown:
        console.print()
        console.print(Timelines(tuple(timeline(name, run.results[name]) for name in shown)))
    notice = lesson.notice(run)
    if notice:
        console.print(f"\n[bold]Notice:[/bold] {notice}")


def headline(run: Run) -> str:
    hardware, model = run.report.hardware, run.report.model
    return (
        f"{model['layers']} layers, hidden {model['hidden']}, batch {model['batch']} x {model['sequence']}, "
        f"{model['dtype']}, on {hardware['name']} ({hardware['gpus_per_node']} GPUs a node)"
    )


def timelines_shown(lesson: Lesson, choice: str) -> tuple[str, ...]:
    every = tuple(strategy.name for strategy in lesson.strategies)
    return {"auto": lesson.contrast, "all": every, "none": ()}[choice]


def show_sweep(sweep: Sweep, as_json: bool) -> None:
    """Print a sweep's table and its sentence, or its rows as JSON."""
    if as_json:
        print(json.dumps(plain({"sweep": sweep.title, "rows": sweep.rows}), indent=2, allow_nan=False))
        return
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(f"[bold]{sweep.title}[/bold]\n")
    console.print(quiet_table([heading(key) for key in sweep.rows[0]], [[cell(*item) for item in row.items()] for row in sweep.rows]))
    console.print(f"\n[bold]Notice:[/bold] {sweep.sentence}")


UNITS = {"_seconds": "s", "_bytes": "B"}


def heading(key: str) -> str:
    for suffix in UNITS:
        key = key.removesuffix(suffix)
    return key.replace("_", " ")


def cell(key: str, value: float | str | None) -> str:
    """A value as its key's unit says: seconds and bytes with prefixes, ratios in percent."""
    if value is None or isinstance(value, str | int):
        return "-" if value is None else str(value)
    for suffix, unit in UNITS.items():
        if key.endswith(suffix):
            return quantity(value, unit)
    return f"{value:.1%}" if key.endswith(("share", "ratio", "efficiency")) else f"{value:.2f}x"
