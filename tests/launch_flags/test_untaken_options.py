"""Claims about options that software leaves to the user, and what `plan` says of them."""

from dataclasses import replace

import pytest

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.untaken_options import untaken_hints
from ndparallel.planner.describe import bound
from ndparallel.planner.fitted_software import software_on
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import predict


def found_for(model: str, plan: Plan, hardware: str = "gb200", software: str = "megatron-core", **stack):
    shape, gpu = find_model(model), find_hardware(hardware)
    switched = replace(software_on(software, gpu, shape), **stack)
    return predict(TrainingJob(shape, gpu, switched, 2048, 64), plan)


def test_a_gpu_waits_for_launches_as_long_as_graphs_of_the_step_save():
    """On one GPU there is nothing else to wait for."""
    one, plan = "llama-3.2-1b", Plan()
    without, graphed = found_for(one, plan), found_for(one, plan, graphs="step")
    assert without.step.launch_seconds == pytest.approx(without.seconds - graphed.seconds, rel=1e-9)
    assert graphed.step.launch_seconds == 0 < without.step.launch_seconds


def test_what_bounds_a_step_may_be_the_cpu():
    assert bound(found_for("llama-3.2-1b", Plan(zero=1)))[0] == "launches"
    assert bound(found_for("llama-3.2-1b", Plan(zero=1), graphs="step"))[0] != "launches"


MIXTURE = Plan(dp=8, ep=8, zero=1)


@pytest.mark.parametrize(
    "model, plan, software, option",
    [
        ("llama-3.2-1b", Plan(dp=8, zero=1), "megatron-core", "--cuda-graphs step"),
        # of the step only with a capacity factor: nobody knows before how many rows an expert takes
        ("qwen3-30b-a3b", MIXTURE, "megatron-core", "--cuda-graphs router"),
        ("llama-3.2-1b", Plan(dp=8, zero=3), "torchtitan", "--software torchtitan-compiled"),
    ],
)
def test_where_a_gpu_waits_for_launches_the_option_is_named_and_does_what_it_says(
    model, plan, software, option
):
    found = found_for(model, plan, software=software)
    (hint,) = (one for one in untaken_hints(found) if "launches less" in one)
    assert hint.startswith(f"With {option} ")
    _, _, value = option.partition(" ")
    then = (
        found_for(model, plan, software=value)
        if software != "megatron-core"
        else found_for(model, plan, graphs=value)
    )
    assert f"{1 - then.seconds / found.seconds:.0%} less." in hint


def test_where_kernels_are_longer_than_their_launches_nothing_is_said():
    found = found_for("llama-3-70b", Plan(tp=8, zero=1), "h100")
    assert found.step.launch_seconds < 1e-4 * found.seconds
    assert untaken_hints(found) == []
