"""Claims about EP: what travels, what is averaged, who waits for whom, and when dividing the experts pays."""

import sys
from dataclasses import replace
from math import fsum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.registry import file_of, load, module_of
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.lessons.sweeps import routing_figures
from ndparallel.model.units import Routed
from ndparallel.results.measure import breakdown, bytes_sent
from ndparallel.training.job import Job
from tests.support.common import measured, run, strategy

LESSON = "ep_expert_parallel"
JOB = Job()
HIDDEN, FFN = JOB.model.hidden, JOB.model.expert_ffn
ROUTER, EXPERT = HIDDEN * 8 * 4, 2 * HIDDEN * FFN * 4  # bytes


def ring(gpus: int, nbytes: int) -> float:
    return 2 * (gpus - 1) / gpus * nbytes


def chosen(name: str):
    return strategy(LESSON, f"experts, {name}")


@pytest.mark.parametrize("name", ["divided", "skewed"])
def test_a_row_travels_to_its_expert_and_back_and_so_does_its_gradient(name):
    results = run(chosen(name), JOB, 4)
    routed = [result.value.routed[0]["experts", 0] for result in results]
    sent = np.array([each.sent_rows for each in routed]).reshape(4, 4, 2).sum(axis=2)  # from, to
    for rank, result in enumerate(results):
        leaving, coming = sent[rank].sum() - sent[rank, rank], sent[:, rank].sum() - sent[rank, rank]
        counts = 3 * 2 * 4  # two experts of each other GPU
        rows = 2 * (leaving + coming) * HIDDEN * 4
        assert bytes_sent(result.events) == pytest.approx(rows + counts + ring(4, ROUTER))


@pytest.mark.parametrize(("name", "gpus", "copies"), [("everywhere", 4, 4), ("everywhere", 8, 8)])
def test_where_all_experts_are_everywhere_their_gradients_travel_and_no_row(name, gpus, copies):
    sent = measured(LESSON, f"experts, {name}", JOB, gpus).bytes_sent_per_gpu
    assert sent == pytest.approx(ring(gpus, ROUTER + 8 * EXPERT))


def test_ep_divides_dp_each_expert_is_averaged_over_dp_by_ep_ranks():
    results = run(chosen("ep divides dp"), JOB, 8)
    calls = {
        event[3][0]: len(event[8]) for event in results[0].events if event[2] == "collective" and event[6]
    }
    assert calls == {"ep": 4, "dp": 8, "expert_dp": 2}


def test_most_of_what_ep_waits_for_is_an_uneven_router():
    """With sizes alone every expert gets as many rows. Then the same bytes take hardly more time than DP in
    the model, and less in one layer."""
    names = ("EP", "DP with experts", "experts, divided", "experts, everywhere")
    uneven, even = (
        {name: measured(LESSON, name, job, 4) for name in names}
        for job in (JOB, JOB.replace(sizes_only=True))
    )
    assert even["EP"].bytes_sent_per_gpu == pytest.approx(uneven["EP"].bytes_sent_per_gpu, rel=0.01)
    assert uneven["EP"].step_seconds > 1.15 * uneven["DP with experts"].step_seconds
    assert even["EP"].step_seconds < 1.01 * even["DP with experts"].step_seconds
    assert uneven["experts, divided"].step_seconds > uneven["experts, everywhere"].step_seconds
    assert even["experts, divided"].step_seconds < even["experts, everywhere"].step_seconds
    assert even["EP"].exposed_communication_seconds < 0.2 * uneven["EP"].exposed_communication_seconds


def test_over_two_nodes_ep_within_each_beats_ep_over_both_and_no_ep():
    """Rows stay in the node, and only copies of experts are averaged across."""
    seconds = {
        name: measured(LESSON, f"experts, {name}", JOB, 8).step_seconds
        for name in ("everywhere", "divided", "ep divides dp")
    }
    assert seconds["everywhere"] > 1.5 * seconds["divided"] > 1.5 * 1.2 * seconds["ep divides dp"]


def test_the_gpu_of_the_favourite_computes_as_much_longer_as_it_has_more_rows():
    results = run(chosen("skewed"), JOB, 4)
    rows = np.array([sum(result.value.routed[0]["experts", 0].expert_rows) for result in results])
    seconds = np.array([breakdown(each.events, each.end_seconds).compute for each in results])
    assert rows.argmax() == 0 and rows[0] > 1.8 * rows.mean()
    assert seconds / seconds.sum() == pytest.approx(rows / rows.sum(), rel=0.15)


@pytest.mark.parametrize("name", ["divided", "ep divides dp", "overlapped", "skewed"])
def test_what_the_layer_below_gets_is_one_gpus(name, monkeypatch):
    """The gradient of the tokens, which no weight's gradient shows; each rank's is of a mean over its own
    tokens."""
    load(LESSON)
    module = sys.modules[LESSON]
    found: dict[tuple[int, int], list] = {}

    def spied(layer, batch, drows, backward=module.dispatch_backward):
        key = layer.job.mesh.world_size, layer.gpu.rank
        found.setdefault(key, []).append(backward(layer, batch, drows))
        return found[key][-1]

    monkeypatch.setattr(module, "dispatch_backward", spied)
    job, cut = JOB.replace(dtype="float64"), chosen(name)
    run(cut, job, 4)
    assert cut.reference
    run(replace(cut, program=cut.reference, mesh=lambda gpus: job.mesh), job, 1)
    parts = np.concatenate([dx for rank in range(4) for dx in found[4, rank]])
    assert parts / 4 == pytest.approx(found[1, 0][0], rel=1e-9, abs=1e-12)


def test_experts_that_count_their_rows_as_one_mean_get_another_gradient(monkeypatch):
    load(LESSON)
    from ndparallel.training.expert_layer import ExpertLayer

    whole = ExpertLayer.experts_weight

    def undivided(layer, batch):
        whole(layer, batch)
        layer.a.gradient *= layer.ep.size

    monkeypatch.setattr(ExpertLayer, "experts_weight", undivided)
    with Runner(POCKET, "inline") as runner:
        row, _ = runner.measured(entry_of(chosen("divided"), JOB, 4))
    assert row.max_gradient_difference and row.max_gradient_difference > 0.1


@pytest.mark.parametrize(("sweep", "last"), [("experts", 64), ("capacity", 1.0)])
def test_what_the_sweeps_are_for(sweep, last):
    lesson = load(LESSON)
    with Runner(POCKET, "inline") as runner:
        rows = lesson.sweep(sweep, runner, JOB).rows
    if sweep == "experts":
        everywhere, divided = rows[:5], rows[5:]
        assert everywhere[-1]["sent_bytes"] == pytest.approx(16 * everywhere[0]["sent_bytes"])
        assert divided[-1]["sent_bytes"] < 1.15 * divided[0]["sent_bytes"]
        faster = [one["step_seconds"] < other["step_seconds"] for one, other in zip(divided, everywhere)]
        assert faster == [False, False, True, True, True]
    else:
        dropped = [row["dropped share"] for row in rows]
        seconds = [row["step_seconds"] for row in rows]
        assert dropped == sorted(dropped) and seconds == sorted(seconds, reverse=True)
        assert dropped[0] == 0 and rows[-1]["busiest to mean"] < 1.05


def test_the_dropped_share_is_of_all_choices_and_the_busiest_rank_is_held_against_the_mean():
    """Two ranks: of 10 + 10 choices 2 + 3 are dropped, and one rank works on 9 rows, the other on 6."""
    routed = [Routed((5, 4), (4, 4), 2), Routed((3, 3), (3, 4), 3)]
    results: list[Any] = [
        SimpleNamespace(value=SimpleNamespace(routed=[{("layer", 0): each}])) for each in routed
    ]
    assert routing_figures(results) == {"dropped share": 5 / 20, "busiest to mean": 9 / 7.5}


def test_the_mean_of_the_busiest_ranks_is_rounded_once_in_every_python():
    rows = [(9, 7, 4), (6, 3, 3)]  # of each rank, in three layers: 9 / 7.5, 7 / 5 and 4 / 3.5
    results: list[Any] = [
        SimpleNamespace(
            value=SimpleNamespace(routed=[{layer: Routed((n,), (n,)) for layer, n in enumerate(own)}])
        )
        for own in rows
    ]
    assert routing_figures(results)["busiest to mean"] == fsum((9 / 7.5, 7 / 5, 4 / 3.5)) / 3


def test_a_lesson_that_runs_as_a_script_is_that_module_and_no_other_lesson(monkeypatch):
    script: Any = SimpleNamespace(__file__=f"{file_of(LESSON)}", LESSON=load(LESSON))
    monkeypatch.setitem(sys.modules, "__main__", script)
    found = [module_of.__wrapped__(name) is script for name in (LESSON, "0d_single_gpu")]
    assert found == [True, False]
