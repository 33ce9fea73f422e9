"""Claims about "Ring": its seconds are the command's, and what it draws is what was executed."""

import json
import shlex

import pytest

from ndparallel.commands.command_line import main
from ndparallel.explorer import rings

SETUPS = [
    {},
    {"collective": "all_reduce", "algorithm": "hierarchical", "ranks": 8, "gpus_per_node": 4},
    {"collective": "broadcast", "algorithm": "chain", "hardware": "classroom", "bytes": "10kB"},
    {"collective": "all_to_all", "algorithm": "direct", "ranks": 3},
]


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_the_pages_seconds_are_those_of_its_command(capsys, setup):
    answer = rings.answer(setup)
    program, *words = shlex.split(answer["command"])
    assert program == "ndparallel" and words[-1] == "--show"
    if "classroom" in words:
        assert main(words) == 0
        assert answer["conclusion"] in capsys.readouterr().out
        return
    assert main([*words[:-1], "--json"]) == 0
    theirs = json.loads(capsys.readouterr().out)
    (mine,) = [row for row in answer["algorithms"] if row["algorithm"] == theirs["algorithm"]]
    assert {key: mine[key] for key in ("seconds", "bytes_sent_per_rank", "messages_per_rank")} == {
        key: theirs[key] for key in ("seconds", "bytes_sent_per_rank", "messages_per_rank")
    }


def test_sizes_are_written_as_people_write_them_and_are_what_they_say():
    nbytes = {size: rings.answer({"bytes": size})["bytes"] for size in ("1kB", "100MB", "1GB")}
    assert nbytes == {"1kB": 1_000, "100MB": 100_000_000, "1GB": 1_000_000_000}


def test_every_gpu_that_can_be_chosen_exists():
    hardware = next(control for control in rings.answer({})["controls"] if control["name"] == "hardware")
    assert [stop["reason"] for stop in hardware["stops"]] == [""] * 5


def test_a_ring_of_four_sums_in_three_hops_and_hands_on_in_three():
    frames = rings.answer({})["frames"]
    assert len(frames) == 7
    assert all(frame["arrivals"] == [[3, 0], [0, 1], [1, 2], [2, 3]] for frame in frames[1:])
    assert frames[0]["boards"] == [[letter] * 4 for letter in "abcd"]
    assert frames[3]["boards"][0].count("abcd") == 1
    assert frames[-1]["boards"] == [["abcd"] * 4] * 4


def test_an_algorithm_that_cannot_be_had_says_why():
    answer = rings.answer({"algorithm": "hierarchical", "ranks": 4, "gpus_per_node": 8})
    assert "needs several nodes" in answer["reason"] and answer["controls"]


@pytest.mark.parametrize("here", rings.COLLECTIVES)
def test_from_every_collective_all_others_can_be_chosen(here):
    (choice,) = [
        each for each in rings.answer({"collective": here})["controls"] if each["name"] == "collective"
    ]
    assert [stop["value"] for stop in choice["stops"] if not stop["reason"]] == [*rings.COLLECTIVES]


def test_of_an_algorithm_that_a_collective_has_not_its_first_is_shown():
    assert "--algorithm one-by-one" in rings.answer({"collective": "broadcast"})["command"]


def test_the_curves_cross_where_another_algorithm_becomes_the_fastest():
    curves = rings.answer({"ranks": 8})["curves"]
    best = [min(curves["seconds"], key=lambda name: curves["seconds"][name][at]) for at in (0, -1)]
    assert best[0] != best[1]


def test_at_the_size_that_the_page_begins_with_the_ring_is_far_from_the_slowest():
    seconds = {row["algorithm"]: row["seconds"] for row in rings.answer({})["algorithms"]}
    assert seconds["ring"] < 0.5 * min(seconds["naive"], seconds["tree"])
