"""docs/extending.md: what its examples add works everywhere, without a word about it anywhere else."""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import ALGORITHMS, Algorithm, Group, Member, all_gather, register
from gpu import GPU
from ndparallel.base.errors import UserError
from ndparallel.collective import prices
from ndparallel.collective.lockstep import twin
from ndparallel.collective.runs import LOCKSTEP, measure
from ndparallel.commands.command_line import main
from ndparallel.engines.launch import launch
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.frameworks import FRAMEWORKS
from ndparallel.lessons.lesson import Strategy
from ndparallel.lessons.main import main as lesson_main
from ndparallel.lessons.registry import load
from ndparallel.parallel.mesh import Mesh
from ndparallel.pipeline import recipe
from ndparallel.pipeline.catalog import RECIPES, build, written_schedules
from ndparallel.pipeline.checker import explain
from ndparallel.pipeline.recipe import Recipe
from ndparallel.pipeline.timing import time_schedule
from ndparallel.pipeline.work import Work
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.huggingface.families import FAMILIES
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import STACKS, find_stack
from ndparallel.results.columns import COLUMNS, Column
from ndparallel.search.bounds.lower_bound import lower_bound
from ndparallel.search.search import search
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica
from tests.support.collective_programs import hardware
from tests.support.common import SMALL, loss_and_gradient_difference, pipeline, run

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"


def follow(section: str) -> None:
    """Run the Python of one section of the page."""
    exec(blocks(section, "python"), {"__name__": "example"})


def blocks(section: str, language: str) -> str:
    text = PAGE.read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", text, flags=re.S))


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
    bound = lower_bound(job(), plan).seconds[0]
    assert bound <= predict(job(), plan).seconds <= 1.1 * bound
    found = search(job(), 16, {"schedule": schedule, "pp": 4}).answers
    assert found and all(answer.plan.schedule == schedule for answer in found)
    assert main(["schedule", schedule, "--stages", "4", "--microbatches", "8"]) == 0
    assert "hides a short message" in " ".join(capsys.readouterr().out.split())


def test_a_schedule_that_a_framework_has_is_searched_when_a_plan_is_for_it(monkeypatch):
    monkeypatch.setitem(RECIPES, "new", replace(RECIPES["1f1b"], names={"megatron": "new"}))
    found = {name: framework.can_launch()["schedule"] for name, framework in FRAMEWORKS.items()}
    assert "new" in found["megatron"] and "new" not in found["torchtitan"]


def test_a_record_that_its_lists_contradict_is_told_and_those_of_the_package_are_not(monkeypatch, capsys):
    """By the record plans are priced and left out, so that a wrong one would be a wrong plan."""
    wrong = replace(RECIPES["zb-h1"], peak_in_flight=lambda m, r, p, v: 1, splits=False, pairs=True)
    monkeypatch.setitem(RECIPES, "wrong", wrong)
    assert main(["schedule", "1f1b", "wrong"]) == 0
    assert " ".join(capsys.readouterr().out.split()).endswith(
        "The record of wrong is wrong: peak_in_flight of rank 0 is 1, and it keeps 4; splits is False, and "
        "should be True; pairs is True, and should be False. Plans are predicted by it."
    )
    monkeypatch.delitem(RECIPES, "wrong")
    assert main(["schedule", *written_schedules(), "searched"]) == 0
    assert "The record" not in capsys.readouterr().out


def test_a_record_that_puts_the_peak_before_the_first_backward_is_told_where_it_comes_later(
    monkeypatch, capsys
):
    """By it a search leaves plans out: one microbatch alone through the pipeline, and then GPipe's order."""

    def one_alone_first(at):
        rest = range(1, at.microbatches)
        yield from (at.F(), at.B(), *(at.F() for _ in rest), *(at.B() for _ in rest))

    record = Recipe(one_alone_first, "here", peak_in_flight=lambda m, r, p, v: m - 1)
    monkeypatch.setitem(RECIPES, "late", record)
    main(["schedule", "late"])
    assert "The record" not in capsys.readouterr().out
    monkeypatch.setitem(RECIPES, "late", replace(record, peaks_before_backward=True))
    main(["schedule", "late"])
    assert " ".join(capsys.readouterr().out.split()).endswith(
        "The record of late is wrong: peaks_before_backward is True, and should be False: rank 0 takes 1 of "
        "its 7 microbatches forward before its first backward. Plans are predicted by it."
    )


def test_a_schedule_of_the_package_keeps_its_name():
    with pytest.raises(UserError, match="there is a schedule '1f1b' already, .*: take another name"):
        recipe.register("1f1b", source="here")(lambda at: iter(()))


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


def ours(me: Member, whole: np.ndarray, combine: Callable) -> None:
    pass


def late(me: Member, whole: np.ndarray, combine: Callable) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("name", "run", "sentence"),
    [
        ("ring", ours, "has an algorithm 'ring' already, ring_all_reduce of collectives: take another name"),
        ("mine", lambda me, whole: None, r"mine takes \(me, whole\): it must take \(me, whole, combine\)"),
        ("mine", late, "all_reduce mine is a plain function, without yield and async"),
    ],
)
def test_an_algorithm_that_could_not_be_run_as_the_others_is_refused_where_it_is_entered(name, run, sentence):
    before = dict(ALGORITHMS["all_reduce"])
    with pytest.raises(UserError, match=sentence):
        register("all_reduce", name, lambda p, a, b: a + b)(run)
    assert before == ALGORITHMS["all_reduce"]


def test_an_algorithm_of_ones_own_may_be_entered_again(algorithm):
    follow("A collective's algorithm")


def test_a_twin_of_an_algorithm_that_there_is_not_is_told_the_nearest():
    with pytest.raises(UserError, match="unknown algorithm of all_gather 'rign'. Did you mean 'ring'"):
        twin("all_gather", "rign")(ours)


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


def direct(me: Member, pieces: list[np.ndarray]) -> None:
    """Each sends to each, and waits at once: the latency is paid once a neighbour."""
    for distance in range(1, me.size):
        me.send(me.index + distance, pieces[me.index])
        source = (me.index - distance) % me.size
        me.receive(source, pieces[source])


def stuck(me: Member, pieces: list[np.ndarray]) -> None:
    """Each waits for the next, and sends nothing."""
    me.receive(me.index + 1, pieces[0])


@pytest.fixture
def added(monkeypatch):
    def add(run, seconds=lambda p, a, b: (p - 1) * (a + b / p)):
        monkeypatch.setitem(ALGORITHMS["all_gather"], "new", Algorithm(run, seconds))

    prices.choose_algorithm.cache_clear()
    yield add
    prices.choose_algorithm.cache_clear()


def collective(capsys, *options: str) -> str:
    main(["collective", "all_gather", *options])
    told = capsys.readouterr()
    return " ".join((told.out + told.err).split())


def test_a_closed_form_that_is_not_the_runs_time_is_told(added, capsys):
    added(direct)
    assert "one of the two is wrong" not in collective(capsys)
    added(direct, lambda p, a, b: a + (p - 1) / p * b)
    told = "new takes 58.4 us, and its closed form says 10.4 us, by which it is priced and chosen: one of"
    assert told in collective(capsys) and told in collective(capsys, "--algorithm", "new")
    assert told not in collective(capsys, "--bytes", "8")


def test_an_algorithm_that_gets_stuck_or_has_no_twin_is_one_sentence(added, capsys):
    added(stuck)
    for options in ((), ("--algorithm", "new"), ("--algorithm", "new", "--show")):
        told = collective(capsys, "--ranks", "4", *options)
        assert told.startswith("error: all_gather new: deadlock: rank 0, ")
    assert collective(capsys, "--ranks", "128") == (
        "error: all_gather new has no lockstep twin: enter one with @twin, or take --engine inline."
    )


def test_an_algorithm_of_the_packages_own_that_gets_stuck_is_told_with_its_line(added, capsys):
    code = "def stuck(me, pieces):\n    me.receive(me.index + 1, pieces[0])\n"
    written: dict[str, Any] = {}
    exec(compile(code, prices.__file__.replace("prices.py", "stuck.py"), "exec"), written)
    added(written["stuck"])
    told = collective(capsys, "--ranks", "4", "--algorithm", "new")
    assert told.count("in stuck.py:2, waits for") == 4 and "unknown" not in told


# ------------------------------------------------------------------------------------------------------ a GPU


def test_a_gpu_of_the_page_is_its_preset_with_what_differs(tmp_path, capsys):
    path = tmp_path / "our-h100.toml"
    path.write_text(blocks("A GPU", "toml"))
    made, base = find_hardware(str(path)), find_hardware("h100")
    bandwidths = [hardware.across.bandwidth_bytes_per_second for hardware in (made, base)]
    assert made.name == "our-h100" and bandwidths[0] / bandwidths[1] == pytest.approx(1 / 2)
    assert (made.memory_bytes, made.inside) == (base.memory_bytes, base.inside)
    for plan in (Plan(tp=8, dp=2), Plan(dp=16, zero=3)):
        slower, faster = (
            predict(replace(job(), hardware=hardware), plan).step.breakdown["compute"]
            for hardware in (made, base)
        )
        assert faster < slower < faster * 700 / 500  # fewer watts, and not every kernel is bound by them
    options = ["--engine", "inline", "--strategy", "DDP ring", "--timeline", "none", "--hardware", str(path)]
    assert lesson_main(load("1d_data_parallel"), options) == 0
    assert "on our-h100" in capsys.readouterr().out.replace("\u00a0", " ")


# ------------------------------------------------------------------------------------------------- a strategy


@pytest.fixture
def strategy() -> Iterator[str]:
    strategies: Any = load("1d_data_parallel").strategies
    before = [*strategies]
    follow("A strategy of a lesson")
    yield strategies[-1].name
    del strategies[-1]
    assert strategies == before


def row_of(capsys, *options: str) -> dict:
    assert lesson_main(load("1d_data_parallel"), ["--engine", "inline", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)["strategies"][-1]


def test_a_strategy_of_the_page_computes_what_one_gpu_computes_in_fewer_steps(strategy, capsys):
    options = ["--gpus", "8", "--dtype", "float64"]
    tree, ring = (row_of(capsys, *options, "--strategy", name) for name in (strategy, "DDP ring"))
    assert tree["name"] == "DDP tree" and tree["max_gradient_difference"] <= 1e-12
    assert tree["loss"] == pytest.approx(ring["loss"], rel=1e-12)
    # a tree sends up and down every edge but the root's: (p - 1) / p of 2 messages, as a ring in all
    assert tree["bytes_sent_per_gpu"] == pytest.approx(ring["bytes_sent_per_gpu"], rel=1e-3)
    assert tree["bytes_sent_max"] > ring["bytes_sent_max"]


def only_the_even_average(gpu: GPU, job: Job) -> Outcome:
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets[gpu.rank % 2 * len(replica.buckets) :]:
            bucket.all_reduce()
        replica.optimizer_step()
    return replica.outcome


def test_a_strategy_that_gets_stuck_is_one_sentence(monkeypatch, capsys):
    strategies: Any = load("1d_data_parallel").strategies
    stuck = Strategy("stuck", only_the_even_average, lambda gpus: Mesh(dp=gpus))
    monkeypatch.setitem(load("1d_data_parallel").__dict__, "strategies", [*strategies, stuck])
    code = lesson_main(load("1d_data_parallel"), ["--engine", "inline", "--strategy", "stuck"])
    told = capsys.readouterr()
    assert code == 2 and told.err.startswith("error: deadlock: rank ") and "has ended." in told.err
    assert told.err.count("\n") == 1 and "\\n" not in told.err


# -------------------------------------------------------------------------------------------- a launch format


@pytest.fixture
def framework() -> Iterator[str]:
    before = dict(FRAMEWORKS)
    follow("A launch format")
    (name,) = FRAMEWORKS.keys() - before.keys()
    yield name
    del FRAMEWORKS[name]
    assert before == FRAMEWORKS


ASKED = ["plan", "--model", "llama-3-8b", "--gpus", "16", "--global-batch", "64"]


def test_a_launch_format_of_the_page_is_searched_emitted_and_explained(framework, capsys):
    assert main([*ASKED, "--emit", framework]) == 0
    found = json.loads(capsys.readouterr().out)
    degrees = [found["distributed"][f"{axis}_size"] for axis in ("tp", "cp", "pp", "dp")]
    assert math.prod(degrees) == 16 and found["distributed"]["pp_engine"] in ("1f1b", "afab")
    samples = found["training"]["micro_batch_size"] * found["training"]["gradient_accumulation_steps"]
    assert samples * found["distributed"]["dp_size"] == 64
    assert main([*ASKED, "--framework", framework, "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)["recommended"]["plan"]
    assert chosen["recompute"] == "none" and not chosen["sequence_parallel"]  # which it has no keys for
    assert main(["flags", framework]) == 0
    assert "distributed.tp_size = N" in capsys.readouterr().out


def test_a_launch_format_of_the_page_refuses_what_it_cannot_launch_and_is_gone_afterwards(framework, capsys):
    assert main([*ASKED, "--zero", "3", "--emit", framework]) == 2
    assert "no key for zero = 3" in capsys.readouterr().err
    del FRAMEWORKS[framework]
    assert main([*ASKED, "--emit", framework]) == 2
    assert "invalid choice: 'picotron'" in capsys.readouterr().err
    follow("A launch format")


# ------------------------------------------------------------------------------------------- a software stack


@pytest.fixture
def stack() -> Iterator[str]:
    before = dict(STACKS)
    follow("A software stack")
    (name,) = STACKS.keys() - before.keys()
    yield name
    del STACKS[name]


def test_a_software_stack_of_the_page_waits_for_all_that_tensor_parallelism_sends(stack, capsys):
    plan = "plan --model llama-3-8b --gpus 8 --global-batch 64 --tp 2 --json"
    steps = {}
    for software in (stack, "megatron-core"):
        assert main([*plan.split(), "--software", software]) == 0
        steps[software] = json.loads(capsys.readouterr().out)
    bare, usual = (steps[software]["breakdown_seconds"] for software in (stack, "megatron-core"))
    assert bare["tp"] > usual["tp"] > 0
    assert bare["compute"] == usual["compute"]


# --------------------------------------------------------------------------------------------- a model family


@pytest.fixture
def family() -> Iterator[str]:
    before = dict(FAMILIES)
    follow("A model family")
    (name,) = FAMILIES.keys() - before.keys()
    yield name
    del FAMILIES[name]


def test_a_model_family_of_the_page_has_as_many_parameters_as_by_hand(family, tmp_path):
    """InternLM2.5-7B by hand: two tables, attention, three matrices and two norms a layer, the last norm."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 92544}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "bias": False}
    path = tmp_path / "internlm2-7b.json"
    path.write_text(json.dumps({"model_type": family} | sizes | heads))
    layer = 4096 * (32 + 2 * 8) * 128 + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096
    total = 2 * 92544 * 4096 + 32 * layer + 4096
    assert find_model(str(path)).parameters().total == total == 7_737_708_544


# --------------------------------------------------------------------------------------------------- a column


@pytest.fixture
def column() -> Iterator[Column]:
    before = [*COLUMNS]
    follow("A column of the lessons' table")
    yield COLUMNS[-1]
    del COLUMNS[-1]
    assert before == COLUMNS


def test_a_column_of_the_page_is_in_the_table_and_in_json(column, capsys):
    row = row_of(capsys, "--strategy", "DDP overlapped")
    hidden, exposed = (row[f"{kind}_communication_seconds"] for kind in ("hidden", "exposed"))
    assert 0 < row[column.json] == hidden / (hidden + exposed)
    options = ["--engine", "inline", "--strategy", "DDP overlapped", "--timeline", "none"]
    assert lesson_main(load("1d_data_parallel"), options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if "=0D" in line] == [column.head]
    assert f"{row[column.json]:.0%}" in next(line for line in lines if line.startswith("DDP overlapped"))
    assert max(map(len, lines)) <= 100
