"""What a run shows: one quiet table, the timelines that teach most, and a sentence on what to notice."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from ndparallel.history import timeline
from ndparallel.lesson import Lesson, Run
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
    console.print(f"[bold]{lesson.title}[/bold]  {headline(run)}\n")
    console.print(run.report.table())
    if arguments.memory:
        console.print(run.report.memory_table())
    for remark in run.report.remarks():
        console.print(f"\n{remark}")
    shown = [name for name in timelines_shown(lesson, arguments.timeline) if run.results.get(name)]
    if shown:
        console.print()
        console.print(Timelines([timeline(name, run.results[name]) for name in shown]))
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
