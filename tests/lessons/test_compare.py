"""`ndparallel compare`: all lessons held against one GPU, and what it says about them, computed from the
numbers."""

import json

import pytest

from ndparallel.commands.command_line import main
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.comparison import (
    COMMUNICATION,
    EXTRA,
    WORK,
    bound,
    bounds,
    closing,
    contrast,
    fastest,
    losses,
)
from ndparallel.lessons.main import choose, run_entries
from ndparallel.lessons.registry import available, load
from ndparallel.lessons.runner import Runner, baseline, enter
from ndparallel.training.job import Job

KEYS = {
    "name",
    "gpus",
    "step_seconds",
    "speedup",
    "efficiency",
    "compute_seconds",
    "exposed_communication_seconds",
    "hidden_communication_seconds",
    "bubble_seconds",
    "bytes_sent_per_gpu",
    "bytes_sent_max",
    "peak_memory_bytes",
    "loss",
    "max_gradient_difference",
}
LESSONS = [load(name) for name in available()]


def compare(capsys, *options: str) -> tuple[int, str, str]:
    code = main(["compare", "--engine", "inline", *options])
    return code, *capsys.readouterr()


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--strategy", name)]


def compare_json(capsys, *options: str) -> dict:
    code, out, _ = compare(capsys, "--json", *options)
    assert code == 0
    return json.loads(out)


@pytest.fixture(scope="module")
def by_default() -> dict:
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: printed.extend(words))
        assert main(["compare", "--engine", "inline", "--json"]) == 0
    return json.loads(printed[0])


def test_one_gpu_comes_first_and_every_lesson_sends_the_strategies_it_names(by_default):
    named = [name for lesson in LESSONS for name in lesson.compare]
    assert [row["name"] for row in by_default["strategies"]] == ["single GPU", *named]
    assert all(lesson.compare for lesson in LESSONS[1:])


def test_names_are_unique_over_all_lessons_so_that_each_can_be_asked_for():
    names = [strategy.name for lesson in LESSONS for strategy in lesson.strategies]
    assert sorted(set(names)) == sorted(names)


def test_json_has_the_keys_of_the_lessons(by_default):
    assert by_default["lesson"] == "compare"
    assert all(set(row) >= KEYS for row in by_default["strategies"])


def test_everything_equals_one_gpu_and_is_faster_than_it(by_default):
    alone, *rest = by_default["strategies"]
    assert all(row["max_gradient_difference"] <= 1e-5 and row["speedup"] > 1 for row in rest)
    assert all(row["loss"] == pytest.approx(alone["loss"], rel=1e-5) for row in rest)


def test_efficiency_and_the_three_losses_add_up_to_one(by_default):
    for row in by_default["strategies"]:
        assert row["efficiency"] + sum(losses(row).values()) == pytest.approx(1, rel=1e-12)
        share = by_default["strategies"][0]["step_seconds"] / row["gpus"]
        assert losses(row)[EXTRA] * row["step_seconds"] == pytest.approx(
            row["compute_seconds"] - share, abs=1e-12
        )


def test_across_nodes_communication_bounds_ddp_and_in_a_node_the_ring_alone(capsys, by_default):
    inside = {row["name"]: bound(row)[0] for row in by_default["strategies"]}
    apart = {
        row["name"]: bound(row)[0]
        for row in compare_json(capsys, "--gpus-per-node", "1", *only(*LESSONS[1].compare))["strategies"]
    }
    assert inside["DDP ring"] == apart["DDP ring"] == apart["DDP overlapped"] == COMMUNICATION
    assert inside["FSDP prefetch"] == WORK


def test_a_small_model_on_an_h100_is_bounded_by_overheads_that_more_gpus_do_not_shorten(capsys):
    rows = compare_json(capsys, "--hardware", "h100", *only(*LESSONS[1].compare))["strategies"]
    assert {bound(row)[0] for row in rows} == {EXTRA}


def test_the_closing_paragraph_names_the_fastest_and_says_so_when_nothing_beats_one_gpu():
    row = {"gpus": 4, "step_seconds": 1.0, "bubble_seconds": 0.0}
    fast = row | {"name": "fast", "speedup": 3.6, "efficiency": 0.9, "exposed_communication_seconds": 0.1}
    slow = row | {"name": "slow", "speedup": 0.8, "efficiency": 0.2, "exposed_communication_seconds": 0.5}
    assert list(fastest([slow, fast])) == ["On 4 GPUs fast is fastest: 3.60x, 90% of what they could give."]
    assert list(fastest([slow])) == ["Nothing on 4 GPUs beats one GPU alone: slow comes nearest, with 0.80x."]
    assert list(bounds([slow, fast])) == [
        "What bounds a step, and how much of it, is exposed communication for slow (50%) and fast (10%)."
    ]


def test_the_timelines_are_those_of_the_worst_and_the_best_use_of_the_gpus():
    job = Job()
    strategies = choose(LESSONS[1].strategies, ["DDP naive", "FSDP", "FSDP prefetch"])
    entries = [baseline(job), *(enter(strategy, job, 4) for strategy in strategies)]
    run = run_entries("compare", entries, job, Runner(POCKET, "inline"))
    assert contrast(run) == ("DDP naive", "FSDP prefetch")
    assert closing(run).startswith("On 4 GPUs FSDP prefetch is fastest")


@pytest.mark.parametrize("width", [80, 100])
def test_the_picture_fits_its_terminal_and_loses_no_column(capsys, monkeypatch, width):
    monkeypatch.setattr("ndparallel.results.show.WIDTH", width)
    code, out, _ = compare(
        capsys, "--memory", "--gpus", "8", *only("single GPU", "DDP overlapped", "TP across nodes", "1F1B")
    )
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    efficiency = "eff." if width == 80 else "efficiency"
    assert lines[2].split() == [
        "strategy",
        "GPUs",
        "step",
        "speedup",
        efficiency,
        "exposed",
        "bubble",
        "sent",
        "memory",
        "loss",
        "=0D",
    ]
    assert any(line.startswith("0D single GPU") for line in lines)


def test_any_strategy_of_any_lesson_can_be_asked_for(capsys):
    rows = compare_json(capsys, *only("ZeRO-1", "4 microbatches"))["strategies"]
    assert [(row["name"], row["gpus"]) for row in rows] == [("ZeRO-1", 4), ("4 microbatches", 1)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--gpus", "5", "--strategy", "DDP ring"], "a batch of 8 sequences cannot be cut into 5"),
        (["--gpus", "0"], "0 GPUs cannot train anything"),
        (["--strategy", "DPD ring"], "Did you mean 'DDP ring'?"),
        (["--text", "nowhere.txt"], "'nowhere.txt' cannot be read"),
    ],
)
def test_what_cannot_be_run_is_one_sentence_and_exit_code_2(capsys, options, sentence):
    code, out, err = compare(capsys, *options)
    assert (code, out) == (2, "")
    assert sentence in err and err.count("\n") == 1


def test_a_strategy_that_cannot_run_stays_in_the_table_and_says_why(capsys):
    rows = {
        row["name"]: row
        for row in compare_json(capsys, "--gpus", "6", *only("DDP ring", "ZB-V", "1F1B"))["strategies"]
    }
    assert "the nearest batch that can is 6" in rows["DDP ring"]["error"]
    assert "8 layers cannot fill 12 stages" in rows["ZB-V"]["error"]
    assert rows["1F1B"]["speedup"] > 1 and rows["1F1B"]["error"] is None


def test_where_the_model_does_not_fit_the_row_says_so_and_what_shards_it_runs(capsys):
    code, out, _ = compare(
        capsys,
        "--model-size",
        "large",
        "--timeline",
        "none",
        *only("single GPU", "DDP ring", "FSDP prefetch"),
    )
    assert code == 0
    assert (
        "single GPU has no numbers" in out
        and "Speedups are against a single GPU that has all the memory it needs (126 MB)." in out
    )
    assert "On 4 GPUs FSDP prefetch is fastest" in out


def test_a_slower_network_changes_the_winner(capsys):
    argv = [
        "compare",
        "--what-if",
        "--json",
        "--engine",
        "inline",
        "--strategy",
        "DP only",
        "--strategy",
        "TP2 x PP2 x DP2",
    ]
    assert main(argv) == 0
    winners = {row["what if"]: row["fastest on 8"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert winners["as it is"] == winners["network across nodes as fast as inside"] == "DP only"
    assert winners["network across nodes 30x slower"] == "TP2 x PP2 x DP2"
