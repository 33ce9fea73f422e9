"""Each floor imports only from floors below it: gpu.py, collectives.py, the package, the lessons; and so do the rooms of the package."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ndparallel"
ABOVE = {  # what a room must know nothing of
    "engines": {"pipeline", "planner", "choice", "launch_flags", "commands", "drawing", "communication", "lesson", "lessons"},
    "communication": {"pipeline", "planner", "choice", "launch_flags", "commands", "drawing", "lesson", "lessons"},
    "pipeline": {"planner", "choice", "launch_flags", "commands", "lesson", "lessons"},
    "drawing": {"planner", "choice", "launch_flags", "commands", "lesson", "lessons"},
    "planner": {"choice", "launch_flags", "commands", "lesson", "lessons"},
    "choice": {"commands", "lesson", "lessons"},
    "launch_flags": {"commands", "lesson", "lessons"},
}


def imports(path):
    """The modules that a file imports anywhere in it, as "ndparallel.planner.step"."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def of_the_project(path):
    return {name for name in imports(path) if name.partition(".")[0] in ("gpu", "collectives", "ndparallel")}


def test_gpu_imports_nothing_of_the_project_and_collectives_only_gpu():
    assert of_the_project(ROOT / "gpu.py") == set()
    assert {name.partition(".")[0] for name in of_the_project(ROOT / "collectives.py")} == {"gpu"}


def test_lessons_knows_the_lessons_file_names_and_pictures_asks_it_for_them():
    names = [path.stem for path in ROOT.glob("[0-9]d_*.py")]
    knowing = {path.name for path in PACKAGE.rglob("*.py") for name in names if f'"{name}"' in path.read_text("utf-8")}
    assert len(names) == 5 and knowing == {"lessons.py", "pictures.py"}


@pytest.mark.parametrize("room", ABOVE)
def test_a_room_imports_from_no_room_above_it(room):
    taken = {(path.name, name) for path in (PACKAGE / room).rglob("*.py") for name in of_the_project(path)}
    assert {(file, name) for file, name in taken if set(name.split(".")[1:2]) & ABOVE[room]} == set()


def test_the_product_needs_numpy_and_rich_and_nothing_else():
    files = [*ROOT.glob("*.py"), *PACKAGE.rglob("*.py")]
    needed = {name.partition(".")[0] for path in files for name in imports(path)} - sys.stdlib_module_names
    assert needed - {"gpu", "collectives", "ndparallel"} == {"numpy", "rich"}
