"""What would make it fit, where a plan does not, or none does."""

import argparse
import sys

from rich.console import Console

from gpu import si
from ndparallel.base.words import WIDTH
from ndparallel.results.printing import plain_console, print_json, prose
from ndparallel.results.progress import progress
from ndparallel.results.tables import quiet_table
from ndparallel.search.remedies import Remedy, remedies_of_search
from ndparallel.search.search import NoPlanFits
from ndparallel.search.tables import first_of, memory_words

COLUMNS = ("what would make it fit", "step", "memory", "launched by", "it changes")
TIGHT = "tight: less memory is left than its prediction may be off by, so that it may not fit after all."
NONE = "Nothing that is known here would make it fit, nor would more GPUs, as far as they were tried."


def print_remedies(none: NoPlanFits, arguments: argparse.Namespace) -> None:
    """Print why no plan that was searched fits, and what would make one fit."""
    with progress() as announce:
        announce("what would make a plan fit")
        found = remedies_of_search(none.space)
    print(none.reason if found else f"{none.reason} {NONE}", file=sys.stderr)
    if arguments.json:
        print_json({"fits": False, "remedies": [each.as_dict() for each in found]})
    elif found:  # a script, or a list of plans, would have had the output for itself
        alone = arguments.emit or arguments.csv
        show_remedies(plain_console(stream="stderr" if alone else "stdout")[0], found)


def show_remedies(console: Console, remedies: list[Remedy]) -> None:
    width = min(console.width, WIDTH)
    if not remedies:
        console.print(prose(NONE, width))
        return
    rows = [
        (
            one.option,
            si(one.found.seconds, "s"),
            memory_words(one.found),
            first_of(one.launched_by),
            one.kind,
        )
        for one in remedies
    ]
    console.print(quiet_table(COLUMNS, rows, width, words=COLUMNS[-2:]))
    if any(one.found.is_tight for one in remedies):
        console.print()
        console.print(prose(TIGHT, width))
