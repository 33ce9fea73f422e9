"""The parser of all command lines says what is wrong with an option, and which one is meant."""

import pytest

from ndparallel.base.errors import UserError
from ndparallel.base.options import Parser


@pytest.mark.parametrize(
    ("word", "needed"),
    [("--seed", "N: where the numbers begin"), ("--timeline", "one of: all, none")],
)
def test_an_option_without_its_value_is_told_what_it_needs(word, needed):
    parser = Parser("lesson")
    parser.add_argument("--seed", metavar="N", help="where the numbers begin")
    parser.add_argument("--timeline", choices=("all", "none"))
    with pytest.raises(UserError, match=f"^{word} needs {needed} \\(lesson --help"):
        parser.parse_args([word])


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--timelines", "; did you mean --timeline?"),
        ("--hardwar=h100", "; did you mean --hardware?"),
        ("--sweep", ""),
        ("timeline", ""),
    ],
)
def test_a_misspelled_option_is_asked_back_and_another_word_is_not(word, meant):
    parser = Parser("lesson", allow_abbrev=False)
    for name in ("--timeline", "--hardware", "--seed"):
        parser.add_argument(name)
    with pytest.raises(UserError) as error:
        parser.parse_args([word])
    assert str(error.value) == f"unrecognized arguments: {word}{meant} (lesson --help tells what there is)."
