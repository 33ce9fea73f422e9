"""Mutations: change the code in one place, and see whether a test notices.

Idea   A test is worth what it catches. Comparisons are flipped, + becomes -, terms are dropped, numbers grow,
       min becomes max: one place at a time, in a copy of the code, and the tests that are about this file run
       until one fails: those that call the function that is changed, the quickest first. What none notices
       survives: a claim is missing, or the change is none.

           python -m tests.mutations                             200 places of all rooms
           python -m tests.mutations --room memory --places 30   one room's
           python -m tests.mutations --at gpu.py:207             every mutation of a line

       equivalent_mutations.toml lists those that change nothing, each with the reason. They are not tried.
Cost   The tests of each room once, and then mostly a second for a mutation that is caught; a survivor costs
       all tests that call its function.
Limit  It is a habit of development and no test. Messages of errors, assertions, imports and annotations
       are not mutated.
"""

import argparse
import ast
import compileall
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutated_rooms import ROOMS, ROOT

EQUIVALENT = Path(__file__).with_name("equivalent_mutations.toml")
COPIED = (
    "*.py",
    "ndparallel",
    "tests",
    "pyproject.toml",
    "docs",
    "README.md",
)


# -------------------------------------------------------------------------------------------- what is mutated

COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
TERMS = (ast.Add, ast.Sub, ast.Mult)  # of which the second can be dropped
FUNCTIONS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "ceil": "floor"}
NOT_MUTATED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutation:
    """An expression, `before`, that begins in `line` (from 1) and has the bytes from `start` to `end`,
    becomes `after`."""

    file: str
    line: int
    text: str  # of that line, by which it is known where lines are added above
    start: int
    end: int
    before: str
    after: str
    function: int  # the first line of the function that it is in; 0 where it runs at import

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  ->  {self.after}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.file, self.text, self.before, self.after


def mutations(file: str) -> list[Mutation]:
    """All mutations of a file, in its order."""
    source = (ROOT / file).read_bytes()
    begins, lines = [0], source.splitlines(keepends=True)
    for line in lines:
        begins.append(begins[-1] + len(line))
    found = []
    for node, function in mutable(ast.parse(source)):
        assert node.end_lineno and node.end_col_offset is not None
        start, end = (
            begins[node.lineno - 1] + node.col_offset,
            begins[node.end_lineno - 1] + node.end_col_offset,
        )
        text, before = one_line(lines[node.lineno - 1]), one_line(source[start:end])
        for after in changes(node):
            found.append(Mutation(file, node.lineno, text, start, end, before, ast.unparse(after), function))
    return sorted(found, key=lambda each: (each.start, each.end))


def mutable(node: ast.AST, function: int = 0) -> Iterator[tuple[ast.expr | ast.stmt, int]]:
    """A tree's expressions and statements that run, but for the words of messages; and the first line of the
    function that each is in."""
    if isinstance(node, ast.arguments):
        function = 0  # defaults
    elif isinstance(node, ast.FunctionDef | ast.Lambda):
        function = first_line(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, NOT_MUTATED):
                if isinstance(child, ast.expr | ast.stmt):
                    yield child, function
                yield from mutable(child, function)


def first_line(function: ast.FunctionDef | ast.Lambda) -> int:
    """Where a function's code begins: at its decorators."""
    decorators = [] if isinstance(function, ast.Lambda) else function.decorator_list
    return min(each.lineno for each in [function, *decorators])


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What a node can become."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            yield changed(node, ops=[COMPARISONS[type(operator)]()])
        case ast.BinOp(left=left, op=operator) if type(operator) in OPERATORS:
            yield changed(node, op=OPERATORS[type(operator)]())
            if isinstance(operator, TERMS):
                yield left
        case ast.AugAssign(op=operator) if type(operator) in OPERATORS:
            yield changed(node, op=OPERATORS[type(operator)]())
        case ast.BoolOp(op=operator):
            yield changed(node, op=ast.And() if isinstance(operator, ast.Or) else ast.Or())
        case ast.UnaryOp(op=ast.Not(), operand=operand) | ast.UnaryOp(op=ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield changed(node, value=value + 1)
        case ast.Constant(value=float(value)):
            yield changed(node, value=2 * value or 1.0)
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
            yield changed(node, func=ast.Name(FUNCTIONS[name]))
        case ast.Call(func=ast.Attribute(attr=name, value=owner)) if name in FUNCTIONS:
            yield changed(node, func=ast.Attribute(owner, FUNCTIONS[name]))
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()


def changed(node: ast.AST, **fields: object) -> ast.AST:
    twin = copy.copy(node)
    for name, value in fields.items():
        setattr(twin, name, value)
    return twin


def one_line(source: bytes) -> str:
    return " ".join(source.decode().split())


def mutated(source: bytes, mutation: Mutation) -> bytes:
    after = mutation.after if mutation.after == "pass" or "=" in mutation.before else f"({mutation.after})"
    return source[: mutation.start] + after.encode() + source[mutation.end :]


# ------------------------------------------------------------------------------------------- who notices that


def copied(folder: Path) -> Path:
    """A copy of the code, of which one place at a time is changed."""
    folder.mkdir()
    for pattern in COPIED:
        for path in ROOT.glob(pattern):
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, folder / path.name)
    compileall.compile_dir(folder, quiet=2, maxlevels=9)
    return folder


def survivors(room: str, chosen: Sequence[Mutation], code: Path) -> list[Mutation]:
    """Mutations that no test of their room notices; says of each how it ends. Raises RuntimeError where the
    room's tests fail before any."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.mutated_room", room],
        cwd=code,
        env=os.environ | {"PYTHONPATH": f"{code}", "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout
    with process.stdin as given:
        json.dump([asdict(mutation) for mutation in chosen], given)
    survived = []
    for mutation, verdict in zip(chosen, process.stdout):
        caught, seconds = json.loads(verdict)
        print(f"{'caught  ' if caught else 'SURVIVED'} {seconds:5.0f} s  {mutation}", flush=True)
        if not caught:
            survived.append(mutation)
    if process.wait():
        raise RuntimeError(f"The mutations of {room} could not be tried.")
    return survived


def equivalents() -> set[tuple[str, str, str, str]]:
    """The changes that are known to change nothing: (file, text of the line, before, after)."""
    listed = tomllib.loads(EQUIVALENT.read_text("utf-8"))["equivalent"]
    return {(each["file"], " ".join(each["line"].split()), each["before"], each["after"]) for each in listed}


def choose(options: argparse.Namespace) -> dict[str, list[Mutation]]:
    """So many places of each room, by chance; or all of a line."""
    if options.at:
        file, line = options.at.split(":")
        room = next(name for name, room in ROOMS.items() if file in room.files)
        return {room: [each for each in mutations(file) if each.line == int(line)]}
    rooms = [options.room] if options.room else list(ROOMS)
    draw, chosen = random.Random(options.seed), {}
    for number, name in enumerate(rooms):
        places = [mutation for file in ROOMS[name].files for mutation in mutations(file)]
        share = (options.places + number) // len(rooms)
        kept = draw.sample(places, min(share, len(places)))
        chosen[name] = sorted(kept, key=lambda each: (each.file, each.start))
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--places", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", choices=ROOMS)
    parser.add_argument("--at", help="FILE:LINE")
    parser.add_argument("--workers", type=int, default=2, help="rooms at a time (default 2)")
    options = parser.parse_args()
    drawn, known = choose(options), equivalents()
    chosen = {room: [each for each in places if each.key not in known] for room, places in drawn.items()}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        copies = {room: copied(Path(folder) / room) for room in chosen}  # of the code as it is now
        begun = [pool.submit(survivors, room, chosen[room], copies[room]) for room in chosen]
        lived = [mutation for each in begun for mutation in each.result()]
    number, tried = (sum(map(len, places.values())) for places in (drawn, chosen))
    print(f"\n{number} mutations: {tried - len(lived)} caught, {number - tried} known to change nothing and")
    print(f"not tried, {len(lived)} that a claim is missing for:")
    print(*lived, sep="\n")
    return bool(lived)


if __name__ == "__main__":
    sys.exit(main())
