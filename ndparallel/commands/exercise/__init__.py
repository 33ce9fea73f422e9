"""Exercises: you write the parallelism, and the simulator grades it, in simulated seconds and bytes.

    ndparallel exercise                    the exercises, chapter by chapter, and how far you are
    ndparallel exercise ring               write exercises/ring.py; where it is there, grade it
    ndparallel exercise ring --hint        a hint; --hint 2 and --hint 3 say more
    ndparallel exercise ring --watch       grade it again whenever you save it; Ctrl-C ends
    ndparallel exercise ring --solution    the model solution
    ndparallel exercise ring --reset       begin anew; what you wrote is kept as exercises/ring.1.py
    ndparallel exercise --all --json       the marks of a whole folder
    ndparallel exercise --grade FOLDER     the marks of a class: a folder for each student
    ndparallel exercise mine.py            an exercise of your own (docs/exercises.md)

Limit  An answer is Python that runs on this machine, in a process of its own with limits of time and memory,
       but with your rights: run only what you would run anyway.
"""

import argparse
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from rich.console import RenderableType

from ndparallel.base.errors import UserError
from ndparallel.base.words import paragraph
from ndparallel.commands.exercise.students import grade_students
from ndparallel.exercises.catalog import all_exercises, find_exercise
from ndparallel.exercises.exercise import Exercise
from ndparallel.exercises.folder import CHANGED, Folder
from ndparallel.exercises.grade import grade
from ndparallel.exercises.template import solution, template
from ndparallel.exercises.verdict import IN_WORDS, NOT_BEGUN, PASSED, WRONG, Verdict, printed
from ndparallel.results.printing import plain_console, print_json, prose
from ndparallel.results.tables import quiet_table

FOLDER = "exercises"
SECONDS_BETWEEN_LOOKS = 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("name", nargs="?", metavar="NAME", help="an exercise, or a file that makes one")
    option("--folder", default=FOLDER, metavar="FOLDER", help="where your answers are (default exercises)")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--hint", nargs="?", type=int, const=1, metavar="N", help="hint 1, a nudge, to 3, nearly the answer"
    )
    chosen.add_argument("--solution", action="store_true", help="print the model solution")
    chosen.add_argument("--reset", action="store_true", help="begin anew, and keep what you wrote")
    chosen.add_argument("--watch", action="store_true", help="grade at every save")
    chosen.add_argument("--all", action="store_true", help="grade all answers in the folder")
    chosen.add_argument(
        "--grade", metavar="FOLDER", help="grade all students: FOLDER has a folder for each, with the answers"
    )
    option("--json", action="store_true", help="print verdicts as JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    refuse_contradictions(arguments)
    folder = Folder(Path(arguments.folder))
    if arguments.all:
        return grade_all(folder, arguments.json)
    if arguments.grade is not None:
        named = [find_exercise(arguments.name)] if arguments.name else all_exercises()
        grade_students(Path(arguments.grade), named, arguments.json)
        return 0
    if arguments.name is None:
        show(partial(overview, folder))
        return 0
    exercise = find_exercise(arguments.name)
    if arguments.hint is not None:
        print(hint(exercise, arguments.hint, plain_console()[1]))
    elif arguments.solution:
        print(f"# Stands in {folder.file(exercise.name)} below the imports.\n\n{solution(exercise)}")
    elif arguments.reset:
        reset(exercise, folder)
    elif arguments.watch:
        watch(exercise, folder)
    else:
        return begin_or_grade(exercise, folder, arguments.json)
    return 0


def refuse_contradictions(arguments: argparse.Namespace) -> None:
    """Raise UserError for options that would be ignored."""
    of_one = [name for name in ("solution", "reset", "watch") if getattr(arguments, name)]
    of_one += ["hint"] * (arguments.hint is not None)
    if arguments.all and arguments.name is not None:
        raise UserError(f"--all grades all answers: leave {arguments.name!r} out.")
    if arguments.json and of_one:
        raise UserError(f"--json prints verdicts, and --{of_one[0]} none: leave one of the two out.")
    if arguments.grade is not None and arguments.folder != FOLDER:
        raise UserError("--grade has the students' folders: leave --folder out.")
    many = arguments.all or arguments.grade is not None
    if arguments.name is None and not many and (of_one or arguments.json):
        raise UserError(
            f"--{[*of_one, 'json'][0]} is of an exercise: name it (ndparallel exercise lists them)."
        )


def overview(folder: Folder, width: int) -> Iterator[RenderableType]:
    """Yield what lists the exercises and their marks."""
    rows = [
        (each.chapter, each.name, each.title, f"{each.minutes} min", folder.mark(each.name))
        for each in all_exercises()
    ]
    columns = ("chapter", "exercise", "what it is", "time", "mark")
    yield quiet_table(columns, rows, width, words=("exercise", "what it is", "mark"))
    if any(mark.endswith(CHANGED) for *_, mark in rows):
        yield prose(f"{CHANGED} The answer has changed since: its exercise grades it again.", width)
    yield prose("ndparallel exercise NAME begins one, and grades what you wrote.", width)


def hint(exercise: Exercise, number: int, width: int) -> str:
    """Return a hint. Raises UserError for one that is not there."""
    if not 1 <= number <= len(exercise.hints):
        raise UserError(
            f"{exercise.name} has hints 1 to {len(exercise.hints)}, and none with number {number}."
        )
    more = f"\n(--hint {number + 1} says more.)" if number < len(exercise.hints) else ""
    return paragraph(exercise.hints[number - 1], width) + more


def reset(exercise: Exercise, folder: Folder) -> None:
    kept = folder.put_aside(exercise.name)
    folder.write(exercise.name, template(exercise))
    print(
        f"{folder.file(exercise.name)} is as it was at the start" + (f"; {kept} has yours." if kept else ".")
    )


def begin_or_grade(exercise: Exercise, folder: Folder, as_json: bool) -> int:
    """Write the reader's file where there is none; else grade it. Returns 1 for an answer that is wrong."""
    if folder.file(exercise.name).exists():
        verdict = graded(exercise, folder, quiet=as_json)
        if as_json:
            print_json(verdict.as_dict())
        else:
            show(partial(printed, verdict, exercise.title))
            show(partial(what_next, exercise, verdict.mark, folder))
        return int(verdict.mark == WRONG)
    folder.write(exercise.name, template(exercise))
    if as_json:
        print_json(Verdict(exercise.name, NOT_BEGUN).as_dict())
    else:
        print(f"{folder.file(exercise.name)} is new, and the task is in it. The same command grades it.")
    return 0


def what_next(exercise: Exercise, mark: str, folder: Folder, width: int) -> Iterator[RenderableType]:
    """Yield the commands that go on: to a hint where an answer could be better, to the next exercise where
    it is right."""
    if mark in (WRONG, PASSED):
        yield prose(f"A hint: ndparallel exercise {shlex.quote(exercise.word)} --hint", width)
    if mark not in (WRONG, NOT_BEGUN) and (name := next_open(exercise.name, folder)):
        here = "" if folder.path == Path(FOLDER) else f" --folder {shlex.quote(str(folder.path))}"
        yield prose(f"Next: ndparallel exercise {name}{here}", width)


def next_open(exercise: str, folder: Folder) -> str | None:
    """Return the first exercise after this one that has no right answer in the folder."""
    names = [each.name for each in all_exercises()]
    later = names[names.index(exercise) + 1 :] if exercise in names else []
    right = (PASSED, *IN_WORDS.values())
    return next((name for name in later if folder.mark(name).removesuffix(CHANGED) not in right), None)


def graded(exercise: Exercise, folder: Folder, quiet: bool = False) -> Verdict:
    """Grade the answer in the folder, and note its mark there."""
    verdict = grade(exercise, folder.file(exercise.name), quiet)
    folder.note(verdict)
    return verdict


def grade_all(folder: Folder, as_json: bool) -> int:
    """Grade every answer in the folder. Returns 1 where one is wrong."""
    if not folder.path.is_dir():
        raise UserError(f"{folder.path} is no folder: --folder says where the answers are.")
    verdicts = [
        graded(exercise, folder, quiet=as_json)
        for exercise in all_exercises()
        if folder.file(exercise.name).exists()
    ]
    if as_json:
        print_json({"folder": str(folder.path), "verdicts": [verdict.as_dict() for verdict in verdicts]})
    else:
        show(partial(overview, folder))
    return int(any(verdict.mark == WRONG for verdict in verdicts))


def watch(exercise: Exercise, folder: Folder) -> None:
    """Grade at every save, until Ctrl-C."""
    file, seen = folder.file(exercise.name), None
    if not file.exists():
        folder.write(exercise.name, template(exercise))
    while True:
        saved = file.stat().st_mtime_ns if file.exists() else None
        if saved != seen:
            seen = saved
            if saved is not None:
                verdict = graded(exercise, folder)
                show(partial(printed, verdict, exercise.title))
                show(partial(what_next, exercise, verdict.mark, folder))
                print(f"watching {file}; Ctrl-C ends", flush=True)
        time.sleep(SECONDS_BETWEEN_LOOKS)


def show(parts: Callable[[int], Iterable[RenderableType]]) -> None:
    console, width = plain_console()
    for part in parts(width):
        console.print(part)
        console.print()
