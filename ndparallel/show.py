"""What a run shows: one quiet table, the timelines that teach most, and a sentence on what to notice."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from ndparallel.history import timeline
from ndparallel.lesson import Run
from ndparallel.timeline import Timelines
from ndparallel.words import count, paragraph

WIDTH = 100  # the most that anything needs, and the width of what is not shown on a terminal


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Say on a terminal what is being run; elsewhere say nothing."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    with Console(stderr=True).status("starting") as status:
        yield lambda name: status.update(f"running {name}")


def show(title: str, run: Run, arguments: argparse.Namespace, contrast: Sequence[str], notice: Callable[[Run], str]) -> None:
    """Print a run as the options ask: the table, the timelines of the strategies in `contrast`, what there is to notice."""
    if arguments.json:
        print(run.report.json())
        return
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    width = min(console.width, WIDTH)
    console.print(prose(f"{title}  {headline(run)}", width, bold=title), end="\n\n")
    console.print(run.report.table(width))
    if arguments.memory:
        console.print()
        console.print(run.report.memory_table(width))
    for remark in run.report.remarks():
        console.print()
        console.print(prose(remark, width))
    shown = [name for name in timelines_shown(run, contrast, arguments.timeline) if name in run]
    if shown:
        console.print()
        console.print(Timelines(tuple(timeline(name, run.results[name]) for name in shown)))
    if words := notice(run):
        console.print()
        console.print(prose(f"Notice: {words}", width, bold="Notice:"))


def headline(run: Run) -> str:
    hardware, model = run.report.hardware, run.report.model
    return (
        f"{model['layers']} layers, hidden {model['hidden']}, batch {model['batch']} x {model['sequence']}, {model['dtype']}, "
        f"on {hardware['name']} ({count(hardware['gpus_per_node'], 'GPU')} a node)"
    )


def prose(words: str, width: int, bold: str = "") -> Text:
    """A paragraph that begins with what is `bold`."""
    text = Text(paragraph(words, width))
    text.stylize("bold", 0, len(bold))
    return text


def timelines_shown(run: Run, contrast: Sequence[str], choice: str) -> Sequence[str]:
    return {"auto": contrast, "all": list(run.results), "none": ()}[choice]
