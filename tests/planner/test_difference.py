"""A measurement beside its prediction: a run that does differ in one thing is the oracle."""

import json

import pytest

from ndparallel.commands.plan.measured import way
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.changes import tried
from ndparallel.planner.difference import CAUSES, SLOW, Difference, causes_of, differences
from ndparallel.planner.error_bar import ErrorBar, usual_errors
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import find_stack
from tests.commands.test_search import printed

H100 = find_hardware("h100")
DENSE = TrainingJob(find_model("llama-3-70b"), H100, find_stack("megatron-core"), 8192, 512)
SPARSE = TrainingJob(find_model("mixtral-8x7b"), H100, find_stack("megatron-core"), 4096, 256)
CLUSTERS = {
    "dense": (DENSE, Plan(tp=8, pp=4, dp=16, zero=1, sequence_parallel=True)),
    "experts": (SPARSE, Plan(pp=4, dp=16, ep=8, zero=1, chunks=8, schedule="interleaved")),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_what_really_is_different_stands_first(name):
    """Every cause in turn is made true; where it moves the step by more than a hundredth, nothing explains
    that better, and what explains it as well gives the same step."""
    job, plan = CLUSTERS[name]
    before, alternatives, seen = predict(job, plan).seconds, tried(job, plan, CAUSES), 0
    for one in alternatives:
        difference = Difference("seconds", one.found.seconds, before, ErrorBar(0.0, ""))
        if abs(difference.error) > 0.01:
            causes, seen = causes_of(difference, alternatives), seen + 1
            assert causes[0].explained == pytest.approx(1)
            assert one.change in [cause.change for cause in causes if abs(cause.explained - 1) < 1e-9]
    assert seen >= 5


def test_memory_tells_causes_apart_that_take_as_long():
    job, plan = CLUSTERS["dense"]
    found = predict(job, plan)
    whole = predict(job, Plan(tp=8, pp=4, dp=16, zero=0, sequence_parallel=True))
    seconds, memory = differences(found, {"seconds": whole.seconds, "bytes": float(whole.fullest.total)})
    assert seconds.inside and not memory.inside
    assert memory.causes[0].change.option == "--zero 0"


def test_a_gpu_that_is_a_tenth_slower_makes_what_it_computes_a_tenth_longer():
    """Compute is 1 / SLOW as long, and what compute does not change stays."""
    job, plan = CLUSTERS["dense"]
    slow = next(each for each in CAUSES if each.words.startswith("a GPU at"))
    (one,) = tried(job, plan, [slow])
    before, after = predict(job, plan).step.breakdown["compute"], one.found.step.breakdown["compute"]
    assert before < after < before / SLOW + 1e-9


def test_inside_the_error_bar_nothing_is_looked_for():
    found = predict(*CLUSTERS["dense"])
    bar = found.error_bar.fraction
    measured = [found.seconds / (1 + times * bar) for times in (0.9, 1.1)]
    inside, outside = (differences(found, {"seconds": each})[0] for each in measured)
    assert inside.inside and not inside.causes
    assert not outside.inside and way(outside) == "slow"


def test_traits_have_the_mean_error_of_their_runs():
    found = set(usual_errors(*CLUSTERS["dense"]))
    assert {"H100", "megatron-core", "a pipeline"} <= found and not {"Hopper", "FSDP"} & found


def test_plan_says_whether_the_bar_holds_a_measurement(capsys):
    words = "--model llama-3-70b --gpus 512 --tp 8 --pp 4 --zero 1 --global-batch 512 --sequence 8192"
    out = printed(capsys, "plan", *words.split(), "--timeline", "none", "--measured", "12.4s")
    assert "outside the error bar" in out and "Look first for no flash attention" in out
    found = json.loads(printed(capsys, "plan", *words.split(), "--measured-memory", "38.5GB", "--json"))
    assert found["measured"]["bytes"]["inside"] is True
