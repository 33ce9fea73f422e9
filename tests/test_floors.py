"""The house: every file stands on a floor, and imports only from floors below it, lazy imports included."""

import ast
import graphlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import requires
from pathlib import Path

import pytest

from ndparallel.commands.command_line import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ndparallel"
FLOORS = [  # ground first
    {"base"},
    {"gpu"},
    {"collectives", "hardware", "engines"},
    {"collective", "contention", "parallel", "pipeline"},
    {"model", "drawing"},
    {"training", "planner", "results"},
    {"launch_flags", "lessons", "validation", "calibration"},
    {"search"},
    {"book", "exercises", "explorer"},
    {"commands"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# inside the largest rooms: folders, and files that lie beside them
FLOORS_OF_ROOM = {
    "drawing": [
        {"palette", "ticks"},
        {"activities", "actions"},
        {"spans"},
        {"fewer_spans", "memory", "microbatches"},
        {"lanes"},
        {"block", "narrate", "trace"},
        {"narrate_units", "svg"},
        {"notebook", "terminal"},
    ],
    "planner": [
        {"dispatchers", "launches", "optimizer_kernels"},
        {"stack_words"},
        {"numbers", "number_types", "stack", "models", "token_counts", "goodput"},
        {"adapters", "attention_kernels", "ports", "software"},
        {"job"},
        {"fitted_software", "groups", "stages", "plan_name"},
        {"layers"},
        {"step", "memory", "error_bar"},
        {"model_cuts"},
        {"legality", "state_options"},
        {"lesson_runs", "option_groups"},
        {"prediction", "options"},
        {"imbalance", "picture", "changes"},
        {"difference"},
        {"describe"},
    ],
    "search": [
        {"bounds", "what_if", "guides", "fitting_plans"},
        {"fixed"},
        {"space", "rows", "guide_rules"},
        {"pruning", "no_plan"},
        {"some_layers"},
        {"candidates"},
        {"timing_queue"},
        {"kinds"},
        {"search"},
        {"advice", "scaling", "why", "remedies"},
        {"tables", "layouts"},
        {"scaling_svg"},
    ],
    "launch_flags": [
        {"fields", "frozen", "nodes", "reading", "shell", "yaml_text"},
        {"launcher", "rules", "script_text", "settings", "tables"},
        {"program"},
        {"megatron", "torchtitan", "deepspeed", "accelerate"},
        {"frameworks"},
        {"options", "untaken_options"},
    ],
}
MOST_BOXES = 30  # files of the root and rooms of the package
LINES_OF_A_LESSON = range(60, 181)
MOST_LINES = 400  # of every other file
MOST_LINES_OF_A_FUNCTION = 40  # with its docstring


@cache
def imports(path: Path) -> frozenset[str]:
    """The modules that a file imports anywhere in it, as "ndparallel.planner.step.step"."""
    return frozenset(imported(ast.parse(path.read_text("utf-8"))))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def of_the_project(path: Path) -> set[str]:
    return {name for name in imports(path) if name.partition(".")[0] in ("gpu", "collectives", "ndparallel")}


def room(module: str) -> str:
    """gpu, collectives, or the folder of the package that a module lies in."""
    return module.split(".")[1] if module.startswith("ndparallel.") else module.partition(".")[0]


def files() -> list[Path]:
    return [ROOT / "gpu.py", ROOT / "collectives.py", *sorted(PACKAGE.rglob("*.py"))]


def root_files() -> list[Path]:
    """The lessons, gpu.py and collectives.py."""
    return [path for path in ROOT.glob("*.py") if path.name != "setup.py"]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def modules() -> dict[str, Path]:
    return {module_of(path).removesuffix(".__init__"): path for path in files()}


def test_every_folder_of_the_package_is_a_room_on_a_floor():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders | {"gpu", "collectives"} == set(FLOOR)
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_the_house_is_small_enough_to_be_seen_at_once():
    assert len(FLOORS) <= 10
    assert len(set(FLOOR) - {"gpu", "collectives"}) + len(root_files()) <= MOST_BOXES


def test_a_lesson_has_60_to_180_lines_and_every_other_file_at_most_400():
    lessons = sorted(ROOT.glob("??_*.py"))
    assert {path.name: lines(path) for path in lessons if lines(path) not in LINES_OF_A_LESSON} == {}
    others = {*files(), *(ROOT / "in_pytorch").glob("*.py")}
    assert {path.name: lines(path) for path in others if lines(path) > MOST_LINES} == {}


def test_a_function_fits_on_a_screen():
    definitions = [
        (path.name, node)
        for path in {*root_files(), *files()}
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    long = {(name, node.name) for name, node in definitions if height(node) > MOST_LINES_OF_A_FUNCTION}
    assert long == set()


def height(function: ast.FunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


@pytest.mark.parametrize("floor", range(len(FLOORS)))
def test_a_floor_imports_only_from_floors_below_it(floor):
    arrows = {
        (module_of(path), name)
        for path in files()
        if room(module_of(path)) in FLOORS[floor]
        for name in of_the_project(path)
        if room(name) != room(module_of(path)) and FLOOR.get(room(name), len(FLOORS)) >= floor
    }
    assert arrows == set()


@pytest.mark.parametrize("name", FLOORS_OF_ROOM)
def test_every_module_of_a_large_room_is_on_a_floor_of_it(name):
    floors = [part for parts in FLOORS_OF_ROOM[name] for part in parts]
    found = {
        path.stem
        for path in (PACKAGE / name).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found - {"__init__"} == {*floors}, f"FLOORS_OF_ROOM of this file has not the same: {name}"
    assert len(floors) == len({*floors})


@pytest.mark.parametrize("name", FLOORS_OF_ROOM)
def test_within_a_large_room_too_a_floor_imports_only_from_floors_below_it(name):
    floor = {part: number for number, parts in enumerate(FLOORS_OF_ROOM[name]) for part in parts}
    within = f"ndparallel.{name}."
    arrows = {
        (module, target)
        for module, path in modules().items()
        if module.startswith(within)
        for target in of_the_project(path)
        if target.startswith(within) and target.split(".")[2] != module.split(".")[2]
        if floor[target.split(".")[2]] >= floor[module.split(".")[2]]
    }
    assert arrows == set()


def test_no_command_imports_from_another():
    arrows = {
        (module, target)
        for module, path in modules().items()
        for target in of_the_project(path)
        if (words := module.split("."))[:2] == target.split(".")[:2] == ["ndparallel", "commands"]
        if target.split(".")[2] in {*COMMANDS} - {*words[2:3]}
    }
    assert arrows == set()


def test_no_files_import_one_another_in_a_circle():
    known = modules()
    graph = {
        module: {name if name in known else name.rpartition(".")[0] for name in of_the_project(path)}
        for module, path in known.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # which raises CycleError


def test_gpu_imports_only_base_and_collectives_only_gpu_and_base():
    assert {room(name) for name in of_the_project(ROOT / "gpu.py")} == {"base"}
    assert {room(name) for name in of_the_project(ROOT / "collectives.py")} <= {"gpu", "base"}


def test_the_registry_knows_the_lessons_file_names_and_pictures_asks_it_for_them():
    names = [path.stem for path in ROOT.glob("??_*.py")]
    knowing = {
        path.name
        for path in PACKAGE.rglob("*.py")
        for name in names
        if f'"{name}"' in path.read_text("utf-8")
    }
    assert len(names) == 7 and knowing == {"registry.py", "pictures.py"}


def test_the_product_needs_numpy_and_rich_and_what_rich_brings():
    every = [*root_files(), *PACKAGE.rglob("*.py")]
    needed = {name.partition(".")[0] for path in every for name in imports(path)} - sys.stdlib_module_names
    assert needed - {"gpu", "collectives", "ndparallel"} == {"numpy", "rich", "markdown_it"}
    assert any(each.startswith("markdown-it-py") and "extra" not in each for each in requires("rich") or ())
