"""Files that are run as modules, and a reader's own function in one: FILE.py:FUNCTION on the command line."""

import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.files import read_text

MOST_BYTES = 1_000_000  # of a file
OURS = ("collectives", "ndparallel")


def is_own(words: str) -> bool:
    """Whether words name a function of a file, and none of the package's."""
    return ".py:" in words


def file_in(words: str) -> Path:
    """Return the file that FILE.py:FUNCTION names, as its module knows it."""
    return Path(words.rpartition(":")[0]).resolve()


def own_function(words: str) -> Callable[..., Any]:
    """Load the file and return the function that FILE.py:FUNCTION names. Raises UserError where there is
    none, or the file does not run."""
    file, colon, name = words.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise UserError(f"{words!r} names no function: write FILE.py:FUNCTION.")
    function = getattr(own_module(file_in(words)), name, None)
    if not callable(function):
        raise UserError(f"{file} defines no function {name}.")
    return function


def check_parameters(words: str, function: Callable, parameters: Sequence[str]) -> None:
    """Raise UserError where a reader's function cannot be called with so many arguments."""
    takes = signature(function)
    try:
        takes.bind(*parameters)
    except TypeError:
        raise UserError(f"{words} takes {takes}: it must take ({', '.join(parameters)}).") from None


def check_free(words: str, taken: Callable | None, function: Callable) -> None:
    """Raise UserError where a name belongs to a function of the package; `words` say what has it. A reader's
    own may be replaced, as a notebook does whenever its cell runs again."""
    if taken and taken.__module__ != function.__module__ and taken.__module__.split(".")[0] in OURS:
        raise UserError(f"{words} already, {taken.__name__} of {taken.__module__}: take another name.")


def own_module(path: Path) -> ModuleType:
    """Run a reader's file, once in this process. Raises UserError where it cannot be run."""
    name = f"own_{path.stem}"
    loaded = sys.modules.get(name)
    if loaded and loaded.__file__ == str(path):
        return loaded
    read_text(path, MOST_BYTES)
    try:
        return load_module(name, path)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):  # Ctrl-C, or a loop that was ended
            raise
        raise UserError(f"{path.name} does not run: {in_words(error, path)}.") from None


def load_module(name: str, path: str | Path) -> ModuleType:
    """Run a file as a module of this name: those of the lessons cannot be imported by an import statement."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_words(error: BaseException, path: Path) -> str:
    """Say what a reader's file has raised, and in which of its lines."""
    number = line_of(error, path)
    words = f"{type(error).__name__}: {getattr(error, 'msg', error)}"
    return f"{words} (line {number})" if number else words


def line_of(error: BaseException, path: Path) -> int | None:
    """Return the line of a reader's file that an error is of, or went through last."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return getattr(error, "lineno", None) or (lines[-1].lineno if lines else None)
