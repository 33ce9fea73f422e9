"""Each rule of the planner by itself: the plans that break it, those that just do not, and the values its
sentence names."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import (
    check,
    check_model,
    is_folded,
    violations,
    why_not,
)
from ndparallel.planner.model_cuts import width_rules
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.software import find_stack
from ndparallel.search.space import runs

LLAMA = TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), find_stack("megatron-core"), 4096, 64)
MIXTRAL = replace(LLAMA, shape=find_model("mixtral-8x7b"))


def broken(plan, job=LLAMA, **changes):
    """The names of the rules that a plan breaks."""
    return [violation.rule for violation in violations(replace(job, **changes), plan)]


def sentence(plan, job=LLAMA, **changes):
    (violation,) = violations(replace(job, **changes), plan)
    return violation.sentence


def test_a_plan_of_ones_breaks_nothing():
    assert broken(Plan()) == broken(Plan(), MIXTRAL) == []


@pytest.mark.parametrize("name", ["tp", "pp", "dp", "ep", "cp", "chunks", "micro_batch"])
def test_degrees_below_1_are_named_and_nothing_else_is_asked(name):
    nothing: dict[str, Any] = {name: 0}
    told = f"--{name.replace('_', '-')} is 0; it must be at least 1."
    assert sentence(replace(Plan(schedule="nope"), **nothing)) == told
    assert broken(Plan(), sequence=0) == broken(Plan(), global_batch=0) == ["degrees below 1"]


@pytest.mark.parametrize("change", [{"recompute": "some"}, {"schedule": "1f2b"}, {"zero": 4}, {"zero": -1}])
def test_unknown_words_and_stages_of_zero_are_refused(change):
    assert broken(Plan(**change)) == ["unknown words"]
    assert all(broken(Plan(zero=zero)) == [] for zero in range(4))


def test_fp8_takes_hardware_that_multiplies_it():
    a100 = find_hardware("a100-80")
    assert broken(Plan(), dtype="fp8") == broken(Plan(), hardware=a100) == []
    told = sentence(Plan(), hardware=a100, dtype="fp8")
    assert told == "a100-80 does not multiply fp8: of --dtype it has bf16."
    assert sentence(Plan(), dtype="mxfp8") == (
        "h100 does not multiply mxfp8: of --dtype it has bf16, fp8, fp8-current, fp8-row and fp8-block."
    )


def test_what_tp_cuts_of_short_numbers_has_sides_that_their_products_take():
    """29568 = 32 * 924 = 8 * 3696: MXFP8's 32 numbers of a scale do not divide a rank's 3696, and Transformer
    Engine raises AssertionError (make_empty in mxfp8_tensor.py). Fp8 takes 16, and tp=16 is too many."""
    b200 = replace(LLAMA, shape=find_model("qwen2.5-72b"), hardware=find_hardware("b200"))
    assert broken(Plan(tp=8), b200) == broken(Plan(tp=8), b200, dtype="fp8") == []
    assert broken(Plan(tp=4), b200, dtype="mxfp8") == broken(Plan(tp=16), b200) == []
    said = "tp=8 cannot cut a width of 29568 in multiples of 32, which mxfp8 takes; nearest: 4."
    assert sentence(Plan(tp=8), b200, dtype="mxfp8") == said
    assert "in multiples of 16" in sentence(Plan(tp=16), b200, dtype="fp8")


def test_tp_cuts_experts_only_where_their_software_does():
    """1408 = 32 * 44 = 8 * 176."""
    small = replace(
        LLAMA, shape=find_model("deepseek-v2-lite"), hardware=find_hardware("b200"), dtype="mxfp8"
    )
    cutting = replace(small, stack=replace(small.stack, expert_tp=True))
    widths = [[rule.what for rule in width_rules(job) if not rule.holds(8)] for job in (small, cutting)]
    assert ["1408" in " ".join(each) for each in widths] == [False, True]


@pytest.mark.parametrize(
    ("cuts", "shared", "rules"),
    [
        (False, 0, []),
        (True, 0, ["experts not divisible by tp"]),
        (False, 1, ["experts not divisible by tp"]),  # which tp cuts in any case
    ],
)
def test_tp_divides_the_width_of_experts_that_it_cuts(cuts, shared, rules):
    assert MIXTRAL.shape.experts
    narrow = replace(MIXTRAL.shape.experts, ffn=12, shared_experts=shared, shared_ffn=12)
    stack = replace(MIXTRAL.stack, expert_tp=cuts)
    job = replace(MIXTRAL, shape=replace(MIXTRAL.shape, experts=narrow), stack=stack)
    assert broken(Plan(tp=8, dp=2), job) == rules


def test_experts_that_tp_cuts_are_spread_over_the_ranks_that_tp_leaves():
    """Megatron-Core's world size is a multiple of etp*ep*pp (megatron/core/parallel_state.py)."""
    mixture, folded = replace(LLAMA, shape=find_model("deepseek-v3")), Plan(tp=8, cp=2, dp=4, ep=16)
    cutting = replace(mixture.stack, expert_tp=True)
    assert broken(folded, mixture) == []
    said = "ep=16 does not divide cp*dp = 8, whose ranks experts that tp cuts are spread over; nearest: 8."
    assert sentence(folded, mixture, stack=cutting) == said
    assert broken(replace(folded, ep=8), mixture, stack=cutting) == [], "over cp, and not over tp"


def test_the_nearest_ep_divides_experts_and_ranks():
    """64 and 128 share out 256 experts, and are no parts of 96 ranks."""
    mixture = replace(LLAMA, shape=find_model("deepseek-v3"), global_batch=96)
    assert sentence(Plan(dp=96, ep=96), mixture) == "ep=96 cannot share out 256 experts evenly; nearest: 32."
    said = "ep=64 does not divide tp*cp*dp = 96, whose ranks the experts are spread over; nearest: 32."
    assert sentence(Plan(dp=96, ep=64), mixture) == said


def test_widths_that_a_dtype_does_not_take_are_refused_at_any_tp():
    odd = replace(LLAMA.shape, hidden=4100, ffn=11000)
    assert broken(Plan(), shape=odd) == []
    assert broken(Plan(tp=2), shape=odd, dtype="fp8") == ["widths that the dtype does not take"] * 2
    assert sentence(Plan(), shape=replace(odd, ffn=11008), dtype="fp8") == (
        "fp8 multiplies matrices whose sides are multiples of 16, and llama-3-8b has one of 4100: choose "
        "bf16."
    )


def test_a_sequence_is_cut_in_two_chunks_for_each_rank_of_cp():
    assert broken(Plan(cp=3)) == ["sequence not divisible by 2 cp"]
    assert sentence(Plan(cp=3)).endswith("in 6 parts, which 4096 tokens are no multiple of; nearest: 2 or 4.")
    assert sentence(Plan(cp=5), sequence=4095).endswith("nearest: 1.")
    assert sentence(Plan(cp=6), sequence=4100).endswith("nearest: 5 or 10.")
    assert sentence(Plan(cp=4), sequence=4092).endswith("nearest: 3 or 6.")


def test_tp_cuts_heads_the_mlp_and_under_sequence_parallelism_what_cp_leaves_of_the_sequence():
    assert broken(Plan(tp=3)) == [
        "heads not divisible by tp",
        "tp cannot share the KV heads",
        "MLP not divisible by tp",
    ]
    assert broken(Plan(tp=8, cp=2, sequence_parallel=True), sequence=24) == ["sequence not divisible by tp"]
    assert (
        broken(Plan(tp=8, cp=2), sequence=24) == broken(Plan(tp=8, sequence_parallel=True), sequence=24) == []
    )


def test_in_a_model_of_experts_alone_tp_cuts_tokens_and_no_mlp():
    assert broken(Plan(tp=8, cp=2), MIXTRAL, sequence=24) == ["sequence not divisible by tp"]
    narrow = replace(MIXTRAL.shape, ffn=7)
    assert broken(Plan(tp=2), MIXTRAL, shape=narrow) == []


def test_ep_shares_out_experts_over_ranks_of_dp():
    assert sentence(Plan(dp=2, ep=2)) == "llama-3-8b has no experts for ep=2 ranks to share; ep must be 1."
    assert broken(Plan(dp=8, ep=8), MIXTRAL) == broken(Plan(dp=4, ep=2), MIXTRAL) == []
    assert broken(Plan(dp=16, ep=16), MIXTRAL) == ["experts not divisible by ep"]
    assert broken(Plan(tp=2, cp=2, ep=8), MIXTRAL) == ["ranks not divisible by ep"]


def test_ep_that_dp_does_not_hold_is_folded_over_tp_and_cp_in_the_lessons_too():
    folded = Plan(tp=2, cp=2, dp=2, ep=8)
    assert is_folded(folded) and broken(folded, MIXTRAL) == []
    pocket = find_stack("pocket")
    assert not any(why_not(replace(MIXTRAL, stack=replace(pocket, expert_tp=False)), folded))
    said = "ep=8 does not divide cp*dp = 4, whose ranks experts that tp cuts are spread over; nearest: 4."
    assert list(why_not(replace(MIXTRAL, stack=pocket), folded)) == [said]


def test_experts_that_tp_cannot_cut_are_called_shared_where_they_are():
    whole = replace(MIXTRAL, stack=replace(find_stack("megatron-core"), expert_tp=False))
    assert MIXTRAL.shape.experts
    shared = replace(MIXTRAL.shape.experts, shared_experts=1, shared_ffn=1002)
    job = replace(whole, shape=replace(MIXTRAL.shape, experts=shared))
    assert [*why_not(job, Plan(tp=4, dp=2))][0].startswith("tp=4 cannot cut shared experts of width 1002;")
    assert not any("cut shared experts" in reason for reason in why_not(job, Plan(tp=2, dp=4)))
    assert not is_folded(Plan(dp=4, ep=2)) and not is_folded(Plan(dp=3))
    assert is_folded(Plan(dp=3, ep=2))


@pytest.mark.parametrize(
    ("batch", "dp", "micro", "near"), [(65, 4, 2, 64), (70, 4, 2, 72), (3, 8, 1, 8), (90, 4, 2, 88)]
)
def test_a_batch_that_cannot_be_cut_is_told_the_nearest_that_can(batch, dp, micro, near):
    plan = Plan(dp=dp, micro_batch=micro)
    assert sentence(plan, global_batch=batch).endswith(f"the nearest batch that can is {near}.")
    assert broken(plan, global_batch=near) == []


def test_of_a_batch_that_cannot_be_cut_no_schedule_is_asked():
    piped = Plan(pp=4, dp=4, micro_batch=2, chunks=2, schedule="interleaved")
    assert sentence(piped, global_batch=12).endswith("the nearest batch that can is 16.")


def test_shards_are_of_zero_3_alone():
    assert sentence(Plan(dp=4, zero=1, shards=2)) == (
        "2 shards are of ZeRO-3, and zero is 1: leave them out, or take zero 3."
    )


def test_shards_divide_the_ranks_of_dp_and_cp_together():
    assert broken(Plan(dp=2, cp=2, zero=3, shards=4)) == broken(Plan(dp=2, cp=2, zero=3, shards=1)) == []
    assert (
        sentence(Plan(dp=2, cp=2, zero=3, shards=3)) == "3 shards do not divide dp*cp = 4; nearest: 2 or 4."
    )


def test_the_ranks_of_a_replica_hold_all_experts():
    """As torchtitan's efsdp = fsdp * tp / ep, and Megatron's expert_data_parallel_size % instances."""
    fits = [Plan(dp=16, ep=4, zero=3, shards=4), Plan(tp=2, dp=16, ep=8, zero=3, shards=4)]
    assert [broken(plan, MIXTRAL) for plan in fits] == [[], []]
    narrow = Plan(dp=16, ep=8, zero=3, shards=4)
    assert sentence(narrow, MIXTRAL) == (
        "tp*shards = 4 ranks share the states of all experts, which ep=8 cuts into 8 parts: take a multiple "
        "of 8 shards."
    )
    assert broken(replace(narrow, zero=1), MIXTRAL) == ["shards without ZeRO-3"]
    odd = Plan(dp=24, ep=8, zero=3, shards=12)
    assert broken(odd, MIXTRAL, global_batch=24) == ["shards not divisible by ep"]


def test_every_stage_has_a_layer_the_embedding_or_the_head():
    assert broken(Plan(pp=34)) == broken(Plan(pp=17, chunks=2, schedule="interleaved")) == []
    assert sentence(Plan(pp=35)).endswith("with the embedding and the head they fill at most 34.")
    assert broken(Plan(pp=12, chunks=3, schedule="interleaved")) == ["more stages than layers"]


def test_zero_2_of_fsdp_in_a_pipeline_is_its_zero_3():
    """torch's pipelines tell fully_shard neither to reshard nor to reduce before the last microbatch."""
    piped, rule = Plan(pp=2, dp=2, zero=2), "ZeRO-2 in a pipeline of FSDP"
    for software, breaks in (("torchtitan-compiled", [rule]), ("pytorch", [rule]), ("megatron-core", [])):
        assert broken(piped, stack=find_stack(software)) == breaks
        assert broken(replace(piped, zero=3), stack=find_stack(software)) == []
        whole = Plan(dp=2, zero=2, micro_batch=LLAMA.global_batch // 2)
        assert broken(whole, stack=find_stack(software)) == []
    assert "take zero 3" in sentence(piped, stack=find_stack("torchtitan"))


def test_zero_2_divides_no_gradients_that_fsdp_keeps_until_the_last_microbatch():
    """set_requires_gradient_sync(False) in all but the last: ZeRO-3 holds them whole, so ZeRO-2 does."""
    several, rule = Plan(dp=2, zero=2), "ZeRO-2 of FSDP with several microbatches"
    for software, breaks in (("pytorch", [rule]), ("torchtitan", []), ("deepspeed", [])):
        assert broken(several, stack=find_stack(software)) == breaks
        assert broken(replace(several, zero=3), stack=find_stack(software)) == []
    alone = replace(several, micro_batch=LLAMA.global_batch // 2)
    assert broken(alone, stack=find_stack("pytorch")) == []
    assert "or one microbatch" in sentence(several, stack=find_stack("pytorch"))


def test_chunks_are_those_of_the_schedule_and_parts_of_a_pipeline_rank():
    rule = "schedule cannot do these microbatches and chunks"
    assert broken(Plan(pp=4, schedule="interleaved")) == broken(Plan(pp=4, chunks=2)) == [rule]
    assert broken(Plan(pp=4, chunks=2, schedule="interleaved")) == []
    assert broken(Plan(chunks=2)) == ["chunks without a pipeline"]
    assert broken(Plan(pp=8, chunks=2, schedule="interleaved"), global_batch=4) == [rule]


def test_dualpipev_takes_two_microbatches_for_each_pipeline_rank_as_its_authors_program_asserts():
    """github.com/deepseek-ai/DualPipe, dualpipev.py: num_chunks >= num_ranks * 2."""
    rule = "schedule cannot do these microbatches and chunks"
    plan = Plan(pp=4, chunks=2, schedule="dualpipev")
    assert broken(plan, global_batch=8) == []
    assert broken(plan, global_batch=7) == [rule]
    assert sentence(plan, global_batch=7) == (
        "dualpipev takes at least 8 microbatches with pp=4, not 7: take smaller or more of them, fewer "
        "pipeline ranks, or another schedule."
    )
    assert broken(plan, global_batch=7, stack=find_stack("pocket")) == [], "the lessons run it"
    numbers = np.arange(1, 10)
    assert [*numbers[runs(LLAMA, "dualpipev", 4, numbers)]] == [8, 9]
    assert [*numbers[runs(LLAMA, "zb-v", 4, numbers)]] == [*numbers]


def test_the_first_rule_that_is_broken_is_raised_and_dp_is_none_of_the_models():
    with pytest.raises(UserError, match="zero is 7"):
        check(LLAMA, Plan(zero=7, tp=3))
    check(LLAMA, Plan(tp=2))
    with pytest.raises(UserError, match="cut 32 heads"):
        check_model(LLAMA, Plan(tp=3, dp=7))
    check_model(LLAMA, Plan(tp=2, dp=7))
    with pytest.raises(UserError, match="tp is 0"):
        check_model(LLAMA, Plan(tp=0))
