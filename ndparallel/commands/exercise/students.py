"""`ndparallel exercise --grade FOLDER`: the marks of a class, by student and by exercise."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType

from ndparallel.base.errors import UserError
from ndparallel.exercises.exercise import Exercise
from ndparallel.exercises.students import GOOD, KINDS, Student, graded_students
from ndparallel.results.printing import plain_console, print_json, prose
from ndparallel.results.progress import progress
from ndparallel.results.tables import quiet_table

LEGEND = (
    "good: as good as the model solution, or better. passed: right, but a figure is worse. missing: not "
    "handed in. --json has every sentence that a student is told."
)


def grade_students(path: Path, exercises: Sequence[Exercise], as_json: bool) -> None:
    """Grade all students' answers to these exercises. Raises UserError where nobody has handed in any."""
    with progress() as announce:
        students = list(graded_students(path, exercises, announce))
    names = [each.name for each in exercises if any(each.name in student.verdicts for student in students)]
    if not names:
        raise UserError(f"no student's folder in {path} has an answer, such as {exercises[0].name}.py.")
    if as_json:
        print_json({"folder": str(path), "students": [as_dict(student) for student in students]})
        return
    console, width = plain_console()
    for part in tables(students, names, width):
        console.print(part)
        console.print()


def as_dict(student: Student) -> dict[str, object]:
    return {
        "student": student.name,
        "verdicts": [verdict.as_dict() for verdict in student.verdicts.values()],
    }


def tables(students: Sequence[Student], names: Sequence[str], width: int) -> Iterator[RenderableType]:
    """Yield what shows the marks: a row for each student, and one for each exercise."""
    by_student = [
        (student.name, *counts([student.kind(name) for name in names]), which(student, names))
        for student in students
    ]
    yield quiet_table(("student", *KINDS, "not good"), by_student, width, words=("not good",))
    if len(names) > 1:
        by_exercise = [(name, *counts([student.kind(name) for student in students])) for name in names]
        yield quiet_table(("exercise", *KINDS), by_exercise, width)
    yield prose(LEGEND, width)


def counts(kinds: Sequence[str]) -> Iterator[str]:
    found = Counter(kinds)
    return (str(found[kind]) for kind in KINDS)


def which(student: Student, names: Sequence[str]) -> str:
    """Name the exercises that are not good, by what they are: "wrong ddp, fsdp; missing ring"."""
    by_kind = {kind: [name for name in names if student.kind(name) == kind] for kind in KINDS if kind != GOOD}
    return "; ".join(f"{kind} {', '.join(those)}" for kind, those in by_kind.items() if those)
