"""docs/notation.md: one letter has one meaning, and the cheat sheet keeps to it; percents have one form."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLE = re.findall(
    r"^\| ([^|*]+) \| ([^|]+) \|",
    (DOCS / "notation.md").read_text("utf-8").partition("Words that")[0],
    re.MULTILINE,
)
LETTERS = [letter for letters, _ in TABLE[1:] for letter in letters.replace("+", ", ").split(", ")]


def test_no_letter_has_two_meanings():
    alone = [letter for letter in LETTERS if letter.strip("-")]
    assert len(alone) > 20
    twice = {letter for letter in alone if alone.count(letter) > 1}
    assert twice <= {"F", "I", "W"}  # which stand once more, in their sum


def test_the_cheat_sheets_single_letters_are_all_in_the_table():
    formulas = re.findall(r"^\|.*\|$", (DOCS / "cheatsheet.md").read_text("utf-8"), re.MULTILINE)
    used = set(re.findall(r"(?<![\w-])([A-Za-zΨ])(?![\w-])", " ".join(formulas)))
    assert used - set(LETTERS) <= {"a", "g", "n"}  # an article, and what the sheet itself defines


@pytest.mark.parametrize("document", sorted(DOCS.rglob("*.md")), ids=lambda path: path.stem)
def test_percents_have_one_form_in_prose_and_in_what_commands_print(document):
    assert re.findall(r"\d %", document.read_text("utf-8")) == []
