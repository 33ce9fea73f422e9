"""Claims about NaN and infinity: a run that has one is told, with where it began, and never passes as equal
to the single GPU's."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ndparallel.base.json_text import json_text
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.lesson import Strategy
from ndparallel.lessons.main import main
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.lessons.table import run_entries
from ndparallel.model.nonfinite import first_trace
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.slices import Parameter
from ndparallel.training.job import Job
from ndparallel.training.replica import Holding, Outcome, Replica
from tests.support.common import SMALL

JOB = Job(model=SMALL)
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


def poisoned(gpu, job, where=lambda replica: replica.units[2].w["out"]):
    """DDP by a ring; GPU 2 has one weight that is not finite."""
    replica = Replica(gpu, job)
    if gpu.rank == 2:
        where(replica)[0, 0] = np.inf
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.all_reduce()
        replica.optimizer_step()
    return replica.outcome


def poisoned_gradient(gpu, job):
    """The same numbers as DDP's until the last moment: one gradient of GPU 1 is spoilt when all has been
    computed."""
    outcome = poisoned(gpu, job, lambda replica: np.empty((1, 1)))
    if gpu.rank == 1:
        outcome.gradients[0].array[-1] = np.nan
    return outcome


def run_of(program, engine="inline", **changes) -> Any:
    """The run, and with it the names that were announced."""
    announced: list[str] = []
    strategy = Strategy("ours", program, lambda gpus: Mesh(dp=gpus))
    runner = Runner(POCKET, engine, announced.append)
    run: Any = run_entries(
        "test", [entry_of(strategy, JOB.replace(**changes), 4)], JOB.replace(**changes), runner
    )
    run.announced = announced
    return run


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_it_is_told_which_operation_of_which_gpu_made_the_first_infinity(engine):
    run = run_of(poisoned, engine)
    (told,) = (remark for remark in run.report.remarks() if "NaN" in remark)
    assert "ours has NaN or infinity, first in forward layers.1 out on GPU 2 at " in told
    assert not run.report.equal()
    assert [row[-1] for row in run.report.rows()] == ["NaN"]


def test_a_run_that_is_looked_through_again_leaves_the_next_one_alone_that_has_begun_already():
    sound = load("1d_data_parallel").strategies[0]
    spoilt = replace(sound, name="ours", program=poisoned)
    entries = [entry_of(strategy, JOB, 4) for strategy in (spoilt, sound, spoilt, sound)]
    rows = [row for row, _ in measured_in_turn(entries)]
    assert [row.not_finite is None for row in rows] == [False, True, False, True]
    assert rows[1] == rows[3] and rows[2].not_finite == rows[0].not_finite
    assert rows[1].max_gradient_difference < 1e-5


def measured_in_turn(entries):
    with Runner(POCKET, "processes") as runner:
        yield from runner.measured_in_turn(entries)


def test_its_json_has_null_for_every_such_number():
    told = json_text(run_of(poisoned).report.as_dict())
    (row,) = json.loads(told, parse_constant=pytest.fail)["strategies"]
    assert (row["loss"], row["max_gradient_difference"]) == (None, None)
    assert row["not_finite"].startswith("first in forward layers.1 out on GPU 2")


def test_what_only_the_gradients_show_is_told_by_the_first_of_them():
    run = run_of(poisoned_gradient)
    assert (
        not run.report.equal()
        and run["ours"].not_finite.startswith("in the gradients of ")
        and "GPU 1" in run["ours"].not_finite
    )


def test_a_run_that_is_well_is_not_run_again():
    assert run_of(lambda gpu, job: poisoned(gpu, job, lambda replica: np.empty((1, 1)))).announced == [
        "single GPU",
        "ours",
    ]


def test_training_that_diverges_is_told_for_the_single_gpu_as_for_the_others(capsys):
    strategies = [*load("1d_data_parallel").strategies, load("0d_single_gpu").strategies[0]]
    lesson = replace(
        load("1d_data_parallel"), defaults={"learning_rate": 1e25}, strategies=strategies, strategies_for=None
    )
    assert (
        main(
            lesson,
            ["--steps", "3", "--engine", "inline", "--strategy", "DDP ring", "--strategy", "single GPU"],
        )
        == 1
    )
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("NaN or infinity, first in ") == 2


@pytest.mark.parametrize("kind", ["losses", "gradients", "weights"])
def test_the_first_trace_names_what_and_where(kind):
    holding = Holding([Parameter("layers.1.out", (2,), (slice(0, 2),), 1.0)], 0, np.array([1.0, np.inf]))
    traces: dict[str, Any] = {kind: [np.nan] if kind == "losses" else [holding]}
    expected = "in the loss on GPU 1" if kind == "losses" else f"in the {kind} of layers.1 on GPU 1"
    assert first_trace([Outcome(losses=[1.0]), Outcome(**traces)]) == expected
    assert first_trace([Outcome(losses=[1.0])]) is None
