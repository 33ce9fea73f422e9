"""A reader's own idea as one more row of a lesson: `--with FILE.py:FUNCTION`.

Idea   The lesson says what such a function is: a rank program in 0D to 2D, the order of one GPU's actions in
       3D, a layout in 4D. From then on the row is like any other: the same model and batch, the same clock,
       the same comparison with the single GPU.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from traceback import format_exception

from ndparallel.base.errors import UserError
from ndparallel.base.functions import check_parameters, file_in, own_function
from ndparallel.engines.launch import RankError
from ndparallel.engines.time_limit import TooLong, in_time
from ndparallel.lessons.lesson import Lesson, Own, Strategy


def add_option(parser: argparse.ArgumentParser, lesson: Lesson) -> None:
    parser.add_argument(
        "--with",
        dest="own",
        action="append",
        default=[],
        metavar="FILE.py:FUNCTION",
        help=f"add a row of your own: {kind(lesson).what}; may be given several times",
    )


def with_own(lesson: Lesson, words: Sequence[str], gpus: int) -> Lesson:
    """Return the lesson with a row for each function that these words name, in its timelines too."""
    if not words:
        return lesson
    own = [strategy_of(lesson, each, gpus) for each in words]
    shown = (lesson.contrast[0], *(strategy.name for strategy in own))
    return replace(lesson, strategies=[*lesson.strategies, *own], contrast=shown)


def with_own_names(lesson: Lesson, names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the names of the rows that were asked for and, where some were, of the reader's own too."""
    own = [strategy.name for strategy in lesson.strategies[len(lesson.strategies) - len(words) :]]
    return list(dict.fromkeys([*names, *own])) if names else []


def strategy_of(lesson: Lesson, words: str, gpus: int) -> Strategy:
    """Make a strategy of a reader's function, under its name, or under all the words where that is taken."""
    with in_time(words, file_in(words)):
        function, name = own_function(words), words.rpartition(":")[2]
    check_parameters(words, function, kind(lesson).parameters)
    taken = any(strategy.name == name for strategy in lesson.strategies)
    return kind(lesson).strategy(lesson, words if taken else name, words, function, gpus)


def kind(lesson: Lesson) -> Own:
    return lesson.own or RANK_PROGRAM


def as_program(lesson: Lesson, name: str, words: str, function: Callable, gpus: int) -> Strategy:
    """Run a reader's rank program on the mesh and with the job of the lesson's first contrast. It may train
    the model of any of the lesson's strategies."""
    references = dict.fromkeys(each.reference for each in lesson.strategies if each.reference)
    return replace(
        lesson.strategy(lesson.contrast[0]),
        name=name,
        program=function,
        named=None,
        file=file_in(words),
        references=tuple(references),
    )


RANK_PROGRAM = Own("a rank program (gpu, job) that returns a replica's outcome", ("gpu", "job"), as_program)


def as_user_error(error: RankError | TooLong, words: Sequence[str]) -> UserError | RankError | TooLong:
    """Return what a reader's function raised as a sentence with its line; another error as it is."""
    told = str(error) if isinstance(error, RankError) else "".join(format_exception(error))
    files = {str(file_in(each)) for each in words}
    places = re.findall(r'File "(.+)", line (\d+)', told)
    lines = [f"{Path(file).name}, line {line}" for file, line in places if file in files]
    if not lines:
        return error
    if isinstance(error, TooLong) or error.kind == TooLong.__name__:
        return UserError(
            f"a rank was ended that was still computing ({lines[-1]}), after many times as long as one GPU "
            "takes for this work. Does a loop end?"
        )
    return UserError(f"rank {error.rank} raised {error.said} ({lines[-1]}).")
