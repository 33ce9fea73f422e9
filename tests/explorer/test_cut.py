"""Claims about "Cut it" and "Timeline": the page's numbers are those of the command that it shows."""

import json
import shlex
from concurrent.futures import ThreadPoolExecutor

import pytest

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.explorer import cut
from ndparallel.explorer.setup import checked
from ndparallel.pipeline.catalog import build

SETUPS = [
    {},
    {"tp": 8, "pp": 1},
    {"tp": 1, "pp": 4, "schedule": "zb-v", "microbatches": 8, "batch": 16},
    {"ep": 2, "zero": 2},
    {"slow_gpu": "0:2", "sequence_parallel": "sp"},
    {"order": "pp-dp-ep-cp-tp", "gpus_per_node": 2},
]


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_the_pages_numbers_are_those_of_its_command(capsys, setup):
    answer = cut.answer(setup)
    program, file, *words = shlex.split(answer["command"])
    assert (program, file) == ("python", "4d_combined.py")
    assert main(["lesson", "4d", *words, "--json", "--engine", "inline"]) == 0
    rows = json.loads(capsys.readouterr().out)["strategies"]
    assert [row for row in rows if row["name"] == answer["row"]["name"]] == [answer["row"]]


@pytest.mark.parametrize("setup", SETUPS[:3], ids=str)
def test_the_parts_of_the_step_are_the_step(setup):
    answer = cut.answer(setup)
    parts = {part["name"]: part["seconds"] for part in answer["parts"]}
    left_out = 0 if "bubble" in parts else answer["row"]["bubble_seconds"]  # what the table shows as 0
    seconds = sum(parts.values()) + left_out
    assert seconds == pytest.approx(answer["row"]["step_seconds"], rel=1e-9)


def test_a_part_that_the_table_shows_as_0_is_left_out():
    answer = cut.answer({"tp": 4, "pp": 1, "order": "pp-dp-ep-cp-tp"})
    assert answer["cells"]["bubble"] == "0 s" and answer["row"]["bubble_seconds"] > 0
    assert [part["name"] for part in answer["parts"]] == ["compute", "exposed tp", "exposed dp"]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_the_microbatches_in_the_picture_are_the_schedules(schedule):
    answer = cut.answer({"schedule": schedule, "tp": 1, "pp": 4})
    written = build(schedule, 4, 4)
    for lane in answer["timeline"]["lanes"]:
        if lane["stream"] == "compute":
            rank = answer["gpus"][lane["ranks"][0]]["place"]["pp"]
            letters = [f"{each.op}{each.microbatch}" for each in written.actions[rank]]
            assert [action[3] for action in lane["actions"]] == letters


def test_the_timeline_loses_no_time():
    answer = cut.answer({})
    for lane in answer["timeline"]["lanes"]:
        spans = lane["spans"]
        assert all(span[0] <= span[1] for span in spans)
        assert max(span[1] for span in spans) <= answer["timeline"]["seconds"] * (1 + 1e-12)
    computing = answer["timeline"]["lanes"][0]
    busy = sum(end - start for start, end, activity, *_ in computing["spans"] if activity != "waiting")
    assert 0 < busy <= answer["row"]["step_seconds"]


def test_memory_over_time_reaches_the_peak_that_the_gpu_counted():
    drawn = [gpu for gpu in cut.answer({})["memory"]["gpus"] if gpu["points"]]
    assert drawn
    for gpu in drawn:
        assert max(sum(point[1:]) for point in gpu["points"]) == gpu["peak_bytes"]


def test_a_stop_that_cannot_be_says_what_the_command_would_say():
    answer = cut.answer({})
    stops = {
        control["name"]: {stop["value"]: stop["reason"] for stop in control["stops"]}
        for control in answer["controls"]
    }
    assert "16" in stops["tp"][8] and stops["tp"][4] == ""
    assert stops["ep"][8].startswith("ep=8 does not divide dp=2, whose ranks the experts are spread over")
    assert "one GPU at work" in stops["microbatches"][1]


def test_what_cannot_be_is_a_reason_and_still_has_its_controls():
    answer = cut.answer({"tp": 8})
    assert "does not divide 8 GPUs" in answer["reason"] and answer["controls"] and "row" not in answer
    assert {"name": "pp", "value": 1} in answer["remedies"]
    assert all(cut.answer({"tp": 8, each["name"]: each["value"]})["row"] for each in answer["remedies"])


@pytest.mark.parametrize(
    "setup", [{"tp": 3}, {"tp": "2"}, {"tp": True}, {"tp": [2]}, {"nothing": 1}, {"schedule": "a" * 1000}]
)
def test_only_stops_are_taken(setup):
    with pytest.raises(UserError) as error:
        checked(cut.CONTROLS, setup)
    assert len(str(error.value)) < 300


def test_two_that_ask_at_once_are_both_answered():
    zeros = [0, 1, 2, 3]
    alone = [cut.answer({"zero": zero})["cells"] for zero in zeros]
    with ThreadPoolExecutor(4) as askers:
        together = list(askers.map(lambda zero: cut.answer({"zero": zero})["cells"], zeros))
    assert together == alone
