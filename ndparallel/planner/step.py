"""Seconds of one training step, and where they go.

Idea   Layers make stages, stages and the schedule's own action list make the pipeline, data parallelism comes before, beside and after it,
       and the optimizer ends the step. A synchronous step is as long as on the slowest of its GPUs.
Cost   `predict` times the schedule's actions: about 2 us each. `price` takes closed forms, for arrays of plans.
Limit  Data loading, logging and checkpoints are not in a step.

Glossary
    bubble      time that the pipeline's busiest rank spends waiting for others
    bucket      gradients of one layer: what data parallelism reduces at once
    spread      standard deviation of the GPUs' speeds, as a share
"""

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from ndparallel.hardware import Accelerator
from ndparallel.pipeline.actions import Schedule
from ndparallel.pipeline.catalog import build
from ndparallel.pipeline.search import search
from ndparallel.pipeline.timing import Timing, time_schedule
from ndparallel.pipeline.work import Work, spread_layers
from ndparallel.planner.layer_time import LayerSeconds, Pricing, Seconds
from ndparallel.planner.network import START_SECONDS, collective_seconds
from ndparallel.planner.operations import HALF
from ndparallel.planner.plan import Job, Plan

AUTOMATIC = {"zb-1p": 1, "zb-2p": 2}  # schedules searched within so many times 1F1B's memory
SPREAD = 0.02  # Sinha et al., "Not All GPUs Are Created Equal" (2208.11035): GPUs of one model differ by 8 % on average


@dataclass(frozen=True)
class Step:
    """Seconds of a step: compute, exposed communication by kind, bubble and optimizer add up to `seconds`."""

    breakdown: dict[str, Any]

    @property
    def seconds(self):
        return sum(self.breakdown.values())


def slowest(hardware: Accelerator, gpus: int) -> Accelerator:
    """The slowest of so many GPUs: the median of the minimum of normally distributed speeds."""
    behind = -SPREAD * NormalDist().inv_cdf(1 - 0.5 ** (1 / gpus)) if gpus > 1 else 0.0
    return replace(hardware, matmul_fraction=hardware.matmul_fraction / (1 + behind))


def predict(job: Job, plan: Plan) -> Step:
    """Time one plan."""
    job = replace(job, hardware=slowest(job.hardware, plan.gpus))
    pricing = Pricing(job, plan)
    return fsdp_step(pricing) if plan.zero == 3 else pipeline_step(pricing)


# -------------------------------------------------------------------------------------------------------- the pipeline


@dataclass(frozen=True)
class Stages:
    """What one microbatch costs on every stage, and of what."""

    forward: list[Seconds]
    recompute: list[Seconds]
    backward_input: list[Seconds]
    backward_weight: list[Seconds]

    def rank_seconds(self, rank: int, pp: int) -> Seconds:
        """One microbatch through all chunks of a rank (looped layout)."""
        return sum((column[stage] for column in self.columns() for stage in range(rank, len(column), pp)), Seconds())

    def columns(self) -> tuple[list[Seconds], ...]:
        return self.forward, self.recompute, self.backward_input, self.backward_weight


def layers_by_stage(layers: int, stages: int) -> list[int]:
    """Megatron's even split; where it is not even, embedding and head count as a layer each (Llama 3, 2407.21783, section 3.3.2)."""
    return [layers // stages] * stages if layers % stages == 0 else spread_layers(layers, stages, 1, 1)


def stages_of(pricing: Pricing) -> Stages:
    job, plan = pricing.job, pricing.plan
    kinds = {experts: pricing.layer(experts) for experts in {job.shape.has_experts(layer) for layer in range(job.shape.layers)}}
    places = np.cumsum([0, *layers_by_stage(job.shape.layers, plan.stages)])
    inside = [[kinds[job.shape.has_experts(layer)] for layer in range(start, end)] for start, end in zip(places, places[1:])]
    columns = [[sum((layer[part] for layer in layers), Seconds()) for layers in inside] for part in range(len(LayerSeconds._fields))]
    forward, recompute, inputs, weights = columns
    head = [pricing.seconds(items) for items in pricing.lists.head()]
    forward[0] += pricing.seconds(pricing.lists.embedding())
    forward[-1], inputs[-1], weights[-1] = forward[-1] + head[0], inputs[-1] + head[1], weights[-1] + head[2]
    return Stages(forward, recompute, inputs, weights)


def pipeline_step(pricing: Pricing) -> Step:
    job, plan = pricing.job, pricing.plan
    stages, microbatches = stages_of(pricing), plan.microbatches(job)
    busiest = max((stages.rank_seconds(rank, plan.pp) for rank in range(plan.pp)), key=lambda seconds: seconds.total).times(microbatches)
    makespan, waiting = pipeline_seconds(pricing, stages, microbatches)
    data, optimizer = data_parallel_seconds(pricing, busiest.total / microbatches)
    pipeline = {"pp": waiting, "bubble": makespan - waiting - busiest.total}
    return Step(busiest._asdict() | {"dp": data} | pipeline | {"optimizer": optimizer})


def pipeline_seconds(pricing: Pricing, stages: Stages, microbatches: int) -> tuple[float, float]:
    """Seconds until the last rank ends, and how many of them messages cost: the same list is timed without them."""
    plan = pricing.plan
    if plan.pp == 1:
        return stages.rank_seconds(0, 1).total * microbatches, 0.0
    schedule = schedule_of(pricing, stages, microbatches)
    whole = length(plan, time_schedule(schedule, work_of(pricing, stages)))
    return whole, whole - length(plan, time_schedule(schedule, work_of(pricing, stages, messages=False)))


def schedule_of(pricing: Pricing, stages: Stages, microbatches: int) -> Schedule:
    """The plan's schedule by name; the automatic ones are searched for these very seconds (2401.10241, section 3.1)."""
    plan = pricing.plan
    if plan.schedule in AUTOMATIC:
        return search(plan.pp, microbatches, work_of(pricing, stages), memory_limit=AUTOMATIC[plan.schedule] * plan.pp)
    return build(plan.schedule, plan.pp, microbatches, plan.chunks if plan.chunks > 1 else None)


def length(plan: Plan, timing: Timing) -> float:
    """Seconds of a step: until the last rank ends; or a rank's own span, where steps follow without a stop (2401.10241, section 4)."""
    return max(timing.spans) if plan.schedule in AUTOMATIC else timing.makespan


def work_of(pricing: Pricing, stages: Stages, messages: bool = True) -> Work:
    """Seconds of all actions. Without overlap a rank stands still while its messages pass."""
    forward, recompute, inputs, weights = ([float(part.total) for part in column] for column in stages.columns())
    inputs = [again + back for again, back in zip(recompute, inputs)]
    if not messages:
        return Work(forward, inputs, weights)
    latency, wire = (float(seconds) for seconds in message_seconds(pricing))
    if pricing.job.stack.pp_overlap:
        return Work(forward, inputs, weights, latency=latency, wire=wire)
    return Work([seconds + latency + wire for seconds in forward], [seconds + latency + wire for seconds in inputs], weights)


def message_seconds(pricing: Pricing) -> tuple[Any, Any]:
    """Latency and wire time of a microbatch's activations between stages; tp ranks send a part each and gather it (2104.04473, 4.1)."""
    job, plan, hardware = pricing.job, pricing.plan, pricing.job.hardware
    stride = pricing.groups.stage_stride
    inside = stride * plan.pp <= hardware.gpus_per_node
    latency = np.where(inside, hardware.inside.latency_seconds, hardware.across.latency_seconds)
    bandwidth = np.where(inside, hardware.inside.bandwidth_bytes_per_second, hardware.across.bandwidth_bytes_per_second)
    part = plan.share(job).rows / plan.tp * job.shape.hidden * HALF
    gathered = 0.0 if plan.sequence_parallel else collective_seconds("all_gather", part * plan.tp, pricing.groups.tp)
    return START_SECONDS + latency + gathered, part / bandwidth


# -------------------------------------------------------------------------------------------------------- data parallelism


def rank_parameters(job: Job, plan: Plan) -> tuple[Any, Any]:
    """Parameters of the fullest rank: (those that all of a dp group's ranks hold, those of its experts)."""
    counted = job.shape.parameters()
    layers = np.ceil(job.shape.layers / plan.pp)
    experts_share = counted.moe_layers / job.shape.layers
    dense = (counted.attention + (1 - experts_share) * counted.dense_mlp + experts_share * counted.shared_experts) / plan.tp
    shared = layers * (dense + counted.layer_norms + experts_share * counted.router)
    ends = counted.token_embedding / plan.tp * np.where((plan.pp == 1) & (not job.shape.tied_embeddings), 2, 1)
    return shared + ends, layers * experts_share * counted.experts * counted.expert / plan.ep


def data_parallel_seconds(pricing: Pricing, microbatch_seconds) -> tuple[Any, Any]:
    """Exposed seconds of gradients and weights, and of the optimizer."""
    job, plan, stack = pricing.job, pricing.plan, pricing.job.stack
    shared, experts = rank_parameters(job, plan)
    groups = pricing.groups
    whole = exchange_seconds(shared, groups.dp, pricing) + exchange_seconds(experts, groups.experts_dp, pricing)
    bucket = whole / np.ceil(job.shape.layers / plan.pp)
    exposed = np.maximum(whole - microbatch_seconds, bucket) if stack.dp_overlap else whole
    ranks, experts_ranks = (groups.dp.ranks, groups.experts_dp.ranks) if plan.zero else (1, 1)
    mine = shared / ranks + experts / experts_ranks
    return exposed, mine * stack.optimizer_bytes / job.hardware.memory_bandwidth_bytes_per_second


def exchange_seconds(parameters, links, pricing: Pricing):
    """Gradients summed by all; or to their owners, whose new weights go to all."""
    gradients = parameters * (HALF if pricing.job.half else pricing.job.stack.gradient_bytes)
    if pricing.plan.zero == 0:
        return collective_seconds("all_reduce", gradients, links)
    return collective_seconds("reduce_scatter", gradients, links) + collective_seconds("all_gather", parameters * HALF, links)


# ------------------------------------------------------------------------------------------------------------------- FSDP


def fsdp_step(pricing: Pricing) -> Step:
    """Gather a layer's weights while the one before computes; in the backward pass gather again, and scatter gradients."""
    job, plan, stack = pricing.job, pricing.plan, pricing.job.stack
    links, microbatches = pricing.groups.dp, plan.microbatches(job)
    layer, counted = pricing.layer(False), job.shape.parameters()
    unit = counted.dense_layer / plan.tp
    gather, scatter = weights_seconds(unit, links, pricing), gradients_seconds(unit, links, pricing)
    ends = [pricing.seconds(items) for items in (*pricing.lists.head(), pricing.lists.embedding())]
    compute = (layer.total.times(job.shape.layers) + sum(ends, Seconds())).times(microbatches)
    if stack.dp_overlap:
        forward, backward = np.maximum(0, gather - layer.forward.total), np.maximum(0, gather + scatter - layer.backward.total)
    else:
        forward, backward = gather, gather + np.maximum(0, scatter - layer.backward.total)
    table = counted.token_embedding / plan.tp
    first = weights_seconds(table, links, pricing) + gather + gradients_seconds(table, links, pricing)
    exposed = microbatches * (job.shape.layers * (forward + backward) + first)
    mine = counted.total / plan.tp / links.ranks
    optimizer = mine * stack.optimizer_bytes / job.hardware.memory_bandwidth_bytes_per_second
    return Step(compute._asdict() | {"dp": exposed, "optimizer": optimizer})


def weights_seconds(parameters, links, pricing: Pricing):
    return pricing.job.stack.collectives_per_layer * collective_seconds(
        "all_gather", parameters * HALF / pricing.job.stack.collectives_per_layer, links
    )


def gradients_seconds(parameters, links, pricing: Pricing):
    size = HALF if pricing.job.half else pricing.job.stack.gradient_bytes
    parts = pricing.job.stack.collectives_per_layer
    return parts * collective_seconds("reduce_scatter", parameters * size / parts, links)
