"""Mutations: change the code in one place, and see whether a test notices.

Idea   A test is worth what it catches. Comparisons are flipped, + becomes -, terms are dropped, numbers grow,
       min becomes max: one place at a time, in a copy of the code, and the tests that are about this file run
       until one fails: those that call the function that is changed, the quickest first. What none notices
       survives: a claim is missing, or the change is none.

           python -m tests.mutations                             200 places of all rooms, an hour of CPU
           python -m tests.mutations --room memory --places 30   one room's
           python -m tests.mutations --at gpu.py:207             every mutation of a line

       equivalent_mutations.toml lists the survivors that change nothing, each with the reason.
Limit  It is a habit of development and no test. Messages of errors are not mutated, nor what is repeated in
       every test run (imports, annotations, defaults of records).
"""

import argparse
import ast
import compileall
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutated_rooms import ROOMS, ROOT, Room

EQUIVALENT = Path(__file__).with_name("equivalent_mutations.toml")
COPIED = (
    "*.py",
    "ndparallel",
    "tests",
    "pyproject.toml",
    "docs",
    "README.md",
)
LIMIT_SECONDS = 600  # of a room's tests, and
TEST_SECONDS = 60  # of a test, after which a mutation is caught: what never ends is noticed


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
NOT_MUTATED = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)


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
    if isinstance(node, ast.FunctionDef):
        function = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    elif isinstance(node, ast.Lambda):
        function = node.lineno
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, NOT_MUTATED):
                if isinstance(child, ast.expr | ast.stmt):
                    yield child, function
                yield from mutable(child, function)


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


@dataclass(frozen=True)
class Calls:
    """One test: its seconds, and the functions that it calls, by file and first line."""

    test: str
    seconds: float
    functions: frozenset[tuple[str, int]]


class Copy:
    """A copy of the code, of which one place at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for pattern in COPIED:
            for path in ROOT.glob(pattern):
                (shutil.copytree if path.is_dir() else shutil.copy2)(path, folder / path.name)
        compileall.compile_dir(folder, quiet=2, maxlevels=9)

    def calls(self, room: Room) -> list[Calls]:
        """What every test of a room calls, the quickest first. Exits where one fails."""
        written = self.folder / "calls.json"
        recording = {"FILES": ",".join(room.files), "CALLS": f"{written}"}
        watched = ["-p", "tests.functions_called", f"--timeout={LIMIT_SECONDS}", *room.tests]
        if not self.passes(watched, recording, 4 * LIMIT_SECONDS):
            raise SystemExit(f"Before any mutation: {' '.join(room.tests)} fail.")
        rows = json.loads(written.read_text("utf-8"))
        recorded = [Calls(test, seconds, frozenset(map(tuple, met))) for test, seconds, met in rows]
        return sorted(recorded, key=lambda each: each.seconds)

    def is_caught(self, mutation: Mutation, room: Room, calls: Sequence[Calls]) -> bool:
        """Whether a test fails: of those that call the function, or of all for what runs at import."""
        place = (mutation.file, mutation.function)
        tests = [each.test for each in calls if place in each.functions] if mutation.function else room.tests
        path = self.folder / mutation.file
        before, written = path.read_bytes(), path.stat()
        path.write_bytes(mutated(before, mutation))
        try:
            return bool(tests) and not self.passes(tests)
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))

    def passes(
        self, tests: Sequence[str], environment: Mapping[str, str] | None = None, limit: float = LIMIT_SECONDS
    ) -> bool:
        """Whether all these tests pass, in time."""
        usual = ["-n", "0", "-x", "-p", "no:cacheprovider", "--hypothesis-profile", "mutations"]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *usual, f"--timeout={TEST_SECONDS}", *tests],
            cwd=self.folder,
            env=os.environ
            | {"PYTHONPATH": f"{self.folder}", "PYTHONDONTWRITEBYTECODE": "1"}
            | dict(environment or {}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def survivors(room: Room, chosen: Iterable[Mutation], code: Copy) -> list[Mutation]:
    """Mutations that no test of their room notices; says of each how it ends."""
    calls, survived = code.calls(room), []
    for mutation in chosen:
        start = time.monotonic()
        caught = code.is_caught(mutation, room, calls)
        verdict = "caught  " if caught else "SURVIVED"
        print(f"{verdict} {time.monotonic() - start:5.0f} s  {mutation}", flush=True)
        if not caught:
            survived.append(mutation)
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
    chosen, known = choose(options), equivalents()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        copies = {room: Copy(Path(folder) / room) for room in chosen}  # of the code as it is now
        begun = [pool.submit(survivors, ROOMS[room], chosen[room], copies[room]) for room in chosen]
        lived = [mutation for each in begun for mutation in each.result()]
    number = sum(map(len, chosen.values()))
    unknown = [each for each in lived if (each.file, each.text, each.before, each.after) not in known]
    print(f"\n{number} mutations: {number - len(lived)} caught, {len(lived) - len(unknown)} known to")
    print(f"change nothing, {len(unknown)} that a claim is missing for:")
    print(*unknown, sep="\n")
    return bool(unknown)


if __name__ == "__main__":
    sys.exit(main())
