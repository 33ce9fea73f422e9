"""The command line of a lesson: from its options to the table that it prints."""

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpu import Hardware, MismatchError
from ndparallel.base.errors import UserError, guarded
from ndparallel.base.options import Parser, owners
from ndparallel.base.words import listed
from ndparallel.engines.failures import DeadlockError
from ndparallel.engines.launch import RankError, join
from ndparallel.engines.time_limit import TooLong
from ndparallel.lessons.lesson import Lesson
from ndparallel.lessons.notes import (
    check_microbatches,
    fewer_microbatches,
    gpus_notes,
    hardware_notes,
    sizes_only_notes,
)
from ndparallel.lessons.options import add_common_options, disturbed_hardware_from, engine_from, job_from
from ndparallel.lessons.own import add_option, as_user_error, with_own, with_own_names
from ndparallel.lessons.registry import LESSONS, load, single_gpu
from ndparallel.lessons.runner import Runner
from ndparallel.lessons.table import entries_of, names_as_written, run_lesson
from ndparallel.parallel.mesh import AXES, DEFAULT_ORDER
from ndparallel.results.progress import progress
from ndparallel.results.report import Run, Sweep
from ndparallel.training.job import Job


def main(lesson: Lesson, argv: Sequence[str] | None = None) -> int:
    """Parse, run, print. Returns the exit code: 1 where a strategy does not compute what one GPU computes."""
    join(argv)
    return guarded(lambda: run_and_show_words(lesson, argv, f"{lesson.name}.py"))


def run_and_show_words(lesson: Lesson, argv: Sequence[str] | None, prog: str) -> int:
    """Run a lesson on the words of a command line that begins with `prog`."""
    return run_and_show(lesson, parser_of(lesson, prog).parse_args(argv))


def parser_of(lesson: Lesson, prog: str) -> Parser:
    parser = Parser(prog, description=lesson.title)
    parser.elsewhere = lambda words: as_strategy(lesson, words) or of_another_lesson(words)
    add_common_options(parser, lesson.gpus)
    lesson.add_options(parser)
    add_option(parser, lesson)
    if lesson.sweeps:
        first = next(iter(lesson.sweeps))
        tables = " ".join(told_of(*sweep) for sweep in lesson.sweeps.items())
        parser.add_argument(
            "--sweep",
            nargs="?",
            const=first,
            choices=lesson.sweeps,
            help=f"print one of these tables instead (default {first}). {tables}",
        )
    return parser


def as_strategy(lesson: Lesson, words: Sequence[str]) -> str:
    """Name the strategy that sets what an unknown option would set: --schedule zb-v is ZB-V in 3D."""
    option, _, value = "=".join(words[:2]).partition("=")
    field = option.removeprefix("--").replace("-", "_")
    names = [each.name for each in lesson.strategies if each.changes.get(field) == value.lower()]
    return f"; that is --strategy {shlex.quote(names[0])}" if names else ""


def of_another_lesson(words: Sequence[str]) -> str:
    option = words[0].partition("=")[0]
    names = owners(option, {f"{name}.py": parser_of(load(name), name) for name in LESSONS})
    return f"; {option} is an option of {listed(names)}" if names else ""


def told_of(name: str, sweep: Callable[..., Sweep]) -> str:
    """Write a sweep's name and what it does, as its docstring begins."""
    begins = re.split("[:.?]", " ".join((sweep.__doc__ or "").split()))[0]
    return f"{name}: {begins[:1].lower()}{begins[1:]}.".replace("%", "%%")


def run_and_show(lesson: Lesson, arguments: argparse.Namespace) -> int:
    from ndparallel.results.outputs import check_outputs

    check_microbatches(lesson, arguments)
    job, hardware = job_from(arguments, lesson.defaults, arguments.gpus), disturbed_hardware_from(arguments)
    if getattr(arguments, "sweep", None):
        return run_and_show_sweep(lesson, job, hardware, arguments)
    check_outputs(arguments)
    lesson = with_rows_asked_for(lesson, arguments)
    refuse_rank(lesson, job, arguments)
    run = run_asked_for(lesson, job, hardware, arguments)
    from ndparallel.results.show import show  # imported already, while ranks computed

    show(lesson.title, run, arguments, lesson.contrast, lesson.notice, lesson.hierarchy)
    return int(not run.report.equal())


def with_rows_asked_for(lesson: Lesson, arguments: argparse.Namespace) -> Lesson:
    """Return the lesson with the strategies that its options choose, and the reader's own; --strategy then
    has the names as they are written."""
    if lesson.strategies_for:
        lesson = replace(lesson, strategies=lesson.strategies_for(lesson, arguments))
    lesson = with_own(lesson.named_for(arguments.gpus), arguments.own, arguments.gpus)
    names = names_as_written([single_gpu(), *lesson.strategies], arguments.strategy)
    arguments.strategy = with_own_names(lesson, names, arguments.own)
    return lesson


def refuse_rank(lesson: Lesson, job: Job, arguments: argparse.Namespace) -> None:
    """Raise UserError where --narrate names a GPU that no strategy runs on."""
    from ndparallel.results.outputs import check_rank

    if arguments.narrate is not None:
        entries = entries_of(lesson, job, arguments.gpus, arguments.strategy)
        check_rank(arguments.narrate, max(entry.gpus for entry in entries), "what runs here has")


def run_asked_for(lesson: Lesson, job: Job, hardware: Hardware, arguments: argparse.Namespace) -> Run:
    """Run the strategies that --strategy names, or all, and say in notes what their numbers do not know."""
    gpus, names, engine = arguments.gpus, arguments.strategy, engine_from(arguments)
    try:
        with progress() as announce:
            run = run_lesson(lesson, job, hardware, gpus, names, engine, announce, arguments.contention)
    except (RankError, TooLong) as error:
        raise as_user_error(error, arguments.own) from error
    except (DeadlockError, MismatchError) as error:
        raise UserError(str(error).replace("\n", " ")) from error
    notes = (
        *hardware_notes(run),
        *sizes_only_notes(job, run),
        *fewer_microbatches(lesson, job, arguments),
        *gpus_notes(lesson, run, arguments),
    )
    run.report = replace(run.report, notes=notes)
    return run


def run_and_show_sweep(lesson: Lesson, job: Job, hardware: Hardware, arguments: argparse.Namespace) -> int:
    from ndparallel.results.outputs import refuse_outputs
    from ndparallel.results.show import show_sweep

    refuse_outputs(arguments, "--sweep", "sizes_only")
    refuse_choices(lesson, arguments)
    with progress() as announce, Runner(hardware, engine_from(arguments), announce) as runner:
        sweep = lesson.sweep(arguments.sweep, runner, job)
    show_sweep(sweep, arguments.json)
    return 0


def refuse_choices(lesson: Lesson, arguments: argparse.Namespace) -> None:
    """Raise UserError where an option sets what a sweep sets itself: GPUs, strategies, and their mesh."""
    chosen_by_the_sweep = {"gpus": lesson.gpus, "strategy": [], "order": DEFAULT_ORDER} | dict.fromkeys(
        (*AXES, "etp")
    )
    for option, usual in chosen_by_the_sweep.items():
        if getattr(arguments, option, usual) != usual:
            raise UserError(
                f"--sweep {arguments.sweep} chooses its own GPUs and strategies: leave --{option} out."
            )
