"""Claims about "Schedule": its figures are the command's; the checker judges what is placed by hand."""

import json
import shlex
from itertools import pairwise

import pytest

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.explorer import schedules

ONE_F_ONE_B = "FFFFBFBFBFBFBBBB|FFFBFBFBFBFBFBBB|FFBFBFBFBFBFBFBB|FBFBFBFBFBFBFBFB"
ZB_H1 = "FFFFIWFIWFIWFIWFIWIWIWIW"  # of GPU 0; each GPU below takes one F fewer ahead, and W one later


def zb_h1(rank: int) -> str:
    """One GPU's letters, written by a rule of its own: P - 1 - rank forwards ahead, W `rank` behind I."""
    ahead, letters = 3 - rank, ""
    for turn in range(8 + ahead + rank):
        letters += "F" * (turn < 8) + "I" * (0 <= turn - ahead < 8) + "W" * (0 <= turn - ahead - rank < 8)
    return letters


@pytest.mark.parametrize(
    "setup", [{}, {"stages": 8, "microbatches": 16, "forward": 0.5, "p2p": 0.25}], ids=str
)
def test_the_pages_figures_are_those_of_its_command(capsys, setup):
    answer = schedules.answer(setup)
    program, *words = shlex.split(answer["command"])
    assert program == "ndparallel"
    assert main([*words, "--json"]) == 0
    for mine, theirs in zip(answer["schedules"], json.loads(capsys.readouterr().out), strict=True):
        keys = ("name", "makespan", "bubble_ratio", "bubble_over_ideal", "span_bubble_ratio", "peak_held")
        assert [mine[key] for key in keys] == [theirs[key] for key in keys]
        drawn = [[[op, chunk, number] for _, _, op, number, chunk, _ in row] for row in mine["rows"]]
        stages = 8 if setup else 4
        assert [[op, number] for row in drawn for op, _, number in row] == [
            [op, number] for row in theirs["actions"] for op, _, number in row
        ]
        assert len(drawn) == stages


def test_the_two_of_a_pair_are_drawn_side_by_side_and_framed():
    (dualpipev,) = (each for each in schedules.answer({})["schedules"] if each["name"] == "dualpipev")
    for row, pairs in zip(dualpipev["rows"], dualpipev["pairs"], strict=True):
        assert all(before[1] <= after[0] for before, after in pairwise(row))
        halves = [[box for box in row if start <= box[0] and box[1] <= end] for start, end in pairs]
        assert pairs and [[box[2] for box in pair] for pair in halves] == [["F", "B"]] * len(pairs)
        assert sorted(box[3] for box in row if box[2] == "F") == sorted([*range(8), *range(8)])


def test_1f1b_placed_by_hand_is_1f1b():
    mine = schedules.answer({"mine": ONE_F_ONE_B})["mine"]
    assert (
        mine["verdict"]
        == "As fast as 1F1B: 33 s, where 1F1B takes 33 s; held 4 3 2 1, where 1F1B holds 4 3 2 1."
    )
    assert mine["waits"] == [""] * 4


def test_when_all_is_placed_nothing_can_come_next_and_each_kind_says_so():
    said = {"F": "all forwards are placed", "W": "all weight gradients are placed"}
    said |= dict.fromkeys("BI", "all backwards are placed")
    assert schedules.answer({"mine": ONE_F_ONE_B})["mine"]["next"] == [said] * 4


def test_who_fills_the_bubble_beats_1f1b():
    mine = schedules.answer({"mine": "|".join(map(zb_h1, range(4)))})["mine"]
    assert mine["verdict"].startswith("You beat 1F1B: 27 s, where 1F1B takes 33 s; held 4 each")
    assert zb_h1(0) == ZB_H1


def test_what_is_missing_is_said_of_a_gpu_as_the_page_calls_it():
    mine = schedules.answer({"mine": "F|F|F|F"})["mine"]
    assert mine["verdict"].startswith("Not yet: GPU 0 never does ") and "rank" not in mine["verdict"]


def test_what_is_placed_runs_as_far_as_it_can():
    mine = schedules.answer({"mine": "FFB|F||"})["mine"]
    assert [len(row) for row in mine["rows"]] == [2, 1, 0, 0]
    assert mine["waits"][0] == "waits for I of microbatch 0 on stage 1"


def test_what_cannot_come_next_says_why():
    upcoming = schedules.answer({"mine": "F|||"})["mine"]["next"]
    assert upcoming[0]["F"] == upcoming[0]["B"] == ""
    assert upcoming[0]["W"] == "I of microbatch 0 comes first"
    assert upcoming[1]["B"] == "F of microbatch 0 comes first"


@pytest.mark.parametrize("mine", ["B", "FW", "F" * 9, "X", "FFBBB", "<script>"])
def test_what_cannot_be_placed_is_one_sentence(mine):
    with pytest.raises(UserError, match="cannot place"):
        schedules.answer({"mine": mine})


def test_who_follows_the_hints_beats_1f1b_and_holds_no_more():
    letters, answer = ["", "", "", ""], schedules.answer({"mine": ""})["mine"]
    while hint := answer["hint"]:
        letters[hint["rank"]] += hint["op"]
        answer = schedules.answer({"mine": "|".join(letters)})["mine"]
    assert answer["verdict"].startswith("You beat 1F1B: 30 s, where 1F1B takes 33 s; held 4 3 2 1,")
