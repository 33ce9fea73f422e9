"""Claims about "Cluster": its numbers are the command's, also of a model that is dropped in; a search can be
looked at and ended."""

import json
import shlex
import time
from pathlib import Path

import pytest

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.explorer import cluster, finding
from ndparallel.planner.job import Plan
from ndparallel.search.search import search

LLAMA = Path(__file__).parents[2] / "docs/llama-70b/config.json"
SMALL = {"model": "llama-3-8b", "gpus": 8, "global_batch": 16, "sequence": 4096}
SETUPS = [
    {},
    {"what_if": "bandwidth_across/2", "pp": 8, "schedule": "interleaved", "chunks": 5},
    {"model": "mixtral-8x7b", "gpus": 64, "ep": 8, "tp": 1, "zero": 3, "pp": 1, "recompute": "full"},
    {"sequence_parallel": "--no-sequence-parallel", "hardware": "a100-80"},
]


def printed(capsys, command: str) -> dict:
    program, *words = shlex.split(command)
    assert program == "ndparallel" and main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_the_pages_numbers_are_those_of_its_command(capsys, setup):
    answer = cluster.answer(setup)
    theirs = printed(capsys, answer["command"])
    assert {key: theirs[key] for key in answer["row"]} == answer["row"]
    changed = [change["row"] for change in [answer["what_if"]] if change]
    assert [
        {key: each[key] for key in each if key != "change"} for each in theirs.get("what_if", [])
    ] == changed


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_a_launch_script_is_the_commands(capsys, name):
    answer = cluster.answer({"zero": 0, "dtype": "bf16"})
    _, *words = shlex.split(answer["launch"][name]["command"])
    assert main(words) == 0
    assert capsys.readouterr().out == answer["launch"][name]["text"]


def test_a_config_that_is_dropped_in_is_read_like_the_file():
    dropped = cluster.answer({"config": LLAMA.read_text("utf-8"), "model": "config.json"})
    question = cluster.question_of({"model": "llama-3-70b"})
    assert dropped["row"]["parameters"] == question.job.shape.parameters().total
    assert "--model config.json" in dropped["command"]


@pytest.mark.parametrize(
    ("config", "words"),
    [("{", "is not JSON"), ("[1]", "no object"), ("{}", "model_type is missing"), (" " * 30_000, "at most")],
)
def test_a_config_that_is_none_says_why(config, words):
    with pytest.raises(UserError, match=words):
        cluster.answer({"config": config, "model": "config.json"})


def test_a_plan_that_cannot_be_says_why_and_still_has_its_controls():
    answer = cluster.answer({"tp": 3})
    assert "cannot cut 64 heads" in answer["reason"] and answer["controls"] and "row" not in answer


def test_any_plan_found_is_where_its_controls_show_it():
    question = cluster.question_of(SMALL)
    for found in search(question.job, 8, top=5).answers:
        controls = cluster.controls_of(found.job, found.plan)
        assert (
            cluster.question_of(SMALL | controls).job_and_plan({**question.setup, **controls})[1]
            == found.plan
        )


def test_a_plan_found_says_its_stages_only_where_they_are_not_the_usual_ones():
    """What is usual needs no option: of interleaved 2 stages a GPU, of 1F1B one."""
    job = cluster.question_of(SMALL).job
    for schedule, chunks, shown in (("1f1b", 1, 0), ("interleaved", 2, 0), ("interleaved", 4, 4)):
        plan = Plan(pp=4, dp=2, schedule=schedule, chunks=chunks)
        assert cluster.controls_of(job, plan)["chunks"] == shown


def test_a_search_answers_from_its_own_process_and_a_newer_one_ends_it():
    finder = finding.Finder()
    finder.answer({"do": "begin", "gpus": 4096})
    first = finder.process
    finder.answer({"do": "begin", **SMALL})
    assert not first.is_alive()
    while "running" in (answer := finder.answer({"do": "look"})):
        time.sleep(0.05)
    found = search(cluster.question_of(SMALL).job, 8, kinds=True)
    take = [row for row in answer["plans"] if row["remark"].startswith("take this")]
    assert [row["cells"] for row in take] == [cluster.cells(found.recommended)]
    assert answer["advice"][0].startswith("Take ")
    assert "+-" not in " ".join(answer["advice"]) and "±" in answer["advice"][2]
    finder.answer({"do": "begin"})
    assert finder.answer({"do": "end"}) == {"ended": True} and finder.process is None


def test_the_fastest_plan_is_no_equal_of_itself():
    assert finding.marked(recommended=True, fastest=True, equal=True) == "take this"
    assert finding.marked(recommended=False, fastest=True, equal=True) == "the fastest"
    assert finding.marked(recommended=False, fastest=False, equal=True) == "equal to the fastest"
    assert finding.marked(recommended=False, fastest=False, equal=False) == ""


def test_a_search_says_how_far_it_is():
    said = []
    counting = finding.CountingExecutor(lambda words, share: said.append((words, share)))
    search(cluster.question_of(SMALL).job, 8, executor=counting)
    shares = [share for _, share in said if share is not None]
    assert shares == sorted(shares) and len(said) > len(shares)
