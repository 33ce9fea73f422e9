"""Claims about progress: on a terminal commands say what they run and of how much, in a pipe nothing."""

import io
import sys

import pytest

from ndparallel.commands.command_line import main
from ndparallel.results.progress import counted, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_says_on_a_terminal_what_is_run_and_in_a_pipe_nothing(monkeypatch):
    said = {}
    for kind in (Terminal, io.StringIO):
        screen = kind()
        monkeypatch.setattr(sys, "stderr", screen)
        with progress() as announce:
            announce("0d, 1 of 2")
        said[kind] = screen.getvalue()
    assert "running 0d, 1 of 2" in said[Terminal] and said[io.StringIO] == ""


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_progress_turns_in_characters_that_the_terminal_has(encoding, monkeypatch):
    screen = io.TextIOWrapper(io.BytesIO(), encoding, errors="backslashreplace")
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    with progress() as announce:
        announce("0d, 1 of 2")
    screen.flush()
    said = screen.buffer.getvalue().decode(encoding)
    assert "running 0d, 1 of 2" in said and "\\u" not in said


def test_items_are_announced_when_their_turn_comes():
    said: list[str] = []
    for item in counted(["a", "b"], said.append, str.upper):
        said.append(item)
    assert said == ["A, 1 of 2", "a", "B, 2 of 2", "b"]


@pytest.mark.parametrize(
    ("command", "bound"),
    [
        ("schedule 1f1b --stages 4 --microbatches 8", "the drawing of 32 forwards"),
        ("schedule searched --stages 4 --microbatches 8", "searched of 32 forwards, 1 of 1"),
        ("compare --what-if --engine inline --strategy 1F1B", "1F1B, four times the batch (5 of 5)"),
        ("plan --model llama-3-8b --gpus 8 --global-batch 8", "200,000 actions are timed at the most"),
        ("plan --model llama-3-8b --gpus 8 --global-batch 8 --dp 8", "a batch of 8 sequences"),
        ("scaling --model gpt2 --gpus 2 --global-batch 8 --sizes 1,2", "on 1 GPU, 1 of 3"),
        ("validate --cases docs/runs_example.json", "the predictions of 1 run"),
    ],
)
def test_what_may_take_seconds_says_how_much_there_is_to_do(capsys, monkeypatch, command, bound):
    said: list[str] = []
    monkeypatch.setattr("rich.status.Status.update", lambda status, words: said.append(words))
    printed = {}
    for kind in (Terminal, io.StringIO):
        monkeypatch.setattr(sys, "stderr", kind())
        assert main(command.split()) == 0
        printed[kind] = capsys.readouterr().out
    assert any(bound in words for words in said)
    assert printed[Terminal] == printed[io.StringIO] != ""
