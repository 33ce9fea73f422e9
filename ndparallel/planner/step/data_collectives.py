"""The collectives that sum a unit's gradients over the ranks that share its data, and that make its weights
whole.

Idea   One over dp of what all its ranks hold, or for a layer of ZeRO-3 several; one of the experts, over the
       ranks that hold the same ones. Replicas of shards then sum what the shards have summed. A group of one
       rank has none.
"""

from typing import Any

from ndparallel.model.costs import itemsize
from ndparallel.planner.layers.operations import HALF, CollectiveOp
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.numbers import anywhere
from ndparallel.planner.stages import elements_of, gathers_every_microbatch, trained_of
from ndparallel.planner.step.parameter_kernels import owned


def reduced_gradients(pricing: Pricing, kind: str) -> list[CollectiveOp]:
    """What sums the gradients of a unit: whole, or with ZeRO to their owners."""
    job, plan = pricing.job, pricing.plan
    collective = "reduce_scatter" if plan.zero else "all_reduce"
    trained = trained_of(job, plan, kind)
    found = data_collectives(pricing, "gradients", collective, trained, job.gradient_bytes)
    return [*among_several(pricing, found), *[to_host(pricing, trained)] * job.states_away]


def gathered_weights(pricing: Pricing, kind: str) -> list[CollectiveOp]:
    """What makes the weights of a unit whole; nothing without ZeRO. A shard that is on the host is copied
    from there first, in the stream of the gather (all_gather_coalesced in
    deepspeed/runtime/zero/partition_parameters.py), or in one of its own, for which the gather waits
    (foreach_all_gather in torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)."""
    if not pricing.plan.zero:
        return []
    elements, size = gathered_elements(pricing, kind), itemsize(pricing.job.stack.dtype)
    found = data_collectives(pricing, "weights", "all_gather", elements, size)
    if not pricing.job.weights_away:
        return among_several(pricing, found)
    ranks = [pricing.groups.links(gather.group).ranks for gather in found]
    times = pricing.job.shard_bytes / size
    return [gather._replace(host_bytes=times * gather.bytes / each) for gather, each in zip(found, ranks)]


def to_host(pricing: Pricing, trained: tuple[Any, Any]) -> CollectiveOp:
    """The copy of a rank's shard of gradients to the host, once they are summed (foreach_reduce in
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)."""
    copied = owned(pricing, *trained) * pricing.job.shard_bytes
    return CollectiveOp("gradients to host", "reduce_scatter", "to_host", 0, host_bytes=copied)


def among_several(pricing: Pricing, collectives: list[CollectiveOp]) -> list[CollectiveOp]:
    """Those of groups that have more than one rank."""
    return [each for each in collectives if anywhere(pricing.groups.links(each.group).ranks > 1)]


def gathered_elements(pricing: Pricing, kind: str) -> tuple[Any, Any]:
    """Parameters of a unit that ZeRO gathers, in numbers of 16 bits: from FSDP's shards all, else those that
    were stepped, cast where they are kept so alone."""
    job, plan = pricing.job, pricing.plan
    if job.adapters and not gathers_every_microbatch(job, plan):
        return trained_of(job, plan, kind)
    return elements_of(job, plan, kind, job.gathered_matrix_bytes / HALF)


def data_collectives(
    pricing: Pricing, name: str, collective: str, elements: tuple[Any, Any], size: int
) -> list[CollectiveOp]:
    """The collectives of a unit's elements, (those that dp ranks share, those of experts), of so many bytes
    each."""
    plan, (shared, experts) = pricing.plan, elements
    group, parts = ("shards", pricing.job.stack.collectives_per_layer) if plan.zero == 3 else ("dp", 1)
    named = [
        CollectiveOp(f"{name} part {part}", collective, group, shared * size / parts) for part in range(parts)
    ]
    replicas = plan.zero == 3 and plan.shards and collective == "reduce_scatter"
    if replicas:
        shard = shared * size / plan.shards
        named.append(CollectiveOp(f"{name} of replicas", "all_reduce", "replicas", shard))
    if anywhere(experts):
        named.append(CollectiveOp(f"{name} of experts", collective, "experts_dp", experts * size))
        if replicas:
            shard = experts * size / pricing.groups.experts_dp.ranks
            named.append(CollectiveOp(f"{name} of replicas' experts", "all_reduce", "replicas", shard))
    return named
