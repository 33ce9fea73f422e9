"""The command line: `ndparallel COMMAND ...`, also as `python -m ndparallel COMMAND ...`."""

import argparse
import importlib
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from ndparallel.base.errors import UserError, guarded, unknown
from ndparallel.base.options import Parser, owners
from ndparallel.base.quoting import brief
from ndparallel.base.words import WIDTH, folded, hanging, listed
from ndparallel.engines.launch import join

COMMANDS = {
    "lesson": "one of the lessons, 0d to 4d, cp and ep: run it, list them, or write them as files",
    "compare": "all lessons on one model, one batch, one kind of GPU: what wins, and what bounds each",
    "exercise": "exercises: you write the parallelism, the simulator grades it",
    "explore": "a page on which every option can be changed: time, memory and bytes follow at once",
    "schedule": "pipeline schedules: their lists, times, bubbles, memory and pictures",
    "collective": "one collective with each algorithm: how long, how much is sent, what moves at every hop",
    "mesh": "which rank stands where, who is in whose group, and which links the groups run on",
    "plan": "a training step of a large model: the fastest plan, or how long one takes and if it fits",
    "advise": "the rules of thumb for parallelism, followed for one job, and how near they come to the best",
    "scaling": "the best plan on 8 to 16384 GPUs: step time, efficiency, MFU, weak and strong",
    "goodput": "what failures and checkpoints leave of a cluster's time, and how often to checkpoint",
    "flags": "which field of a plan becomes which flag or key of a training framework",
    "explain": "a layer's operations, one by one, and what bounds each",
    "validate": "the planner's predictions against measured training runs; --here: against this machine's",
    "calibrate": "this machine, measured with torch, as a hardware file that --hardware takes",
    "pictures": "the pictures of README and docs: checked against what the code draws now, or written anew",
}
MOST_MEANT = 3  # of those that a word may have meant


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 2, after one sentence, for what the user can put right."""
    join(argv)
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    return guarded(lambda: run_command(name, rest))


def columns() -> int:
    """Return how wide help may be: as the terminal, at most WIDTH."""
    return min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)


def overview() -> str:
    lines = [hanging(f"  {name:<12} ", summary, columns()) for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: ndparallel COMMAND [options]",
            "       ndparallel --version",
            "",
            *lines,
            "",
            "ndparallel COMMAND --help tells more.",
        ]
    )


def installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # here, as no other command needs it

    try:
        return version("ndparallel")
    except PackageNotFoundError:
        return "(a checkout that is not installed)"


def run_command(name: str, rest: list[str]) -> int:
    if name == "help":
        name, *rest = [*rest, "--help"]
    if name in ("-h", "--help"):
        print(overview())
        return 0
    if name == "--version":
        print(f"ndparallel {installed_version()}")
        return 0
    if name not in COMMANDS:
        raise no_command(name)
    return module_of(name).run(parser_of(name).parse_args(rest)) or 0


def module_of(name: str) -> Any:
    return importlib.import_module(f"ndparallel.commands.{name}")


def parser_of(name: str) -> Parser:
    form = argparse.RawDescriptionHelpFormatter
    about = folded(module_of(name).__doc__ or "", columns())
    parser = Parser(f"ndparallel {name}", description=about, formatter_class=form)
    parser.elsewhere = of_another_command
    module_of(name).add_arguments(parser)
    return parser


def all_parsers() -> dict[str, Parser]:
    return {name: parser_of(name) for name in COMMANDS}


def no_command(word: str) -> UserError:
    """Return an error that says which commands take the word, as an option or as a name; else which there
    are."""
    parsers, option = all_parsers(), f"--{word.lstrip('-')}"
    meant = [f"{name} {option}" for name in owners(option, parsers)]
    meant += [f"{name} {word}" for name, parser in parsers.items() if parser.takes(word)]
    if not meant:
        return unknown("command", word, COMMANDS)
    asked = " or ".join(f"ndparallel {each}" for each in meant[:MOST_MEANT])
    return UserError(f"unknown command {brief(word)}. Did you mean {asked}? ndparallel --help lists all.")


def of_another_command(words: Sequence[str]) -> str:
    option = words[0].partition("=")[0]
    names = owners(option, all_parsers())
    return f"; {option} is an option of ndparallel {listed(names)}" if names else ""
