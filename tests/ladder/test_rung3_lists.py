"""Rung 3 of the lists: what the builder of real models' layers writes for the lessons' software is what one
rank of the executed layers was recorded to do, item by item.

Operations are compared by kind, sizes, type, FLOPs, bytes and kernels; collectives by kind, group and bytes,
and by where they stand; units by the bytes that they keep. A collective of one rank is none: the builder,
which writes lists for arrays of plans, cannot leave it out."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import pytest

from gpu import Operation
from ndparallel.hardware.pocket import POCKET as GPUS
from ndparallel.parallel.context import VARIANTS
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.kept import gathered_bytes, kept_bytes
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.layers.operations import SINGLE, CollectiveOp, Hold, Start, Wait
from ndparallel.planner.lesson_runs.workload import ExecutedWorkload
from ndparallel.planner.memory.head import logits_bytes
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.software import POCKET

LLAMA = ModelShape("llama", layers=2, hidden=32, heads=8, kv_heads=2, head_dim=4, ffn=88, vocab=256)
MIXTURE = replace(LLAMA, experts=Experts(experts=8, top_k=2, ffn=44))
SHARED = replace(LLAMA, experts=Experts(experts=8, top_k=2, ffn=44, shared_experts=2, shared_ffn=44))
RECOMPUTE = ("none", "selective", "full")
SEQUENCE_PARALLEL = ("none", "sp", "sp-regather")
UNITS = ("embedding", "dense", "head")


def job_of(shape=LLAMA, **software) -> TrainingJob:
    return TrainingJob(shape, GPUS, replace(POCKET, **software), sequence=64, global_batch=8)


def built(job: TrainingJob, plan: Plan) -> LayerLists:
    return LayerLists(job.shape, plan.share(job), job.stack)


def compared(items: Iterable, plan: Plan) -> list[tuple]:
    """What is compared of a list's items."""
    ranks = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep, "tp_cp": plan.tp * plan.cp}
    found: list[tuple] = []
    for item in items:
        if isinstance(item, Operation):
            found.append(item[1:])
            continue
        exchange = item.exchange if isinstance(item, Start | Wait) else item
        if isinstance(exchange, CollectiveOp) and ranks[exchange.group] > 1:
            found.append((type(item).__name__, *exchange[1:5]))
    return found


def interleaved(whole: list, *parts: list) -> bool:
    """Whether a list consists of these lists, each in its own order."""
    if len(whole) != sum(map(len, parts)):
        return False

    @cache
    def reachable(*taken: int) -> bool:
        done = sum(taken)
        return done == len(whole) or any(
            place < len(part)
            and part[place] == whole[done]
            and reachable(*taken[:n], place + 1, *taken[n + 1 :])
            for n, (part, place) in enumerate(zip(parts, taken))
        )

    return reachable(*(0 for _ in parts))


def check(job: TrainingJob, plan: Plan, unit: str) -> None:
    """Hold the four lists of a unit against the passes of the executed one."""
    forward, again, inputs, weights = (
        compared(items, plan) for items in built(job, plan).unit(unit, plan.recompute)
    )
    work, kind = ExecutedWorkload(job, plan), unit if unit in ("embedding", "head") else "block"

    def executed(op: str) -> list[tuple]:
        return compared(work.rank.items(kind, op), plan)

    assert forward == executed("F")
    assert weights == executed("W")
    again = again if kind == "block" else []
    # what is computed again stands where it is needed, and weights' gradients behind those of inputs
    assert interleaved(executed("I"), again, inputs)
    assert interleaved(executed("B"), again, inputs, *apart(weights, job, plan, unit))
    if unit != "experts":
        assert kept(job, plan, kind) == sum(
            item.bytes for item in work.rank.items(kind, "F") if isinstance(item, Hold)
        )


def apart(weights: list, job: TrainingJob, plan: Plan, unit: str) -> list[list]:
    """Part weights' gradients where a whole backward pass has another order: the router's last."""
    if unit != "experts" or job.shape.experts is None:
        return [weights]
    experts = 2 * job.shape.experts.experts // plan.ep  # matrices
    attention = 2 + (job.stack.regathers and plan.tp > 1)
    router, shared = weights[:1], weights[1 : -experts - attention]
    return [router, shared, weights[-experts - attention :]]


def kept(job: TrainingJob, plan: Plan, kind: str):
    """Bytes that the planner counts for what a unit keeps, and the tokens of the embedding."""
    lists = built(job, plan)
    if kind == "embedding":
        return lists.share.rows  # its tokens, which are bytes
    if kind == "head":
        return logits_bytes(job, plan)
    return kept_bytes(lists, "dense", plan.recompute)


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("shards", SEQUENCE_PARALLEL)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_tensor_parallel_units_are_listed_as_they_are_executed(tp, shards, recompute):
    job = job_of(regathers=shards == "sp-regather")
    plan = Plan(tp=tp, micro_batch=2, sequence_parallel=shards != "none" and tp > 1, recompute=recompute)
    for unit in UNITS:
        check(job, plan, unit)


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_chunks_are_summed_beside_the_next_chunk_as_they_are_executed(tp, recompute):
    check(job_of(tp_parts=2), Plan(tp=tp, recompute=recompute), "dense")


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_context_parallel_units_are_listed_as_they_are_executed(tp, cp, variant, recompute):
    job = job_of(replace(LLAMA, heads=16, head_dim=2), context_parallel=variant)  # which tp and cp cut
    for sequence_parallel in {False, tp > 1}:
        plan = Plan(tp=tp, cp=cp, sequence_parallel=sequence_parallel, recompute=recompute)
        for unit in UNITS:
            check(job, plan, unit)


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("shape", [MIXTURE, SHARED])
@pytest.mark.parametrize("ep", [1, 2, 4])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_experts_in_balance_are_listed_as_they_are_executed(tp, ep, shape, recompute):
    for shards in SEQUENCE_PARALLEL:
        plan = Plan(
            tp=tp,
            ep=ep,
            dp=ep,
            micro_batch=2,
            sequence_parallel=shards != "none" and tp > 1,
            recompute=recompute,
        )
        check(job_of(shape, regathers=shards == "sp-regather"), plan, "experts")


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("shape", [MIXTURE, SHARED])
@pytest.mark.parametrize(("tp", "shards"), [(1, "none"), (2, "none"), (2, "sp"), (4, "sp-regather")])
def test_experts_keep_what_the_executed_ones_keep_but_for_the_routers_numbers(tp, shards, shape, recompute):
    """The executed router keeps probabilities, choices, their order, and under tensor parallelism its rows
    of the norm apart from those that shared experts read; without these nobody keeps all rows."""
    job = job_of(shape, regathers=shards == "sp-regather")
    plan = Plan(tp=tp, ep=2, dp=2, micro_batch=2, sequence_parallel=shards != "none", recompute=recompute)
    lists = built(job, plan)
    moe = lists.experts.moe
    own = shape.hidden if tp > 1 or not moe.shared_experts else 0
    router = SINGLE * lists.experts.own_rows * (moe.experts + 2 * moe.top_k + own)
    unread = 0 if moe.shared_experts else gathered_bytes(lists)
    executed = ExecutedWorkload(job, plan).rank.items("block", "F")
    held = sum(item.bytes for item in executed if isinstance(item, Hold))
    assert held == kept_bytes(lists, "experts", recompute) + router - unread


def test_lists_that_differ_in_the_order_of_one_part_are_no_interleaving():
    assert interleaved([1, 2, 1, 3], [1, 3], [2, 1])
    assert not interleaved([1, 2, 1, 3], [3, 1], [2, 1])
    assert not interleaved([1, 2, 3], [1, 2])
