"""What a chapter says that its things are called elsewhere, the frameworks' own releases know."""

import json
import re
from importlib import resources

import pytest

from ndparallel.lessons.registry import ROOT

FLAGS = resources.files("ndparallel.launch_flags")
CHAPTERS = [
    path
    for path in sorted((ROOT / "docs" / "book").glob("*.md"))
    if "What it is called elsewhere" in path.read_text("utf-8")
]


def column(chapter: str, framework: str) -> str:
    """All cells below a framework's name."""
    _, _, section = chapter.partition("## What it is called elsewhere")
    rows = [row.split("|") for row in re.findall(r"^\|.*\|$", section.partition("\n## ")[0], re.MULTILINE)]
    place = [cell.strip() for cell in rows[0]].index(framework)
    return "\n".join(row[place] for row in rows[2:])


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_names_in_megatron_and_torchtitan_are_those_of_the_releases_that_plans_are_written_for(path):
    chapter = path.read_text("utf-8")
    flags = re.findall(r"`[^`]*?(--[a-z0-9-]+)", column(chapter, "Megatron-Core"))
    keys = re.findall(r"`([a-z]+(?:_[a-z]+)*\.[a-z_]+)", column(chapter, "torchtitan"))
    megatron, torchtitan = (
        (FLAGS / f"{name}.json").read_text("utf-8") for name in ("megatron", "torchtitan")
    )
    assert flags and [flag for flag in flags if f'"{flag}"' not in megatron] == []
    assert [key for key in keys if key not in json.loads(torchtitan)["keys"]] == []
