"""Bytes on every pipeline stage's GPUs, by kind.

Idea   Weights, gradients and optimizer follow from the parameters that a rank holds; activations from the
       tensors that a layer keeps until its backward pass, times the microbatches that the schedule keeps in
       flight.
Cost   Mixed precision: 2 bytes for a weight, 2 or 4 for its gradient, 12 for the optimizer (weight and two
       moments in float32). Activations of one layer, unfused and with dropout: s b h (34 + 5 a s / h) bytes
       (Korthikanti et al. 2205.05198, equation 1).
Limit  What the allocator rounds up and the libraries hold is one constant, CONTEXT_BYTES.

Glossary
    kept        tensors that a layer keeps from its forward to its backward pass
    in flight   chunks of one microbatch that a rank keeps at the same time
    unit        what FSDP gathers at once: a layer, or the two ends of the model together
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from ndparallel.pipeline.timing import peak_activations
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.dense import LayerLists
from ndparallel.planner.layers.operations import HALF, SINGLE
from ndparallel.planner.layers.parts import ATTENTION, MLP
from ndparallel.planner.stages import KEPT, elements_of, kinds_by_stage
from ndparallel.planner.step.framework import FrameworkWorkload
from ndparallel.planner.step.pipeline import schedule_of

MASTER_AND_MOMENTS = 3 * SINGLE
CONTEXT_BYTES = 0.5e9  # of CUDA, NCCL and the allocator beside what the tensors need
KINDS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")


@dataclass(frozen=True)
class StageMemory:
    """Bytes by kind on one GPU of one pipeline rank."""

    weights: Any
    gradients: Any
    optimizer: Any
    activations: Any
    logits: Any
    buffers: Any

    @property
    def total(self):
        return sum(getattr(self, kind) for kind in KINDS)


def memory_by_rank(work: FrameworkWorkload) -> list[StageMemory]:
    """The memory of every pipeline rank at its peak."""
    return [_rank_memory(work.job, work.plan, rank, chunks) for rank, chunks in enumerate(in_flight(work))]


def in_flight(work: FrameworkWorkload) -> list[float]:
    """Chunks that each pipeline rank keeps at the most."""
    job, plan = work.job, work.plan
    if plan.pp == 1:
        return [1.0]
    if plan.recipe.is_searched:
        return peak_activations(schedule_of(work))
    return [
        float(plan.recipe.peak_in_flight(plan.microbatches(job), rank, plan.pp, plan.chunks))
        for rank in range(plan.pp)
    ]


def _rank_memory(job: TrainingJob, plan: Plan, rank: int, chunks: float) -> StageMemory:
    stages = kinds_by_stage(job.shape, plan.stages, plan.recompute_layers)
    kinds = [kind for stage in plan.layout.stages_of(rank) for kind in stages[stage]]
    elements = [elements_of(job, plan, kind) for kind in kinds]
    shared, experts = sum(each for each, _ in elements), sum(each for _, each in elements)
    states = (
        fsdp_states(job, plan, shared, experts)
        if plan.zero == 3 and plan.dp > 1
        else plain_states(job, plan, shared, experts)
    )
    return StageMemory(
        **states,
        activations=activation_bytes(job, plan, kinds) * chunks / plan.chunks
        + once_bytes(job, plan)
        + (prediction_bytes(job, plan) if "head" in kinds else 0.0),
        logits=logits_bytes(job, plan) if "head" in kinds else 0.0,
    )


def plain_states(job: TrainingJob, plan: Plan, shared, experts) -> dict[str, Any]:
    ranks, expert_ranks = plan.dp * plan.cp, plan.tp * plan.cp * plan.dp / plan.ep
    sharded = shared / ranks + experts / expert_ranks
    optimizer, gradient = (2 * HALF, HALF) if job.half else (MASTER_AND_MOMENTS, job.stack.gradient_bytes)
    return {
        "weights": (shared + experts) * HALF,
        "gradients": (sharded if plan.zero >= 2 else shared + experts) * gradient,
        "optimizer": (sharded if plan.zero >= 1 else shared + experts) * optimizer,
        "buffers": CONTEXT_BYTES,
    }


def fsdp_states(job: TrainingJob, plan: Plan, shared, experts) -> dict[str, Any]:
    """Shards are kept in float32; two layers and the ends are gathered in 16 bits, and one layer's gradients
    wait to be scattered."""
    mine, number = (
        shared / (plan.shards or plan.dp * plan.cp) + experts * plan.ep / (plan.tp * plan.cp * plan.dp),
        HALF if job.half else SINGLE,
    )
    unit = reduce(
        np.maximum,
        [
            sum(elements_of(job, plan, kind))
            for kind in ("dense", "experts")[: 1 + (job.shape.experts is not None)]
        ],
    )
    ends = sum(elements_of(job, plan, "embedding")) + sum(elements_of(job, plan, "head"))
    gathered = (2 * unit + ends) * HALF + unit * job.stack.gradient_bytes
    return {
        "weights": mine * number,
        "gradients": mine * number,
        "optimizer": mine * 2 * number,
        "buffers": gathered + CONTEXT_BYTES,
    }


def logits_bytes(job: TrainingJob, plan: Plan):
    cut, heads = plan.tp if job.stack.parallel_loss else 1, 1 + job.shape.prediction_layers
    return plan.share(job).rows * job.shape.vocab / cut * job.stack.logits_kept * heads


# ------------------------------------------------------------------------------------------------ activations


def activation_bytes(job: TrainingJob, plan: Plan, kinds: Sequence[str]):
    """What these units keep of one microbatch: layers that run again, and those that do not."""
    lists = LayerLists(job.shape, plan.share(job), job.stack)
    layers = [kind for kind in kinds if kind.startswith(("dense", "experts"))]
    kept = sum(kind.endswith(KEPT) for kind in layers)
    return (len(layers) - kept) * kept_bytes(lists, plan.recompute) + (
        kept and kept * kept_bytes(lists, "none")
    )


def prediction_bytes(job: TrainingJob, plan: Plan):
    """Bytes that prediction layers keep, of the one microbatch whose loss is being computed; beside a layer's
    own the two normed hidden states that they join, and what goes into the norms."""
    if not (layers := job.shape.prediction_layers):
        return 0.0
    lists = LayerLists(job.shape, plan.share(job), job.stack)
    return layers * (kept_bytes(lists, plan.recompute) + 2 * normed_bytes(lists, ATTENTION))


def once_bytes(job: TrainingJob, plan: Plan):
    """Bytes of the one layer that is computed again."""
    return (
        kept_bytes(LayerLists(job.shape, plan.share(job), job.stack), "none")
        if plan.recompute == "full"
        else 0.0
    )


def kept_bytes(lists: LayerLists, recompute: str):
    """Bytes that one layer keeps of one microbatch."""
    shape, share, stack = lists.shape, lists.share, lists.stack
    start = share.shard * shape.hidden * lists.itemsize
    if recompute == "full":
        return start
    again = stack.selective if recompute == "selective" else ()
    if "half" in again:
        return start + half_of_outputs(lists)
    core = lists.kept_of_core("core_attn" in again)
    scores = core * (lists.itemsize + (1 + lists.itemsize if stack.dropout else 0))
    moe_share = shape.moe_layers / shape.layers
    dense = mlp_bytes(lists, "mlp" in again)
    experts = experts_bytes(lists, again) if moe_share else 0
    norms = gathered_bytes(lists) * (1 + (shape.norms != "shared")) if "layernorm" in again else 0
    return (
        attention_bytes(lists, "mla_up_proj" in again)
        + scores
        + (1 - moe_share) * dense
        + moe_share * experts
        - norms
    )


def normed_bytes(lists: LayerLists, half: int = ATTENTION):
    """A half's input and its norm, but what it shares with the other half, and what goes into a second norm;
    without sequence parallelism every rank keeps all rows, and PyTorch keeps the gathered ones."""
    shape, again = lists.shape, half == MLP
    inputs = lists.share.shard * shape.hidden * lists.itemsize
    own = inputs * (1 - (again and shape.parallel) + (shape.norms == "both"))
    return own + gathered_bytes(lists) * (1 - (again and shape.norms == "shared"))


def gathered_bytes(lists: LayerLists):
    keeps_shards = lists.stack.tp_overlap != "none" or lists.stack.regathers
    rows = lists.share.shard if keeps_shards else lists.share.rows
    return rows * lists.shape.hidden * lists.itemsize


def mask_bytes(lists: LayerLists):
    return lists.share.shard * lists.shape.hidden if lists.stack.dropout else 0


def attention_bytes(lists: LayerLists, from_ranks: bool):
    """Queries, keys, values, and what attention gives; where latent attention's come again from its ranks,
    those instead of them."""
    shape, tp = lists.shape, lists.share.tp
    widths = (shape.heads + lists.kv_heads) * (shape.head_dim + shape.value_dim) / tp
    if from_ranks and shape.latent:
        widths = (
            shape.heads * shape.value_dim / tp
            + shape.latent.query_rank
            + shape.latent.kv_rank
            + shape.latent.rope_dim
        )
    return normed_bytes(lists, ATTENTION) + lists.share.rows * widths * lists.itemsize + mask_bytes(lists)


def mlp_bytes(lists: LayerLists, again: bool):
    """Bytes that the MLP keeps; where it runs again, only what goes into it."""
    widths = 0 if again else (2 + lists.shape.gated) * lists.shape.ffn / lists.share.tp
    return normed_bytes(lists, MLP) + lists.share.rows * widths * lists.itemsize + mask_bytes(lists)


def experts_bytes(lists: LayerLists, again: tuple[str, ...]):
    """Rows before the experts, between their matrices, and after them where their gates are, on the busiest
    rank; beside them what the shared experts keep."""
    norms, hidden = normed_bytes(lists, MLP), lists.shape.hidden
    if "moe" in again:
        return norms
    between = 1 + lists.shape.gated + ("moe_act" not in again)
    inside = lists.received * (hidden + between * lists.expert_ffn)
    behind = 0 if lists.stack.early_gates else lists.routed * hidden
    return norms + (inside + behind) * lists.itemsize + shared_bytes(lists)


def shared_bytes(lists: LayerLists):
    """Bytes that an MLP as wide as all shared experts keeps; where a gate weighs its output, that too
    (Megatron-Core, megatron/core/transformer/moe/shared_experts.py). Its input the router keeps."""
    width = lists.moe.shared_experts * lists.moe.shared_ffn / lists.share.tp
    gated = lists.share.shard * lists.shape.hidden * lists.moe.shared_gate
    return (lists.share.rows * (2 + lists.shape.gated) * width + gated) * lists.itemsize


def half_of_outputs(lists: LayerLists):
    """Every second matrix's output, and attention's (torchtitan, 2410.06511)."""
    shape, tp = lists.shape, lists.share.tp
    outputs = sum(matrix.outputs for matrix in (*shape.attention(), *shape.mlp(shape.ffn)))
    return lists.share.rows * (outputs / 2 + shape.heads * shape.value_dim) / tp * lists.itemsize
