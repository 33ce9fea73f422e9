"""What FSDP holds on a GPU for a while, beside shards of weights, gradients and optimizer.

Idea   Weights are whole while a layer computes, and the next layer's while they are gathered beside it; a
       layer's gradients are whole until they are scattered. What else PyTorch's FSDP2 copies into is read in
       torch/distributed/fsdp/_fully_shard.
Limit  Of shards that are on their way to a gather only those that PyTorch copies from the host are counted.

Glossary
    unit    what FSDP gathers at once: a layer, or the two ends of the model together
"""

from collections.abc import Callable

from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.operations import HALF
from ndparallel.planner.memory.deepspeed import live_weights
from ndparallel.planner.numbers import either, larger, most
from ndparallel.planner.stages import (
    ENDS,
    Elements,
    elements_of,
    embedding_elements,
    keeps_gradients,
    trained_of,
    weights_are_whole,
)


def whole_weights(job: TrainingJob, plan: Plan, held: Elements):
    """Bytes of weights that are whole at the same time: of two layers and the ends; in PyTorch's pipelines of
    all. DeepSpeed counts them."""
    if job.stack.live_weights is None:
        some = 2 * largest_layer(job, plan, elements_of) + ends_of(job, plan)
    else:
        some = live_weights(job, plan)
    return either(weights_are_whole(job, plan), sum(held), some) * HALF


def gather_block(job: TrainingJob, plan: Plan):
    """Bytes that FSDP2 gathers into before it copies each weight to its place, beyond the next layer's: a
    block of a stream of its own, which other tensors cannot take (foreach_all_gather in
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py), but over one rank (unshard in
    _fsdp_param_group.py: world_size == 1). A layer's stays until the next one has copied
    its shards into another ("Overlapping all-gather copy-in and all-gather" in _fsdp_param_group.py)."""
    if job.stack.sharding != "fsdp2":
        return 0.0
    layer = largest_layer(job, plan, elements_of)
    counted = either(weights_are_whole(job, plan), 0.0, layer)
    block = (layer + larger(layer, ends_of(job, plan)) - counted) * HALF
    return block * (plan.sharding_ranks > 1)


def arriving_shard(job: TrainingJob, plan: Plan):
    """Bytes of a shard that FSDP2 copies from the host for its gather: each weight as it is kept, and then
    all of a unit in 16 bits (all_gather_inputs in torch/distributed/fsdp/_fully_shard/_fsdp_param.py). The
    vocabulary's table is taken for the largest weight."""
    if not job.states_away:
        return 0.0
    unit = larger(largest_layer(job, plan, elements_of), ends_of(job, plan))
    cast = unit * HALF * (job.shard_bytes > HALF)
    return (cast + embedding_elements(job, plan.tp) * job.shard_bytes) / plan.sharding_ranks


def whole_gradients(job: TrainingJob, plan: Plan, trained: Elements):
    """Bytes of gradients that are not scattered yet: of one layer, or until the last microbatch of all in the
    chunks whose backward passes have begun, beside which FSDP2 copies a layer's into what the reduce_scatter
    sends (reduce_scatter_state in _fsdp_param_group.py); DeepSpeed's wait in its buffers."""
    layer, copied = largest_layer(job, plan, trained_of), job.stack.sharding == "fsdp2"
    begun = plan.recipe.chunks_begun(plan.microbatches(job), plan.pp, plan.chunks) / plan.chunks
    whole = begun * sum(trained) + copied * layer
    alone = 0.0 if job.stack.reduce_bucket else layer
    return either(keeps_gradients(job, plan), whole, alone) * job.stack.gradient_bytes


def largest_layer(job: TrainingJob, plan: Plan, of: Callable[[TrainingJob, Plan, str], Elements]):
    """Parameters of the largest layer."""
    return most(sum(of(job, plan, kind)) for kind in job.shape.layer_kinds)


def ends_of(job: TrainingJob, plan: Plan):
    """Parameters of embedding and head, which FSDP gathers as one unit; in a pipeline each rank has one."""
    table, head = (sum(elements_of(job, plan, kind)) for kind in ENDS)
    return either(plan.pp > 1, larger(table, head), table + head)
