"""Claims about what a pipeline rank waits for: the schedule's bubble, or a slower rank; and about what would
help."""

import json
from dataclasses import dataclass, replace

import pytest

from gpu import si
from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.describe import bound
from ndparallel.planner.imbalance import filled, held, imbalance_sentences, most_even
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import predict, step_of, time_step
from ndparallel.planner.software import find_stack
from ndparallel.planner.step.framework import FrameworkWorkload, framework_workload

PP3 = Plan(pp=3, dp=8, zero=1)


def job(model: str = "llama-3-8b", batch: int = 24) -> TrainingJob:
    shape = replace(find_model(model), prediction_layers=0)
    return TrainingJob(shape, find_hardware("h100"), find_stack("megatron-core"), 8192, batch)


@dataclass(frozen=True, eq=False)
class ByHand(FrameworkWorkload):
    """Of stages whose F takes so many seconds and whose B twice as many, and of messages that take no
    time."""

    forward: tuple[float, ...] = ()

    @property
    def columns(self):
        each = [TimeBreakdown(compute=seconds) for seconds in self.forward]
        return each, each, each

    def messages(self):
        return 0.0, 0.0


def timed(forward, microbatches, schedule="1f1b", ranks=None):
    ranks = ranks or len(forward)
    plan = Plan(pp=ranks, chunks=len(forward) // ranks, schedule=schedule)
    return step_of(ByHand(Pricing(job(batch=microbatches), plan), forward=tuple(map(float, forward))))


def parts(step, *kinds):
    return [pytest.approx(step.breakdown[kind], abs=1e-9) for kind in kinds]


def test_of_two_ranks_the_faster_waits_3_of_every_6_seconds_and_3_once():
    """The second begins at 1, works 6 s on each of 6 microbatches without a stop, and its last gradient takes
    2 s more: 1 + 36 + 2."""
    step = timed([1, 2], microbatches=6)
    assert parts(step, "compute", "bubble", "imbalance", "pp") == [18, 3, 18, 0]
    assert (step.rank, step.busiest) == (0, 1)


@pytest.mark.parametrize("schedule, ranks, bubble", [("1f1b", 4, 9), ("gpipe", 4, 9), ("interleaved", 2, 3)])
def test_where_stages_are_even_nothing_but_the_schedule_makes_a_rank_wait(schedule, ranks, bubble):
    """(P-1) (F+B), of which interleaving takes one stage's."""
    step = timed([1, 1, 1, 1], 8, schedule, ranks)
    assert step.breakdown["imbalance"] == 0.0
    assert parts(step, "bubble", "pp") == [bubble, 0]


@pytest.mark.parametrize("forward", [[1, 1, 3, 2], [2, 3, 1, 1], [1, 2, 2, 1]])
def test_the_bubble_is_as_long_for_any_number_of_microbatches_and_the_imbalance_grows_with_them(forward):
    steps = [timed(forward, microbatches) for microbatches in (8, 16, 64)]
    slower = 3 * (max(forward) - forward[0])
    assert [step.breakdown["imbalance"] for step in steps] == pytest.approx(
        [8 * slower, 16 * slower, 64 * slower]
    )
    assert [step.breakdown["bubble"] for step in steps] == pytest.approx([steps[0].breakdown["bubble"]] * 3)


def test_a_rank_as_busy_as_any_that_ends_last_waits_for_no_slower_one():
    step = timed([3, 1, 2, 1], 16)
    assert (step.rank, step.busiest, step.breakdown["imbalance"]) == (0, 0, 0.0)


@pytest.mark.parametrize("microbatches", [8, 64])
def test_what_unlike_stages_of_equal_ranks_wait_for_one_another_is_imbalance_and_no_message(microbatches):
    """Ranks of 1 + 1 + 2 layers work 12 s each on a microbatch, and a full pipeline takes 13 s for one
    more."""
    step, longer = (
        timed([1] * 8 + [2] * 4, number, "interleaved", ranks=4)
        for number in (microbatches, microbatches + 64)
    )
    more = (longer.seconds - step.seconds) / 64 - 12
    assert more == pytest.approx(1)
    assert parts(step, "imbalance", "pp") == [microbatches * more, 0]


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-h1", "zb-v", "v-half", "v-min", "dualpipev"])
def test_a_step_whose_messages_take_no_time_lacks_what_is_said_of_messages(name, monkeypatch):
    """With recomputation I takes thrice W, for which no order of zero bubble is made: v-min waits for that a
    third of its step, though no message is late."""
    chunks = 2 if name == "interleaved" else RECIPES[name].default_chunks
    plan = Plan(tp=4, pp=4, dp=2, chunks=chunks, zero=1, schedule=name, recompute="full")
    step = time_step(job(batch=64), plan)
    monkeypatch.setattr(FrameworkWorkload, "messages", lambda work: (0.0, 0.0))
    silent = time_step(job(batch=64), plan)
    assert step.breakdown["pp"] == pytest.approx(step.seconds - silent.seconds, abs=1e-9 * step.seconds)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("layers", [(16, 0, 8, 8), (16, 16, 0, 0)])
def test_a_stage_without_a_unit_hands_on_what_comes(layers, zero):
    """As in layouts whose stage has a prediction layer alone, which counts with the head here."""
    plan = Plan(pp=4, dp=2, zero=zero, stage_layers=layers)
    found, even = predict(job(batch=64), plan), predict(job(batch=64), replace(plan, stage_layers=()))
    assert found.memory[layers.index(0)].activations < even.memory[layers.index(0)].activations
    assert found.seconds > 1.4 * even.seconds


def test_an_order_that_is_made_for_other_work_is_told():
    plan = Plan(tp=4, pp=4, dp=2, chunks=2, zero=1, schedule="v-min", recompute="full")
    found = predict(job(batch=64), plan)
    assert found.step.breakdown["imbalance"] > 0.2 * found.seconds
    (sentence,) = imbalance_sentences(found)
    assert "the order of v-min is made for F, I and W that take as long as one another" in sentence
    (sentence,) = imbalance_sentences(
        predict(job(batch=64), replace(plan, stage_layers=(2, 6, 2, 6, 2, 6, 2, 6)))
    )
    assert "stages have 2 to 6 layers" in sentence, "another cause, which is not parted from the order's"


# ---------------------------------------------------------------------------------- real models, and in words


def test_more_layers_than_others_are_the_imbalance_of_real_models():
    """61 layers on 16 ranks: three dense ones first, and 4 of those with experts on most ranks. By hand: 120
    times the difference."""
    deepseek, plan = job("deepseek-v3", 15360), Plan(pp=16, dp=128, ep=64, zero=1)
    step, work = time_step(deepseek, plan), framework_workload(deepseek, plan)
    seconds = {kind: float(work.pricing.unit(kind).total.total) for kind in ("embedding", "dense", "experts")}
    assert (step.rank, step.busiest) == (0, 1)
    assert work.kinds[0] == ("embedding", *("dense",) * 3, "experts") and work.kinds[1] == ("experts",) * 4
    by_hand = 120 * (3 * seconds["experts"] - seconds["embedding"] - 3 * seconds["dense"])
    assert step.breakdown["imbalance"] == pytest.approx(by_hand)
    assert step.breakdown["bubble"] == pytest.approx(15 * 4 * seconds["experts"], rel=0.1)


def test_the_pipeline_of_llama_405b_waits_the_formulas_bubble_beside_its_unlike_stages():
    """(P-1)/V of the busiest rank's microbatch (2104.04473, section 2.2), whatever the number of
    microbatches."""
    plan = Plan(tp=8, pp=16, dp=8, chunks=7, zero=1, sequence_parallel=True, schedule="interleaved")
    for rounds in (1, 4):
        step = time_step(job("llama-3-405b", rounds * 16 * 8), plan)
        microbatch = (step.breakdown["compute"] + step.breakdown["tp"]) / (rounds * 16)
        assert step.busiest == step.rank
        assert step.breakdown["bubble"] == pytest.approx(15 / 7 * microbatch, rel=0.02)
        assert step.breakdown["pp"] < 0.03 * step.seconds


def test_another_split_saves_what_is_said():
    """The last of 3 ranks has 10 layers and a head that is worth two and more: the best pace is that of 12
    layers on the second rank."""
    found = predict(job(batch=192), PP3)
    (said,) = imbalance_sentences(found)
    assert "pipeline rank 0 (embedding and 11 layers) waits for rank 2 (10 layers and head)" in said
    work = framework_workload(found.job, PP3)
    layer, head = (float(work.pricing.unit(kind).total.total) for kind in ("dense", "head"))
    pace, layers = most_even(work)
    assert pace == pytest.approx(12 * layer) and layers == [11, 12, 9]
    saved = found.seconds - step_of(replace(work, layers=(11, 12, 9))).seconds
    assert saved == pytest.approx(24 * (10 * layer + head - 12 * layer), rel=0.15)
    assert f"Another split of the layers (11, 12 and 9) would save {si(saved, 's')}" in said


def test_of_several_chunks_another_split_saves_the_difference_of_paces_in_every_microbatch():
    """The last of two ranks has 10 and 10 layers of 32; the least that the busier can have is found by
    trying."""
    plan = Plan(pp=2, chunks=2, dp=8, zero=1, schedule="interleaved", stage_layers=(6, 10, 6, 10))
    found = predict(job(batch=192), plan)
    (said,) = imbalance_sentences(found)
    unit = framework_workload(found.job, plan).pricing.unit
    embedding, layer, head = (float(unit(kind).total.total) for kind in ("embedding", "dense", "head"))
    least = min(max(embedding + first * layer, (32 - first) * layer + head) for first in range(33))
    saved = 24 * (20 * layer + head - least)
    assert f"Another split of the layers would save about {si(saved, 's')}, memory aside." in said


def test_no_split_fills_ranks_beyond_the_pace_and_the_first_gets_what_is_left():
    assert filled([1, 1, 1, 1, 1, 3], pace=3) == [(0, 2), (2, 5), (5, 6)]


def test_where_no_split_of_whole_layers_is_better_none_is_advised():
    (said,) = imbalance_sentences(predict(job("deepseek-v3", 15360), Plan(pp=16, dp=128, ep=64, zero=1)))
    assert (
        "rank 0 (embedding, 3 dense layers and 1 layer with experts) waits for rank 1 (4 layers with experts)"
        in said
    )
    assert (
        "No other split of whole layers over these ranks is much better. Perfectly even ranks would save at "
        "most" in said
    )


def test_layers_are_named_alike_whether_they_are_recomputed_or_kept():
    """Of each stage only the first layer, a dense one, is recomputed."""
    shape = replace(find_model("deepseek-v3"), layers=8, prediction_layers=0)
    assert shape.experts
    mixture = replace(shape.experts, dense_layers=(0, 2, 4, 6))
    every_second = replace(job(), shape=replace(shape, experts=mixture))
    some = Plan(pp=2, dp=4, recompute="full", recompute_layers=1)
    for plan in (some, replace(some, recompute="none", recompute_layers=0)):
        work = framework_workload(every_second, plan)
        assert held(work, 0) == "embedding, 2 dense layers and 2 layers with experts"


def test_a_plan_says_which_pipeline_rank_its_seconds_are_of(capsys):
    asked = [
        "plan",
        "--model",
        "llama-3-8b",
        "--gpus",
        "24",
        "--pp",
        "3",
        "--zero",
        "1",
        "--global-batch",
        "192",
        "--sequence",
        "8192",
    ]
    assert main([*asked, "--timeline", "none"]) == 0
    printed = capsys.readouterr().out
    assert "where the time of pipeline rank 0 goes" in printed and "stage imbalance" in printed
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["breakdown_of_pipeline_rank"], told["busiest_pipeline_rank"]) == (0, 2)
    assert sum(told["breakdown_seconds"].values()) == pytest.approx(told["step_seconds"])
    assert bound(predict(job(batch=192), PP3))[0] == "imbalance"


def test_a_plan_whose_gpus_are_timed_one_by_one_has_no_sentence_on_imbalance(capsys):
    words = "plan --model llama-3-8b --software pocket --gpus 8 --tp 2 --pp 4 --sequence 256 --global-batch 8"
    assert main([*words.split(), "--timeline", "none"]) == 0
    printed = capsys.readouterr().out
    assert "stage imbalance" in printed and "Stage imbalance" not in printed
