"""Claims about `ndparallel lesson`, which needs no checkout, and about `ndparallel --version`."""

import contextlib
import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from ndparallel.commands.command_line import COMMANDS, main
from ndparallel.lessons.main import main as lesson_main
from ndparallel.lessons.registry import LESSONS, file_of, full_name, load

OPTIONS = ["--gpus", "2", "--strategy", "DDP ring", "--engine", "inline", "--json"]
PLAN = ["plan", "--model", "llama-3-8b", "--gpus", "8", "--global-batch", "8"]


@pytest.mark.parametrize("command", ["--help", *COMMANDS])
def test_help_fits_the_terminal_at_100_columns_and_the_list_of_commands_a_narrower_one(
    command, capsys, monkeypatch
):
    words = [command] if command == "--help" else [command, "--help"]
    wide = 80 if command == "--help" else 100
    monkeypatch.setenv("COLUMNS", str(wide))
    with contextlib.suppress(SystemExit):
        main(words)
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > wide] == []


@pytest.mark.parametrize("word", ["1d", "1D", "1d_data_parallel", "1d_data_parallel.py"])
def test_a_lesson_is_found_by_its_dimension_and_by_its_file(word):
    assert full_name(word) == "1d_data_parallel"


def test_the_command_prints_what_the_lessons_file_prints(capsys):
    assert main(["lesson", "1d", *OPTIONS]) == 0
    by_command = capsys.readouterr().out
    assert lesson_main(load("1d_data_parallel"), OPTIONS) == 0
    assert by_command == capsys.readouterr().out
    assert [row["gpus"] for row in json.loads(by_command)["strategies"]] == [2]


@pytest.mark.parametrize(
    ("words", "usual"),
    [
        (["lesson", "3d", "--strategy"], ("1f1b", "1F1B")),
        (["lesson", "1d", "--strategy", "DDP ring", "--dtype"], ("BF16", "bfloat16")),
        (["compare", "--strategy"], ("zero-1", "ZeRO-1")),
        (["lesson", "4d", "--strategy", "PP8", "--pp", "8", "--schedule"], ("GPipe", "gpipe")),
        (["schedule"], ("ZB-H1", "zb-h1")),
        ([*PLAN, "--pp", "2", "--schedule"], ("1F1B", "1f1b")),
        ([*PLAN, "--tp", "8", "--dtype"], ("bfloat16", "bf16")),
    ],
)
def test_names_of_strategies_schedules_and_dtypes_may_be_spelled_as_anywhere_else(capsys, words, usual):
    printed = []
    for name in usual:
        assert main([*words, name, "--json"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_the_lessons_options_and_errors_are_its_own(capsys):
    assert main(["lesson", "1d", "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "ndparallel lesson 1d" in help_text and "--bucket-mb" in help_text
    assert main(["lesson", "0d", "--gpus", "2"]) == 2
    assert "0D is one GPU" in capsys.readouterr().err


def test_help_says_what_every_sweep_does(capsys):
    assert main(["lesson", "3d", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "microbatches: run 1F1B on four batches at once" in told and "overhead: run the same on" in told


def test_help_says_which_options_replace_the_table_by_one_layout(capsys):
    assert main(["lesson", "4d", "--help"]) == 0
    _, _, group = capsys.readouterr().out.partition("one layout, in place of the table's:")
    options = [words[0] for line in group.partition("\n\nthe ")[0].splitlines() if (words := line.split())]
    assert {"--tp", "--pp", "--dp", "--ep", "--cp", "--order", "--schedule", "--zero"} <= set(options)
    assert "--sequence-parallel" not in options


def test_without_a_name_the_lessons_are_listed_with_their_files(capsys):
    assert main(["lesson"]) == 0
    *lines, _, how = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == [str(file_of(name)) for name in LESSONS]
    assert how.startswith("ndparallel lesson 1d runs 1D")


def test_an_unknown_lesson_is_one_sentence(capsys):
    assert main(["lesson", "7d"]) == 2
    assert "unknown lesson '7d'" in capsys.readouterr().err


def test_copies_are_whole_and_run_and_are_never_overwritten(tmp_path, capsys):
    tmp_path /= "a new folder"
    assert main(["lesson", "--copy", str(tmp_path)]) == 0
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(LESSONS)
    for name in LESSONS:
        assert (tmp_path / f"{name}.py").read_bytes() == file_of(name).read_bytes()
    program = [sys.executable, str(tmp_path / "1d_data_parallel.py"), *OPTIONS]
    copied = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    capsys.readouterr()
    assert main(["lesson", "1d", *OPTIONS]) == 0
    assert copied == capsys.readouterr().out
    (tmp_path / "4d_combined.py").write_text("mine", "utf-8")
    assert main(["lesson", "--copy", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "4d_combined.py").read_text("utf-8") == "mine"


def test_all_lessons_are_copied_and_none_is_run(tmp_path, capsys):
    assert main(["lesson", "--copy", str(tmp_path), "1d"]) == 2
    assert "leave '1d' out" in capsys.readouterr().err and not any(tmp_path.iterdir())


def test_the_version_is_that_of_the_installed_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ndparallel {version('ndparallel')}\n"


def test_the_overview_names_every_command(capsys):
    assert main([]) == 0
    overview = capsys.readouterr().out
    assert all(f"  {name} " in overview for name in COMMANDS) and "--version" in overview
