"""What a plan costs whatever its schedule and its chunks: columns of numbers, one row for every plan.

Idea   Seconds, bytes and parameters of any run of stages are sums over what the stages consist of. So a plan
       is its prices of one layer, one embedding, one head and one bare stage, computed for thousands of plans
       at once by the functions that `predict` uses.
Cost   some hundred numpy operations for every choice of the three words, whatever the number of plans.
Limit  All plans are on the same number of GPUs. Layers with and without experts are mixed evenly.

Glossary
    part      what a stage consists of: the bare stage itself, dense layers, layers with experts, embedding,
              head
    pass      F, I (recomputation included) or W
    line      communication of one group: dp's, and that of the ranks with the same experts; lines run beside
              one another
    reduce    seconds of the collective that sums a part's gradients; gather: that makes its weights whole
    message   seconds of one microbatch's way from a stage to the next
    to_experts  of a pass's seconds those of its all-to-alls
    tied      seconds to sum the gradients of a table that is embedding and head, on two pipeline ranks
    reserve   bytes that a rank holds whatever its stages are; per_element: bytes for every parameter that it
              holds
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.collective_time import lost_to
from ndparallel.planner.layers.dense import LayerLists
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.memory.total import (
    fsdp_states,
    kept_bytes,
    logits_bytes,
    plain_states,
    prediction_bytes,
)
from ndparallel.planner.stages import elements_of
from ndparallel.planner.step.framework import (
    FrameworkWorkload,
    message_seconds,
    optimizer_step,
    slowest,
    tied_sum,
)

PARTS = ("stage", "dense", "experts", "embedding", "head")
UNITS = PARTS[1:]
DEGREES = ("tp", "pp", "dp", "ep", "cp", "micro_batch")
MANY = 1e9  # parameters: enough that a difference of two prices is exact

PlanTable = dict[
    str, np.ndarray
]  # the last axis of each counts plans; before it stand passes, lines or parts


def columns_of(job: TrainingJob, plans: Plan) -> PlanTable:
    """The columns of plans that share recompute, zero and sequence parallelism. Their degrees are arrays of
    one length."""
    pricing = Pricing(replace(job, hardware=slowest(job.hardware, int(np.max(plans.gpus)))), plans)
    held = [elements_of(job, plans, kind) if exists(job, kind) else (0.0, 0.0) for kind in UNITS]
    passes, travel = passes_of(pricing), travel_of(pricing)
    columns = memory_columns(job, plans) | {
        "elements": [[0.0, *(shared for shared, _ in held)], [0.0, *(experts for _, experts in held)]],
        "passes": fully_sharded(pricing, passes, travel)
        if plans.zero == 3
        else with_messages(pricing, passes),
        "to_experts": to_experts(pricing),
        "travel": travel if plans.zero < 3 else [[[0.0] * len(UNITS)] * 2] * 2,
        "optimizer": line_through(lambda *held: pricing.seconds(optimizer_step(pricing, *held))),
        "message": sum(message_seconds(pricing)) * (np.asarray(plans.pp) > 1) * job.stack.pp_overlap,
        "tied": pricing.priced(tied_sum(pricing)) * job.shape.tied_embeddings,
        "microbatches": plans.microbatches(job),
        "zero": plans.zero,
    }
    return {name: whole(column, len(plans.tp)) for name, column in columns.items()}


def whole(column: Any, size: int) -> np.ndarray:
    """Nested lists of numbers and arrays of plans as one array, plans last."""
    if isinstance(column, list | tuple):
        return np.stack([whole(part, size) for part in column])
    return np.broadcast_to(np.asarray(column, dtype=float), (size,))


def joined(tables: Sequence[PlanTable]) -> PlanTable:
    return {name: np.concatenate([table[name] for table in tables], axis=-1) for name in tables[0]}


def take(columns: PlanTable, rows: np.ndarray) -> PlanTable:
    """Some of the plans, by their places."""
    return {name: np.take(column, rows, axis=-1) for name, column in columns.items()}


def exists(job: TrainingJob, kind: str) -> bool:
    return {"dense": job.shape.moe_layers < job.shape.layers, "experts": job.shape.moe_layers > 0}.get(
        kind, True
    )


# ---------------------------------------------------------------------------------------------------- seconds


def passes_of(pricing: Pricing) -> list[list[Any]]:
    """Seconds of F, I and W by part."""
    units = [pricing.unit(kind) if exists(pricing.job, kind) else None for kind in UNITS]
    return [
        [0.0, *(unit.forward.total if unit else 0.0 for unit in units)],
        [0.0, *((unit.recompute + unit.backward_input).total if unit else 0.0 for unit in units)],
        [0.0, *(unit.backward_weight.total if unit else 0.0 for unit in units)],
    ]


def to_experts(pricing: Pricing) -> list[list[Any]]:
    """Seconds of the all-to-alls in F, I and W, which pairs of microbatches can hide."""
    units = [pricing.unit(kind) if exists(pricing.job, kind) else None for kind in UNITS]
    passes = [
        (unit.forward, unit.recompute + unit.backward_input, unit.backward_weight) if unit else ({}, {}, {})
        for unit in units
    ]
    return [[0.0, *(one.get("ep", 0.0) for one in line)] for line in zip(*passes)]


def with_messages(pricing: Pricing, passes: list[list[Any]]) -> list[list[Any]]:
    """Software that overlaps no messages stands still for one in F and one in I."""
    plan, standing = pricing.plan, 0.0 if pricing.job.stack.pp_overlap else sum(message_seconds(pricing))
    forward, inputs, weights = passes
    forward[0] = inputs[0] = standing * (np.asarray(plan.pp) > 1)
    return [forward, inputs, weights]


def travel_of(pricing: Pricing) -> list[list[list[Any]]]:
    """Seconds that a unit's gradients, and its weights, are on their way: [reduce, gather][line][unit]."""
    work = FrameworkWorkload(pricing)
    buckets = [work.bucket(kind) if exists(pricing.job, kind) else None for kind in UNITS]
    sent = [
        [getattr(bucket, which) if bucket else [] for bucket in buckets] for which in ("reduce", "gather")
    ]
    return [
        [
            [
                sum((pricing.whole(one) for one in unit if (one.group == "experts_dp") == own), 0.0)
                for unit in units
            ]
            for own in (False, True)
        ]
        for units in sent
    ]


def fully_sharded(
    pricing: Pricing, passes: list[list[Any]], travel: list[list[list[Any]]]
) -> list[list[Any]]:
    """Passes that wait for weights, and for the gradients' leave: the loops of overlap.py over equal layers,
    summed up."""
    stack, (forward, inputs, weights) = pricing.job.stack, passes
    backward = [a + b for a, b in zip(inputs, weights)]
    reduce, gather = ([np.maximum(*both) for both in zip(*lines)] for lines in travel)
    fill = FORWARD[stack.prefetch](forward[1:], gather, exists(pricing.job, "experts"))
    drain = BACKWARD[stack.prefetch + (stack.prefetch and stack.dp_overlap)](
        backward[1:], gather, reduce, exists(pricing.job, "experts")
    )
    return [
        [a + b for a, b in zip(forward, fill)],
        [a + b for a, b in zip(backward, drain)],
        [0.0] * len(PARTS),
    ]


def above(seconds, compute):
    """Seconds that a collective adds to the compute it overlaps: the larger of its exposed tail and of the
    slowdown that it causes."""
    return np.maximum(seconds - compute, lost_to(seconds, compute))


def waits_of_forward(f, g, mixed: bool) -> list:
    """With prefetching: the first gather shows whole, a later one above the layer before it."""
    usual, (_, _, table, head) = int(mixed), g
    each = [above(gather, compute) for gather, compute in zip(g[:2], f[:2])]
    return [g[usual] - each[usual], *each, table + above(g[usual], f[2]) - g[usual], above(head, f[usual])]


def bare_forward(f, g, mixed: bool) -> list:
    return [0.0, *g]


def waits_of_backward(b, g, c, mixed: bool) -> list:
    """With prefetching and overlap: beside a layer come the next one's weights and go the last one's
    gradients."""
    u, (table, head) = int(mixed), (g[2], g[3])
    each = [above(gather + reduce, compute) for gather, reduce, compute in zip(g[:2], c[:2], b[:2])]
    edges = g[u] + above(g[u], b[u]) + above(c[u], b[u]) + c[u] - 2 * each[u]
    first = above(c[u] + table, b[u]) - above(c[u], b[u]) + above(c[u], b[2]) + c[2] - c[u]
    last = head + above(g[u], b[3]) - g[u] + above(c[3] + g[u], b[u]) - above(g[u], b[u])
    return [edges, *each, first, last]


def waits_of_gathers(b, g, c, mixed: bool) -> list:
    """With prefetching alone: gradients show whole."""
    u = int(mixed)
    each = [above(gather, compute) + reduce for gather, reduce, compute in zip(g[:2], c[:2], b[:2])]
    return [g[u] - above(g[u], b[u]), *each, above(g[2], b[u]) + c[2], g[3] - g[u] + above(g[u], b[3]) + c[3]]


def bare_backward(b, g, c, mixed: bool) -> list:
    return [0.0, *(gather + reduce for gather, reduce in zip(g, c))]


FORWARD: tuple[Callable, ...] = (bare_forward, waits_of_forward)
BACKWARD: tuple[Callable, ...] = (bare_backward, waits_of_gathers, waits_of_backward)


# ----------------------------------------------------------------------------------------------------- memory


def memory_columns(job: TrainingJob, plans: Plan) -> dict[str, Any]:
    """Bytes by what they grow with. Both ways of holding states are linear in the parameters that a rank
    holds."""
    lists = LayerLists(job.shape, plans.share(job), job.stack)
    sharded = (plans.zero == 3) * (np.asarray(plans.dp) > 1)
    ways = (plain_states, fsdp_states)
    plain, fsdp = (
        line_through(lambda *held, states=states: sum(states(job, plans, *held).values())) for states in ways
    )
    reserve, *per_element = (np.where(sharded, there, here) for here, there in zip(plain, fsdp))
    return {
        "reserve": reserve + (kept_bytes(lists, "none") if plans.recompute == "full" else 0.0),
        "per_element": per_element,
        "kept": kept_bytes(lists, plans.recompute),
        "logits": logits_bytes(job, plans) + prediction_bytes(job, plans),
    }


def line_through(of: Callable) -> tuple[Any, Any, Any]:
    """A linear function of (parameters that dp ranks share, parameters of experts): what it is for none, and
    for one of each."""
    none = of(0.0, 0.0)
    return none, (of(MANY, 0.0) - none) / MANY, (of(0.0, MANY) - none) / MANY
