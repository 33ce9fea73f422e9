"""The book: every output and every number in README.md and docs/ is made by a command, and checked against
it.

Idea   A ```console block shows a command after "$ " and what it prints. A comment above a paragraph says
       where its numbers come from:

           <!-- numbers: python 1d_data_parallel.py --gpus 8
           7.11x     strategies["FSDP prefetch"].speedup
           61.3 ms   strategies["FSDP prefetch"].exposed_communication_seconds
           3.35 TB/s source: NVIDIA H100 data sheet
           -->
           Prefetching reaches 7.11x, because only 61.3 ms of its communication are exposed; an H100 reads
           3.35 TB/s.

       Each line has a number as the paragraph writes it, and a Python expression of the command's JSON, in
       units without prefix (seconds, bytes, ratios); it is right if it is the value rounded to the digits
       that are written. Semicolons let a line have several. Without a command it is arithmetic alone; of(
       "python 0d_single_gpu.py") in an expression is the JSON of one more command, to compare with. A
       number with a unit that no line explains is a mistake. Code is quoted as quotes.py says, and
       programs are run as programs.py says.
Run    python -m ndparallel.book           says what is stale, and exits with 1
       python -m ndparallel.book --write   makes it new
       [FILE ...]                          checks these, and not README.md, docs/*.md and the pictures
Limit  Commands are gpu.py, the lessons and `ndparallel ...`, each run once, in this process, on the engine
       inline where it is installed (which prints what processes print); of the shell only `| head -N` and `|
       tail -N` are understood. Losses may differ in the third digit between machines; a number of the form
       1.234 that stands alone is taken for one.
"""

import argparse
import contextlib
import difflib
import io
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from ndparallel.base.errors import UserError, guarded
from ndparallel.base.files import write_atomically
from ndparallel.base.words import count
from ndparallel.book.pictures import FOLDER, PICTURES, is_stale, path_of
from ndparallel.book.programs import PROGRAM, new_program
from ndparallel.book.quotes import CODE, new_code
from ndparallel.lessons.registry import LESSONS, ROOT
from ndparallel.results.progress import counted, progress
from ndparallel.results.record import record_in, value_of

COMMAND = re.compile(
    r"(?P<program>python|ndparallel) (?P<name>\w+(?:\.py)?)(?P<arguments>[^|;&<>]*)(?:\| (?P<tool>head|tail) "
    r"-(?P<count>\d+))?"
)
CONSOLE = re.compile(r"```console\n\$ (?P<command>.*)\n(?P<output>(?s:.*?))```")
NUMBERS = re.compile(r"<!-- numbers:(?P<command>.*)\n(?P<lines>(?s:.*?))-->\n")
PARAGRAPH = re.compile(r"(?P<blocks>(?s:<!-- numbers:.*?-->\n)+)(?P<words>(?:.+\n)+)")
UNIT = r"%|x|[numkMGT]?(?:s|B/s|B|FLOP/s)"
QUANTITY = re.compile(rf"(?P<number>-?\d[\d,]*(?:\.\d+)?)(?P<space> ?)(?P<unit>{UNIT})?")
PROSE_QUANTITY = re.compile(rf"(?<![\w.,-])-?\d[\d,]*(?:\.\d+)?(?: (?!x)|(?=[%x]))(?:{UNIT})(?![\w/])")
NOT_PROSE = re.compile(r"```.*?```|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)", re.DOTALL)
PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
LOSS = re.compile(r"(?<![\d.,])\d\.\d{3}(?![\d.])")
LOSS_TOLERANCE = 0.01
ENGINE = "inline"  # the quickest: all print the same

Run = Callable[[str], str]


# ------------------------------------------------------------------------------------------- running commands


def run(command: str) -> str:
    """Return what a command prints, to standard output and standard error, and head or tail leaves. Raises
    UserError for a command that is not the project's."""
    asked = COMMAND.fullmatch(command)
    if not asked:
        raise UserError(
            f"{command!r} is no command of this project: write `python gpu.py`, a lesson or `ndparallel ...`."
        )
    lines = printed_by(asked["program"], asked["name"], *shlex.split(asked["arguments"]))
    count = int(asked["count"] or len(lines))
    return "".join(lines[-count:] if asked["tool"] == "tail" else lines[:count])


@cache
def printed_by(program: str, name: str, *arguments: str) -> list[str]:
    """What a program prints; it is run once."""
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        contextlib.suppress(SystemExit),
    ):
        start(program, name, [*arguments])
    return [f"{line.rstrip()}\n" for line in printed.getvalue().splitlines()]


def start(program: str, name: str, arguments: list[str]) -> None:
    if name.removesuffix(".py") in (*LESSONS, "compare") and "--engine" not in arguments:
        arguments = [*arguments, "--engine", ENGINE]
    before = sys.argv
    try:
        if program == "ndparallel":
            sys.argv = [program, name, *arguments]
            runpy.run_module(program, run_name="__main__")
        else:
            sys.argv = [name, *arguments]
            runpy.run_path(str(ROOT / name), run_name="__main__")
    finally:
        sys.argv = before


# -------------------------------------------------------------------------------------------- making text new


def renewed(text: str, run: Run = run) -> str:
    """Return the text with all outputs and numbers as the commands make them now; a difference only in a
    loss is left as it is."""
    text = PROGRAM.sub(new_program, CODE.sub(new_code, text))
    text = CONSOLE.sub(lambda found: new_console(found, run), text)
    return PARAGRAPH.sub(lambda found: new_paragraph(found, run), text)


def new_console(found: re.Match, run: Run) -> str:
    output = run(found["command"])
    if same(found["output"], output):
        return found[0]
    return f"```console\n$ {found['command']}\n{output}```"


def same(old: str, new: str) -> bool:
    """Return whether two outputs are equal, except for losses as close as other machines may find them."""
    ours, theirs = LOSS.sub("loss", old), LOSS.sub("loss", new)
    near = (abs(float(a) - float(b)) < LOSS_TOLERANCE for a, b in zip(LOSS.findall(old), LOSS.findall(new)))
    return ours == theirs and all(near)


def new_paragraph(found: re.Match, run: Run) -> str:
    numbers: dict[str, str] = {}
    for block in NUMBERS.finditer(found["blocks"]):
        for old, new in new_numbers(block, run):
            if not re.search(whole(old), found["words"]):
                raise UserError(f"the paragraph after {block[0].splitlines()[0]!r} does not say {old!r}.")
            numbers[old] = new
    # all at once: a number may become what another was
    written = "|".join(map(whole, numbers))
    return re.sub(written, lambda old: numbers[old[0]], found[0])


def new_numbers(block: re.Match, run: Run) -> Iterator[tuple[str, str]]:
    """Yield each number of a block as it is written and as it should be."""
    names = record_of(block["command"].strip(), run) | {"of": lambda command: record_of(command, run)}
    for old, expression in lines_of(block):
        yield old, old if expression.startswith("source:") else written_like(old, value_of(expression, names))


def lines_of(block: re.Match) -> list[list[str]]:
    """Return [number, expression] for each line, or for each part of a line between semicolons."""
    parts = [part.strip() for part in re.split(r"[;\n]", block["lines"])]
    return [re.split(r"\s{2,}|\s(?=source:)", part, maxsplit=1) for part in parts if part]


def whole(number: str) -> str:
    return rf"(?<![\w.,]){re.escape(number)}(?![\w%]|[.,]\d)"


def written_like(text: str, value: float) -> str:
    """Write a value in the unit and with the digits of a written number: ("26.8 ms", 0.03) gives "30.0
    ms"."""
    found = QUANTITY.fullmatch(text)
    if not found:
        raise UserError(f"{text!r} is no number with a unit.")
    unit = found["unit"] or ""
    digits = len(found["number"].partition(".")[2])
    number = f"{value / scale(unit):{',' if ',' in found['number'] else ''}.{digits}f}"
    return f"{number}{found['space']}{unit}"


def scale(unit: str) -> float:
    if unit == "%":
        return 0.01
    return PREFIXES[unit[0]] if len(unit) > 1 and unit[0] in PREFIXES else 1.0


def record_of(command: str, run: Run) -> dict[str, Any]:
    """Return a command's JSON, with strategies by their names; nothing for no command."""
    if not command:
        return {}
    printed = run(f"{command} --json")
    try:
        return record_in(printed)
    except ValueError:
        raise UserError(f"`{command} --json` prints no JSON: {printed.strip()}") from None


def unexplained(text: str) -> list[str]:
    """Return the numbers with units in a text's prose that no comment above their paragraph explains."""
    explained = PARAGRAPH.sub(without_explained, text)
    return PROSE_QUANTITY.findall(NOT_PROSE.sub(" ", explained))


def without_explained(found: re.Match) -> str:
    words = found["words"]
    for block in NUMBERS.finditer(found["blocks"]):
        for number, _ in lines_of(block):
            words = re.sub(whole(number), "", words)
    return words


# ------------------------------------------------------------------------------------------------ the command


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m ndparallel.book", description="Check, or with --write renew, what the documents say."
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args(argv)
    pictures = [] if arguments.files else [*PICTURES]
    return guarded(lambda: check(arguments.files or documents(), pictures, arguments.write))


def check(paths: list[Path], pictures: list[str], write: bool) -> int:
    """Check every document and these pictures, and return 1 if anything is wrong."""
    with progress() as announce:
        wrong = sum([mistakes(path, write) for path in counted(paths, announce, attrgetter("name"))])
        wrong += sum([is_wrong(name, write) for name in counted(pictures, announce, str)])
    if not wrong:
        print(summary("".join(path.read_text("utf-8") for path in paths), len(pictures)))
    return int(wrong > 0)


def is_wrong(name: str, write: bool) -> bool:
    """Say whether a picture is not what its runs would draw now; with `write`, draw it anew."""
    svg, path = PICTURES[name].draw(ENGINE), path_of(name, FOLDER)
    if not is_stale(name, svg, FOLDER):
        return False
    print(f"{path} is {'drawn anew: look at it' if write else 'stale'}")
    if write:
        write_atomically(path, svg)
    return not write


def summary(text: str, pictures: int = 0) -> str:
    """Say how much was compared."""
    outputs, quoted = len(CONSOLE.findall(text)) + len(PROGRAM.findall(text)), len(CODE.findall(text))
    numbers = sum(len(lines_of(block)) for block in NUMBERS.finditer(text))
    counts = [count(outputs, "output"), count(numbers, "number"), f"{count(quoted, 'quotation')} of code"]
    counts += [count(pictures, "picture")] if pictures else []
    return f"{', '.join(counts)} compared: all equal."


def mistakes(path: Path, write: bool) -> int:
    """Print what is wrong with a document, and count it; with `write`, put right what commands can."""
    old = path.read_text("utf-8")
    new = renewed(old)
    sys.stdout.writelines(
        difflib.unified_diff(old.splitlines(True), new.splitlines(True), str(path), "what the commands print")
    )
    unknown = unexplained(new)
    for number in unknown:
        print(f"{path}: no comment says where {number!r} comes from")
    if write:
        write_atomically(path, new)
    return len(unknown) + (old != new and not write)
