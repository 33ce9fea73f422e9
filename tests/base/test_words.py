"""Numbers in sentences read as people write them."""

import sys

import pytest

from ndparallel.base.errors import UserError, find_choice, print_error, unknown
from ndparallel.base.words import (
    change_in,
    choices,
    compare_durations,
    count,
    ended,
    folded,
    listed,
    paragraph,
    ranges,
    three_digits,
)


def test_one_is_singular():
    assert [count(number, "GPU") for number in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]


def test_lists_end_in_and():
    assert [listed(["a", "b", "c"][:size]) for size in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert listed(["a", "b, c", "d"]) == "a; b, c; and d"


def test_of_many_numbers_to_choose_from_only_the_nearest_are_named():
    assert choices([1, 2, 3, 6], 4) == "1, 2, 3, 6"
    divisors = [number for number in range(1, 2521) if 2520 % number == 0]
    assert choices(divisors, 11) == "10 or 12, for example"
    assert choices(divisors, 9999) == "2520, for example"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1.1, "takes 10.0% longer"),
        (0.9, "takes 10.0% less time"),
        (1.005, "takes 0.5% longer"),
        (0.9999, "takes as long"),
        (7.57, "takes 7.6x as long"),
    ],
)
def test_durations_never_have_a_sign(seconds, words):
    assert compare_durations(seconds, 1.0) == words


def test_twice_as_long_and_more_is_no_percentage():
    assert compare_durations(5.9, 3.0) == "takes 96.7% longer"
    assert compare_durations(6.0, 3.0) == "takes 2.0x as long"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1.0, "+0.0%"), (0.875, "-12.5%"), (9.5, "+850.0%"), (64.0, "64x"), (4.75e13, "4.75e+13x")],
)
def test_a_change_of_ten_times_and_more_is_no_percentage(seconds, words):
    assert change_in(seconds, 1.0) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(0.0123456, "0.0123"), (21.06, "21.1"), (999.4, "999"), (999.6, "1,000"), (1572, "1,572")],
)
def test_days_and_seconds_are_written_without_an_exponent(number, words):
    assert three_digits(number) == words


@pytest.mark.parametrize("width", range(12, 40))
def test_a_number_and_its_unit_stay_on_one_line(width):
    lines = paragraph(
        "it waits 26.8 ms, sends 1.23 GB/s of 630 kB and needs 4.72 MB on 4 GPUs, 9 TFLOP/s", width
    ).splitlines()
    assert max(map(len, lines)) <= width
    for quantity in ("26.8 ms", "1.23 GB/s", "630 kB", "4.72 MB", "4 GPUs", "9 TFLOP/s"):
        assert any(quantity in line for line in lines)


@pytest.mark.parametrize(("terminal", "widest"), [("40", 40), ("1000", 100)])
def test_an_error_is_broken_between_words_for_a_terminal_and_stays_one_line_in_a_pipe(
    terminal, widest, capsys, monkeypatch
):
    names, printed = [f"strategy-{number}" for number in range(30)], []
    monkeypatch.setenv("COLUMNS", terminal)
    for seen in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda seen=seen: seen)
        assert print_error(str(unknown("strategy", "x", names))) == 2
        printed.append(capsys.readouterr().err)
    line, lines = printed
    assert line.count("\n") == 1 and lines.split() == line.split()
    assert widest - 13 < max(map(len, lines.splitlines())) <= widest


def test_a_name_is_known_in_any_case():
    assert [find_choice("strategy", name, ["1F1B", "ZB-H1"]) for name in ("1f1b", "zb-H1")] == [
        "1F1B",
        "ZB-H1",
    ]
    with pytest.raises(UserError, match="unknown strategy 'zb'. Did you mean 'ZB-H1'"):
        find_choice("strategy", "zb", ["1F1B", "ZB-H1"])


def test_of_many_names_the_nearest_three_are_told_and_all_where_none_is_near():
    names = [f"strategy {number}" for number in range(30)]
    assert str(unknown("strategy", "stratogy 7", names)) == (
        "unknown strategy 'stratogy 7'. Did you mean 'strategy 7', 'strategy 27' or 'strategy 17'? There are "
        "30."
    )
    assert "There are: strategy 0, strategy 1, strategy 2, " in str(unknown("strategy", "x", names))
    assert str(unknown("strategy", "x", names, "--help")) == "unknown strategy 'x'. --help lists all 30."


def test_only_what_resembles_the_word_typed_is_suggested():
    commands = ["compare", "schedule"]
    assert "Did you mean 'schedule'?" in str(unknown("command", "scheduel", commands))
    ddp = ["DDP naive", "DDP ring", "FSDP"]
    assert "Did you mean 'DDP naive' or 'DDP ring'?" in str(unknown("strategy", "ddp", ddp))
    for word in ("nope", "help"):
        assert (
            str(unknown("command", word, commands))
            == f"unknown command '{word}'. There are: compare, schedule."
        )


def test_a_docstrings_paragraphs_are_broken_anew_and_its_examples_are_not():
    text = "Say one\nthing.\n\nIdea   A long\n       idea.\nLimit  None.\n\n  example --with   its columns\n"
    assert folded(text, 14) == (
        "Say one thing.\n\nIdea   A long\n       idea.\nLimit  None.\n\n  example --with   its columns\n"
    )
    assert folded(text, 12).startswith("Say one\nthing.\n\nIdea   A\n       long\n       idea.\nLimit")
    assert folded(text, 40).startswith("Say one thing.\n\nIdea   A long idea.\nLimit  None.\n")


def test_ranks_that_follow_one_another_are_written_as_one_range():
    assert [ranges(some) for some in ([0], [0, 1, 2, 3], [0, 1, 4, 5])] == ["0", "0-3", "0-1 4-5"]
    assert ranges([1, 3, 4, 9]) == "1 3-4 9"


def test_a_sentence_has_one_end():
    assert [ended(each) for each in ("it is", "it is.", "is it?")] == ["it is.", "it is.", "is it?"]
