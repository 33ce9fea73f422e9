"""Seconds of thousands of plans at once: closed forms where `predict` times the schedule's own actions.

Idea   All numbers of the plan are numpy arrays; the lists of operations are written once and priced for all.
Cost   some hundred numpy operations, whatever the number of plans.
Limit  Every rank is taken for the fullest one, messages hide in full pipelines, and the schedule's bubble is its paper's.
       All plans of one call share schedule, recompute, zero and sequence parallelism, and the number of GPUs.

Glossary
    mean layer   a layer of every kind, as often as the model has it, for one
    first, last  what no compute hides: the first collective before a pass, the last one behind it
"""

from dataclasses import replace
from typing import Any

import numpy as np

from ndparallel.errors import unknown
from ndparallel.planner.layer_time import Pricing, UnitSeconds
from ndparallel.planner.operations import Exchange
from ndparallel.planner.plan import Job, Plan
from ndparallel.planner.step import KINDS, Step, slowest
from ndparallel.planner.streams import Seconds
from ndparallel.planner.workload import Workload, elements_of, message_seconds, optimizer_step


def price(job: Job, plans: Plan) -> Step:
    """Price an array of plans on the same number of GPUs."""
    gpus = int(np.max(plans.gpus))
    pricing = Pricing(replace(job, hardware=slowest(job.hardware, gpus)), plans)
    spent = _sharded(pricing) if plans.zero == 3 else _pipeline(pricing)
    return Step({kind: spent.get(kind, 0.0) for kind in KINDS})


def _pipeline(pricing: Pricing) -> Seconds:
    job, plan = pricing.job, pricing.plan
    parts = fullest_rank(pricing)
    latency, wire = message_seconds(pricing)
    hops = 2 * (plan.pp - 1) + (0 if job.stack.pp_overlap else 2 * plan.chunks * plan.microbatches(job))
    messages = np.where(plan.pp > 1, hops * (latency + wire), 0.0)
    ends = Seconds(pp=messages, bubble=bubble_seconds(plan, parts), dp=exposed_gradients(pricing) + exposed_weights(pricing))
    return parts.total.times(plan.microbatches(job)) + ends + optimizer(pricing)


def mean_layer(pricing: Pricing) -> UnitSeconds:
    return UnitSeconds(
        *(sum((part.times(share) for part, share in zip(column, shares(pricing))), Seconds()) for column in _columns(pricing))
    )


def shares(pricing: Pricing) -> list[float]:
    """Of dense layers, and of layers with experts, those that there are."""
    moe = pricing.job.shape.moe_layers / pricing.job.shape.layers
    return [share for share in (1 - moe, moe) if share]


def kinds(pricing: Pricing) -> list[str]:
    moe = pricing.job.shape.moe_layers
    return (["dense"] if moe < pricing.job.shape.layers else []) + (["experts"] if moe else [])


def _columns(pricing: Pricing):
    return zip(*(pricing.unit(kind) for kind in kinds(pricing)))


def fullest_rank(pricing: Pricing) -> UnitSeconds:
    """One microbatch through the rank that has most to do: the most layers, or as many as there are with the head."""
    job, plan = pricing.job, pricing.plan
    even = np.where(job.shape.layers % plan.stages == 0, 1.0, 0.0)  # else the last stage has a layer less for its head
    layers = np.ceil(job.shape.layers / plan.pp)
    return UnitSeconds(*(part.times(layers) + end.times(even) for part, end in zip(mean_layer(pricing), pricing.unit("head"))))


def bubble_seconds(plan: Plan, parts: UnitSeconds) -> Any:
    """Idle time of the busiest rank (2104.04473, section 2.2; Qi et al. 2401.10241, table 1)."""
    forward, inputs, weights = parts.forward.total, (parts.recompute + parts.backward_input).total, parts.backward_weight.total
    idle = {
        "1f1b": forward + inputs + weights,
        "interleaved": (forward + inputs + weights) / plan.chunks,
        "zb-h1": np.maximum(0, forward + inputs - weights),
        "zb-1p": np.maximum(0, forward + inputs - weights),
        "zb-2p": np.maximum(0, forward + inputs - 2 * weights),
        "zb-h2": np.maximum(0, forward + inputs - 2 * weights),
    }
    if plan.schedule not in idle:
        raise unknown("schedule with a closed form", plan.schedule, idle)
    return (plan.pp - 1) * idle[plan.schedule]


# ------------------------------------------------------------------------------------------------- gradients and weights


def collectives(pricing: Pricing, which: str, kind: str) -> Any:
    """Seconds of a unit's gradients or weights on their way."""
    bucket = Workload(pricing).bucket(kind)
    exchanges: list[Exchange] = list(bucket.reduce if which == "reduce" else bucket.gather)
    return sum(pricing.whole(exchange) for exchange in exchanges)


def layer_collectives(pricing: Pricing, which: str) -> Any:
    return sum(share * collectives(pricing, which, kind) for kind, share in zip(kinds(pricing), shares(pricing)))


def exposed_gradients(pricing: Pricing) -> Any:
    """Buckets follow one another behind the last backward pass; the embedding's fills when nothing is left to hide behind."""
    return exposed(pricing, "reduce", mean_layer(pricing).backward.total, pricing.job.stack.dp_overlap)


def exposed_weights(pricing: Pricing) -> Any:
    """ZeRO-1: stepped weights come beside the next forward pass, or at the end."""
    if pricing.plan.zero == 0:
        return 0.0
    return exposed(pricing, "gather", mean_layer(pricing).forward.total, pricing.job.stack.gathers_first)


def exposed(pricing: Pricing, which: str, compute, overlap: bool) -> Any:
    """What layers of `compute` seconds do not hide of the collectives of the fullest rank, which holds the embedding."""
    layers, one = np.ceil(pricing.job.shape.layers / pricing.plan.pp), layer_collectives(pricing, which)
    table = collectives(pricing, which, "embedding")
    head = np.where(pricing.plan.pp == 1, collectives(pricing, which, "head"), 0.0)
    if not overlap:
        return table + layers * one + head
    return table + np.maximum(one, np.maximum(layers * one - (layers - 1) * compute, head + layers * (one - compute)))


def optimizer(pricing: Pricing) -> Seconds:
    """The fullest rank's, which holds the embedding."""
    job, plan = pricing.job, pricing.plan
    layers = np.ceil(job.shape.layers / plan.pp)
    mean = [sum(share * elements_of(job, plan, kind)[part] for kind, share in zip(kinds(pricing), shares(pricing))) for part in (0, 1)]
    ends = elements_of(job, plan, "embedding")[0] + np.where(plan.pp == 1, elements_of(job, plan, "head")[0], 0)
    return Seconds(optimizer=pricing.seconds(optimizer_step(pricing, layers * mean[0] + ends, layers * mean[1])))


def _sharded(pricing: Pricing) -> Seconds:
    """FSDP: a layer's weights come beside the layer before, its gradients go beside the next."""
    job, stack, layers = pricing.job, pricing.job.stack, pricing.job.shape.layers
    mean, microbatches = mean_layer(pricing), pricing.plan.microbatches(job)
    gather, scatter = layer_collectives(pricing, "gather"), layer_collectives(pricing, "reduce")
    forward = np.maximum(0, gather - mean.forward.total) if stack.prefetch else gather
    beside = gather * stack.prefetch + scatter * (stack.prefetch and stack.dp_overlap)
    backward = gather + scatter - beside + np.maximum(0, beside - mean.backward.total)
    ends = sum(collectives(pricing, which, kind) for which in ("gather", "reduce") for kind in ("embedding", "head"))
    compute = mean.total.times(layers) + pricing.unit("embedding").total + pricing.unit("head").total
    whole = (compute + Seconds(dp=layers * (forward + backward) + ends)).times(microbatches)
    return whole + optimizer(pricing)
