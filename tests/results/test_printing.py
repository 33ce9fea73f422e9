"""What all commands print with: lines of a table or a paragraph, in any width."""

import sys

import pytest

from ndparallel.commands.command_line import main
from ndparallel.results.printing import plain_console, prose
from ndparallel.results.tables import quiet_table


@pytest.mark.parametrize("words", [
    "mesh --tp 2 --dp 4", "schedule gpipe 1f1b", "exercise", "collective all_reduce",
    "plan --model llama-3-8b --gpus 8 --global-batch 8 --tp 2 --what-if gpus=16",
])  # fmt: skip
def test_no_line_of_a_command_ends_in_blanks(words, capsys):
    assert main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines and [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("words", [
    "collective all_reduce --ranks 4 --show", "collective all_reduce --ranks 4", "exercise ring --hint 2",
])  # fmt: skip
def test_paragraphs_fill_the_lines_of_a_narrow_terminal(words, monkeypatch, capsys):
    command = f"ndparallel.commands.{words.split()[0]}.plain_console"
    monkeypatch.setattr(command, lambda: plain_console(60))
    assert main(words.split()) == 0
    paragraphs = capsys.readouterr().out.split("\n\n")
    of_words = [part.splitlines() for part in paragraphs if "  " not in part and "─" not in part]
    assert of_words
    for lines in of_words:
        for line, following in zip(lines, lines[1:]):
            full = len(line) + 1 + len(following.split()[0]) > 50
            assert len(line) <= 60 and (full or following.startswith("(--hint"))


@pytest.mark.parametrize(
    ("ranks", "terminal", "widths"),
    [(1, 60, (60, 60)), (1, 140, (140, 100)), (1, None, (100, 100)), (2, 60, (100, 100))],
)
def test_a_terminal_has_its_own_width_and_what_is_none_or_mpiruns_100_columns(
    ranks, terminal, widths, monkeypatch
):
    """Of a console, and of what is printed there."""
    monkeypatch.setenv("COLUMNS", f"{terminal or 60}")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", f"{ranks}")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal is not None, raising=False)
    console, most = plain_console()
    assert (console.width, most) == widths
    assert console.is_terminal == (terminal is not None and ranks == 1)


def test_what_a_paragraph_begins_with_is_bold():
    (bold,) = prose("Notice: the bubble.", 60, bold="Notice:").spans
    assert (bold.start, bold.end, bold.style) == (0, 7, "bold")


@pytest.mark.parametrize("most", [20, 45, 100])
def test_a_console_prints_the_same_words_without_blanks_at_the_ends_of_lines(most, capsys):
    console, width = plain_console(most)
    console.print(quiet_table(("what", "words"), [("one", "a"), ("two", "several words of a cell")], width))
    console.print(prose("A paragraph of words that is longer than a narrow line.  ", width))
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line != line.rstrip()] == []
    assert (
        "one" in printed
        and printed.split()[-2:] == ["narrow", "line."]
        and max(map(len, printed.splitlines())) <= most
    )


def test_a_single_word_at_the_end_of_a_row_has_no_line_below_it(capsys):
    """Where the first column is folded, and leaves the last no room by its unfolded length."""
    rows = [("--half", "8.06 s", "precision"), (f"--gpus 128 --plan {'A,' * 60}", "3.51 s", "GPUs")]
    console, width = plain_console(60)
    console.print(quiet_table(("option", "step", "it changes"), rows, width, words=("it changes",)))
    lines = capsys.readouterr().out.splitlines()
    (row,) = (number for number, line in enumerate(lines) if "precision" in line)
    assert lines[row + 1].startswith("--gpus")
