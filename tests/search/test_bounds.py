"""Claims about the bounds of a search: whatever the plan, its step is never shorter than its bound."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

import numpy as np
import pytest

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.adapters import Adapters
from ndparallel.planner.dispatchers import DISPATCHERS
from ndparallel.planner.job import TOGETHER, Plan, TrainingJob
from ndparallel.planner.legality import violations
from ndparallel.planner.models.attentions import GatedDeltaNet, WindowedHeads
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import peak_memory, time_step
from ndparallel.planner.software import STACKS
from ndparallel.planner.step.framework import framework_workload
from ndparallel.search.bounds.depth import depth_of
from ndparallel.search.bounds.lower_bound import lower_bound, spread
from ndparallel.search.bounds.pipeline_bound import PipelineBound, through
from ndparallel.search.bounds.plan_table import weighted_sum
from ndparallel.search.bounds.sharded import UnitTimes, wait_of_backward
from ndparallel.search.bounds.time_columns import time_tables
from ndparallel.search.candidates import candidates
from ndparallel.search.space import SearchSpace

ROUNDING = 1e-9
SEARCHED = [name for name, recipe in RECIPES.items() if recipe.is_searched]
SEARCHED_ROOM = {"zb-1p": 1, "zb-2p": 2}  # for so many microbatches per rank of the pipeline
DENSE = ModelShape("small", layers=8, hidden=2048, heads=16, kv_heads=8, head_dim=128, ffn=8192, vocab=32000)
ALL = Experts(8, 2, 2048)
LINEAR = GatedDeltaNet(8, 16, 128, 128, 4, layers=(0, 1, 2, 4, 5, 6))
NARROW = WindowedHeads(16, 4, 128, value_width=64, sinks=True)
KINDS: dict[str, list[dict[str, Any]]] = {  # of layers: fields of a shape
    "dense": [{}],
    "experts": [{"experts": ALL}, {"experts": replace(ALL, shared_experts=1, shared_ffn=2048)}],
    "norms of experts": [
        {"experts": replace(ALL, shared_experts=1, shared_ffn=1024, own_norms=True), "norms": norms}
        for norms in ("before", "both")
    ],
    "both kinds of layers": [
        {"experts": replace(ALL, dense_layers=layers)} for layers in ((0, 1), (0, 2, 4, 6))
    ],
    "windows": [
        {"window": 512, "whole_layers": (3, 7)},
        {"window": 256, "whole_layers": (0,), "experts": replace(ALL, dense_layers=(1, 3))},
    ],
    "heads of windows": [
        {"window": 512, "whole_layers": (3, 7), "windowed": WindowedHeads(32, 16, 64)},
        {
            "window": 256,
            "whole_layers": (0,),
            "windowed": NARROW,
            "keys_as_values": True,
            "qk_norm": "values",
        },
        {"window": 512, "whole_layers": (7,), "windowed": NARROW, "value_width": 64, "experts": ALL},
    ],
    "gates of heads": [
        {"output_gate": "head", "window": 512, "whole_layers": (3, 7), "windowed": WindowedHeads(24, 8, 128)},
        {"output_gate": "head", "experts": replace(ALL, shared_experts=1, shared_ffn=1024)},
        {"output_gate": "biased", "norms": "both", "experts": replace(ALL, dense_layers=(0, 1))},
    ],
    "linear attention": [
        {"linear": LINEAR},
        {"linear": LINEAR, "experts": ALL},
        {"linear": LINEAR, "experts": replace(ALL, dense_layers=(0, 3)), "output_gate": "queries"},
    ],
}


def any_job(draw: random.Random, fields: dict[str, Any]) -> TrainingJob:
    hardware = find_hardware(draw.choice(["a100-80", "h100", "b200"]))
    bandwidth = hardware.across.bandwidth_bytes_per_second * draw.choice([0.1, 1.0, 1.0, 10.0])
    return TrainingJob(
        replace(DENSE, layers=draw.choice([8, 12, 16]), vocab=draw.choice([256, 32000]), **fields),
        replace(hardware, across=replace(hardware.across, bandwidth_bytes_per_second=bandwidth)),
        draw.choice([stack for stack in STACKS.values() if not stack.executed]),
        sequence=draw.choice([1024, 4096]),
        global_batch=draw.choice([32, 64, 128]),
    )


def any_plan(draw: random.Random, schedule: str, zero: int, experts: bool) -> Plan:
    tp, pp = draw.choice([1, 2, 4]), draw.choice([2, 4, 8] if schedule != "none" else [1])
    pipeline: dict[str, Any] = {}
    if pp > 1:
        chunks = RECIPES[schedule].chunks or draw.choice([2, 3, 4])
        pipeline = {"pp": pp, "schedule": schedule, "chunks": chunks}
    return Plan(
        tp=tp,
        dp=draw.choice([1, 2, 4, 8, 16]),
        cp=draw.choice([1, 1, 2]),
        ep=draw.choice([1, 2, 4, 8]) if experts else 1,
        micro_batch=draw.choice([1, 2]),
        zero=zero,
        sequence_parallel=tp > 1 and draw.random() < 0.5,
        recompute=draw.choice(["none", "selective", "full"]),
        **pipeline,
    )


def legal(schedule: str, zero: int, kinds: str, count: int) -> Iterator[tuple[TrainingJob, Plan]]:
    draw = random.Random(f"{schedule} {zero} {kinds}")
    while count:
        fields = draw.choice(KINDS[kinds])
        job, plan = any_job(draw, fields), any_plan(draw, schedule, zero, "experts" in fields)
        if not any(violations(job, plan)):
            count -= 1
            yield job, plan


def test_parts_are_weighted_sum_product_by_product_as_every_processor_rounds_them():
    counts, seconds = np.array([[1, 3, 7, 1], [0, 1, 5, 2]]), np.random.default_rng(0).random((3, 4, 50))
    by_hand = [sum(count * part for count, part in zip(rank, np.moveaxis(seconds, 1, 0))) for rank in counts]
    assert (weighted_sum(counts, seconds) == np.stack(by_hand, axis=1)).all()
    assert (weighted_sum(counts[0], seconds) == by_hand[0]).all()


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("schedule", ["none", *RECIPES])
def test_no_step_is_shorter_than_its_bound(schedule, zero, kinds):
    for job, plan in legal(schedule, zero, kinds, count=4):
        bound, seconds = lower_bound(job, plan).seconds[0], time_step(job, plan).seconds
        assert 0 < bound <= seconds * (1 + ROUNDING), (job, plan)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("schedule", ["none", "1f1b", "interleaved", "zb-v"])
def test_what_a_bound_adds_up_is_what_the_plan_is_timed_with(schedule, zero):
    """Of every rank that can matter: F, I and W of a microbatch, its messages, and the optimizer's step. The
    workload prices stage by stage, and tables all plans' parts at once."""
    for job, plan in (one for kinds in KINDS for one in legal(schedule, zero, kinds, count=4)):
        work, (table,) = framework_workload(job, plan), time_tables(job, [spread(plan)])
        depth = depth_of(job.shape, plan.pp, plan.chunks, plan.recipe.layout)
        message = sum(work.messages()) if plan.pp > 1 else 0.0
        standing = 0.0 if job.stack.pp_overlap else message
        assert table["message"] == pytest.approx(message - standing, rel=ROUNDING)
        none, shared, experts = table["optimizer"]
        for rank, passes in zip(depth.ranks, through(depth.counts, table).swapaxes(0, 1)):
            stages = plan.layout.stages_of(int(rank))
            timed = [sum(column[stage].total for stage in stages) for column in work.columns]
            stands = len(stages) * standing
            assert passes[:, 0] == pytest.approx(
                [timed[0] + stands, timed[1] + stands, timed[2]], rel=ROUNDING
            )
            (optimizer,) = (one.total for one in work.optimizer(int(rank)))
            ours, theirs = work.trained(int(rank))
            assert none + shared * ours + experts * theirs == pytest.approx(optimizer, rel=ROUNDING)


def test_a_unit_waits_for_gathers_and_reductions_that_software_does_not_overlap():
    stack = replace(STACKS["torchtitan"], prefetch=False, dp_overlap=False)
    gather, reduce = {"dense": 2.0, "head": 5.0, None: 0.0}, {"dense": 3.0, "head": 7.0, None: 0.0}
    none = UnitTimes({}, {}, 0.0)
    assert wait_of_backward(("dense", "dense", "head"), stack, none, gather, reduce) == 2 + 3
    ahead, second = replace(stack, prefetch=True), UnitTimes({"dense": 1.0}, {"dense": 1.0}, 0.0)
    assert wait_of_backward(("head", "dense", None), ahead, second, gather, reduce) == 2 + (5 - 1) + 3


def test_a_bound_of_1f1b_knows_of_the_messages_that_every_second_microbatch_waits_for():
    """A network of a hundredth of the bandwidth: without its messages the bound is below half the step."""
    gpu = find_hardware("h100")
    slow = replace(gpu.across, bandwidth_bytes_per_second=gpu.across.bandwidth_bytes_per_second / 100)
    hardware = replace(gpu, gpus_per_node=1, across=slow)
    job = TrainingJob(find_model("llama-3-8b"), hardware, STACKS["megatron-core"], 4096, 64)
    assert 0.6 < lower_bound(job, Plan(pp=4)).seconds[0] / time_step(job, Plan(pp=4)).seconds <= 1


def test_a_bound_of_few_microbatches_knows_that_one_follows_the_other_through_the_slowest_chunk():
    """Two of them: without F and B of the second one, where they take longest, the bound is below 0.97."""
    job = TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), STACKS["megatron-core"], 4096, 64)
    plan = Plan(
        tp=4, pp=2, dp=4, chunks=3, micro_batch=8, zero=1, sequence_parallel=True,
        recompute="full", schedule="interleaved",
    )  # fmt: skip
    assert 0.98 < lower_bound(job, plan).seconds[0] / time_step(job, plan).seconds <= 1


def test_plans_whose_rows_stay_on_their_rank_are_bounded_among_others_as_by_themselves():
    """Their dispatcher is another: Megatron-Core's DeepEP needs several ranks."""
    job = any_job(random.Random(0), {"experts": ALL})
    job = replace(job, stack=STACKS["megatron-core"])
    degrees = [(1, 8), (4, 1), (1, 1), (2, 2), (2, 1), (8, 4)]  # micro_batch and ep
    plans = [Plan(dp=8, ep=ep, micro_batch=size) for size, ep in degrees]
    sizes, eps = np.array(degrees).T
    together = lower_bound(job, Plan(dp=8, ep=eps, micro_batch=sizes)).seconds
    assert together == pytest.approx([lower_bound(job, plan).seconds[0] for plan in plans], rel=1e-12)
    assert np.all(together <= [time_step(job, plan).seconds * (1 + ROUNDING) for plan in plans])


@pytest.mark.parametrize("schedule", ["none", "1f1b", "interleaved"])
def test_fsdps_forward_passes_wait_as_long_in_a_bound_as_on_the_streams(schedule):
    """Where software copies none of what it gathers: Megatron's. Its backward passes wait at least as long
    there."""
    found = 0
    for job, plan in (one for kinds in KINDS for one in legal(schedule, 3, kinds, count=20)):
        if job.stack.sharding:
            continue
        work, (table,) = framework_workload(job, plan), time_tables(job, [spread(plan)])
        depth = depth_of(job.shape, plan.pp, plan.chunks, plan.recipe.layout)
        standing = 0.0 if job.stack.pp_overlap or plan.pp == 1 else plan.chunks * sum(work.messages())
        for rank, passes in zip(depth.ranks, through(depth.counts, table).swapaxes(0, 1)):
            timed = [
                standing + sum(column[stage].total for stage in plan.layout.stages_of(int(rank)))
                for column in work.columns[:2]
            ]
            assert passes[0, 0] == pytest.approx(timed[0], rel=ROUNDING)
            assert passes[1, 0] <= timed[1] * (1 + ROUNDING)
            found += 1
    assert found > 10


@pytest.mark.parametrize(("schedule", "near"), [
    ("none", (0.999, 0.999, 0.94, 0.94)),
    ("1f1b", (0.98, 0.99, 0.94, 0.94)),
    ("interleaved", (0.97, 0.97, 0.97, 0.94)),
    ("zb-h1", (0.96, 0.96, 0.96, 0.96)),
    ("zb-1p", (0.92, 0.92, 0.93, 0.88)),
])  # fmt: skip
def test_most_bounds_are_near_their_steps(schedule, near):
    """The median of what a bound is of its step, by stage of ZeRO: one that forgets a term is no bound of
    anything."""
    for zero, least in enumerate(near):
        jobs = [one for kinds in KINDS for one in legal(schedule, zero, kinds, count=6)]
        assert median(bounded(job, plan) for job, plan in jobs) > least, zero


@pytest.mark.parametrize("schedule", [name for name in ("none", *RECIPES) if name not in SEARCHED])
def test_the_bytes_beside_a_bound_are_the_plans_own(schedule):
    for kinds, zero in product(KINDS, (0, 1, 2, 3)):
        for kept, plan in legal(schedule, zero, kinds, count=1):
            for job in kept, replace(kept, offload=("activations",), offload_share=0.7):
                held = float(lower_bound(job, plan).memory_bytes[0])
                assert held == pytest.approx(float(peak_memory(job, plan).total), rel=ROUNDING), (job, plan)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_the_bytes_beside_a_bound_tell_adapters_that_are_trained_from_weights_that_are_held(zero):
    for fields in KINDS["linear attention"]:
        shape = replace(DENSE, **fields)
        job = TrainingJob(shape, find_hardware("h100"), STACKS["torchtitan"], 4096, 64, adapters=Adapters(16))
        plan = Plan(tp=2, dp=4, zero=zero, sequence_parallel=True)
        held = float(lower_bound(job, plan).memory_bytes[0])
        assert held == pytest.approx(float(peak_memory(job, plan).total), rel=ROUNDING)


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
def test_no_step_is_shorter_than_its_bound_where_tp_cuts_experts(dispatcher):
    near = []
    for schedule, zero in product(("none", "1f1b", "interleaved"), (0, 1, 2, 3)):
        for whole, plan in legal(schedule, zero, "experts", count=6):
            cut = replace(whole.stack, expert_tp=True, dispatcher=dispatcher)
            if plan.tp > 1 and not any(violations(job := replace(whole, stack=cut), plan)):
                near.append(bounded(job, plan))
    assert max(near) <= 1 + ROUNDING and median(near) > 0.9 and len(near) > 20


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("schedule", ["none", "1f1b"])
def test_no_step_whose_weights_come_from_the_host_is_shorter_than_its_bound(schedule, kinds):
    for job, plan in legal(schedule, 3, kinds, count=6):
        for offload, software in product((("weights",), TOGETHER), ("deepspeed", "torchtitan", "pytorch")):
            away = replace(job, stack=STACKS[software], offload=offload)
            if not any(violations(away, plan)):
                bound = lower_bound(away, plan)
                assert bound.seconds[0] <= time_step(away, plan).seconds * (1 + ROUNDING)
                held = float(peak_memory(away, plan).total)
                assert bound.memory_bytes[0] == pytest.approx(held, rel=ROUNDING)


@pytest.mark.parametrize("kinds", KINDS)
def test_no_step_of_hsdp_is_shorter_than_its_bound(kinds):
    """Shards over some of dp's and cp's ranks, and replicas over the others."""
    schedules, near = ("none", "1f1b", "interleaved"), []
    for schedule in schedules:
        for job, plan in legal(schedule, 3, kinds, count=12):
            ranks = plan.dp * plan.cp
            hybrid = replace(plan, shards=ranks // 2) if ranks > 2 else plan
            bound, seconds = lower_bound(job, hybrid).seconds[0], time_step(job, hybrid).seconds
            assert 0 < bound <= seconds * (1 + ROUNDING), (job, hybrid)
            near.append(bound / seconds)
    assert median(near) > 0.8


@pytest.mark.parametrize("kinds", KINDS)
def test_nor_is_one_whose_gradients_overlap_and_whose_weights_do_not(kinds):
    """Megatron with --overlap-grad-reduce alone: a gather waits for the reduction on its line, and replicas'
    sums are on another."""
    near = []
    for job, plan in legal("none", 3, kinds, count=24):
        hybrid = replace(plan, shards=max(2, plan.dp * plan.cp // 2))
        hybrid = plan if any(violations(job, hybrid)) else hybrid
        near.append(bounded(switched(job, prefetch=False, dp_overlap=True), hybrid))
    assert max(near) <= 1 + ROUNDING and median(near) > 0.9


def test_the_bound_of_fsdp_knows_that_one_pass_of_a_pair_waits_for_the_launches_of_the_other():
    """What one waits for them less the other waits more, and hides more behind."""
    shape = replace(DENSE, hidden=256, heads=8, kv_heads=4, head_dim=32, experts=Experts(16, 1, 2048))
    gpu = find_hardware("h100")
    slow = replace(gpu, across=replace(gpu.across, bandwidth_bytes_per_second=1e10), gpus_per_node=1)
    job = switched(TrainingJob(shape, slow, STACKS["megatron-core"], 1024, 64), hides_dispatch=True)
    assert 0.8 < bounded(job, Plan(tp=2, cp=2, dp=16, ep=4, zero=3)) <= 1 + ROUNDING


@pytest.mark.parametrize("pp", [1, 2])
def test_the_bound_of_fsdp_waits_behind_what_pairs_leave_of_a_pass(pp):
    """Without a pipeline that is a share of what they hide; in one, where the share depends on the chunks,
    the longer of both ways, so that nothing is waited for too long."""
    gpu = find_hardware("h100")
    slow = replace(gpu, across=replace(gpu.across, bandwidth_bytes_per_second=2e9), gpus_per_node=2)
    shape = replace(DENSE, vocab=256, experts=Experts(64, 1, 256))
    job = switched(TrainingJob(shape, slow, STACKS["megatron-core"], 4096, 64), hides_dispatch=True)
    assert 0.95 < bounded(job, Plan(tp=4, pp=pp, dp=4, ep=4, zero=3)) <= 1 + ROUNDING


def switched(job: TrainingJob, **switches: Any) -> TrainingJob:
    return replace(job, stack=replace(job.stack, **switches))


def test_the_bound_of_zero_2_counts_the_forward_passes_before_the_first_gradients():
    """Eight microbatches on eight ranks of nine chunks: all go forward, then every one's gradients are
    reduced over 256 ranks. Either alone is at most 56 % of the step."""
    job = TrainingJob(find_model("llama-3-405b"), find_hardware("h100"), STACKS["megatron-core"], 8192, 2048)
    plan = Plan(tp=8, pp=8, dp=256, zero=2, chunks=9, schedule="interleaved", sequence_parallel=True)
    bound, seconds = lower_bound(job, plan).seconds[0], time_step(job, plan).seconds
    assert 0.75 * seconds < bound < seconds


def test_the_bound_of_fsdp_knows_that_what_pairs_hide_of_a_whole_backward_pass_comes_before_its_end():
    """FSDP's backward pass is one, weights' gradients included, and so is what pairs hide of it."""
    gpu = find_hardware("h100")
    job = TrainingJob(
        replace(DENSE, layers=32, hidden=256, head_dim=16, ffn=1024, experts=Experts(64, 1, 256)),
        replace(gpu, inside=replace(gpu.inside, latency_seconds=14e-6), gpus_per_node=2),
        STACKS["megatron-2022"],
        16384,
        128,
    )
    plan = Plan(tp=8, pp=4, zero=3, schedule="dualpipev", chunks=2, sequence_parallel=True, micro_batch=2)
    assert 0.9 < bounded(job, plan) <= 1 + ROUNDING


def test_the_bound_of_fsdp_in_a_pipeline_counts_its_one_gather_and_its_one_reduction():
    """torchtitan keeps weights whole in a pipeline: they come before the first microbatch, gradients leave
    behind the last, and on a slow network these are most of a short step."""
    gpu = find_hardware("h100")
    slow = replace(gpu, across=replace(gpu.across, bandwidth_bytes_per_second=5e9), gpus_per_node=1)
    job = TrainingJob(DENSE, slow, STACKS["torchtitan"], 1024, 64)
    plan = Plan(pp=4, dp=16, zero=3, shards=8)
    assert time_step(job, plan).breakdown["dp"] > 0.4 * time_step(job, plan).seconds
    assert 0.9 < bounded(job, plan) <= 1 + ROUNDING


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_the_bound_of_few_microbatches_knows_that_each_goes_through_all_stages_and_back(microbatches):
    """On four ranks of four chunks one microbatch takes as long as four of them in a full pipeline."""
    shape = replace(DENSE, layers=16, vocab=256)
    job = TrainingJob(shape, find_hardware("h100"), STACKS["torchtitan"], 4096, microbatches)
    plan = Plan(pp=4, schedule="looped-bfs", chunks=4)
    assert 0.9 < bounded(job, plan) <= 1 + ROUNDING


@pytest.mark.parametrize("pp", [2, 4])
def test_the_bound_of_zero_2_knows_that_a_single_microbatch_has_no_reduction_beside_its_work(pp):
    """A reduction slows the work of the microbatches behind it."""
    job = TrainingJob(DENSE, find_hardware("h100"), STACKS["megatron-core"], 4096, 8)
    assert 0.95 < bounded(job, Plan(pp=pp, dp=8, zero=2, schedule="gpipe")) <= 1 + ROUNDING


def test_the_bound_of_zero_2_without_a_pipeline_counts_what_each_microbatch_reduces_behind_its_work():
    """Without what is left of each it would be 5 % less."""
    job = TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), STACKS["megatron-core"], 4096, 64)
    assert 0.99 < bounded(job, Plan(dp=16, zero=2)) <= 1 + ROUNDING


def test_the_bound_of_pairs_knows_that_without_experts_they_hide_nothing():
    """Launches take most of this step; a pair of a mixture's passes could hide them."""
    shape = replace(DENSE, hidden=256, heads=8, kv_heads=4, head_dim=32, ffn=1024, vocab=256)
    job = TrainingJob(shape, find_hardware("h100"), STACKS["megatron-core"], 256, 64)
    assert 0.9 < bounded(job, Plan(pp=2, schedule="dualpipev", chunks=2)) <= 1 + ROUNDING


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipev"])
def test_the_bound_of_zero_2_without_overlap_leaves_the_other_stage_its_time_to_reduce(schedule):
    """The first rank has the embedding and the head, whose gradients are summed long before its end."""
    gpu = find_hardware("h100")
    across = replace(gpu.across, bandwidth_bytes_per_second=4e9)
    shape = replace(DENSE, layers=2, hidden=512, heads=4, kv_heads=1, ffn=2048, vocab=128256)
    job = TrainingJob(
        shape, replace(gpu, across=across, gpus_per_node=2), STACKS["deepspeed-2021"], 16384, 32
    )
    plan = Plan(tp=4, pp=2, dp=2, cp=2, zero=2, schedule=schedule, chunks=2, micro_batch=4)
    assert 0.9 < bounded(job, plan) <= 1 + ROUNDING


@pytest.mark.parametrize("schedule", SEARCHED)
def test_a_rank_waits_for_its_first_i_but_for_the_forward_passes_that_it_has_room_for(schedule):
    """Of every rank that can matter, by the seconds that the plan is timed with."""
    for job, plan in (one for kinds in KINDS for one in legal(schedule, 0, kinds, count=3)):
        work, (table,) = framework_workload(job, plan), time_tables(job, [spread(plan)])
        depth, microbatches = depth_of(job.shape, plan.pp, 1, "loop"), plan.microbatches(job)
        told = {"microbatches": np.array([microbatches]), "zero": np.array([0])}
        bound = PipelineBound(table | told, depth, job.stack, np.zeros((len(depth.ranks), 1)))
        F, I, W = ([one.total for one in column] for column in work.columns)
        message, room = sum(work.messages()), SEARCHED_ROOM[schedule] * plan.pp
        standing = 0.0 if job.stack.pp_overlap else message
        for rank, found in zip(depth.ranks.tolist(), bound.with_first_wait(plan.recipe)[:, 0]):
            below = range(rank + 1, plan.pp)
            forward, backward = F[rank] + standing, I[rank] + standing + W[rank]
            way = forward + sum(F[each] + I[each] + 2 * message for each in below)
            waited = way - min(microbatches, room) * forward
            assert found == pytest.approx(microbatches * (forward + backward) + waited, rel=1e-9)


def test_the_bound_of_a_searched_schedule_knows_what_each_rank_waits_for_its_first_i():
    """The first rank has fewer layers than those behind it, which make the span the longest: by the first
    rank's wait alone the bound is 0.89 of the step."""
    job = TrainingJob(find_model("llama-3-405b"), find_hardware("h100"), STACKS["megatron-core"], 4096, 1024)
    plan = Plan(tp=4, cp=2, pp=16, dp=32, zero=1, sequence_parallel=True, schedule="zb-1p")
    assert 0.95 < bounded(job, plan) <= 1 + ROUNDING


@pytest.mark.parametrize("schedule", SEARCHED)
def test_a_searched_schedule_of_one_layer_a_stage_is_nearly_its_bound_with_zero_2(schedule):
    """Spans that are equal end with the tail of the rank that reduces longest, which has the head."""
    shape = replace(DENSE, layers=2, vocab=128256)
    job = TrainingJob(shape, find_hardware("h100"), STACKS["megatron-2022"], 1024, 16)
    assert 0.98 < bounded(job, Plan(pp=2, dp=2, zero=2, schedule=schedule)) <= 1 + ROUNDING


def bounded(job: TrainingJob, plan: Plan) -> float:
    """The bound in steps."""
    assert not any(violations(job, plan))
    return float(lower_bound(job, plan).seconds[0] / time_step(job, plan).seconds)


@pytest.mark.parametrize("zero", [1, 3])
def test_the_search_prices_a_pair_of_microbatches_as_hiding_all_that_goes_to_experts(zero):
    """8 GPUs a node: with ep 16 all-to-alls cross nodes, and would be most of a step that hid none."""
    shape = replace(DENSE, layers=16, experts=replace(ALL, experts=16))
    job = TrainingJob(shape, find_hardware("h100"), STACKS["megatron-core"], 4096, 256)
    fixed = {"schedule": "dualpipev", "pp": 4, "tp": 1, "ep": 16, "zero": zero, "recompute": "none"}
    found = candidates(SearchSpace(job, 128, fixed, float("inf")))
    assert len(found.rows) > 1
    for place, bound in enumerate(found.seconds):
        plan = found.plan(place)
        assert bound == pytest.approx(lower_bound(job, plan).seconds[0], rel=1e-12)
        assert bound <= time_step(job, plan).seconds * (1 + ROUNDING)


def test_stages_of_given_layers_have_no_bound():
    job = TrainingJob(DENSE, find_hardware("h100"), STACKS["megatron-core"], 4096, 64)
    with pytest.raises(UserError, match=r"stage_layers is .*time the plan"):
        lower_bound(job, Plan(pp=2, dp=4, stage_layers=(1, 7)))
