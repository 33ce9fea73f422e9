"""Which field of a model, a job or a plan becomes which flag of Megatron-Core, and which key of torchtitan.

Idea   The tables are those by which `ndparallel plan --emit` writes a launch line, and `--from-megatron`
       reads one.
Limit  What follows from several fields (the layout of uneven stages, replicas of shards) is in
       docs/launch_flags.md.

  ndparallel flags megatron
  ndparallel flags torchtitan --json
"""

import argparse
import json
import sys

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ndparallel.base.words import WIDTH
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.frozen import frozen, release
from ndparallel.results.show import prose


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("framework", choices=("megatron", "torchtitan"))
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    rows = megatron_rows() if arguments.framework == "megatron" else torchtitan_rows()
    if arguments.json:
        keys = ("of", "field", "becomes")
        release_of = {key: frozen(arguments.framework)[key] for key in ("framework", "version", "source")}
        print(json.dumps(release_of | {"fields": [dict(zip(keys, row)) for row in rows]}, indent=2))
        return 0
    console = Console(width=WIDTH if not sys.stdout.isatty() else None, highlight=False)
    console.print(table(rows, release(arguments.framework)))
    console.print(prose(f"Names from {frozen(arguments.framework)['source']}.", WIDTH))
    return 0


def table(rows: list[tuple[str, str, str]], head: str) -> Table:
    """Flags that belong together stand in lines of their own."""
    shown = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold"
    )
    for column in ("of the", "field", head):
        shown.add_column(column, overflow="fold")
    for of, field, becomes in rows:
        shown.add_row(of, field, Text("\n".join(becomes.replace(" --", "\n--").splitlines())))
    return shown


def megatron_rows() -> list[tuple[str, str, str]]:
    """Numbers, and each word of a choice that has flags."""
    rows = [(of, name, f"{flag} N") for of, flags in fields.NUMBERS.items() for name, flag in flags.items()]
    choices = (
        (of, name, word, flags)
        for of, fields_ in fields.CHOICES.items()
        for name, words in fields_.items()
        for word, flags in words.items()
    )
    return rows + [
        (of, f"{name} = {shown(word)}", flags or "(its own default)") for of, name, word, flags in choices
    ]


def torchtitan_rows() -> list[tuple[str, str, str]]:
    degrees = [("plan", name, f"{key} = N") for name, key in fields.TITAN_DEGREES.items()]
    schedules = [("plan", f"schedule = {ours}", theirs) for ours, theirs in fields.TITAN_SCHEDULES.items()]
    recompute = [
        ("plan", f"recompute = {word}", f"activation_checkpoint = {value}")
        for word, value in fields.TITAN_RECOMPUTE.items()
    ]
    reshard = [
        ("plan", f"zero = {zero}", f'parallelism.fsdp_reshard_after_forward = "{word}"')
        for zero, word in fields.TITAN_RESHARD.items()
    ]
    return degrees + schedules + recompute + reshard


def shown(word: object) -> str:
    return (", ".join(word) or "none") if isinstance(word, tuple) else f"{word}"
