"""--contention: what the order of arrival and shared ports add to a step, in the table, in words and in
JSON."""

import json

import pytest

from ndparallel.commands.command_line import main as command_line
from ndparallel.lessons.main import main
from ndparallel.lessons.registry import load
from ndparallel.results.contention import contention_rows, most_lengthened
from ndparallel.results.measure import Contention, Measurement

KEYS = {"contended_step_seconds", "arrival_order_seconds", "sharing_seconds"}


def strategies(capsys, lesson, *options):
    assert main(load(lesson), [*options, "--engine", "inline", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["strategies"]


def printed(capsys, lesson, *options):
    assert main(load(lesson), [*options, "--engine", "inline", "--timeline", "none"]) == 0
    return capsys.readouterr().out


def measured(name, arrival, sharing, step=1.0):
    return Measurement(
        name, 4, step_seconds=step, contention=Contention(step + arrival + sharing, arrival, sharing)
    )


def test_json_has_its_keys_only_where_it_is_asked_for_and_is_otherwise_the_same(capsys):
    options = ("--strategy", "DDP overlapped", "--gpus", "8")
    (plain,), (asked,) = (
        strategies(capsys, "1d_data_parallel", *options, *more) for more in ((), ("--contention",))
    )
    assert {key: asked[key] for key in plain} == plain and asked.keys() - plain.keys() == KEYS


def test_the_two_effects_add_up_and_have_signs_of_their_own(capsys):
    options = ("--gpus", "16", "--batch", "16", "--strategy", "with experts, EP", "--contention")
    (row,) = strategies(capsys, "4d_combined", *options)
    assert row["arrival_order_seconds"] < 0 < row["sharing_seconds"]
    assert row["contended_step_seconds"] == pytest.approx(
        row["step_seconds"] + row["arrival_order_seconds"] + row["sharing_seconds"], rel=1e-12
    )


def test_a_step_takes_the_same_seconds_longer_whatever_the_number_of_steps(capsys):
    options = ("--strategy", "TP outermost", "--contention")
    one, two = (
        strategies(capsys, "4d_combined", *options, "--steps", steps)[0]["sharing_seconds"]
        for steps in ("1", "2")
    )
    assert one == pytest.approx(two, rel=1e-6) and one > 0


def test_two_ports_may_be_faster_than_one_line(capsys):
    """DDP naive's GPU 0 hears seven others: three through the port to its node, four through the other."""
    (row,) = strategies(capsys, "1d_data_parallel", "--gpus", "8", "--strategy", "DDP naive", "--contention")
    assert row["sharing_seconds"] < 0


def test_the_table_has_both_effects_with_their_signs_and_their_share_of_the_step():
    rows = [
        measured("slower", 0.0, 0.0125),
        measured("faster", -0.25, 0.125, 2.0),
        measured("same", 0.0, 0.0),
    ]
    assert [list(row.values())[2:] for row in contention_rows(rows)] == [
        ["0 s", "+12.5 ms", "+1.25%"],
        ["-250 ms", "+125 ms", "-6.25%"],
        ["0 s", "0 s", "0%"],
    ]
    assert most_lengthened(rows) == "faster changes most: its step is 6.25% shorter."
    assert most_lengthened(rows[2:]) == "No step is longer or shorter."


def test_it_is_printed_only_where_it_is_asked_for(capsys):
    options = ("--strategy", "TP outermost")
    before, after = (printed(capsys, "4d_combined", *options, *more) for more in ((), ("--contention",)))
    assert "--contention says what sharing it adds" in " ".join(before.split())
    assert "Contention:" not in before
    assert "the step is 348 us longer" in " ".join(after.split()) and "+0.04%" in after


def test_one_gpu_has_nobody_to_share_with(capsys):
    assert "no GPU here sends anything" in printed(capsys, "0d_single_gpu", "--contention")
    rows = strategies(capsys, "0d_single_gpu", "--contention")
    assert {row[key] for row in rows for key in KEYS} == {None}


@pytest.mark.parametrize(
    ("words", "many"), [(["lesson", "1d", "--sweep"], "--sweep"), (["compare", "--what-if"], "--what-if")]
)
@pytest.mark.parametrize("option", ["--contention", "--memory", "--wide", "--kernels", "--narrate"])
def test_it_is_of_one_run_and_not_of_a_table_of_many(words, many, option, capsys):
    assert command_line([*words, option]) == 2
    assert f"{option} is of one run, and {many} makes a table of many" in capsys.readouterr().err
