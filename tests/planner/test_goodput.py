"""Claims about goodput: published intervals, a run worked out by hand, a simulation that agrees with a
theory it does not know."""

import json
import math
import re

import numpy as np
import pytest

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.commands.goodput import COLUMNS
from ndparallel.planner import goodput
from ndparallel.planner.goodput import (
    DAY,
    HOUR,
    FailureModel,
    daly_interval,
    expected_goodput,
    simulate,
    young_interval,
)
from ndparallel.results.printing import plain_console

LLAMA_3 = FailureModel(16_384)
MINUTE = 60.0


def machine(mtbf, checkpoint, restart):
    return FailureModel(1, HOUR / mtbf, checkpoint, restart)


@pytest.mark.parametrize("name", ["gpus", "failures_per_gpu_hour", "checkpoint_seconds", "restart_seconds"])
@pytest.mark.parametrize("value", [-1, math.inf, math.nan, 0])
def test_numbers_that_no_cluster_has_are_refused_in_python_too(name, value):
    if (name, value) == ("restart_seconds", 0):
        assert FailureModel(**{"gpus": 8, name: value}).restart_seconds == 0
        return
    with pytest.raises(UserError, match=f"{name} is {value}; it must be a finite number"):
        FailureModel(**{"gpus": 8, name: value})


@pytest.mark.parametrize(("mtbf", "minutes"), [(24 * HOUR, "117"), (6 * HOUR, "57"), (15 * MINUTE, "9.1")])
def test_the_intervals_of_dalys_figures_3_to_5(mtbf, minutes):
    """Daly 2006: restart 10 min, dump 5 min."""
    interval = daly_interval(machine(mtbf, 5 * MINUTE, 10 * MINUTE))
    assert f"{interval / MINUTE:.{len(minutes.partition('.')[2])}f}" == minutes


def test_youngs_interval_is_the_root_of_twice_checkpoint_times_mtbf_and_dalys_tends_to_it():
    cluster = machine(200.0, 1.0, 0.0)
    assert young_interval(cluster) == 20
    assert daly_interval(machine(1e9, 1.0, 0.0)) == pytest.approx(
        young_interval(machine(1e9, 1.0, 0.0)), rel=1e-4
    )
    assert daly_interval(machine(10.0, 30.0, 0.0)) == daly_interval(machine(10.0, 20.0, 0.0)) == 10


def test_llama_3s_cluster_fails_every_three_hours_and_keeps_more_than_90_percent():
    """arXiv 2407.21783: 419 unexpected interruptions in 54 days, more than 90% effective training time."""
    assert LLAMA_3.mtbf_seconds == pytest.approx(54 * DAY / 419)
    assert expected_goodput(LLAMA_3, daly_interval(LLAMA_3)) > 0.9
    lasts = goodput.duration(LLAMA_3, daly_interval(LLAMA_3), 54 * 0.9, seed=0)
    assert lasts.failures == pytest.approx(419, rel=0.03)


def test_a_life_worked_out_by_hand(monkeypatch):
    """Interval 10, checkpoint 2, restart 5. Failures after 30 (two rounds, 6 lost), 3 (in the restart), 17
    (restart, one round, 0 lost), and 100: restart, one round, and the last 5 of 45 need no checkpoint."""
    gaps = iter([30.0, 3.0, 17.0, 100.0])
    monkeypatch.setattr(
        np.random,
        "default_rng",
        lambda seed: type("Gaps", (), {"exponential": lambda self, mean: next(gaps)})(),
    )
    run = simulate(machine(1.0, 2.0, 5.0), 10.0, 45.0)
    assert (run.kept, run.checkpoints, run.lost, run.restarts, run.failures) == (45, 8, 6, 3 + 5 + 5, 3)
    assert run.elapsed == 30 + 3 + 17 + (5 + 12 + 5)


@pytest.mark.parametrize("restart", [0.0, 0.3])
@pytest.mark.parametrize("interval", [0.02, 0.2, 1.5])
@pytest.mark.parametrize("checkpoint", [0.01, 0.3])
def test_the_simulation_keeps_what_daly_expects(interval, checkpoint, restart):
    cluster = machine(1.0, checkpoint, restart)
    kept = [simulate(cluster, interval, 100.0, seed).goodput for seed in range(40)]
    error = float(np.std(kept, ddof=1)) / math.sqrt(len(kept))
    # 100 is not for ever
    assert np.mean(kept) == pytest.approx(expected_goodput(cluster, interval), abs=4 * error + 0.01)


@pytest.mark.parametrize(
    "cluster", [LLAMA_3, machine(1.0, 0.001, 0.1), machine(1.0, 0.2, 0.1), machine(1.0, 3.0, 0.0)]
)
def test_the_interval_that_simulated_runs_prefer_is_as_good_as_the_best_of_all(cluster):
    intervals = cluster.mtbf_seconds * np.geomspace(1e-3, 10, 400)
    best = max(expected_goodput(cluster, interval) for interval in intervals)
    assert expected_goodput(cluster, goodput.best_interval(cluster)) > 0.99 * best
    assert expected_goodput(cluster, daly_interval(cluster)) > 0.99 * best
    shortest, longest = goodput.tolerable_intervals(cluster)
    assert [expected_goodput(cluster, edge) for edge in (shortest, longest)] == pytest.approx(
        [0.99 * best] * 2, rel=2e-3
    )


def test_however_cheap_checkpoints_are_the_preferred_interval_wastes_little_more_than_must_be():
    """Checkpoints of a millionth of the MTBF: the best interval is 1.4 thousandths of it, and so is waste."""
    cluster = machine(1.0, 1e-6, 0.0)
    wasted = 1 - expected_goodput(cluster, goodput.best_interval(cluster))
    assert math.sqrt(2e-6) * 0.999 < wasted < math.sqrt(2e-6) * 1.05


def test_without_failures_only_checkpoints_take_time():
    cluster = machine(1e15, 2.0, 100.0)
    assert expected_goodput(cluster, 8.0) == pytest.approx(0.8)
    assert simulate(cluster, 8.0, 80.0).goodput == pytest.approx(0.8)


def test_intervals_do_not_depend_on_the_last_digit_of_a_power(monkeypatch):
    """numpy 1.26 and 2.4 have other ones."""
    found = goodput.tolerable_intervals(LLAMA_3)
    powers = np.geomspace
    monkeypatch.setattr(np, "geomspace", lambda *of: np.nextafter(powers(*of), np.inf))
    assert goodput.tolerable_intervals(LLAMA_3) == found


def test_a_checkpoint_comes_after_whole_steps():
    assert [goodput.whole_steps(interval, 7.0) for interval in (0.1, 10.0, 11.0)] == [7, 7, 14]
    best = goodput.best_interval(LLAMA_3, step_seconds=90.0)
    assert best % 90 == 0


@pytest.mark.parametrize(("plan", "warns"), [("DP64,zero0,mbs1", True), ("TP8xDP8,zero1,sp,mbs1", False)])
def test_the_goodput_of_a_plan_that_does_not_fit_says_so_beside_it(plan, warns, capsys):
    asked = f"goodput --model llama-3-8b --gpus 64 --global-batch 64 --plan {plan} --tokens 1e12 --json"
    assert main(asked.split()) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["gpus"] == 64
    assert ("careful: the fullest GPU lacks" in printed.err) == warns


def test_a_cluster_that_never_gets_anywhere_is_given_up(capsys):
    hopeless = machine(1.0, 100.0, 1000.0)
    assert expected_goodput(hopeless, 1.0) == 0
    assert simulate(hopeless, 1.0, 10.0).failures == goodput.MOST_FAILURES
    assert main(["goodput", "--gpus", "1000000000"]) == 0
    assert "would hardly ever end" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "days"),
    [("--gpus 8 --days 10000000", 1e7 / 0.999), ("--gpus 1000000 --days 5", 5 / 0.0262)],
)
def test_what_meets_too_many_failures_to_simulate_is_not_called_endless(options, days, capsys):
    assert main(["goodput", *options.split(), "--json"]) == 0
    training = json.loads(capsys.readouterr().out)["training"]
    assert training["days"] == pytest.approx(days, rel=0.01) and training["shortest_days"] is None
    assert main(["goodput", *options.split()]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "hardly ever end" not in out and "too many to simulate" in out and f"{training['days']:,.1f}" in out
    )


def test_no_simulated_run_of_a_training_is_cut_short():
    """Eight MTBFs without a failure come after 3,000 failures on average, in one run of 20 after 9,000."""
    rare = machine(1000.0, 1.0, 0.0)
    longest = goodput.duration(rare, 8000.0, 8000.0 / goodput.DAY).longest_days
    assert longest and longest * goodput.DAY / rare.mtbf_seconds > 1.3 * goodput.MOST_FAILURES


def test_intervals_that_keep_99_percent_are_whole_steps_where_a_step_is_given(capsys):
    """One step of an hour keeps 80%, and two keep 66%: nothing between them can be."""
    hour = goodput.tolerable_intervals(LLAMA_3, 3600.0)
    assert hour == (3600.0, 3600.0)
    assert all(each % 90 == 0 for each in goodput.tolerable_intervals(LLAMA_3, 90.0))
    assert main(["goodput", "--gpus", "16384", "--step", "1h"]) == 0
    assert "Only 1 h keeps at least 99%" in capsys.readouterr().out


def test_few_failures_are_not_rounded_to_none_and_one_gpu_is_one(capsys):
    assert main(["goodput", "--gpus", "8", "--days", "54"]) == 0
    assert "meets 0.16 failures on average" in " ".join(capsys.readouterr().out.split())
    assert main(["goodput", "--gpus", "1", "--days", "1"]) == 0
    assert "takes 1.0 and meets no failure in any of 100 simulated runs." in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(["goodput", "--gpus", "1"]) == 0
    assert "1 GPU, failing" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ the command


@pytest.mark.parametrize("plan", ["", "--model llama-3-8b --global-batch 64 --zero 3"])
def test_days_that_nobody_gave_are_said_to_be_assumed(plan, capsys, monkeypatch):
    for name, few in (("SEARCHED", 3), ("FAILURES_IN_A_RUN", 20), ("RUNS", 3)):
        monkeypatch.setattr(goodput, name, few)
    asked = ["goodput", "--gpus", "64", *plan.split()]
    assert main(asked) == 0
    assert "54 days of training are assumed: --days, or" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, *(["--tokens", "1e11"] if plan else ["--days", "54"])]) == 0
    assert "assumed" not in capsys.readouterr().out


def test_no_rate_is_written_with_an_exponent_above_0_and_no_short_training_takes_0_days(capsys):
    assert main(["goodput", "--gpus", "16000", "--failure-rate", "1000"]) == 0
    assert "each failing 1,000 times an hour" in capsys.readouterr().out
    assert main(["goodput", "--gpus", "8", "--days", "0.04"]) == 0
    assert "training of 0.04 days takes 0.04 and meets" in capsys.readouterr().out


def test_the_command_gives_the_same_json_for_the_same_seed_and_says_what_the_table_says(capsys):
    texts = []
    for options in (["--json"], ["--json"], ["--json", "--seed", "1"], []):
        assert main(["goodput", "--gpus", "16384", "--interval", "1h", *options]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    document = json.loads(texts[0])
    rows = {row["by"]: row for row in document["intervals"]}
    assert list(rows) == ["Young", "Daly", "simulation", "you"] and rows["you"]["interval_seconds"] == 3600
    shares = ("simulated_goodput", "checkpoint_share", "lost_share", "restart_share")
    assert all(sum(row[share] for share in shares) == pytest.approx(1) for row in rows.values())
    assert f"training of 54 days takes {document['training']['days']:.1f}" in " ".join(texts[3].split())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--gpus", "0"], "--gpus 0 is no cluster; choose 1"),
        (["--gpus", "8", "--failure-rate", "nan"], "--failure-rate nan must be a finite number above 0"),
        (["--gpus", "8", "--failure-rate", "-1"], "number above 0"),
        (["--gpus", "8", "--checkpoint", "10"], "has no unit"),
        (
            ["--gpus", "8", "--checkpoint", "0s"],
            """--checkpoint = '0s' must be above 0, as "30s" or "2min": a checkpoint that takes no""",
        ),
        (
            ["--gpus", "8", "--checkpoint", "nan"],
            """--checkpoint = 'nan' is not a number: write seconds as in "30s" or "2min".""",
        ),
        (["--gpus", "8", "--restart=-3s"], "is negative"),
        (["--gpus", "8", "--restart", "3GB"], "measures bytes"),
        (["--gpus", "8", "--interval", "0"], "--interval = '0' must be above 0"),
        (["--gpus", "8", "--step", "0"], "--step = '0' must be above 0"),
        (["--gpus", "8", "--days", "x"], "argument --days: not a number: 'x'"),
        (["--gpus", "8.5"], "argument --gpus/--world-size: not a whole number: '8.5'"),
        (["--gpus", "8", "--days", "inf"], "--days inf of training cannot be"),
        (["--gpus", "8", "--seed", "-1"], "--seed is -1; it must be 0 or more."),
    ],
)
def test_what_cannot_be_is_one_sentence(capsys, options, says):
    assert main(["goodput", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and says in captured.err


def test_at_60_columns_every_head_is_whole(capsys, monkeypatch):
    monkeypatch.setattr("ndparallel.commands.goodput.plain_console", lambda: plain_console(60))
    assert main(["goodput", "--gpus", "16384"]) == 0
    heads = capsys.readouterr().out.partition("─")[0].split()
    assert {word for head in COLUMNS for word in head.split()} <= {*heads}


def test_a_plan_gives_goodput_its_step_its_days_and_the_size_of_its_checkpoints(capsys):
    """Llama 3 8B's 8,030,261,248 parameters, 14 bytes each: weights in 16 bits, copy and moments in 32."""
    job = ("--model", "llama-3-8b", "--gpus", "64", "--global-batch", "64")
    name = ("--plan", "DP64,zero1,mbs1")
    assert main(["plan", *job, *name, "--tokens", "1e13", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    storage = ("--tokens", "1e13", "--checkpoint-bandwidth", "2GB/s")
    assert main(["goodput", *job, *name, *storage, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoint_seconds"] == pytest.approx(8_030_261_248 * 14 / 2e9)
    assert found["training"]["work_days"] == pytest.approx(plan["days"])
    steps = [row["interval_seconds"] / plan["step_seconds"] for row in found["intervals"]]
    assert steps == pytest.approx([round(step) for step in steps], rel=1e-6)


def test_a_plan_is_given_to_goodput_as_to_plan_and_its_days_have_three_digits(capsys):
    job = ["--model", "llama-3-8b", "--gpus", "64", "--global-batch", "64", "--tokens", "1e13"]
    said = []
    for plan in (["--plan", "TP2xDP32,zero1,sp,mbs1"], ["--tp", "2", "--zero", "1"]):
        assert main(["goodput", *job, *plan]) == 0
        said.append(" ".join(capsys.readouterr().out.split()))
    assert said[0] == said[1]
    assert re.search(r"training of \d\d\d days takes", said[0])


PLANNED = ["--gpus", "8", "--model", "llama-3-8b", "--global-batch", "64", "--plan", "TP8,mbs1"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--gpus", "8", "--tokens", "1e12"], "is of a plan"),
        (["--gpus", "8", "--model", "llama-3-8b"], "--model is of a plan: give the plan too"),
        (["--gpus", "8", "--global-batch", "64"], "--global-batch is of a plan"),
        (["--gpus", "8", "--hardware", "a100-80"], "--hardware is of a plan"),
        (["--gpus", "8", "--model", "llama-3-8b", "--plan", "DP8"], "--global-batch"),
        ([*PLANNED, "--tokens", "1e12", "--days", "9"], "--days is given, and follows from the plan too"),
        ([*PLANNED, "--step", "9s"], "--step is given, and follows from the plan too"),
        (["--days", "8"], "--gpus is needed"),
    ],
)
def test_what_a_plan_would_have_to_say_is_refused_without_it(capsys, options, says):
    assert main(["goodput", *options]) == 2
    assert says in capsys.readouterr().err
