"""Claims about windows and multi-token prediction: what they cost in FLOPs, seconds and bytes."""

from dataclasses import replace

import pytest

from gpu import Operation
from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.flops import flops, model_flops, recomputed_flops
from ndparallel.planner.layers.kept import (
    kept_bytes,
    layer_bytes,
    normed_bytes,
    passed_bytes,
    passed_messages,
)
from ndparallel.planner.layers.layer import LayerLists, lists_of
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import memory_of, predict
from ndparallel.planner.software import find_stack
from ndparallel.planner.stages import elements_of, stage_kinds
from ndparallel.planner.step.framework import framework_workload
from ndparallel.search.bounds.lower_bound import lower_bound

H100, MEGATRON = find_hardware("h100"), find_stack("megatron-core")
MISTRAL, DEEPSEEK = find_model("mistral-7b"), find_model("deepseek-v3")


def job(shape: ModelShape, sequence: int = 4096, batch: int = 1024) -> TrainingJob:
    return TrainingJob(shape, H100, MEGATRON, sequence, batch)


def without_prediction(shape: ModelShape) -> ModelShape:
    return replace(shape, prediction_layers=0)


def test_model_flops_count_the_pairs_in_the_window():
    """Mistral-7B, 32k tokens: 12 FLOPs for each pair, head and number of its width, forward and backward;
    the mean query sees 4096 * (1 - 4095 / 2 / 32768) = 3840 tokens."""
    sequence, window = 32768, 4096
    pairs = window * sequence - window * (window - 1) / 2
    without = model_flops(job(replace(MISTRAL, window=0), sequence, 1))
    by_hand = 12 * 32 * 32 * 128 * (sequence**2 / 2 - pairs * sequence / (sequence + 1))
    assert without - model_flops(job(MISTRAL, sequence, 1)) == pytest.approx(by_hand)


def test_a_window_shortens_the_fused_kernel_and_nothing_else():
    def lists(shape):
        return LayerLists(shape, Plan(tp=2).share(job(shape, 32768)), MEGATRON)

    windowed, whole = (lists(MISTRAL).unit(kind, "none") for kind in ("window-dense", "dense"))
    share = (4096 * 32768 - 4096 * 4095 / 2) / (32768 * 32769 / 2)
    both = [pair for pair in zip(windowed.forward, whole.forward) if isinstance(pair[0], Operation)]
    for mine, theirs in both:
        part = share if mine.name == "attention" else 1
        assert mine.flops == pytest.approx(part * theirs.flops) and mine.bytes == theirs.bytes


def test_a_window_as_long_as_the_sequence_changes_nothing():
    assert (
        predict(job(MISTRAL), Plan(dp=64)).seconds
        == predict(job(replace(MISTRAL, window=0)), Plan(dp=64)).seconds
    )


def test_a_stage_with_more_whole_layers_works_longer_where_windows_are_short():
    """Gemma 3: five of six layers have a window of 1024 tokens. Of 62 layers on 31 stages ten pairs have a
    layer that sees all 131,072, whose kernel takes all its pairs: 64.3 times as many."""
    gemma = find_model("gemma-3-27b")
    lists = LayerLists(gemma, Plan().share(job(gemma, 131072)), MEGATRON)
    windowed, whole = (
        flops([item for item in lists.unit(kind, "none").forward if item.name == "attention"])
        for kind in ("window-dense", "dense")
    )
    assert whole / windowed == pytest.approx(131072 * 131073 / 2 / (1024 * 131072 - 1024 * 1023 / 2))
    work = framework_workload(job(gemma, 131072, 1), Plan(pp=31))
    stages = [[float(work.pricing.unit(kind).total.total) for kind in kinds] for kinds in work.kinds[1:-1]]
    longer = [sum(stage) / min(map(sum, stages)) for stage in stages]
    assert sorted(longer)[-11] == 1 and 1.5 < sorted(longer)[-10] == max(longer)


def test_a_prediction_layer_is_a_layer_with_experts_a_matrix_and_the_head_again():
    """DeepSeek-V3, arXiv 2412.19437, section 2.2: M_k joins two hidden states of width d."""
    share = Plan(ep=64).share(job(DEEPSEEK))
    lists, plain = (LayerLists(shape, share, MEGATRON) for shape in (DEEPSEEK, without_prediction(DEEPSEEK)))
    head, layer = plain.unit("head", "none"), plain.unit("experts", "none")
    for mine, theirs, layers in zip(lists.unit("head", "none"), head, layer):
        joined = 2.0 * 4096 * 2 * 7168 * 7168 * (mine != [])
        assert flops(mine) == pytest.approx(2 * flops(theirs) + flops(layers) + joined)


def test_the_last_stage_holds_the_prediction_layers_parameters():
    deepseek = job(DEEPSEEK)
    (mine, experts), plan = elements_of(deepseek, Plan(pp=16, ep=64), "head"), Plan(pp=16, ep=64)
    main, _ = elements_of(job(without_prediction(DEEPSEEK)), plan, "head")
    counted = DEEPSEEK.parameters()
    assert mine - main + 64 * experts == counted.prediction
    assert experts == 256 * counted.expert / 64


def test_prediction_layers_cost_time_and_memory_of_the_last_pipeline_rank():
    plan, shape = Plan(pp=16, dp=64, ep=64, zero=1), replace(DEEPSEEK, layers=64)
    mine, plain = (framework_workload(job(one), plan) for one in (shape, without_prediction(shape)))
    more, less = memory_of(mine), memory_of(plain)
    assert [one.total for one in more[:-1]] == [one.total for one in less[:-1]]
    dummy = 2 * shape.vocab * shape.hidden  # bytes of a gradient that both heads have together
    assert more[-1].logits - less[-1].logits == less[-1].logits - dummy
    states = DEEPSEEK.parameters().prediction - 256 * DEEPSEEK.parameters().expert
    assert more[-1].weights - less[-1].weights == pytest.approx(
        2 * (states + 256 * DEEPSEEK.parameters().expert / 64)
    )
    lists = LayerLists(shape, plan.share(job(shape)), MEGATRON)
    hidden = 2 * 4096 * 7168  # bytes of a hidden state: two are joined, and so are what went into their norms
    kept = kept_bytes(lists, "experts", "none") + 4 * hidden
    assert more[-1].activations - less[-1].activations == pytest.approx(kept, rel=1e-12)


@pytest.mark.parametrize(
    ("recompute", "software", "cp"), [("full", "megatron-core", 1), ("none", "torchtitan", 2)]
)
def test_a_prediction_layer_is_turned_round_as_others_are_on_a_rank_without_them(recompute, software, cp):
    """62 layers fill 31 stages of 32, and the last one has the head alone: what a layer holds while it is
    computed again, or gathers of keys and values, is there, too."""
    plan = Plan(pp=32, dp=8, ep=8, cp=cp, zero=1, recompute=recompute)
    one = replace(job(replace(DEEPSEEK, layers=62)), stack=find_stack(software))
    assert stage_kinds(one, plan)[-1] == ("head",)
    last = memory_of(framework_workload(one, plan))[-1]
    own = layer_bytes(one, plan, "experts")
    hidden = normed_bytes(lists_of(one, plan))
    passed = passed_bytes(one, plan) * passed_messages("loop", 32, 1, 31, plan.microbatches(one), 1)
    assert own.once > 0
    assert last.activations == pytest.approx(own.kept + own.once + 2 * hidden + passed, rel=1e-12)
    bound = lower_bound(one, plan)
    assert bound.memory_bytes[0] == pytest.approx(predict(one, plan).fullest.total, rel=1e-9)


def test_flops_that_are_done_again_are_those_of_prediction_layers_too():
    """One more layer with experts than without, of every token of the step."""
    plan = Plan(dp=64, ep=64, recompute="full")
    one, less = job(DEEPSEEK), job(without_prediction(DEEPSEEK))
    layer = 64 * plan.microbatches(one) * flops(lists_of(one, plan).unit("experts", "full").recompute)
    assert recomputed_flops(one, plan) - recomputed_flops(less, plan) == pytest.approx(layer, rel=1e-9)


def test_a_plan_says_what_its_model_has_beside_its_total(capsys):
    asked = "plan --model glm-4.5-air --gpus 64 --global-batch 64 --ep 8 --zero 3 --recompute full"
    assert main(asked.split()) == 0
    assert "Multi-token prediction adds 1 layer and the head again" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize("plan", [Plan(pp=16, dp=64, ep=64, zero=1), Plan(pp=8, dp=128, ep=64, tp=1, zero=1)])
def test_the_bound_of_a_plan_with_prediction_layers_is_below_its_step_and_near(plan):
    bound, found = lower_bound(job(DEEPSEEK), plan), predict(job(DEEPSEEK), plan)
    assert 0.9 * found.seconds <= bound.seconds[0] <= found.seconds * (1 + 1e-9)
    assert bound.memory_bytes[0] == pytest.approx(found.fullest.total, rel=1e-6)
