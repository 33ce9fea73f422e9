"""Which field of a model, a job or a plan becomes which flag of a training framework.

Idea   The tables are those by which `ndparallel plan --emit` writes a launch line or a recipe, and
       `--from-megatron` reads one.
Limit  How flags follow from several fields (the layout of uneven stages, replicas of shards) is in
       docs/launch_flags.md. What has no flag is in brackets.

  ndparallel flags megatron
  ndparallel flags torchtitan --json
"""

import argparse
from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from ndparallel.launch_flags.frameworks import FRAMEWORKS, Row
from ndparallel.results.printing import plain_console, print_json, prose


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    framework = FRAMEWORKS[arguments.framework]
    rows, kept = framework.rows(), framework.frozen()
    if arguments.json:
        keys = ("of", "field", "becomes")
        release = {key: kept[key] for key in ("framework", "version", "source")}
        print_json(release | {"fields": [dict(zip(keys, row)) for row in rows]})
        return 0
    console, width = plain_console()
    console.print(table(rows, framework.release))
    console.print(prose(f"Names from {kept['source']}.", width))
    return 0


def table(rows: Sequence[Row], head: str) -> Table:
    """Flags that belong together stand in lines of their own."""
    shown = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold"
    )
    for column in ("of the", "field", head):
        shown.add_column(column, overflow="fold")
    for of, field, becomes in rows:
        shown.add_row(of, field, Text(becomes if becomes[0] == "(" else becomes.replace(" --", "\n--")))
    return shown
