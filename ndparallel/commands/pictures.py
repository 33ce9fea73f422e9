"""Check, or with --write renew, the pictures that README.md and docs/ show.

Idea   Each is drawn anew, from runs on the simulated clock, and compared with its file in docs/pictures, byte
       by byte.
Limit  It changes nothing without --write, and exits with 1 where a file is stale.
"""

import argparse
from pathlib import Path
from typing import Any

from gpu import si
from ndparallel.base.errors import UserError, check_known
from ndparallel.base.files import check_writable, write_atomically
from ndparallel.base.quoting import visible
from ndparallel.book.pictures import FOLDER, PICTURES, is_stale, path_of, strays
from ndparallel.engines.launch import ENGINES
from ndparallel.results.printing import plain_console, print_json
from ndparallel.results.progress import counted, progress
from ndparallel.results.tables import quiet_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(PICTURES)}")
    add("--write", action="store_true", help="write the files that are stale")
    add("--folder", type=Path, default=FOLDER, metavar="DIR", help="where they lie (default docs/pictures)")
    add("--engine", default="inline", choices=ENGINES, help="what runs the GPUs (default inline)")
    add("--json", action="store_true", help="print JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    for name in arguments.names:
        check_known("picture", name, PICTURES)
    if not arguments.folder.is_dir():
        raise UserError(
            f"there is no directory {str(arguments.folder)!r} for pictures: make it, or name another with "
            "--folder."
        )
    if arguments.write:
        check_writable(*(path_of(name, arguments.folder) for name in arguments.names or PICTURES))
    with progress() as announce:
        names = counted(arguments.names or [*PICTURES], announce, str)
        rows = [renewed(name, arguments) for name in names]
    unasked = [] if arguments.names else [path.name for path in strays(arguments.folder)]
    show(rows, unasked, arguments)
    return int(bool(unasked) or any(row["state"] == "stale" for row in rows))


def renewed(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Draw one picture and compare it with its file; with --write, replace a file that is stale."""
    svg = PICTURES[name].draw(arguments.engine)
    state = "stale" if is_stale(name, svg, arguments.folder) else "up to date"
    if state == "stale" and arguments.write:
        write_atomically(path_of(name, arguments.folder), svg)
        state = "written"
    return {"name": name, "state": state, "bytes": len(svg.encode()), "shows": PICTURES[name].shows}


def show(rows: list[dict[str, Any]], unasked: list[str], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json({"folder": str(arguments.folder), "pictures": rows, "strays": unasked})
        return
    console, _ = plain_console()
    cells = [(row["name"], row["state"], si(row["bytes"], "B"), row["shows"]) for row in rows]
    columns = ("picture", "state", "size", "shows")
    console.print(quiet_table(columns, cells, console.width, words=("state", "shows")))
    if unasked:
        names = visible(", ".join(unasked))
        console.print(f"\nNo picture is called {names}: remove what nobody makes.")
    if any(row["state"] == "stale" for row in rows):
        console.print("\nRenew what is stale with `ndparallel pictures --write`, and look at it.")
