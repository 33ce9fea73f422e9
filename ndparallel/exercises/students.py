"""The answers of a whole class, each student's in a folder with the student's name.

Idea   Every answer is graded as its student would see it graded. A file that cannot be read is a wrong
       answer, and does not keep the others from their marks. Nothing is written into the students' folders.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ndparallel.base.errors import UserError
from ndparallel.exercises.exercise import Exercise
from ndparallel.exercises.folder import Folder
from ndparallel.exercises.grade import grade
from ndparallel.exercises.verdict import IN_WORDS, NOT_BEGUN, PASSED, WRONG, Verdict

GOOD, MISSING = "good", "missing"
KINDS = (GOOD, PASSED, WRONG, NOT_BEGUN, MISSING)


class Student(NamedTuple):
    """A student and the verdicts on what was handed in, by exercise."""

    name: str
    verdicts: dict[str, Verdict]

    def kind(self, exercise: str) -> str:
        """Return one of KINDS: the mark, GOOD where it is the model solution's or better."""
        verdict = self.verdicts.get(exercise)
        mark = verdict.mark if verdict else MISSING
        return GOOD if mark in IN_WORDS else mark


def folders_of(path: Path) -> dict[str, Folder]:
    """Return the students' folders by name: answers are in the folder itself, or in `exercises` in it. Raises
    UserError where there is none."""
    if not path.is_dir():
        raise UserError(f"{path} is no folder: --grade takes a folder with a folder for each student.")
    found = sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    if [each.name for each in found] in ([], ["exercises"]):
        raise UserError(
            f"{path} has no folder for any student; --all --folder {path} grades one student's answers."
        )
    return {
        each.name: Folder(each / "exercises" if (each / "exercises").is_dir() else each) for each in found
    }


def graded_students(
    path: Path, exercises: Sequence[Exercise], announce: Callable[[str], None]
) -> Iterator[Student]:
    """Grade what each student has handed in of these exercises."""
    for name, folder in folders_of(path).items():
        announce(name)
        there = [each for each in exercises if folder.file(each.name).exists()]
        yield Student(name, {each.name: verdict_on(each, folder.file(each.name)) for each in there})


def verdict_on(exercise: Exercise, file: Path) -> Verdict:
    try:
        return grade(exercise, file, quiet=True)
    except UserError as error:
        return Verdict(exercise.name, WRONG, (str(error),))
