"""Messages between the stages of a pipeline: a microbatch's activations, and the gradients of a table that is
embedding and head.

Limit  All hops are priced as the slowest: between nodes, unless one node has the whole pipeline.
"""

from typing import Any

from ndparallel.planner.job import TrainingJob
from ndparallel.planner.layers.collective_time import collective_seconds, message_price
from ndparallel.planner.layers.operations import HALF, CollectiveOp
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.stages import table_elements


def message_seconds(pricing: Pricing) -> tuple[Any, Any]:
    """Latency and wire time, in seconds, of a microbatch's activations between neighbouring stages; tp ranks
    may send a part each and gather them (2104.04473, section 4.1)."""
    job, plan = pricing.job, pricing.plan
    latency, bandwidth = message_price(pricing.groups.pp)
    whole = plan.share(job).rows * job.shape.hidden * HALF
    part, gathered = whole / plan.tp, collective_seconds("all_gather", whole, pricing.groups.tp)
    if plan.sequence_parallel:
        gathered = 0.0
    if job.stack.pp_in_turn:
        # three gathers for the two messages of a microbatch: backward the rank's own output is made whole too
        # (_exec_backward_pass in deepspeed/runtime/pipe/engine.py)
        return 2 * (1 + (plan.tp > 1)) * latency + 1.5 * gathered, 2 * part / bandwidth
    if plan.sequence_parallel or job.stack.pp_in_parts:
        return latency + gathered, part / bandwidth
    return latency, whole / bandwidth


def tied(job: TrainingJob) -> bool:
    """Whether a table is embedding and head, and is trained."""
    return job.shape.tied_embeddings and not job.adapters


def tied_sum(pricing: Pricing) -> CollectiveOp:
    """Over the first and the last stage, when dp's sums are done
    (megatron/core/distributed/finalize_model_grads.py)."""
    job, owners = pricing.job, pricing.groups.shards.ranks if pricing.plan.zero == 3 else 1
    mine = table_elements(job, pricing.plan.tp) / owners
    return CollectiveOp("gradients of both ends", "all_reduce", "ends", mine * job.gradient_bytes)
