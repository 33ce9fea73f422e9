"""Claims about the saved page: it is the page as it is now, its answers are those of the code, and it asks
nobody."""

import base64
import gzip
import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ndparallel.explorer import guesses, saving
from ndparallel.explorer.finding import found_for
from ndparallel.explorer.page import page
from ndparallel.explorer.screens import SCREENS, known
from ndparallel.lessons.questions import questions

PAGE = Path(__file__).parents[2] / "docs/explorer.html"
INSIDE = re.compile(r'(id="saved">)([^<]*)(</script>)')
OF_THIS_MACHINE = {
    "loss",
    "max_gradient_difference",
    "max_loss_difference",
    "max_weight_difference",
    "weight_step_difference",
}


def unpacked(text: str) -> Any:
    """Return the answers that `packed` has made text of, as the page does."""
    found = json.loads(gzip.decompress(base64.b64decode(text)))

    def unfolded(value: Any) -> Any:
        if isinstance(value, list):
            return [unfolded(each) for each in value]
        if isinstance(value, dict):
            if "$" in value:
                return unfolded(found["pool"][value["$"]])
            if "|" in value:
                return [list(row) for row in zip(*unfolded(value["|"]))]
            return {name: unfolded(each) for name, each in value.items()}
        return value

    return unfolded(found["answers"])


@cache
def saved() -> Any:
    found = INSIDE.search(PAGE.read_text("utf-8"))
    assert found
    return unpacked(found[2])


def test_the_page_in_docs_is_the_page_as_it_is_now():
    text = PAGE.read_text("utf-8")
    assert INSIDE.sub(r"\1\3", text) == INSIDE.sub(r"\1\3", page(known(), "x")[0]), (
        "ndparallel explore --save"
    )
    assert len(text) <= 5e6


def test_every_question_of_the_grid_has_its_answer():
    for screen, setups in saving.grid().items():
        assert {saving.key(screen, setup) for setup in setups} == set(saved()[screen])
    assert sum(map(len, saving.grid().values())) >= 300


@pytest.mark.parametrize("screen", ["cut", "ring", "schedule", "cluster"])
def test_saved_answers_are_those_of_the_code(screen):
    for setup in random.Random(screen).sample(saving.grid()[screen], 4):
        now = unpacked(saving.packed(SCREENS[screen](setup)))
        assert differences(saved()[screen][saving.key(screen, setup)], now) == [], setup


def test_the_saved_search_finds_what_the_code_finds():
    now = unpacked(saving.packed({"found": found_for({})}))["found"]
    assert differences(saved()["found"], now) == []


def test_saved_questions_and_reasons_are_those_of_the_book():
    reasons = {question.name: question.why for question in questions()}
    assert {name: found["why"] for name, found in saved()["guesses"].items()} == reasons
    assert saved()["predict"][""] == guesses.answer({})


def test_saved_outputs_of_questions_are_what_their_commands_print():
    run = [question for question in questions() if question.command.startswith("python ")]
    for question in random.Random("guesses").sample(run, 3):
        output = guesses.printed(question.command, json=False)
        assert saved()["guesses"][question.name]["output"] == output, question.command


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Where two answers differ, but for what depends on the machine and for the last digits of a picture."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        names = ours.keys() - OF_THIS_MACHINE
        return [each for name in names for each in differences(ours[name], theirs[name], f"{where}.{name}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs))
        return [each for at, pair in pairs for each in differences(*pair, f"{where}[{at}]")]
    if isinstance(ours, float) and isinstance(theirs, int | float):
        digits = 2e-3 if where.endswith("]") else 1e-9
        return [] if theirs == pytest.approx(ours, rel=digits, abs=1e-12) else [f"{where}: {ours} {theirs}"]
    return [] if ours == theirs else [f"{where}: {ours} {theirs}"]


def test_what_is_packed_comes_out_again():
    rows = [[number, "word", number / 3] for number in range(100)]
    value = {"rows": rows, "again": rows, "row": {"seconds": 1 / 3}, "none": None, "empty": []}
    text = saving.packed(value)
    found = unpacked(text)
    assert found["rows"] == found["again"] and found["row"] == {"seconds": 1 / 3}
    assert found["rows"][1] == [1, "word", 0.3333] and (found["none"], found["empty"]) == (None, [])
