"""FLOPs of a step, by the definitions that MFU and HFU rest on.

Idea   Model FLOPs are what the mathematics needs, whatever the software does: 6 for each parameter that
       multiplies and each token (4 where it is frozen), and 6 * layers * heads * (query width + value width)
       * sequence / 2 for attention under the causal mask, less where there are windows; prediction layers
       count too. MFU divides them by what the peaks of all GPUs could do in the step (Chowdhery et al.
       2204.02311, appendix B, who count no mask). HFU adds what is computed twice.
Limit  Published MFUs differ by up to 2x: some count the masked half of attention, the embedding, or
       recomputation.
"""

from collections import Counter
from dataclasses import replace

from gpu import Operation
from ndparallel.base.sums import sum_of
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.models.kinds import has_window, is_linear
from ndparallel.planner.models.shape import ModelShape, causal_pairs
from ndparallel.planner.stages import KEPT, stage_kinds, trained_of

# products with a state for each token, as Megatron counts the gated delta rule: K K^T, V K^T,
# S (I - b K K^T) and S Q (num_floating_point_operations in megatron/training/training.py)
RULE_PRODUCTS = 4
DEFINITIONS = {
    "mfu": (
        "model FLOPs (6 for each token and each parameter of a matmul, causal half of attention, no "
        "recomputation) / (peak * GPUs * step)"
    ),
    "frozen": (
        "model FLOPs (4 for each token and each frozen parameter of a matmul, 6 for an adapter's, causal "
        "half of attention, no recomputation) / (peak * GPUs * step)"
    ),
    "hfu": "the same with recomputation counted as often as it is done",
}


def model_flops(job: TrainingJob) -> float:
    """FLOPs of one step without recomputation: matrices, and the attention that the mask keeps."""
    counted, shape = job.shape.parameters(), job.shape
    matrices = counted.active - counted.embedding + (counted.token_embedding if shape.tied_embeddings else 0)
    matrices += counted.prediction_active + shape.prediction_layers * counted.token_embedding
    each = 4 if job.adapters else 6
    attention = sum(attention_flops(shape, heads, job.sequence) for heads in shape.with_heads)
    rule = 6 * shape.linear_layers * RULE_PRODUCTS * (shape.linear.states if shape.linear else 0)
    each_token = each * matrices + rule + attention * job.sequence
    return float(job.global_batch * job.sequence * each_token) + adapter_flops(job)


def attention_flops(shape: ModelShape, heads: ModelShape, sequence: int) -> float:
    """FLOPs of a token and each token of its sequence, in all layers of such heads, whose other half is
    masked."""
    return 3 * seen_layers(shape, heads, sequence) * heads.heads * (heads.head_dim + heads.value_dim)


def seen_layers(shape: ModelShape, heads: ModelShape, sequence: int) -> float:
    """Layers with attention of such heads; of one with a window the share of the pairs that it keeps."""
    kinds = [*map(shape.kind, range(shape.layers)), *shape.prediction_layers * [shape.last_kind]]
    share = shape.seen_pairs(sequence) / causal_pairs(sequence)
    such = [kind for kind in kinds if not is_linear(kind) and shape.like(kind) == heads]
    return sum(share if has_window(kind) else 1 for kind in such)


def adapter_flops(job: TrainingJob) -> float:
    """FLOPs of a step in adapters, 6 for each parameter and token; of experts those that a token uses."""
    if not job.adapters:
        return 0.0
    shape, some = job.shape, job.shape.experts
    every = [shape.kind(layer) for layer in range(shape.layers)]
    parameters = 0.0
    for kind in shape.layer_kinds:
        shared, own = trained_of(job, Plan(), kind)
        pairs = some.experts if some and not job.stack.bridge_adapters else 1
        used = own * some.top_k / pairs if some else 0.0
        parameters += every.count(kind) * float(shared + used)
    return 6 * job.global_batch * job.sequence * parameters


def recomputed_flops(job: TrainingJob, plan: Plan) -> float:
    """FLOPs of one step that are done again, on all GPUs."""
    stack = replace(job.stack, selective=plan.modules(job.stack))
    lists = LayerLists(job.shape, replace(plan.share(job), sent=1.0, received=1.0), stack)
    kinds = Counter(kind for stage in stage_kinds(job, plan) for kind in stage if not kind.endswith(KEPT))
    again = sum_of(count * flops(lists.unit(kind, plan.recompute).recompute) for kind, count in kinds.items())
    return float(again * plan.tp * plan.cp * plan.dp * plan.microbatches(job))


def flops(items: list) -> float:
    return sum_of(item.flops for item in items if isinstance(item, Operation))
