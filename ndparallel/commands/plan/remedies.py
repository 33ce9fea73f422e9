"""What would make it fit, where a plan does not, or none does.

Idea   A remedy is typed behind the options that were given. Those that contradict it (--dp beside another
       --tp, --lora beside --qlora) are named, to be left out: they are found by reading the options as the
       command does. A plan that was given by its name gets a new name.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from rich.console import Console

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.words import WIDTH, listed, option_words
from ndparallel.commands.command_line import parser_of
from ndparallel.launch_flags.options import described, job_words, priced, script_given
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.options import JOB_DEFAULTS, PLAN_DEFAULTS, job_from, with_defaults
from ndparallel.planner.plan_name import plan_option
from ndparallel.planner.prediction import Prediction
from ndparallel.results.printing import plain_console, print_json, print_paragraphs, prose
from ndparallel.results.progress import progress
from ndparallel.results.tables import quiet_table
from ndparallel.search.remedies import NO_HEADROOM, Remedy, remedies_of_plan, remedies_of_search
from ndparallel.search.search import NoPlanFits
from ndparallel.search.tables import first_of, memory_words

COLUMNS = ("what would make it fit", "step", "memory", "launched by", "it changes")
TIGHT = "tight: less memory is left than its prediction may be off by, so that it may not fit after all."
NONE = "Nothing that is known here would make it fit, nor would more GPUs, as far as they were tried."
OF_A_SCRIPT = "These are options of `ndparallel plan`: in a launch script, change what stands for them."
Options = dict[str, Any]


def remedies_typed(arguments: argparse.Namespace, found: Prediction) -> list[Remedy]:
    """What would make a plan fit, as it is typed behind the options that describe it."""
    remedies = remedies_of_plan(found.job, found.plan)
    if script_given(arguments):
        return remedies

    def meant(given: argparse.Namespace) -> tuple[TrainingJob, Plan | None]:
        read = described(given)
        return read.job, read.plan

    if getattr(arguments, "plan", None):
        remedies = [renamed(one) if one.found.plan != found.plan else one for one in remedies]
    return [typed_behind(arguments, one, (one.found.job, one.found.plan), meant) for one in remedies]


def print_remedies(none: NoPlanFits, arguments: argparse.Namespace) -> None:
    """Print why no plan that was searched fits, and what would make one fit."""
    with progress() as announce:
        announce("what would make a plan fit")
        found = remedies_of_search(none.space)

    def meant(given: argparse.Namespace) -> tuple[TrainingJob, Plan | None]:
        return priced(given, job_from(given)), None

    if not script_given(arguments):
        found = [typed_behind(arguments, one, (one.found.job, None), meant) for one in found]
    found = [one for each in found for one in with_headroom(arguments, each)]
    print(none.reason if found else f"{none.reason} {NONE}", file=sys.stderr)
    if arguments.json:
        print_json({"fits": False, "remedies": [each.as_dict() for each in found]})
    elif found:  # a script, or a list of plans, would have had the output for itself
        alone = arguments.emit or arguments.csv
        console = plain_console(stream="stderr" if alone else "stdout")[0]
        show_remedies(console, found, bool(script_given(arguments)))


def with_headroom(arguments: argparse.Namespace, remedy: Remedy) -> list[Remedy]:
    """The remedy, in the place of a headroom that was typed; none that takes more than was allowed."""
    if remedy.option != NO_HEADROOM or arguments.max_memory is None and arguments.headroom is None:
        return [remedy]
    return [replace(remedy, instead_of=("--headroom",))] if arguments.max_memory is None else []


def show_remedies(console: Console, remedies: list[Remedy], of_a_script: bool) -> None:
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
    tight = [TIGHT] * any(one.found.is_tight for one in remedies)
    said = [*tight, *replaced_words(remedies), *[OF_A_SCRIPT] * of_a_script]
    if said:
        console.print()
        print_paragraphs(console, said, width)


def replaced_words(remedies: Sequence[Remedy]) -> Iterator[str]:
    """Say which options are to be left out beside which."""
    for left_out in dict.fromkeys(one.instead_of for one in remedies if one.instead_of):
        options = [one.option for one in remedies if one.instead_of == left_out]
        yield f"Beside {listed(options)}, leave out {listed(left_out)}."


# ------------------------------------------------------------------------------------------ how it is typed


def renamed(remedy: Remedy) -> Remedy:
    """The remedy with what it changes of the plan as the plan's new name."""
    words = job_words(argparse.Namespace(**options_of(remedy.option)))
    return replace(remedy, option=f"{words} {plan_option(remedy.found.plan)}".strip())


def typed_behind(
    arguments: argparse.Namespace,
    remedy: Remedy,
    wanted: tuple[TrainingJob, Plan | None],
    meant: Callable[[argparse.Namespace], tuple[TrainingJob, Plan | None]],
) -> Remedy:
    """The remedy with the options that it takes the place of: as few as can be, but all of the plan beside
    the plan's name."""
    typed, given = typed_options(arguments), options_of(remedy.option)
    others = [name for name in typed if name in JOB_DEFAULTS | PLAN_DEFAULTS and name not in given]
    of_plan = tuple(name for name in others if name in PLAN_DEFAULTS)
    some = [*combinations(others, 0), *combinations(others, 1), of_plan, *combinations(others, 2)]

    def is_read(left_out: Sequence[str]) -> bool:
        kept = {name: value for name, value in typed.items() if name not in left_out}
        try:
            return meant(with_defaults(argparse.Namespace(**kept | given))) == wanted
        except UserError:
            return False

    names = next(filter(is_read, some), ())
    return replace(remedy, instead_of=tuple(option_words(name, typed[name]).split()[0] for name in names))


def typed_options(arguments: argparse.Namespace) -> Options:
    """The options as they were typed; of a plan that was given by its name, that alone."""
    by_name = PLAN_DEFAULTS if getattr(arguments, "plan", None) else ()
    names = arguments.typed.difference(by_name)
    return {name: value for name, value in vars(arguments).items() if name in names}


def options_of(words: str) -> Options:
    """The options of job and plan, and the framework, that these words give."""
    given = vars(parser_of("plan").parse_args(shlex.split(words)))
    known = {*JOB_DEFAULTS, *PLAN_DEFAULTS, "plan", *(["framework"] if given["framework"] else [])}
    return {name: value for name, value in given.items() if name in known}
