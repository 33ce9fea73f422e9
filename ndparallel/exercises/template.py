"""The reader's file, and the model solution, both made from the exercise's own file.

Idea   The reader gets the task, the imports that its functions need, what is given, and every function that
       is asked for: with `...` where the lines of the model solution stood, or, where that stands elsewhere,
       as in a lesson, with lines to begin with.
"""

import ast
import inspect
import re
import shlex
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from ndparallel.exercises.exercise import Exercise

OURS = "ndparallel.exercises"  # what only the grader needs


def template(exercise: Exercise) -> str:
    """Return the file that the reader begins with."""
    tree = ast.parse(exercise.source)
    parts = [part for part in tree.body if name_of(part) in {*exercise.asks, *exercise.given}]
    run = f"Run it:  ndparallel exercise {shlex.quote(exercise.word)}        (--hint helps)"
    head = f'"""{exercise.task}\n\n{run}\n"""'
    bodies = [
        (blank if is_solution(exercise, name_of(part)) else segment)(part, exercise.source) for part in parts
    ]
    return "\n\n\n".join(["\n\n".join([head, *imports(tree, parts)]), *bodies]) + "\n"


def solution(exercise: Exercise) -> str:
    """Return the model solution: the lines of every function that is asked for, from where they stand, under
    the name that is asked for, and behind what they use that the reader's file does not have."""
    there = {name for part in ast.parse(template(exercise)).body for name in defined(part)}
    return "\n\n\n".join(
        part for name, function in exercise.asks.items() for part in with_needs(name, function, there)
    )


def with_needs(name: str, function: Callable, there: set[str]) -> Iterator[str]:
    """Yield the imports, the definitions and last the lines of a function, which is renamed."""
    source = Path(inspect.getfile(function)).read_text("utf-8")
    tree, parts, used = ast.parse(source), list[ast.stmt](), {function.__name__}
    while more := [part for part in tree.body if part not in parts and defined(part) & used]:
        parts = more + parts
        used = {each for part in more for each in names_used(part)} - there
    yield from imports(tree, parts, there)
    own = re.compile(rf"^def {function.__name__}\b")
    for part in parts:
        if not isinstance(part, ast.Import | ast.ImportFrom):
            yield own.sub(f"def {name}", segment(part, source))


def is_solution(exercise: Exercise, name: str) -> bool:
    """Whether the lines of a function in the exercise's own file are the model solution."""
    function = exercise.asks.get(name)
    return (
        function is not None
        and function.__name__ == name
        and inspect.getsourcefile(function) == exercise.file
    )


def name_of(part: ast.stmt) -> str:
    """Return the name that a statement defines, or nothing."""
    match part:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return ""


def imports(tree: ast.Module, parts: list[ast.stmt], there: Collection[str] = ()) -> Iterator[str]:
    """Yield the imports that these parts use and that are not `there`, as one paragraph."""
    used = {name for part in parts for name in names_used(part)} - {*there}
    lines = []
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom) and not from_ours(statement):
            statement.names = [alias for alias in statement.names if (alias.asname or alias.name) in used]
            lines += [ast.unparse(statement)] if statement.names else []
    if lines:
        yield "\n".join(lines)


def names_used(part: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}


def defined(part: ast.stmt) -> set[str]:
    """The names that a statement of a module defines."""
    match part:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {alias.asname or alias.name for alias in aliases}
        case ast.Assign(targets=targets):
            return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return set()


def from_ours(statement: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(OURS)


def segment(part: ast.stmt, source: str) -> str:
    return "\n".join(source.splitlines()[part.lineno - 1 : part.end_lineno])


def blank(part: ast.stmt, source: str) -> str:
    """Return a function with its docstring and without its lines."""
    assert isinstance(part, ast.FunctionDef)
    docstring = part.body[0]
    return "\n".join([*source.splitlines()[part.lineno - 1 : docstring.end_lineno], "    ..."])
