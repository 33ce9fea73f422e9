"""The exercises, chapter by chapter, and how they are found."""

from importlib import import_module
from pathlib import Path

from ndparallel.base.errors import UserError, unknown
from ndparallel.base.functions import own_module
from ndparallel.exercises import tasks
from ndparallel.exercises.exercise import TASKS, Exercise

ORDER = (
    "ring",
    "halves",
    "everybody",
    "broadcast",
    "why_does_it_hang",
    "accumulate",
    "fit_one_gpu",
    "ddp",
    "leave_early",
    "talk_once",
    "two_nodes",
    "zero1",
    "fsdp",
    "prefetch",
    "columns_then_rows",
    "f_and_g",
    "sum_that_can_wait",
    "vocabulary_loss",
    "one_f_one_b",
    "fill_the_bubble",
    "no_bubble",
    "heavy_head",
    "ring_attention",
    "ulysses",
    "experts",
    "who_sits_where",
    "make_it_fit",
    "capstone",
)


def find_exercise(word: str) -> Exercise:
    """Return the exercise of a name, or the one in a file that ends with .py. Raises UserError where there is
    none."""
    if word.endswith(".py"):
        return load_file(Path(word))
    if word not in ORDER:
        raise unknown("exercise", word, ORDER, "ndparallel exercise")
    return load_file(TASKS / f"{word}.py")


def all_exercises() -> list[Exercise]:
    return [find_exercise(name) for name in ORDER]


def load_file(path: Path) -> Exercise:
    """Load the exercise that a file makes. Raises UserError where it makes none."""
    if not path.is_file():
        raise UserError(f"{path} is not there: name an exercise, or a file that makes one.")
    ours = path.parent == TASKS
    module = import_module(f"{tasks.__name__}.{path.stem}") if ours else own_module(path.resolve())
    exercise = getattr(module, "EXERCISE", None)
    if not isinstance(exercise, Exercise):
        raise UserError(f"{path} makes no exercise: it has no EXERCISE = Exercise(...).")
    return exercise
