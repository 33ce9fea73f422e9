"""`ndparallel compare`: all lessons held against one GPU, and what it says about them, computed from the
numbers."""

import io
import json
import re

import pytest

from ndparallel.commands.command_line import main
from ndparallel.lessons import registry
from ndparallel.lessons.comparison import bound
from ndparallel.lessons.registry import load
from ndparallel.results.columns import heads

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
LESSONS = [load(name) for name in registry.LESSONS]


def compare(capsys, *options: str) -> tuple[int, str, str]:
    code = main(["compare", "--engine", "inline", *options])
    return code, *capsys.readouterr()


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--strategy", name)]


def compare_json(capsys, *options: str) -> dict:
    code, out, _ = compare(capsys, "--json", *options)
    assert code == 0
    return json.loads(out)


def cause(record: dict, name: str) -> str:
    """What bounds the strategy, as what to notice has it."""
    return bound(next(row for row in record["strategies"] if row["name"] == name))[0]


def output_of(*argv: str) -> str:
    with pytest.MonkeyPatch.context() as patch, io.StringIO() as out:
        patch.setattr("sys.stdout", out)
        assert main(["compare", "--engine", "inline", *argv]) == 0
        return out.getvalue()


@pytest.fixture(scope="module")
def by_default() -> dict:
    return json.loads(output_of("--json"))


@pytest.fixture(scope="module")
def printed_by_default() -> str:
    return output_of()


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
    assert all(row["loss"] == pytest.approx(alone["loss"], rel=1e-5) for row in dense(rest))


def dense(rows: list[dict]) -> list[dict]:
    """All but the rows whose model has experts, as the single GPU has that they are held against."""
    return [row for row in rows if row["name"] != "EP"]


def test_what_a_step_loses_to_waiting_idling_and_more_compute_is_what_efficiency_lacks(by_default):
    alone = by_default["strategies"][0]["step_seconds"]
    for row in dense(by_default["strategies"]):
        share = alone / row["gpus"]
        assert row["efficiency"] == pytest.approx(share / row["step_seconds"], rel=1e-12)
        lost = row["exposed_communication_seconds"] + row["bubble_seconds"] + row["compute_seconds"] - share
        assert share + lost == pytest.approx(row["step_seconds"], rel=1e-12)


def test_across_nodes_communication_bounds_ddp_and_in_a_node_the_ring_alone(capsys, by_default):
    apart = compare_json(capsys, "--gpus-per-node", "1", *only("DDP ring", "DDP overlapped"))
    assert cause(by_default, "DDP ring") == "exposed communication"
    assert cause(by_default, "FSDP prefetch") == "the work itself"
    assert cause(apart, "DDP ring") == cause(apart, "DDP overlapped") == "exposed communication"


def test_a_small_model_on_an_h100_is_bounded_by_overheads_that_more_gpus_do_not_shorten(capsys):
    names = LESSONS[1].compare
    record = compare_json(capsys, "--hardware", "h100", *only(*names))
    assert {cause(record, name) for name in names} == {"compute that more GPUs do not shorten"}


def test_what_to_notice_names_the_fastest_the_largest_losses_and_the_least_memory(
    by_default, printed_by_default
):
    rows = by_default["strategies"]
    best, best_of_8 = (
        max((row for row in rows if row["gpus"] == gpus), key=lambda row: row["speedup"]) for gpus in (4, 8)
    )
    assert (best["name"], best_of_8["name"]) == ("FSDP prefetch", "DP only")
    across = next(row for row in rows if row["name"] == "TP across nodes")
    share = across["exposed_communication_seconds"] / across["step_seconds"]
    points = printed_by_default.partition("What to notice\n")[2].split("\n- ")
    assert len(points) == 4
    speedups = f"FSDP prefetch on 4 GPUs ({best['speedup']:.2f}x) and DP only on 8 GPUs"
    assert speedups in points[0]
    assert points[1] == f"Exposed communication costs most in TP across nodes: {share:.0%} of the step."
    assert points[2].startswith("Bubble costs most in GPipe and 1F1B: ")
    assert points[3].startswith("TP2 x PP2 x DP2 and TP outermost need the least memory a GPU: 1.56 MB"), (
        "all of them"
    )


def test_where_nothing_beats_one_gpu_what_to_notice_says_so(capsys):
    _, out, _ = compare(capsys, "--hardware", "h100", "--timeline", "none", *only("FSDP", "FSDP prefetch"))
    assert "Nothing here beats one GPU alone: FSDP prefetch comes nearest, with 0.91x." in " ".join(
        out.split()
    )


def test_the_timelines_are_those_of_the_worst_and_the_best_use_of_the_gpus(by_default, printed_by_default):
    rows = sorted(by_default["strategies"][1:], key=lambda row: row["efficiency"])
    drawn = re.findall(r"^(\S.*?)  [\d.]+ m?s\nGPU 0", printed_by_default, re.MULTILINE)
    assert drawn == [rows[0]["name"], rows[-1]["name"]] == ["TP across nodes", "FSDP prefetch"]


@pytest.mark.parametrize("width", [80, 100])
def test_the_picture_fits_its_terminal_and_loses_no_column(capsys, monkeypatch, width):
    monkeypatch.setattr("ndparallel.results.show.WIDTH", width)
    code, out, _ = compare(
        capsys, "--memory", "--gpus", "8", *only("single GPU", "DDP overlapped", "TP across nodes", "1F1B")
    )
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if line.startswith("strategy"))
    assert head.split() == heads()
    assert any(line.startswith("0D single GPU") for line in lines)


def test_any_strategy_of_any_lesson_can_be_asked_for(capsys):
    rows = compare_json(capsys, *only("ZeRO-1", "4 microbatches"))["strategies"]
    assert [(row["name"], row["gpus"]) for row in rows] == [("ZeRO-1", 4), ("4 microbatches", 1)]


def test_a_strategy_is_taken_under_the_name_that_the_table_prints(capsys):
    labels = ["0D single GPU", "1d ddp ring", "TP"]
    rows = compare_json(capsys, *only(*labels))["strategies"]
    assert [row["name"] for row in rows] == ["single GPU", "DDP ring", "TP"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--gpus", "5", "--strategy", "DDP ring"], "a batch of 8 sequences cannot be cut into 5"),
        (["--gpus", "0"], "0 GPUs cannot train anything"),
        (["--strategy", "DPD ring"], "Did you mean 'DDP ring'?"),
        (["--text", "nowhere.txt"], "nowhere.txt: cannot be read: no such file"),
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
    assert "Fastest is FSDP prefetch on 4 GPUs" in out


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
    assert main([word for word in argv if word != "--json"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Notice: Others win than as it is in 'network across nodes 30x slower': a ranking" in told
