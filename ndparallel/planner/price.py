"""Seconds of thousands of plans at once: closed forms where `predict` times the schedule's own actions.

Idea   All numbers of the plan are numpy arrays; the lists of operations are written once and priced for all.
Cost   some hundred numpy operations, whatever the number of plans.
Limit  Every rank is taken for the fullest one, messages hide in full pipelines, and the schedule's bubble is its paper's.
       All plans of one call share schedule, recompute, zero and sequence parallelism, and the number of GPUs.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from ndparallel.errors import unknown
from ndparallel.planner.layer_time import LayerSeconds, Pricing, Seconds
from ndparallel.planner.plan import Job, Plan
from ndparallel.planner.step import Step, data_parallel_seconds, fsdp_step, message_seconds, slowest


def price(job: Job, plans: Plan) -> Step:
    """Price an array of plans on the same number of GPUs."""
    gpus = int(np.max(plans.gpus))
    pricing = Pricing(replace(job, hardware=slowest(job.hardware, gpus)), plans)
    return fsdp_step(pricing) if plans.zero == 3 else _pipeline_price(pricing)


def _pipeline_price(pricing: Pricing) -> Step:
    job, plan = pricing.job, pricing.plan
    microbatches, parts = plan.microbatches(job), fullest_rank(pricing)
    one = parts.total
    waiting = bubble_seconds(plan, parts)
    latency, wire = message_seconds(pricing)
    hops = 2 * (plan.pp - 1) + (0 if job.stack.pp_overlap else 2 * plan.chunks * microbatches)
    messages = np.where(plan.pp > 1, hops * (latency + wire), 0.0)
    data, optimizer = data_parallel_seconds(pricing, one.total)
    return Step(one.times(microbatches)._asdict() | {"dp": data, "pp": messages, "bubble": waiting, "optimizer": optimizer})


def fullest_rank(pricing: Pricing) -> LayerSeconds:
    """One microbatch through the rank that has most to do: the most layers, or as many as there are with the head."""
    job, plan = pricing.job, pricing.plan
    moe = job.shape.moe_layers / job.shape.layers
    dense, experts = pricing.layer(False), pricing.layer(True) if moe else pricing.layer(False)
    mixed = [a.times(1 - moe) + b.times(moe) for a, b in zip(dense, experts)]
    head, back, weight = (pricing.seconds(items) for items in pricing.lists.head())
    ends = LayerSeconds(head, Seconds(), back, weight)
    even = np.where(job.shape.layers % plan.stages == 0, 1.0, 0.0)  # else the last stage has a layer less for its head
    return LayerSeconds(*(part.times(np.ceil(job.shape.layers / plan.pp)) + end.times(even) for part, end in zip(mixed, ends)))


def bubble_seconds(plan: Plan, parts: LayerSeconds) -> Any:
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
