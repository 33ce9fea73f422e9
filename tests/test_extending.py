"""docs/extending.md: what its examples add works everywhere, without a word about it anywhere else."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectives import ALGORITHMS, Group, all_gather
from gpu import GPU
from ndparallel.collective import prices
from ndparallel.collective.runs import LOCKSTEP, measure
from ndparallel.commands.command_line import main
from ndparallel.engines.launch import launch
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.pipeline.catalog import RECIPES, build
from ndparallel.pipeline.checker import explain
from ndparallel.pipeline.timing import time_schedule
from ndparallel.pipeline.work import Work
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import find_stack
from ndparallel.search.bounds.price import price
from ndparallel.search.search import search
from ndparallel.training.job import Job
from tests.support.collective_programs import hardware
from tests.support.common import SMALL, loss_and_gradient_difference, pipeline, run

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"


def follow(section: str) -> None:
    """Run the Python of one section of the page."""
    text = PAGE.read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.S)), {"__name__": "example"})


# ------------------------------------------------------------------------------------------------- a schedule


@pytest.fixture
def schedule() -> Iterator[str]:
    before = dict(RECIPES)
    follow("A schedule")
    (name,) = RECIPES.keys() - before.keys()
    yield name
    del RECIPES[name]
    assert before == RECIPES


def job(batch: int = 64) -> TrainingJob:
    stack = find_stack("megatron-core")
    return TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), stack, 8192, batch)


def test_a_schedule_of_the_page_keeps_what_its_record_says_and_hides_messages(schedule):
    for ranks, microbatches in ((1, 3), (2, 1), (4, 8), (5, 3)):
        written = build(schedule, ranks, microbatches)
        assert explain(written) is None
        assert time_schedule(written, Work()).peak_held == [
            min(microbatches, ranks - rank + 1) for rank in range(ranks)
        ]
    seconds = {
        name: time_schedule(build(name, 4, 16), Work(latency=0.5)).makespan for name in (schedule, "1f1b")
    }
    assert seconds[schedule] < seconds["1f1b"]
    assert time_schedule(build(schedule, 4, 16), Work()).makespan == 3 * (16 + 4 - 1)


def test_a_schedule_of_the_page_computes_what_one_gpu_computes(schedule):
    given = Job(model=replace(SMALL, layers=4), microbatches=8, dtype="float64", steps=2)
    loss, gradients = loss_and_gradient_difference(run(pipeline(schedule), given, 4), given)
    assert loss <= 1e-12 and gradients <= 1e-12


def test_a_schedule_of_the_page_is_planned_searched_and_shown(schedule, capsys):
    plan = Plan(tp=2, pp=4, dp=2, schedule=schedule)
    bound = price(job(), plan).seconds[0]
    assert bound <= predict(job(), plan).seconds <= 1.1 * bound
    found = search(job(), 16, {"schedule": schedule, "pp": 4}).answers
    assert found and all(answer.plan.schedule == schedule for answer in found)
    assert main(["schedule", schedule, "--stages", "4", "--microbatches", "8"]) == 0
    assert "hides a short message" in " ".join(capsys.readouterr().out.split())


def test_a_schedule_of_the_page_is_gone_afterwards():
    with pytest.raises(Exception, match="1f1b-ahead"):
        build("1f1b-ahead", 4, 8)


# ---------------------------------------------------------------------------------- a collective's algorithm


@pytest.fixture
def algorithm() -> Iterator[str]:
    before = dict(ALGORITHMS["all_gather"])
    prices.choose_algorithm.cache_clear()
    follow("A collective's algorithm")
    (name,) = ALGORITHMS["all_gather"].keys() - before.keys()
    yield name
    del ALGORITHMS["all_gather"][name]
    prices.choose_algorithm.cache_clear()


def gathered(gpu: GPU, size: int, group: Group, algorithm: str) -> np.ndarray:
    mine = np.array_split(np.arange(size, dtype=float), group.size)[group.index(gpu.rank)]
    return all_gather(gpu, np.zeros(size), mine, group, algorithm=algorithm)


@pytest.mark.parametrize(("p", "size"), [(1, 3), (2, 7), (5, 12), (8, 8)])
def test_an_algorithm_of_the_page_gives_what_numpy_gives(algorithm, p, size):
    results = launch(gathered, p, hardware(), size, Group("all", tuple(range(p))), algorithm, engine="inline")
    for result in results:
        np.testing.assert_array_equal(result.value, np.arange(size))


@pytest.mark.parametrize("p", [1, 2, 5, 8])
def test_an_algorithm_of_the_page_takes_its_closed_form_on_an_engine_and_in_lockstep(algorithm, p):
    machine, group = hardware(), Group("all", tuple(range(p)))
    form = (p > 1) * 1e-6 + (p - 1) / p * 840 / 1e9
    for engine in ("inline", LOCKSTEP):
        measured = measure("all_gather", algorithm, group, machine, 840, engine)
        assert measured.seconds == pytest.approx(form, rel=1e-12)
        assert measured.formula_seconds == pytest.approx(form, rel=1e-12)


def test_an_algorithm_of_the_page_is_priced_over_nodes_as_it_runs(algorithm):
    machine, group = hardware(gpus_per_node=3), Group("all", tuple(range(8)))
    executed = measure("all_gather", algorithm, group, machine, 840, "inline")
    assert executed.formula_seconds is None
    assert prices.price("all_gather", algorithm, group, machine, 840) == pytest.approx(
        executed.seconds, rel=1e-12
    )


def test_an_algorithm_of_the_page_is_chosen_where_latency_counts_most(algorithm, capsys):
    machine = hardware(inside=(1e-3, 1e9))
    assert prices.choose_algorithm("all_gather", Group("all", tuple(range(8))), machine, 1000) == algorithm
    assert main(["collective", "all_gather", "--ranks", "4", "--algorithm", algorithm, "--show"]) == 0
    assert "latency is paid once" in " ".join(capsys.readouterr().out.split())
