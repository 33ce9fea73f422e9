"""The lessons: their file names, and how they are loaded. The one place in the package that looks up at the
floor above it."""

import importlib.util
import sys
from functools import lru_cache
from pathlib import Path

from ndparallel.base.errors import UserError
from ndparallel.lessons.lesson import Lesson, Strategy

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ("0d_single_gpu", "1d_data_parallel", "2d_tensor_parallel", "3d_pipeline_parallel", "4d_combined")


@lru_cache
def load(name: str) -> Lesson:
    """Load a lesson's file. Raises UserError where the lessons are not there: they are run from a
    checkout."""
    path = ROOT / f"{name}.py"
    if not path.is_file():
        raise UserError(
            f"{path} is not there: the lessons are files of a checkout, so install with `pip install -e .` "
            "in one."
        )
    running = sys.modules["__main__"]
    if (
        getattr(running, "__file__", None)
        and Path(running.__file__ or "").resolve() == path
        and hasattr(running, "LESSON")
    ):
        return running.LESSON
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LESSON


def available() -> list[str]:
    return [name for name in LESSONS if (ROOT / f"{name}.py").is_file()]


def single_gpu() -> Strategy:
    """The strategy that all others are compared with."""
    return load(LESSONS[0]).strategies[0]
