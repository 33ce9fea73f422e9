"""--svg, --trace and --narrate: what a run leaves behind, of which strategy, and what is said otherwise."""

import argparse
import json
import re
from dataclasses import replace
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest

from ndparallel.commands.command_line import main as command_line
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.main import main
from ndparallel.lessons.registry import LESSONS, load
from ndparallel.lessons.runner import Runner
from ndparallel.lessons.table import run_lesson
from ndparallel.results.measure import failed
from ndparallel.results.outputs import drawn_strategies, narrated_strategy
from ndparallel.results.printing import plain_console
from ndparallel.results.report import Sweep
from ndparallel.results.show import show_sweep
from ndparallel.training.job import Job
from tests.support.common import SMALL

LESSON = "1d_data_parallel"
FEW = ["--strategy", "DDP ring", "--strategy", "ZeRO-1"]
NUMBERS = re.compile(r"\d%|\dx\b|\d [mukMG]?[sB]\b")  # with a unit: of a point one, or two that it compares
NAMES = {"svg": "picture.svg", "trace": "trace.json"}


def lesson(capsys, *options: str, name: str = LESSON) -> tuple[int, str, str]:
    code = main(load(name), ["--engine", "inline", *options])
    return code, *capsys.readouterr()


def unfolded(out: str) -> str:
    return " ".join(out.split())


def texts(svg: str) -> set[str | None]:
    return {element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}


def test_the_svg_shows_what_the_terminal_shows_and_the_run_says_so(capsys, tmp_path):
    path = tmp_path / "picture.svg"
    code, out, _ = lesson(capsys, *FEW, "--svg", str(path))
    assert code == 0 and f"{path} shows DDP ring and ZeRO-1." in unfolded(out)
    assert {"DDP ring", "ZeRO-1", "GPU 0-3", "dp"} <= texts(path.read_text())
    assert [file.name for file in tmp_path.iterdir()] == ["picture.svg"]


@pytest.mark.parametrize("name", LESSONS)
def test_the_svg_of_every_lessons_contrast_is_under_30_kb(name, capsys, tmp_path):
    path, contrast = tmp_path / "picture.svg", load(name).contrast
    options = [word for strategy in contrast for word in ("--strategy", strategy)]
    assert lesson(capsys, *options, "--svg", str(path), name=name)[0] == 0
    assert len(path.read_bytes()) < 30_000
    assert set(contrast) <= texts(path.read_text())


def test_the_trace_has_the_strategies_of_the_timelines_and_the_run_says_so(capsys, tmp_path):
    path = tmp_path / "trace.json"
    code, out, _ = lesson(capsys, *FEW, "--trace", str(path))
    said = f"{path} has DDP ring on 4 GPUs and ZeRO-1 on 4 GPUs: open it with ui.perfetto.dev, or offline"
    assert code == 0 and f"{said} with vizviewer." in unfolded(out)
    events = json.loads(path.read_text())["traceEvents"]
    pids = {
        word: {event["pid"] for event in events if f"ring {word}" in event["name"]}
        for word in ("all-reduce", "reduce-scatter")
    }
    assert pids == {"all-reduce": {1, 2, 3, 4}, "reduce-scatter": {5, 6, 7, 8}}


def test_the_sentence_of_a_trace_ends_where_the_table_may_and_its_path_stays_whole(capsys, tmp_path):
    path = tmp_path / f"{'long' * 26}.json"
    _, out, _ = lesson(capsys, *FEW, "--trace", str(path), "--timeline", "none")
    assert str(path) in out.split()
    assert all(len(line) <= 100 for line in out.splitlines() if line != str(path))


def test_the_story_is_of_one_gpu_of_the_last_strategy_and_comes_last(capsys):
    code, out, _ = lesson(capsys, *FEW, "--narrate", "2", "--kernels", "--timeline", "none")
    assert code == 0
    story = out[out.index("ZeRO-1, 4 GPUs.") :].splitlines()
    assert story[1].startswith("GPU 2, in the order of time")
    assert story[-1].endswith("the step ends.")
    assert any("on dp begins ring reduce-scatter 0: " in line for line in story)


def test_a_story_is_unit_by_unit_of_gpu_0_in_at_most_60_lines_and_adds_up_to_the_step(capsys):
    code, out, _ = lesson(capsys, *FEW, "--narrate", "--timeline", "none")
    assert code == 0
    story = out[out.index("ZeRO-1, 4 GPUs.") :].splitlines()
    assert story[1].startswith("GPU 0, unit by unit") and len(story) <= 61
    assert any(re.search(r"forward, layer 3: 39\.4 ms; holds ", line) for line in story)
    waits = "optimizer: 17.0 ms; 13.4 ms of it waiting for dp; sends 315 kB on dp in 4 all-gathers; holds"
    assert waits in " ".join(" ".join(story).split())


@pytest.mark.parametrize("name", ["3d_pipeline_parallel", "4d_combined"])
def test_a_story_of_a_pipeline_has_its_microbatches_and_its_bubble(name, capsys):
    code, out, _ = lesson(capsys, "--timeline", "none", "--narrate", name=name)
    story = out.rpartition(" GPUs.\n")[2].splitlines()
    assert code == 0 and len(story) <= 60
    assert any("forward of microbatch 2, embedding and layer" in line for line in story)
    assert any("bubble" in line for line in story)


def test_kernels_without_a_narration_is_one_sentence(capsys):
    code, out, err = lesson(capsys, "--kernels")
    assert (code, out) == (2, "") and "add --narrate" in err and err.count("\n") == 1


def test_with_json_nothing_but_json_is_printed_and_files_are_named_beside_it(capsys, tmp_path):
    code, out, err = lesson(
        capsys,
        *FEW,
        "--json",
        "--svg",
        str(tmp_path / "picture.svg"),
        "--trace",
        str(tmp_path / "trace.json"),
    )
    assert code == 0 and [row["name"] for row in json.loads(out)["strategies"]] == ["DDP ring", "ZeRO-1"]
    assert err.count("\n") == 2 and "shows DDP ring and ZeRO-1." in err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["picture.svg", "trace.json"]


def test_compare_has_the_same_options(capsys, tmp_path):
    path = tmp_path / "trace.json"
    assert (
        command_line(["compare", "--engine", "inline", *FEW, "--trace", str(path), "--timeline", "none"]) == 0
    )
    assert f"{path} has DDP ring on 4 GPUs and ZeRO-1 on 4 GPUs" in unfolded(capsys.readouterr().out)
    assert json.loads(path.read_text())["traceEvents"]


@pytest.mark.parametrize("option", NAMES)
def test_a_path_that_cannot_be_written_is_one_sentence_and_nothing_is_printed(option, capsys, tmp_path):
    code, out, err = lesson(capsys, *FEW, f"--{option}", str(tmp_path / "nowhere" / NAMES[option]))
    assert (code, out) == (2, "")
    assert "cannot write" in err and "there is no directory" in err and err.count("\n") == 1


def test_a_picture_and_a_trace_in_one_file_are_refused(capsys, tmp_path):
    one, again = tmp_path / "run", tmp_path / "." / "there" / ".." / "run"
    (tmp_path / "there").mkdir()
    code, out, err = lesson(capsys, *FEW, "--svg", str(one), "--trace", str(again))
    assert (code, out) == (2, "") and not one.exists()
    assert f"cannot write {str(again)!r} twice: name another file." in err
    assert lesson(capsys, *FEW, "--timeline", "none", "--svg", "/dev/null", "--trace", "/dev/null")[0] == 0


@pytest.mark.parametrize(
    ("rank", "sentence"),
    [
        ("4", "what runs here has GPUs 0 to 3: there is no GPU 4 to tell of."),
        ("-1", "there is no GPU -1 to tell of."),
    ],
)
def test_a_rank_that_does_not_exist_is_one_sentence_and_no_file_is_written(rank, sentence, capsys, tmp_path):
    code, out, err = lesson(capsys, *FEW, "--narrate", rank, "--svg", str(tmp_path / "picture.svg"))
    assert (code, out) == (2, "")
    assert sentence in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kernels", [[], ["--kernels"]])
def test_a_narration_is_no_wider_than_the_terminal(kernels, capsys, monkeypatch):
    monkeypatch.setattr("ndparallel.results.show.plain_console", lambda most: (plain_console(most)[0], 60))
    _, out, _ = lesson(capsys, *FEW, "--narrate", *kernels, "--timeline", "none")
    told = out[out.index("ZeRO-1, 4 GPUs.") :].splitlines()
    assert 50 < max(map(len, told)) <= 60


@pytest.mark.parametrize("options", [["--narrate", "4"], ["--kernels"]])
def test_what_cannot_be_told_is_refused_before_anything_runs(options, capsys, monkeypatch):
    def run(*_):
        raise AssertionError("a lesson ran")

    monkeypatch.setattr("ndparallel.lessons.main.run_lesson", run)
    code, out, err = lesson(capsys, *FEW, *options)
    assert (code, out) == (2, "") and ("no GPU 4" in err or "add --narrate" in err)


@pytest.mark.parametrize("option", ["--svg 0", "--trace 0", "--narrate 0", "--timeline all"])
def test_a_sweep_has_no_timeline_to_draw(option, capsys):
    code, out, err = lesson(capsys, "--sweep", *option.split())
    assert (code, out) == (2, "")
    assert f"{option.removesuffix(' 0')} is of one run, and --sweep makes a table of many" in err


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("1d_data_parallel", ["--gpus", "8"]),
        ("3d_pipeline_parallel", ["--strategy", "ZB-V"]),
        ("4d_combined", ["--tp", "4"]),
        ("4d_combined", ["--etp", "1"]),
        ("4d_combined", ["--order", "dp-tp-cp-ep-pp"]),
    ],
)
def test_a_sweep_passes_over_no_option(name, options, capsys):
    code, out, err = lesson(capsys, "--sweep", *options, name=name)
    assert (code, out) == (2, "") and f"chooses its own GPUs and strategies: leave {options[0]} out." in err


def test_a_sweeps_sentence_stands_apart_from_its_table(capsys):
    show_sweep(Sweep("A title", [{"gpus": 2, "step_seconds": 0.5}], "It is short."), as_json=False)
    assert capsys.readouterr().out.split("\n\n") == [
        "A title",
        "gpus    step\n────────────\n2     500 ms",
        "Notice: It is short.\n",
    ]


def test_who_talks_how_often_is_told_of_two_gpus_too(capsys):
    _, out, _ = lesson(
        capsys, "--gpus", "2", "--tp", "2", "--pp", "1", "--timeline", "none", name="4d_combined"
    )
    assert "Who talks how often, how much, over which link, in TP2:" in out


@pytest.mark.parametrize(
    ("name", "sweep"),
    [
        ("1d_data_parallel", "microbatches"),
        ("2d_tensor_parallel", "degree"),
        ("3d_pipeline_parallel", "microbatches"),
        ("4d_combined", "layouts"),
    ],
)
def test_what_does_not_fit_into_memory_is_a_row_of_a_sweep_without_numbers(name, sweep):
    with Runner(replace(POCKET, memory_bytes=10_000.0), "inline") as runner:
        table = load(name).sweep(sweep, runner, Job(model=replace(SMALL, layers=8, heads=8)))
    assert table.rows and all(row["step_seconds"] is None for row in table.rows) and table.sentence


def test_a_story_and_json_exclude_one_another(capsys):
    code, out, err = lesson(capsys, "--json", "--narrate", "0")
    assert (code, out) == (2, "") and "not allowed with argument" in err and err.count("\n") == 1


def test_a_strategy_that_does_not_fit_has_no_events_to_tell_of(capsys):
    code, out, err = lesson(capsys, "--model-size", "large", "--narrate", "0", name="0d_single_gpu")
    assert (code, out) == (2, "") and "full recompute has no events to tell of, because it did not run" in err


def test_where_the_last_of_a_contrast_cannot_run_the_other_is_told(capsys):
    code, out, _ = lesson(capsys, "--gpus", "8", "--narrate", "--sizes-only", name="3d_pipeline_parallel")
    assert code == 0 and "\n1F1B, 8 GPUs.\n" in out


def test_where_nothing_ran_there_is_no_picture(capsys, tmp_path):
    code, out, err = lesson(
        capsys, "--model-size", "large", "--svg", str(tmp_path / "picture.svg"), name="0d_single_gpu"
    )
    assert (code, out) == (2, "") and "because no strategy ran" in err and not list(tmp_path.iterdir())


class Ran(dict):
    """A run, as far as it matters which strategies ran: those with results."""

    results = property(lambda self: self)

    def __contains__(self, name) -> bool:
        return bool(self.get(name))

    has_events = __contains__


def asked(*strategies: str, timeline: str = "auto") -> argparse.Namespace:
    return argparse.Namespace(strategy=list(strategies), timeline=timeline)


RAN: Any = Ran({"single GPU": [1], "a": [1], "b": [1], "c": [1], "too large": []})


@pytest.mark.parametrize(
    ("arguments", "contrast", "names"),
    [
        (asked(), ("a", "b"), ["a", "b"]),
        (asked(), ("a", "too large"), ["a"]),
        (asked(), ("elsewhere",), ["c"]),
        (asked("c", "a", "c"), ("a", "b"), ["c", "a"]),
        (asked(timeline="all"), ("a", "b"), ["single GPU", "a", "b", "c"]),
        (asked(timeline="none"), ("a", "b"), ["a", "b"]),
    ],
)
def test_what_is_drawn_is_what_was_asked_for_or_the_contrast_or_the_last(arguments, contrast, names):
    assert drawn_strategies(RAN, contrast, arguments) == names


@pytest.mark.parametrize(
    ("arguments", "contrast", "name"),
    [
        (asked(), ("a", "b"), "b"),
        (asked("c", "a"), ("a", "b"), "a"),
        (asked(timeline="all"), ("a", "b"), "b"),
    ],
)
def test_what_is_told_is_the_last_asked_for_or_the_last_of_the_contrast(arguments, contrast, name):
    assert narrated_strategy(RAN, contrast, arguments) == name


# ------------------------------------------------------------------------------------ what there is to notice


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_finds_true_words_whichever_of_its_strategies_have_numbers(name):
    lesson = load(name).named_for(8 if name.startswith("4d") else 4)
    job = Job(model=replace(SMALL, layers=8, heads=8), **lesson.defaults)
    ran = run_lesson(lesson, job, POCKET, lesson.gpus, [], "inline")
    for missing in combinations(list(ran.results), 2):
        rows = tuple(
            failed(row.name, row.gpus, None) if row.name in missing else row for row in ran.report.strategies
        )
        results = ran.results | dict.fromkeys(missing, [])
        noticed = lesson.notice(replace(ran, report=replace(ran.report, strategies=rows), results=results))
        words = " ".join(noticed)
        assert len(noticed) <= 4 and not any(len(NUMBERS.findall(point)) > 2 for point in noticed)
        assert not any(
            one in words for one in missing if one in ("GPipe", "1F1B", "ZB-V", "HSDP", "TP outermost")
        ), missing


def test_sequence_parallelism_is_said_to_take_no_more_time_only_where_it_does_not():
    for hardware, said in ((POCKET, "in no more time"), (find_hardware("h100"), "% more time")):
        asked = ["TP", "TP + SP", "TP + SP regather"]
        ran = run_lesson(load("2d_tensor_parallel"), Job(), hardware, 4, asked, "inline")
        longer = ran["TP + SP"].step_seconds > ran["TP"].step_seconds
        assert said in " ".join(load("2d_tensor_parallel").notice(ran)) and longer == (said == "% more time")
