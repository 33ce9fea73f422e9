"""docs/architecture.md shows the house as it stands: the picture is drawn from the list of floors."""

import ast
import re

from ndparallel.lessons.registry import LESSONS
from tests.test_floors import FLOORS, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
ONE_SCREEN = 60  # lines
FILES = {"gpu", "collectives"}


def picture() -> str:
    """The lessons, and below them the floors, ground last."""
    lessons = storey("", [f"{name}.py" for name in LESSONS])
    floors = [storey(number, sorted(rooms)) for number, rooms in enumerate(FLOORS)]
    return "".join(f"{line}\n" for line in (lessons, *reversed(floors)))


def storey(number: int | str, rooms: list[str]) -> str:
    return f"{number:>2} │ " + "  ".join(f"{room}.py" if room in FILES else room for room in rooms)


def test_the_picture_is_the_list_of_floors():
    shown = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert shown and shown[1] == picture(), f"docs/architecture.md should show\n{picture()}"


def test_every_room_is_described_once():
    described = re.findall(r"^\| (\w+)(?:\.py)? \| .+ \|$", PAGE, re.MULTILINE)
    assert described[0] == "room" and sorted(described[1:]) == sorted(set().union(*FLOORS))


def test_every_folder_opens_with_what_is_in_it():
    openings = [*(ROOT / "ndparallel").rglob("__init__.py")]
    assert len(openings) > len(FLOORS)
    assert [path for path in openings if not ast.get_docstring(ast.parse(path.read_text("utf-8")))] == []


def test_the_page_is_one_screen():
    assert len(PAGE.splitlines()) <= ONE_SCREEN
