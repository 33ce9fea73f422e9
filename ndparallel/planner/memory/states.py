"""Bytes of weights, gradients and optimizer on one GPU, and of what lies beside them.

Idea   They follow from the parameters that a rank holds, and from which ranks share them. What is there only
       for a while, as gathered weights, is counted in fsdp.py and deepspeed.py.
Cost   Mixed precision: 2 bytes for a weight, 2 or 4 for its gradient, 12 for the optimizer (weight and two
       moments in float32). Moments may be kept in fewer bits, the optimizer on the host; of a frozen model
       only the adapters have gradients and optimizer.
Limit  Of the host's memory states alone are counted, as large as they would be on the GPU.

Glossary
    held      parameters on a GPU, in numbers of 16 bits: (shared by all of dp, of its experts)
    trained   those that have gradients: all, or the adapters'
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.operations import HALF, SINGLE
from ndparallel.planner.memory.deepspeed import (
    bucket_bytes,
    gradient_buffers,
    reduces_in_turn,
    step_gradient_bytes,
)
from ndparallel.planner.memory.fsdp import arriving_shard, gather_block, whole_gradients, whole_weights
from ndparallel.planner.models.kinds import has_experts
from ndparallel.planner.numbers import either, most
from ndparallel.planner.stages import (
    Elements,
    elements_of,
    gathers_every_microbatch,
    kinds_by_stage,
    trained_of,
)


def plain_states(job: TrainingJob, plan: Plan, held: Elements, trained: Elements) -> dict[str, Any]:
    """Bytes by kind where weights are whole: without ZeRO, with ZeRO-1 and 2, and with ZeRO-3 over one
    rank."""
    each = reduced_bytes(job)
    whole, shard = sum(trained) * max(job.gradient_bytes, each), share_of(job, plan, trained) * each
    return {
        "weights": sum(held) * HALF,
        "gradients": either(reduces_in_turn(job, plan), shard, whole),
        "optimizer": stepped_of(job, plan, trained) * optimizer_bytes(job),
        "buffers": dummy_bytes(job, plan) + dequantized_bytes(job, plan) + gradient_buffers(job, plan),
    }


def bytes_on_host(job: TrainingJob, plan: Plan, held: Elements, trained: Elements):
    """Bytes of weights, gradients and optimizer that a GPU leaves to its host: what it would keep itself."""
    states = fsdp_states if is_fully_sharded(job, plan) else plain_states
    kept, left = (states(one, plan, held, trained) for one in (replace(job, offload=()), job))
    return sum(kept[kind] - left[kind] for kind in ("weights", "gradients", "optimizer"))


def share_of(job: TrainingJob, plan: Plan, elements: Elements):
    """A rank's shard of parameters that are sharded over all their owners."""
    shared, experts = elements
    return shared / plan.sharding_ranks + experts / plan.expert_ranks(job.stack)


def optimizer_bytes(job: TrainingJob) -> float:
    """Bytes of a trained parameter beside its weight and gradient: its copy in float32, and two moments."""
    if "optimizer" in job.offload:
        return 0
    return (0 if job.half else SINGLE) + 2 * job.moment_bytes


def checkpoint_bytes(job: TrainingJob) -> float:
    """Bytes of what a checkpoint keeps of the whole model: weights in 16 bits and the optimizer, of what is
    trained."""
    (kinds,) = kinds_by_stage(job.shape, 1)
    trained = sum(float(sum(trained_of(job, Plan(), kind))) for kind in kinds)
    return trained * (HALF + optimizer_bytes(replace(job, offload=())))


# ----------------------------------------------------------------------------------------------------- FSDP


def fsdp_states(job: TrainingJob, plan: Plan, held: Elements, trained: Elements) -> dict[str, Any]:
    """PyTorch's shards are kept in float32, and so need no copy; where weights have 16 bits, or are frozen,
    or the optimizer alone is on the host, in 16. Megatron-FSDP's (model_weight_buffer and main_weight_buffer
    in megatron_fsdp/param_and_grad_buffer.py) and DeepSpeed's always are."""
    mine, own = share_of(job, plan, held), share_of(job, plan, trained)
    apart = job.steps_copies or job.states_away
    return {
        "weights": mine * job.shard_bytes * (not job.weights_away),
        "gradients": own * reduced_bytes(job),
        "optimizer": own * (optimizer_bytes(job) if apart else 2 * job.moment_bytes),
        "buffers": whole_weights(job, plan, held)
        + arriving_shard(job, plan)
        + gather_block(job, plan)
        + whole_gradients(job, plan, trained)
        + dummy_bytes(job, plan)
        + dequantized_bytes(job, plan)
        + gradient_buffers(job, plan),
    }


def reduced_bytes(job: TrainingJob) -> int:
    """Bytes of a gradient in its shard, which PyTorch casts to the shard's type. DeepSpeed keeps it where the
    optimizer is (grad_partitions_flat_buffer in deepspeed/runtime/zero/stage3.py,
    async_accumulate_grad_in_cpu_via_gpu in stage_1_and_2.py), and PyTorch where all is."""
    if job.states_away or (job.stack.sharding == "deepspeed" and "optimizer" in job.offload):
        return 0
    return (HALF if job.half else SINGLE) if job.stack.has_torch_fsdp else job.gradient_bytes


def is_fully_sharded(job: TrainingJob, plan: Plan):
    """Whether FSDP gathers weights and scatters gradients, be it over one rank."""
    over_one = job.stack.shards_over_one
    alone = (over_one == "always") | ((over_one == "tp") & (plan.tp > 1))
    several = plan.dp * plan.cp > 1
    return gathers_every_microbatch(job, plan) & (several | alone | job.weights_away)


def passing_bytes(job: TrainingJob, plan: Plan, trained: Elements):
    """Bytes that FSDP needs only while it goes through the layers: gathered weights, waiting gradients, and
    at the end of the backward pass the scattered ones."""
    nothing, own = (0.0, 0.0), share_of(job, plan, trained) * reduced_bytes(job)
    return whole_weights(job, plan, nothing) + whole_gradients(job, plan, nothing) + own


# ------------------------------------------------------------------------------------------------- the step


def step_states(job: TrainingJob, plan: Plan, held: Elements, trained: Elements) -> dict[str, Any]:
    """The states while DeepSpeed's optimizer steps, without the gradients that it makes in float32: those of
    ZeRO are shards then, and of the buffers ZeRO-3's stays."""
    own, whole = stepped_of(job, plan, trained), share_of(job, plan, held) if plan.zero == 3 else sum(held)
    return {
        "weights": whole * HALF * (not job.weights_away),
        "gradients": own * (reduced_bytes(job) if plan.zero else job.gradient_bytes),
        "optimizer": own * optimizer_bytes(job),
        "buffers": (plan.zero == 3) * bucket_bytes(job, plan),
    }


def made_gradients(job: TrainingJob, plan: Plan, trained: Elements):
    """Bytes of gradients that the step makes, if it makes all at once."""
    return stepped_of(job, plan, trained) * step_gradient_bytes(job, plan)


def stepped_of(job: TrainingJob, plan: Plan, trained: Elements):
    """What a rank steps of the parameters that it trains: its shard with ZeRO, else all."""
    return share_of(job, plan, trained) if plan.zero else sum(trained)


# ------------------------------------------------------------------------------------------------- buffers


def dummy_bytes(job: TrainingJob, plan: Plan):
    """Bytes of one gradient in 16 bits for each shape of a layer's weights; all experts have the same."""
    if not job.stack.dummy_gradients or job.adapters:
        return 0.0
    return most(shapes_of(job, plan, kind) for kind in job.shape.layer_kinds) * HALF


def shapes_of(job: TrainingJob, plan: Plan, kind: str):
    """Parameters of a layer, of all experts one's alone."""
    shared, experts = elements_of(job, plan, kind)
    some = job.shape.experts
    return shared + experts * plan.ep / some.experts if some else shared


def dequantized_bytes(job: TrainingJob, plan: Plan):
    """Bytes of a layer's largest weights that are made whole from 4 bits at once."""
    if not (job.adapters and job.adapters.quantized):
        return 0.0
    return most(whole_at_once(job, plan)) * HALF


def whole_at_once(job: TrainingJob, plan: Plan) -> Iterator[Any]:
    """A rank's weights of every matrix; of all its experts where one kernel multiplies them."""
    shape, some = job.shape, job.shape.experts
    dense = () if all(map(has_experts, shape.layer_kinds)) else shape.mlp(shape.ffn)
    attention = (matrix for each in shape.with_heads for matrix in each.attention())
    for matrix in (*attention, *shape.linear_attention(), *shape.shared_mlp(), *dense):
        yield matrix.inputs * matrix.outputs / plan.tp
    if some:
        at_once = some.experts if job.stack.grouped_experts else plan.ep
        for matrix in shape.mlp(some.ffn):
            yield at_once * matrix.inputs * matrix.outputs / plan.expert_parts(job.stack)
