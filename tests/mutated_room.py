"""One room's mutations, tried in one process: what mutations.py starts in a copy of the code.

    python -m tests.mutated_room overlap < mutations.json

Idea   The room's tests are imported and collected once. A child of that process runs them all, and notes
       which functions each test calls, and how long it takes. Then each mutation has a child: it puts the
       changed code into the functions that are there, and runs the tests that call this one, the quickest
       first, until one fails. A test that needs far more CPU than before has failed, too.
Cost   A mutation costs its tests alone; what runs at import is tried in a new process, with all tests of the
       room.
Limit  Functions that only other processes run are nobody's, and a property that is cached in an object of the
       tests' modules is its first caller's.
"""

import ast
import builtins
import functools
import gc
import importlib
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, TextIO

import pytest

from tests.mutated_rooms import ROOMS, ROOT, Room
from tests.mutations import Mutation, first_line, mutated

Function = tuple[str, int]  # its file and first line

USUAL = ("-n", "0", "-p", "no:cacheprovider", "--hypothesis-profile", "mutations")
SPARE_CPU_SECONDS = 20  # that a test may need beside three times what it needed before
PASSED, FAILED, BROKEN = range(3)
CACHE = type(functools.cache(len))
CALLED = "__functions_called__"  # a set among the builtins


# ------------------------------------------------------------------------------------------- who calls what


class Calls(NamedTuple):
    """One test, by its place: its seconds, and the functions that it calls."""

    test: int
    seconds: float
    functions: frozenset[Function]


class Recorder:
    """A plugin that notes what each test calls, and what each fixture of several tests: functions of these
    files say so themselves."""

    def __init__(self, files: Sequence[str]) -> None:
        for file in files:
            source = (ROOT / file).read_bytes()
            put(ROOT / file, source, telling(file, source))
        self.calls: dict[Any, set[Function]] = defaultdict(set)  # by test, module of tests, or session
        self.seconds: dict[Any, float] = defaultdict(float)
        self.caches: dict[int, list] = {}  # by the number of modules that were there

    @contextmanager
    def noted(self, node: Any) -> Iterator[None]:
        before, start = getattr(builtins, CALLED, None), time.perf_counter()
        setattr(builtins, CALLED, self.calls[node])
        try:
            yield
        finally:
            setattr(builtins, CALLED, before)
            self.seconds[node] += time.perf_counter() - start

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, request: Any) -> Generator[None, Any, Any]:
        with self.noted(request.node):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.empty_caches()
        with self.noted(item):
            return (yield)

    def empty_caches(self) -> None:
        """So that a test calls all that it needs."""
        if len(sys.modules) not in self.caches:
            caches = [each for each in gc.get_objects() if type(each) is CACHE]
            self.caches[len(sys.modules)] = [each for each in caches if "ndparallel" in each.__module__]
        for each in self.caches[len(sys.modules)]:
            each.cache_clear()

    def recorded(self, tests: Sequence[pytest.Item]) -> list[Calls]:
        """The calls and seconds of each test, its fixtures' among them; the quickest first."""
        found = []
        for place, test in enumerate(tests):
            nodes = test.listchain()
            called = frozenset().union(*(self.calls.get(node, ()) for node in nodes))
            found.append(Calls(place, sum(self.seconds.get(node, 0.0) for node in nodes), called))
        return sorted(found, key=lambda each: each.seconds)


def telling(file: str, source: bytes) -> ast.Module:
    """A file's tree, of which every function begins with a note that it is called."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            note = ast.parse(f"{CALLED}.add({(file, first_line(node))!r})", mode="eval").body
            if isinstance(node, ast.Lambda):
                node.body = ast.BoolOp(ast.Or(), [note, node.body])
            else:
                node.body.insert(0, ast.Expr(note))
    return ast.fix_missing_locations(tree)


@contextmanager
def noted_at_import(files: Sequence[str], called: set[Function]) -> Iterator[None]:
    """Note which functions of these files are called while modules are imported."""
    paths = {f"{ROOT / file}": file for file in files}

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = paths.get(frame.f_code.co_filename)
        if file:
            called.add((file, frame.f_code.co_firstlineno))

    sys.settrace(note)
    try:
        yield
    finally:
        sys.settrace(None)


# ------------------------------------------------------------------------------------------ the changed code


def put(path: Path, before: bytes, after: bytes | ast.Module) -> None:
    """Give the functions of a file that are there the code of its changed source."""
    codes = dict(pairs(*(compile(source, path, "exec") for source in (before, after))))
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename == f"{path}":
            each.__code__ = codes.get(each.__code__, each.__code__)


def can_be_put(path: Path, before: bytes, after: bytes) -> bool:
    """Whether functions that are there can have the changed code: it closes over the same variables."""
    old, new = (compile(source, path, "exec") for source in (before, after))
    return all(one.co_freevars == other.co_freevars for one, other in pairs(old, new))


def pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """What differs in two codes of one structure: themselves, and the codes inside them."""
    if old != new:
        yield old, new
    for one, other in zip(inside(old), inside(new)):
        yield from pairs(one, other)


def inside(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


@contextmanager
def on_disk(path: Path, changed: bytes) -> Iterator[None]:
    """Change a file, for other processes."""
    before, written = path.read_bytes(), path.stat()
    path.write_bytes(changed)
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))


# ---------------------------------------------------------------------------------------------- the mutations


class Trials:
    """A plugin that runs the tests in children, and says how each mutation ends: whether it is caught, and
    after how many seconds."""

    def __init__(self, room: Room, chosen: Sequence[Mutation], verdicts: TextIO) -> None:
        self.room, self.chosen, self.verdicts = room, chosen, verdicts
        self.at_import: set[Function] = set()
        self.calls: list[Calls] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        with noted_at_import(self.room.files, self.at_import):
            collected = yield
            for file in self.room.files:  # also those that commands would import later
                module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                importlib.import_module(module)
            return collected

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.session = session
        self.calls = self.recorded()
        for mutation in self.chosen:
            start = time.monotonic()
            caught = self.is_caught(mutation)
            print(json.dumps([caught, time.monotonic() - start]), file=self.verdicts, flush=True)
        return True

    def recorded(self) -> list[Calls]:
        """What every test calls, the quickest first. Raises RuntimeError where one fails."""
        with tempfile.TemporaryFile() as file:

            def record() -> bool:
                recorder = Recorder(self.room.files)
                self.session.config.pluginmanager.register(recorder)
                if not self.passes(range(len(self.session.items))):
                    raise RuntimeError(f"{self.failed} fails before any mutation.")
                pickle.dump(recorder.recorded(self.session.items), file)
                file.flush()
                return True

            succeeds(record)
            file.seek(0)
            return pickle.load(file)

    def is_caught(self, mutation: Mutation) -> bool:
        """Whether a test fails: of those that call the function, or of all for what runs at import."""
        path, place = ROOT / mutation.file, (mutation.file, mutation.function)
        before = path.read_bytes()
        after = mutated(before, mutation)
        calling = [each for each in self.calls if place in each.functions]
        others = [each for each in self.calls if each not in calling]
        if self.room.in_other_processes:
            calling += others

        def survives() -> bool:
            put(path, before, after)
            return self.passes([each.test for each in calling], [each.seconds for each in calling])

        with on_disk(path, after):
            if mutation.function and place not in self.at_import and can_be_put(path, before, after):
                return not succeeds(survives)
            return not self.passes_anew(calling if self.room.in_other_processes else [*calling, *others])

    def passes(self, places: Sequence[int], seconds: Sequence[float] = ()) -> bool:
        """Whether these tests pass here, none with far more CPU than the seconds that it took before."""
        tests = [self.session.items[place] for place in places]
        for number, (test, following) in enumerate(zip(tests, [*tests[1:], None])):
            if seconds:
                allow_cpu(SPARE_CPU_SECONDS + 3 * seconds[number])
            test.ihook.pytest_runtest_protocol(item=test, nextitem=following)
            if self.session.testsfailed:
                self.failed = test.nodeid
                return False
        return True

    def passes_anew(self, calls: Sequence[Calls]) -> bool:
        """Whether these tests pass in a new process, which imports the changed file."""
        names = [self.session.items[each.test].nodeid for each in calls]
        command = [sys.executable, "-m", "pytest", *usual(self.room), "-x", *names]
        return not subprocess.run(command, capture_output=True).returncode


def succeeds(work: Callable[[], bool]) -> bool:
    """Whether some work succeeds in a child of this process, which ends with all that it has started. Raises
    RuntimeError where the child breaks."""
    child = os.fork()
    if not child:
        status = BROKEN
        try:
            os.setsid()
            status = PASSED if work() else FAILED
        except BaseException:
            os.write(STDERR, traceback.format_exc().encode())
        os._exit(status)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if os.waitstatus_to_exitcode(status) == BROKEN:
        raise RuntimeError("A mutation could not be tried.")
    return os.waitstatus_to_exitcode(status) == PASSED


def allow_cpu(seconds: float) -> None:
    """End this process when it needs more CPU from here on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def usual(room: Room) -> list[str]:
    """How its tests are run."""
    return [*USUAL, "--timeout", f"{room.limit_seconds}"]


def main() -> int:
    room = ROOMS[sys.argv[1]]
    chosen = [Mutation(**fields) for fields in json.load(sys.stdin)]
    verdicts = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what pytest says
    return pytest.main([*usual(room), *room.tests], [Trials(room, chosen, verdicts)])


STDERR = os.dup(2)  # which no test captures

if __name__ == "__main__":
    sys.exit(main())
