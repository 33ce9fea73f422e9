"""An answer: the functions of the reader's file, loaded anew for every GPU.

Idea   GPUs share nothing but messages. So each runs the reader's file for itself, and what one GPU keeps at
       the top of the file no other GPU sees.
"""

import ast
import difflib
import inspect
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, Protocol

from gpu import MismatchError, OutOfMemoryError
from ndparallel.base.errors import RunEnded, UserError
from ndparallel.base.files import read_text
from ndparallel.base.words import listed
from ndparallel.engines.failures import DeadlockError
from ndparallel.exercises.exercise import Exercise
from ndparallel.exercises.template import template

MOST_BYTES = 1_000_000
TOLD = (DeadlockError, MismatchError, OutOfMemoryError, RunEnded, UserError)  # in words for the reader


class NotBegun(UserError):
    """The reader has not written anything yet."""


class NothingChanged(NotBegun):
    """The file does what it did when it was written."""


class Answer(Protocol):
    """What is graded: `on(rank)` has the functions that are asked for as attributes."""

    def on(self, rank: int) -> Any: ...


class ModelAnswer:
    """The model solution, as an answer."""

    def __init__(self, asks: Mapping[str, Callable[..., Any]]) -> None:
        self.functions = SimpleNamespace(**asks)

    def on(self, rank: int) -> Any:
        return self.functions


class ReadersAnswer:
    """The reader's file, as an answer."""

    def __init__(self, path: Path, exercise: Exercise, even_unchanged: bool = False) -> None:
        self.path, self.asks = path, exercise.asks
        self.code, tree = compiled(path, tuple(self.asks), "" if even_unchanged else template(exercise))
        refuse_ours(imported(tree, self.asks.values()))

    def on(self, rank: int) -> Any:
        """Run the file for one GPU, and return the functions that are asked for."""
        module: dict[str, Any] = {"__name__": self.path.stem, "__file__": str(self.path)}
        with_place(self.path, exec)(self.code, module)
        missing = [name for name in self.asks if not callable(module.get(name))]
        if missing:
            raise UserError(
                f"{self.path} defines no function {listed(missing)}, which the exercise asks for."
            )
        self.require_own(module)
        for name, asked in self.asks.items():
            require_form(name, module[name], asked)
        return SimpleNamespace(**{name: with_place(self.path, module[name]) for name in self.asks})

    def require_own(self, module: Mapping[str, Any]) -> None:
        """Raise UserError where the file has the model solution, however it came by it."""
        ours = {place_of(function) for function in self.asks.values()} - {None}
        refuse_ours([name for name, value in module.items() if place_of(value) in ours])


def require_form(name: str, function: Callable[..., Any], asked: Callable[..., Any]) -> None:
    """Raise UserError for what runs none of its lines when it is called as `asked` is, or cannot be."""
    parameters = inspect.signature(asked).parameters.values()
    given = [each.name for each in parameters if each.default is each.empty]
    if isinstance(function, type):
        raise UserError(f"{name} is a class: write a function, which begins with `def {name}`.")
    if inspect.iscoroutinefunction(function):
        raise UserError(f"A call of {name} runs none of its lines, because of `async`: leave it out.")
    if inspect.isgeneratorfunction(function) and not inspect.isgeneratorfunction(asked):
        raise UserError(
            f"{name} has a `yield` in it, so a call runs none of its lines: end with `return`, or without."
        )
    if any(each.kind is not each.POSITIONAL_OR_KEYWORD for each in parameters):
        return  # *numbers say nothing of how it is called
    try:
        inspect.signature(function).bind(*given)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"The exercise calls {name}({', '.join(given)}), and yours cannot be called so: {error}. Leave "
            "its first line as it was given."
        ) from None


def refuse_ours(taken: Sequence[str]) -> None:
    """Raise UserError where there are names of the model solution that a file takes."""
    if taken:
        raise UserError(
            f"{listed(taken)} is the model solution itself: it is right, and it is not yours. Write your "
            "own; --hint helps, and --solution shows the lines of ours."
        )


def imported(tree: ast.Module, functions: Iterable[Callable[..., Any]]) -> list[str]:
    """Return which of these functions a file imports, also inside a function, or takes from their module."""
    used = {part.attr for part in ast.walk(tree) if isinstance(part, ast.Attribute)}
    paths = set(imports_of(tree))
    return [
        function.__name__
        for function in functions
        if f"{function.__module__}.{function.__name__}" in paths
        or (function.__module__ in paths and function.__name__ in used)
    ]


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Yield what a file imports, with its package and module."""
    for part in ast.walk(tree):
        if isinstance(part, ast.Import | ast.ImportFrom):
            package = f"{part.module}." if isinstance(part, ast.ImportFrom) else ""
            yield from (package + alias.name for alias in part.names)


def place_of(value: object) -> tuple[Path, str] | None:
    """Return the file of a function, and its name there; None for what is none."""
    code = getattr(value, "__code__", None)
    return (Path(code.co_filename).resolve(), code.co_name) if isinstance(code, CodeType) else None


def compiled(path: Path, asks: Sequence[str], begins_with: str) -> tuple[CodeType, ast.Module]:
    """Compile the reader's file, and return it parsed as well. Raises NotBegun where every function that is
    asked for is still `...`, NothingChanged where the file does what the one does that it `begins_with`, and
    UserError for what is no Python."""
    source = read_text(path, MOST_BYTES)
    try:
        tree = ast.parse(source, str(path))
        code = compile(tree, str(path), "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        raise UserError(f"{path}{where}: this is not Python yet: {getattr(error, 'msg', error)}.") from None
    functions = [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name in asks]
    if functions and all(map(is_empty, functions)):
        raise NotBegun(f"{path}: nothing is written yet. Write {listed([part.name for part in functions])}.")
    if without_words(tree) == without_words(ast.parse(begins_with)):
        raise NothingChanged(f"{path}: nothing is changed yet. Change {listed(asks)}.")
    return code, tree


def without_words(tree: ast.Module) -> str:
    """Return what a file does, without its comments and docstrings."""
    for part in ast.walk(tree):
        if isinstance(part, ast.Module | ast.FunctionDef) and ast.get_docstring(part) is not None:
            part.body = part.body[1:]
    return ast.dump(tree)


def is_empty(function: ast.FunctionDef) -> bool:
    """Whether a function has nothing but a docstring, `...` and `pass`."""
    return all(
        isinstance(part, ast.Pass) or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
        for part in function.body
    )


def with_place(path: Path, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that adds to what it raises the line of the reader's file where it happened."""

    def placed(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Exception as error:
            place = last_line(error, path)
            if place and not getattr(error, "has_place", False):
                raise with_words(error, path, place) from error
            raise

    return placed


def last_line(error: BaseException, path: Path) -> str:
    """Return the last line of the file that an error went through, in words."""
    trace, line = error.__traceback__, 0
    while trace:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"line {line}: {linecache.getline(str(path), line).strip()}" if line else ""


def meant(error: Exception, path: Path) -> str:
    """Say which attribute was meant by one that there is not, and what becomes of a file beside the reader's;
    nothing where neither is it."""
    if isinstance(error, ModuleNotFoundError) and path.with_name(f"{error.name}.py").exists():
        return f": an answer is one file, so write into it what it needs of {error.name}.py"
    wrong = error if isinstance(error, AttributeError) else AttributeError()
    if wrong.name == "wait":
        return "; only what is called with async_op=True, isend and irecv return a handle to wait for"
    if isinstance(wrong.obj, list) and any(hasattr(each, wrong.name or "") for each in wrong.obj):
        return "; its elements have one: go through them in a loop"
    names = [name for name in dir(wrong.obj) if not name.startswith("__")]
    near = difflib.get_close_matches(wrong.name or "", names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def with_words(error: Exception, path: Path, place: str) -> Exception:
    """Return an error of the same kind, or a UserError in place of one that Python raised, that names its
    place."""
    has_words = isinstance(error, MismatchError | OutOfMemoryError | UserError)
    words = "no memory is left" if isinstance(error, MemoryError) else str(error).removesuffix(".")
    name = "" if has_words or words != str(error) else type(error).__name__ + ": " * bool(words)
    kind = type(error) if has_words else UserError
    placed = kind(f"{name}{words}{meant(error, path)} ({place})")
    placed.has_place = True  # type: ignore[attr-defined]
    return placed
