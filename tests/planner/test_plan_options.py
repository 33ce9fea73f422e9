"""Recomputation of some layers and some modules, uneven routing, and the two ways of context parallelism."""

from dataclasses import replace

import pytest

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.flops import recomputed_flops
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import peak_memory, predict, time_step
from ndparallel.planner.software import MEGATRON_2022, MEGATRON_CORE

DENSE = TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), MEGATRON_CORE, 4096, 32)
SPARSE = replace(DENSE, shape=find_model("mixtral-8x7b"))
EP8 = Plan(dp=8, ep=8)
ROWS = 4096 * 2  # of one microbatch: two experts for each token


def flops(job: TrainingJob, plan: Plan, name: str) -> float:
    items = Pricing(job, plan).lists.unit("experts", plan.recompute).forward
    return sum(item.flops for item in items if not isinstance(item, CollectiveOp) and name in item.name)


def sent(job: TrainingJob, plan: Plan, group: str, *passes: str) -> float:
    layer = Pricing(job, plan).lists.unit("experts" if job.shape.experts else "dense", plan.recompute)
    return sum(
        item.bytes
        for one in passes
        for item in getattr(layer, one)
        if isinstance(item, CollectiveOp) and item.group == group
    )


def compute(job: TrainingJob, plan: Plan) -> float:
    return float(time_step(job, plan).breakdown["compute"])


# ---------------------------------------------------------------------------------------------- recomputation


@pytest.mark.parametrize("layers", [1, 8, 31])
def test_full_recomputation_of_some_layers_is_as_far_between_none_and_all_as_their_share(layers):
    none, some, all_of_them = (
        Plan(dp=8),
        Plan(dp=8, recompute="full", recompute_layers=layers),
        Plan(dp=8, recompute="full"),
    )
    share = (compute(DENSE, some) - compute(DENSE, none)) / (
        compute(DENSE, all_of_them) - compute(DENSE, none)
    )
    assert share == pytest.approx(layers / 32)
    assert recomputed_flops(DENSE, some) == pytest.approx(recomputed_flops(DENSE, all_of_them) * layers / 32)


def test_every_stage_recomputes_its_first_layers():
    plan = Plan(dp=4, pp=2, recompute="full", recompute_layers=4)
    assert recomputed_flops(DENSE, plan) == pytest.approx(
        recomputed_flops(DENSE, replace(plan, recompute_layers=0)) * 8 / 32
    )


@pytest.mark.parametrize(
    "changes", [{"tp": 8}, {"pp": 4}, {"cp": 2}, {"dp": 4}, {"micro_batch": 4}], ids=repr
)
def test_what_all_gpus_compute_again_is_the_same_however_the_model_and_the_batch_are_cut(changes):
    plan = Plan(recompute="full")
    whole = recomputed_flops(DENSE, plan)
    assert recomputed_flops(DENSE, replace(plan, **changes)) == pytest.approx(whole)


def test_a_layer_that_is_not_recomputed_keeps_what_it_would_keep_without_recomputation():
    none, all_of_them = (
        peak_memory(DENSE, Plan(dp=8, recompute=recompute)).activations for recompute in ("none", "full")
    )
    some = peak_memory(DENSE, Plan(dp=8, recompute="full", recompute_layers=8)).activations
    one, its_input = none / 32, 4096 * DENSE.shape.hidden * 2
    # and the layer that is computed again, beside its input
    beside = one - its_input
    assert some == pytest.approx((all_of_them - beside) * 8 / 32 + one * 24 + beside)


def recomputing(job: TrainingJob, *modules: str) -> TrainingJob:
    return replace(job, stack=replace(job.stack, selective=modules))


NORM, ACTIVATION = 4096 * 4096 * 2, ROWS * 14336 * 2  # bytes of (tokens, hidden) in 16 bits; between matrices


@pytest.mark.parametrize(("modules", "freed", "again"), [
    (("layernorm",), NORM, NORM),  # the experts'; attention's is part of a product
    (("moe_act",), ACTIVATION, ACTIVATION),
    (("layernorm", "moe_act"), NORM + ACTIVATION, NORM + ACTIVATION),
    (("moe",), ROWS * (4096 + 3 * 14336) * 2, ROWS * (4096 + 3 * 14336) * 2),
    (("core_attn",), 0, 0),  # flash attention keeps no scores
])  # fmt: skip
def test_a_module_that_runs_again_keeps_nothing_but_its_input_and_in_one_layer_what_it_makes(
    modules, freed, again
):
    """One layer runs again at a time, and of it one half."""
    kept = peak_memory(SPARSE, EP8).activations
    selective = peak_memory(recomputing(SPARSE, *modules), replace(EP8, recompute="selective")).activations
    assert kept - selective == 32 * freed - again


@pytest.mark.parametrize("modules", [("layernorm",), ("layernorm", "moe_act")])
def test_modules_of_the_plan_are_priced_as_those_of_the_software(modules):
    again = replace(EP8, recompute="selective")
    mine, theirs = (
        predict(SPARSE, replace(again, recompute_modules=modules)),
        predict(recomputing(SPARSE, *modules), again),
    )
    assert mine.seconds == theirs.seconds > predict(SPARSE, EP8).seconds
    assert (mine.memory, mine.hfu) == (theirs.memory, theirs.hfu)


def test_modules_of_a_plan_that_recomputes_nothing_are_refused():
    with pytest.raises(UserError, match="recompute_modules is of selective recomputation"):
        predict(SPARSE, replace(EP8, recompute_modules=("layernorm",)))


def test_experts_that_run_again_send_their_rows_again():
    again = replace(EP8, recompute="selective")
    usual = sent(SPARSE, EP8, "ep", "forward")
    assert sent(recomputing(SPARSE, "moe"), again, "ep", "recompute") == usual
    assert sent(recomputing(SPARSE, "layernorm", "moe_act"), again, "ep", "recompute") == 0


def test_a_dense_layer_has_no_experts_to_run_again():
    assert compute(recomputing(DENSE, "moe", "moe_act"), Plan(dp=8, recompute="selective")) == compute(
        DENSE, Plan(dp=8)
    )
    assert compute(recomputing(DENSE, "mlp"), Plan(dp=8, recompute="selective")) > compute(DENSE, Plan(dp=8))


# ---------------------------------------------------------------------------------------------------- routing


@pytest.mark.parametrize("imbalance", [1.0, 1.3, 4.0])
def test_the_busiest_ranks_experts_multiply_so_much_more_and_all_wait_at_its_door(imbalance):
    uneven = replace(SPARSE, routing_imbalance=imbalance)
    assert flops(uneven, EP8, "experts") == pytest.approx(imbalance * flops(SPARSE, EP8, "experts"))
    assert sent(uneven, EP8, "ep", "forward", "backward_input") == imbalance * sent(
        SPARSE, EP8, "ep", "forward", "backward_input"
    )
    assert flops(uneven, EP8, "qkv") == flops(SPARSE, EP8, "qkv")


def test_no_rank_is_busier_than_with_a_row_of_every_token_for_its_one_expert_of_two_that_each_chooses():
    assert flops(replace(SPARSE, routing_imbalance=100.0), EP8, "experts") == 4 * flops(
        SPARSE, EP8, "experts"
    )
    # all experts on every rank
    assert time_step(replace(SPARSE, routing_imbalance=1.3), Plan(dp=8)) == time_step(SPARSE, Plan(dp=8))


def test_capacity_bounds_the_busiest_and_drops_what_is_over_it():
    bounded = replace(SPARSE, routing_imbalance=1.5, capacity_factor=1.25)
    assert flops(bounded, EP8, "experts") == 1.25 * flops(SPARSE, EP8, "experts")
    assert flops(replace(SPARSE, capacity_factor=0.5), EP8, "experts") == 0.5 * flops(SPARSE, EP8, "experts")


def test_more_imbalance_is_never_faster_nor_smaller():
    jobs = [replace(SPARSE, routing_imbalance=1 + tenths / 10) for tenths in range(0, 40, 5)]
    seconds = [float(time_step(job, EP8).seconds) for job in jobs]
    memory = [float(peak_memory(job, EP8).total) for job in jobs]
    assert (
        seconds == sorted(seconds)
        and memory == sorted(memory)
        and seconds[0] < seconds[1]
        and memory[0] < memory[1]
    )


# ---------------------------------------------------------------------------------------- context parallelism


def test_gathered_keys_and_values_are_waited_for_and_a_ring_hides_them():
    plan = Plan(cp=4, dp=2)
    gathers = replace(DENSE, stack=replace(MEGATRON_CORE, context_parallel="all-gather"))
    whole = 2 * 8 * 128 * 4096 * 2  # keys and values of 8 heads of 128, for all 4096 tokens, in 16 bits
    assert sent(gathers, plan, "cp", "forward") == whole
    # gathered again, and their gradients scattered
    assert sent(gathers, plan, "cp", "backward_input") == 2 * whole
    assert time_step(gathers, plan).breakdown["cp"] > time_step(DENSE, plan).breakdown["cp"]
    bare = replace(DENSE, stack=replace(MEGATRON_CORE, cp_overlap=False))
    # hop by hop, where each has a start of its own
    assert time_step(gathers, plan).breakdown["cp"] < time_step(bare, plan).breakdown["cp"]


def test_unfused_attention_runs_again_for_less_memory():
    job, plan = replace(DENSE, stack=MEGATRON_2022), Plan(dp=8)
    assert (
        peak_memory(job, replace(plan, recompute="selective")).activations
        < peak_memory(job, plan).activations
    )
