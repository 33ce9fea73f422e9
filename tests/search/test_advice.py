"""Claims about the guides' rules, step by step: what a reader of the guides would work out on paper."""

from dataclasses import replace

import pytest

from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import peak_memory
from ndparallel.planner.software import STACKS
from ndparallel.search.fitting_plans import FittingPlans
from ndparallel.search.guide_rules import GuideRules

LLAMA = TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), STACKS["megatron-core"], 4096, 64)
MIXTRAL = replace(LLAMA, shape=find_model("mixtral-8x7b"))


@pytest.mark.parametrize(("gpus", "batch", "tp"), [(64, 64, 1), (64, 128, 1), (64, 16, 4), (64, 96, 2)])
def test_where_there_are_more_gpus_than_sequences_tp_takes_the_rest(gpus, batch, tp):
    plan = GuideRules(replace(LLAMA, global_batch=batch), gpus).data_parallel(zero=3)
    assert (plan.tp, plan.dp, plan.zero, plan.sequence_parallel) == (tp, gpus // tp, 3, tp > 1)


@pytest.mark.parametrize(("sequence", "ways"), [
    (4096, [1]), (8192, [1, 2]), (16384, [2, 4]), (32768, [4, 8]), (131072, [16]),
])  # fmt: skip
def test_cp_leaves_a_rank_8k_tokens_or_half_of_them_as_far_as_gpus_go(sequence, ways):
    assert GuideRules(replace(LLAMA, sequence=sequence), 16).contexts(1) == ways


@pytest.mark.parametrize(("plan", "reach", "ep"), [
    (Plan(dp=64), 8, 8), (Plan(dp=64), 64, 8), (Plan(dp=4), 8, 4), (Plan(dp=12), 8, 4),
    (Plan(tp=2, dp=32), 8, 4), (Plan(tp=8, dp=8), 4, 1),
])  # fmt: skip
def test_ep_goes_as_far_as_its_reach_beside_tp_and_divides_experts_and_dp(plan, reach, ep):
    assert FittingPlans(MIXTRAL, 64).experts_within(plan, reach) == ep
    assert FittingPlans(LLAMA, 64).experts_within(plan, reach) == 1


def test_two_ways_of_one_ep_keep_their_names_apart_and_one_way_that_is_met_twice_has_one():
    plans = [Plan(tp=2, pp=32, dp=32, ep=8), Plan(tp=4, pp=16, dp=32, ep=8), Plan(tp=2, pp=32, dp=32, ep=8)]
    named = GuideRules(MIXTRAL, 2048).named(plans)
    assert [*named] == ["EP8 over nodes", "EP8 over nodes with TP4 and PP16"]
    assert [*named.values()] == plans[:2]


@pytest.mark.parametrize(("sequence", "batch", "cp", "dp"), [
    (8192, 64, 1, 64), (32768, 64, 4, 16), (131072, 64, 16, 4), (131072, 4, 16, 4), (262144, 16, 32, 2),
])  # fmt: skip
def test_fsdp_of_a_long_sequence_is_tried_with_cp_too_that_leaves_a_rank_8k_tokens(sequence, batch, cp, dp):
    """Of a dense model under 10 billion parameters, which the guides shard."""
    plans = GuideRules(replace(LLAMA, sequence=sequence, global_batch=batch), 64).plans()
    assert {(plan.cp, plan.dp) for plan in plans if plan.tp == 1} >= {(cp, dp)}
    assert len(plans) == 1 + (cp > 1) and all(plan.zero == 3 for plan in plans)


def test_the_guides_end_in_a_plan_that_fits_for_a_sequence_that_no_gpu_holds_alone():
    rules = GuideRules(replace(LLAMA, sequence=131072), 64)
    alone, cut = rules.plans()
    assert not rules.fitting.holds(alone) and rules.fitting.holds(cut)


def test_a_microbatch_is_asked_for_by_the_degrees_that_it_is_shared_by():
    rules = GuideRules(replace(LLAMA, sequence=8192), 16)
    rules.filled(Plan(tp=2, cp=2, dp=4, zero=1))
    assert rules.branches[-1].question == "largest microbatch for TP2, CP2 and ZeRO-1?"


def test_a_way_that_cannot_be_is_not_told_as_one_that_does_not_fit():
    rules = GuideRules(replace(LLAMA, global_batch=7), 3)  # 32 heads
    rules.data_parallel(zero=3)
    assert [each.follows for each in rules.branches] == [
        "no: TP3, so that 1 shares the batch",
        "none: heads not divisible by tp",
    ]


@pytest.mark.parametrize(
    ("model", "gpus"), [("qwen3-235b-a22b", 64), ("minimax-m2.5", 64), ("deepseek-v3", 256)]
)
def test_a_mixture_is_computed_again_without_tp_where_nothing_else_fits(model, gpus):
    job = replace(LLAMA, shape=find_model(model), global_batch=4 * gpus)
    rules = GuideRules(job, gpus)
    (fits,) = [plan for plan in rules.plans() if plan.pp > 1]
    assert (fits.tp, fits.recompute) == (1, "full")
    assert peak_memory(job, fits).total <= job.usable_bytes()
    for lighter in (replace(fits, recompute=words) for words in ("none", "selective")):
        assert peak_memory(job, lighter).total > job.usable_bytes()


@pytest.mark.parametrize(("batch", "few"), [(15, True), (16, False)])
def test_fewer_than_four_microbatches_for_a_pipeline_rank_are_few_and_take_most_chunks_first(batch, few):
    """32 layers on 4 ranks: 2, 4 or 8 chunks, of which the middle is tried first where they are many."""
    fitting, plan = FittingPlans(replace(LLAMA, global_batch=batch), 4), Plan(pp=4)
    assert fitting.has_few_microbatches(plan) == few
    assert [each.chunks for each in fitting.interleaved(plan)] == ([8, 4, 2] if few else [4, 2, 8])
    assert fitting.interleaved(Plan(dp=4)) == [Plan(dp=4)]


@pytest.mark.parametrize(("gigabytes", "recompute"), [(80, "none"), (48, "none"), (40, "full"), (28, None)])
def test_the_microbatch_is_the_largest_that_fits_with_as_little_computed_again_as_can_be(
    gigabytes, recompute
):
    """64 sequences a GPU, so that microbatches are powers of two."""
    gpu = replace(find_hardware("h100"), memory_bytes=gigabytes * 2**30)
    rules, plan = GuideRules(replace(LLAMA, global_batch=512, hardware=gpu), 8), Plan(dp=8, zero=3)
    found = rules.filled(plan)
    ways = [replace(plan, recompute=words) for words in ("none", "selective", "full")]
    fitting = {
        way.recompute: [
            size
            for size in (1, 2, 4, 8, 16, 32, 64)
            if peak_memory(rules.job, replace(way, micro_batch=size)).total <= rules.fitting.memory_bytes
        ]
        for way in ways
    }
    first = next((words for words, sizes in fitting.items() if sizes), None)
    assert first == recompute
    assert found == (replace(plan, recompute=first, micro_batch=max(fitting[first])) if first else plan)
    assert rules.branches[-1].numbers == {"micro_batch": max(fitting[first]) if first else 0}


@pytest.mark.parametrize(("plan", "asked"), [
    (Plan(tp=8, dp=2), ["how much PP until it fits?"]),
    (Plan(tp=2, pp=4, dp=2), ["how much PP until it fits?", "16 microbatches or more?", "interleave PP4?"]),
])  # fmt: skip
def test_only_a_pipeline_is_asked_for_its_microbatches_and_chunks(plan, asked):
    rules = GuideRules(LLAMA, 16)
    assert rules.ask_pipeline(plan) == plan and [branch.question for branch in rules.branches] == asked


def test_where_no_pipeline_fits_the_longest_is_said_not_to():
    rules = GuideRules(LLAMA, 16)
    assert rules.no_pipeline_fits(Plan(tp=2, cp=2)) == Plan(tp=2, cp=2, pp=4)
    (branch,) = rules.branches
    assert branch.follows == "no pipeline is long enough" and branch.numbers == {"pp": 16}


@pytest.mark.parametrize(("words", "sentence"), [
    ("--model llama-3-70b --gpus 8 --hardware a100-80 --dtype mxfp8", "a100-80 does not multiply mxfp8"),
    ("--model llama-3-70b --gpus 512 --offload optimizer,weights", "weights on the host are priced for"),
    ("--model llama-3-8b --gpus 8 --software pocket", "software pocket is the lessons' own"),
])  # fmt: skip
def test_a_job_that_no_plan_can_be_for_is_refused_before_a_guide_is_followed(capsys, words, sentence):
    assert main(["advise", *words.split(), "--global-batch", "512"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and sentence in err and err.count("\n") == 1


def test_tp_inside_the_node_is_as_wide_where_weights_are_on_the_host_whom_zero_3_alone_takes():
    away = replace(LLAMA, stack=STACKS["torchtitan"], offload=("optimizer", "weights"), global_batch=512)
    for job in (LLAMA, away):
        assert FittingPlans(job, 512).widest_tp() == 8
    tried = GuideRules(away, 512).plans()
    assert {(plan.tp, plan.zero) for plan in tried} == {(1, 3), (8, 3)}
