"""3D: every schedule, run with real numbers, computes what one GPU computes, in the time that timing its list
predicts."""

import re
from dataclasses import replace
from typing import Any

import pytest

from gpu import COMPUTE, MEMORY, Event
from ndparallel.base.errors import UserError
from ndparallel.drawing.activities import activity
from ndparallel.drawing.palette import WEIGHT
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.main import main as lesson_main
from ndparallel.lessons.options import most_parts
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import Runner
from ndparallel.lessons.table import run_lesson
from ndparallel.model.stages import layers_per_stage
from ndparallel.parallel.mesh import Mesh
from ndparallel.pipeline.timing import time_schedule
from ndparallel.pipeline.work import Work
from ndparallel.results.measure import Measurement
from ndparallel.training.job import Job
from ndparallel.training.pipeline_stages import schedule_of
from tests.support import hand_count
from tests.support.common import (
    CHUNKS,
    SMALL,
    loss_and_gradient_difference,
    measured,
    names,
    pipeline,
    run,
    strategy,
)
from tests.support.pipelines import work_of

LESSON = "3d_pipeline_parallel"
DEFAULT = Job(microbatches=8, stage_chunks=2)
EIGHT = replace(SMALL, layers=8)


@pytest.mark.parametrize(
    ("schedule", "ranks"), [("1f1b", 2), ("1f1b", 4), ("zb-v", 4), ("interleaved", 2), ("1f1b", 1)]
)
def test_tied_embeddings_sum_the_gradients_of_first_and_last_stage(schedule, ranks):
    job = Job(model=replace(EIGHT, tied=True), microbatches=8, dtype="float64", steps=2)
    loss, gradient = loss_and_gradient_difference(run(pipeline(schedule), job, ranks), job)
    assert loss <= 1e-12 and gradient <= 1e-12


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v", "dualpipev"])
def test_the_gradients_of_weights_that_a_schedule_puts_off_are_a_phase_of_their_own(schedule):
    """As long as the W actions of its list, and none where every backward is whole."""
    job = Job(model=EIGHT, microbatches=8, mesh=Mesh(pp=4))
    listed = schedule_of(schedule, 4, 8, None)
    weight = work_of(job, listed, POCKET).seconds_by_stage(listed.layout.stages)["W"]
    for rank, result in enumerate(run(pipeline(schedule), job, 4)):
        expected = sum(weight[action.stage] for action in listed.actions[rank] if action.op == "W")
        spans = [
            event
            for event in map(Event._make, result.events)
            if event.kind == COMPUTE and activity(event) == WEIGHT
        ]
        assert sum(event.end - event.start for event in spans) == pytest.approx(expected, rel=1e-9)
        assert bool(spans) == (schedule != "1f1b")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "v-half", "v-min"])
def test_measured_peak_memory_is_the_schedules(schedule):
    """A middle rank peaks at peak_held activations of a chunk, but for what I frees and W still needs."""
    job = Job(microbatches=8, mesh=Mesh(pp=4))
    results = run(pipeline(schedule), job, 4)
    listed = schedule_of(schedule, 4, 8, CHUNKS.get(schedule))
    timing = time_schedule(listed, Work())
    per_layer = 4 * hand_count.block_saved(hand_count.Sizes(job.model))
    layers = layers_per_stage(job.model, listed.layout.stages)
    for rank in (1, 2):
        stages = [listed.layout.stage(rank, chunk) for chunk in range(listed.layout.chunks)]
        peak = max(
            event.bytes
            for event in map(Event._make, results[rank].events)
            if event.kind == MEMORY and event.what == "activations"
        )
        chunk = per_layer * layers[stages[0]]
        if "I" in {action.op for action in listed.actions[rank]}:
            assert timing.peak_live[rank] * chunk * 0.9 <= peak <= timing.peak_held[rank] * chunk * 1.1
        else:
            assert peak == timing.peak_held[rank] * chunk


def test_total_compute_is_the_same_in_every_schedule():
    def busy(name):
        results = run(strategy(LESSON, name), DEFAULT.replace(model=EIGHT), 4)
        events = [Event._make(event) for result in results for event in result.events]
        return sum(
            event.end - event.start
            for event in events
            if event.kind == COMPUTE and not event.what.startswith("optimizer")
        )

    totals = {name: busy(name) for name in names(LESSON)[2:]}
    assert all(total == pytest.approx(totals["GPipe"], rel=1e-9) for total in totals.values())


def test_1f1b_keeps_less_than_half_of_what_gpipe_keeps():
    held = {
        name: measured(LESSON, name, DEFAULT, 4).peak_memory_bytes["activations"]
        for name in ("GPipe", "1F1B")
    }
    assert held["1F1B"] < 0.5 * held["GPipe"]


def test_a_sweep_cuts_the_batch_that_it_is_given_as_often_as_it_can_be_cut():
    with Runner(POCKET, "inline") as runner:
        sweep = load(LESSON).sweep("microbatches", runner, Job(model=replace(SMALL, layers=4), batch=6))
    assert [row["microbatches"] for row in sweep.rows] == [1, 2, 4, 8] and "24 sequences" in sweep.title


def test_the_sweep_over_microbatches_names_the_idle_share_that_no_number_of_them_ends():
    with Runner(POCKET, "inline") as runner:
        sweep = load(LESSON).sweep("microbatches", runner, Job())
    said = re.search(r"idle for at least ([\d.]+)% of the step", sweep.sentence)
    assert said
    least = float(said[1]) / 100
    # 8 layers and a head of 0.612, in seconds; the last GPU has 2 of them, and the head
    assert least == pytest.approx(1 - 8.612 / 4 / 2.612, abs=0.005)
    assert all(row["bubble share"] > least for row in sweep.rows)


def test_the_overhead_sweep_finds_that_more_microbatches_are_not_free():
    with Runner(POCKET, "inline") as runner:
        sweep = load(LESSON).sweep("overhead", runner, Job(model=replace(SMALL, layers=4)))
    shares = [row["bubble share"] for row in sweep.rows]
    assert shares == sorted(shares, reverse=True)
    best = min(sweep.rows, key=lambda row: row["step_seconds"])
    assert best["microbatches"] < 32 and f"microbatches {best['microbatches']}" in sweep.sentence


@pytest.mark.parametrize(
    ("seconds", "kept", "said"),
    [
        ((1.0, 1.0), 4.0, "the same bubble: 10% of the step. 1F1B keeps 50% of the activations of GPipe."),
        ((1.0, 2.0), 4.0, "bubbles of 10% and 20% of the step. 1F1B keeps 50% of the activations of GPipe."),
        ((1.0, 1.0), 8.0, "the same bubble: 10% of the step. 1F1B keeps as many activations as GPipe."),
    ],
)
def test_of_gpipe_and_1f1b_only_that_is_said_to_be_the_same_which_is(seconds, kept, said):
    rows: Any = {
        name: Measurement(
            name, 4, step_seconds=10.0, bubble_seconds=bubble, peak_memory_bytes={"activations": held}
        )
        for name, bubble, held in zip(("GPipe", "1F1B"), seconds, (8.0, kept))
    }
    assert " ".join(load(LESSON).notice(rows)) == f"GPipe and 1F1B have {said}"


def test_the_share_that_weight_gradients_fill_is_told_of_the_schedule_that_differs_in_them_alone():
    bubbles = {"1F1B": 4.0, "ZB-H1": 3.0, "ZB-V": 2.0}
    rows: Any = {
        name: Measurement(name, 4, step_seconds=10.0, bubble_seconds=bubble)
        for name, bubble in bubbles.items()
    }
    filled, placed = load(LESSON).notice(rows)
    assert filled == "Filling the bubble with weight gradients takes it from 40% of the step to 30% (ZB-H1)."
    assert placed.endswith("20% (ZB-V).")


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (7, "3D takes 7 microbatches of 1 sequence: 8 do not divide a batch of 7."),
        (12, "3D takes 6 microbatches of 2 sequences: 8 do not divide a batch of 12."),
        (11, "3D takes 1 microbatch of 11 sequences: 8 do not divide a batch of 11."),
        (16, None),
    ],
)
def test_a_batch_that_8_does_not_divide_is_cut_as_often_as_it_can_be_and_that_is_said(batch, says, capsys):
    arguments = ["--batch", str(batch), "--gpus", "3", "--timeline", "none", "--engine", "inline"]
    assert lesson_main(load(LESSON), [*arguments, "--strategy", "GPipe", "--strategy", "1F1B"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "microbatch" in line] == [says] * bool(
        says
    )


@pytest.mark.parametrize(
    ("batch", "gpus", "number"),
    [
        (8, 4, 8),
        (12, 4, 4),
        (6, 4, 6),
        (12, 3, 6),
        (12, 2, 6),
        (14, 2, 2),
        (14, 4, 7),
        (9, 1, 3),
        (14, 1, 7),
        (8, 0, 8),
    ],
)
def test_whole_rounds_of_microbatches_are_taken_where_the_batch_allows_them(batch, gpus, number):
    assert most_parts(batch, 8, gpus) == number


@pytest.mark.parametrize("chosen", [("--microbatches", "4"), ("--strategy", "MLP on two GPUs")])
def test_who_says_how_many_microbatches_is_not_told_what_is_usual(chosen, capsys):
    assert (
        lesson_main(load(LESSON), ["--batch", "12", "--timeline", "none", "--engine", "inline", *chosen]) == 0
    )
    assert "do not divide" not in capsys.readouterr().out


def test_naive_takes_the_microbatches_that_are_asked_for_and_holds_one_of_them():
    """A quarter as many of them are four times as large."""
    two, eight = (
        measured(LESSON, "naive", DEFAULT.replace(microbatches=m), 4).peak_memory_bytes["activations"]
        for m in (2, 8)
    )
    assert two == 4 * eight


def test_schedules_that_eight_gpus_are_too_many_for_say_so_and_the_others_run():
    job = Job(model=replace(SMALL, layers=8), batch=4, **load(LESSON).defaults | {"microbatches": 4})
    rows: dict[str, Any] = {
        row.name: row for row in run_lesson(load(LESSON), job, POCKET, 8, [], "inline").report.strategies
    }
    refused = {name for name, row in rows.items() if row.error}
    assert refused == {"interleaved", "ZB-V", "DualPipeV"} and "fill at most 10." in rows["ZB-V"].error
    assert rows["1F1B"].gpus == 8 and rows["1F1B"].max_gradient_difference <= 1e-5


def test_stages_that_cannot_be_filled_are_refused_before_more_microbatches_are_asked_for():
    """More microbatches would not help interleaved: the next refusal was that of its 20 stages."""
    run = run_lesson(load(LESSON), Job(microbatches=8, stage_chunks=2), POCKET, 10, [], "inline")
    errors = {row.name: row.error or "" for row in run.report.strategies}
    assert errors["interleaved"] == errors["ZB-V"] and "cannot fill 20 stages" in errors["ZB-V"]


def test_where_no_schedule_of_the_contrast_can_run_the_lesson_says_why():
    with pytest.raises(
        UserError,
        match="8 layers cannot fill 16 stages: .* they fill at most 10",
    ):
        run_lesson(load(LESSON), Job(microbatches=8), POCKET, 16, [], "inline")


def test_the_sweep_over_chunks_has_links_that_cost_nothing_beside_those_that_do():
    with Runner(POCKET, "inline") as runner:
        rows = load(LESSON).sweep("chunks", runner, Job()).rows
    steps = {(row["links"], row["chunks"]): row["step_seconds"] for row in rows}
    assert all(row["exposed share"] == 0 for row in rows if row["links"] == "free")
    assert all(steps["free", v] < steps["inside", v] < steps["across", v] for v in (1, 2, 4))
