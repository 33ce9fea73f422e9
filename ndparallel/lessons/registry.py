"""The lessons: their file names, and how they are loaded. No other module of the package loads a file of the
root."""

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from ndparallel.base.errors import UserError, unknown
from ndparallel.base.functions import load_module
from ndparallel.lessons.lesson import Lesson, Strategy

ROOT = Path(__file__).resolve().parents[2]  # of a checkout; for an installed wheel, site-packages
LESSONS = (
    "0d_single_gpu",
    "1d_data_parallel",
    "2d_tensor_parallel",
    "3d_pipeline_parallel",
    "4d_combined",
    "cp_context_parallel",
    "ep_expert_parallel",
)


def full_name(word: str) -> str:
    """Return a lesson's name from "1d" or its file's name. Raises UserError for a word that names none."""
    wanted = word.lower().removesuffix(".py")
    names = {short_name: name for name in LESSONS for short_name in (name.partition("_")[0], name)}
    if wanted not in names:
        raise unknown("lesson", word, [name for name in names if name not in LESSONS])
    return names[wanted]


def file_of(name: str) -> Path:
    return ROOT / f"{name}.py"


def load(name: str) -> Lesson:
    """Load a lesson from its file: "1d", or the file's name. Raises UserError where no lesson has that name,
    and where the file is missing."""
    return module_of(full_name(name)).LESSON


@lru_cache
def module_of(name: str) -> Any:
    """Load a lesson's module from its file. Raises UserError where the file is missing."""
    path = file_of(name)
    if not path.is_file():
        raise UserError(
            f"{path} is not there: an installed ndparallel and a checkout both have the lessons' files; "
            "install it again."
        )
    running = sys.modules["__main__"]
    if (
        getattr(running, "__file__", None)
        and Path(running.__file__ or "").resolve() == path
        and hasattr(running, "LESSON")
    ):
        return running
    return load_module(name, path)


def single_gpu() -> Strategy:
    """Return the strategy that all others are compared with."""
    return load(LESSONS[0]).strategies[0]
