"""Claims about what a screen begins with: all that it says to try can be seen, on the saved page too."""

from urllib.parse import parse_qsl

import pytest

from ndparallel.explorer import saving
from ndparallel.explorer.beginnings import BEGINNINGS, setups
from ndparallel.explorer.guesses import SHOWN
from ndparallel.explorer.screens import SCREENS

SAME = {"timeline": "cut"}
TRIES = [(SAME.get(screen, screen), setup) for screen in BEGINNINGS for setup in setups(screen)]


@pytest.mark.parametrize(("screen", "setup"), TRIES, ids=str)
def test_what_is_to_be_tried_has_an_answer_that_the_saved_page_holds(screen, setup):
    answer = SCREENS[screen](setup)
    assert "reason" not in answer and "error" not in answer
    assert saving.key(screen, setup) in {saving.key(screen, each) for each in saving.grid()[screen]}


@pytest.mark.parametrize("address", SHOWN.values())
def test_what_a_question_refers_to_is_on_the_saved_page(address):
    screen, _, words = address.partition("?")
    setup = dict(parse_qsl(words))
    assert saving.key(screen, setup) in {saving.key(screen, each) for each in saving.grid()[screen]}
