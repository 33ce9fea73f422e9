"""What DeepSpeed's ZeRO holds on a GPU for a while, beside weights, gradients and optimizer.

Idea   Read in deepspeed/runtime/zero of release 0.19.6. In the backward pass gradients wait in buffers of
       reduce_bucket_size numbers; beside them lie the copy that is reduced, and the gradient that was just
       made. ZeRO-3 gathers ahead for as long as fewer than stage3_max_live_parameters are whole. In the
       step, when activations and logits are freed, the optimizer makes its gradients in float32: the peak is
       the larger of the two times.
Limit  Weights below stage3_param_persistence_threshold are taken to be sharded as the others: by default
       those are the norms, and linear attention's gates in a narrow model. The step has torch's fused AdamW;
       DeepSpeed's own FusedAdam without ZeRO makes gradients in float32 twice.

Glossary
    numbers   parameters, or their gradients, whatever bytes each has
"""

from collections import Counter
from collections.abc import Callable

from ndparallel.base.sums import sum_of
from ndparallel.planner.adapters import adapted_parts
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.operations import SINGLE
from ndparallel.planner.numbers import larger, smaller
from ndparallel.planner.stages import Elements, elements_of, embedding_elements, kinds_by_stage, trained_of

Count = Callable[[TrainingJob, Plan, str], Elements]


def gradient_buffers(job: TrainingJob, plan: Plan):
    """Bytes of gradients that are on their way to their shards: those that wait, the copy that is reduced,
    and the last one that was made, which its hook copies into a buffer
    (reduce_independent_p_g_buckets_and_remove_grads in stage_1_and_2.py and stage3.py)."""
    if not job.stack.reduce_bucket:
        return 0.0
    last = reduces_in_turn(job, plan) * largest_gradient(job, plan)
    return bucket_bytes(job, plan) + (reduced_copy(job, plan) + last) * job.stack.gradient_bytes


def bucket_bytes(job: TrainingJob, plan: Plan):
    """Bytes of the buffer in which ZeRO's gradients wait to be reduced, and of a second one that fills while
    the first travels beside compute (setup_buckets in deepspeed/runtime/zero/stage_1_and_2.py; ZeRO-3 has
    one: _setup_for_real_optimizer in stage3.py; a pipeline too: reduce_gradients)."""
    two = job.stack.dp_overlap * (plan.zero < 3) * (plan.pp == 1)
    return (plan.zero > 0) * (1 + two) * job.stack.reduce_bucket * job.stack.gradient_bytes


def reduced_copy(job: TrainingJob, plan: Plan):
    """Numbers that are joined in one array before they are reduced, shard by shard: of a buffer
    (reduce_scatter_coalesced in deepspeed/runtime/comm/coalesced_collectives.py, for ZeRO-3; allreduce_bucket
    in stage_1_and_2.py, where a buffer has gradients of several shards), or of a gradient that no buffer has
    room for. Without ZeRO-2, and not beside compute, the backward pass is over by then."""
    full = smaller(job.stack.reduce_bucket, numbers_of(job, plan, trained_of))
    if plan.zero == 3:
        return full
    during = (plan.zero == 2) | ((plan.zero == 1) & (plan.pp == 1) & job.stack.dp_overlap)
    return larger(full, largest_gradient(job, plan)) * (during & (plan.dp * plan.cp > 1))


def reduces_in_turn(job: TrainingJob, plan: Plan):
    """Whether gradients are reduced as they come, so that they are never whole: from ZeRO-2 on, and beside
    the backward pass of ZeRO-1, if that is the step's only one (reduce_ready_partitions_and_remove_grads in
    stage_1_and_2.py)."""
    beside = bool(job.stack.dp_overlap and job.stack.reduce_bucket)
    first = beside & (plan.zero == 1) & (plan.pp == 1)
    return (plan.zero > 1) | (first & (plan.microbatches(job) == 1))


def live_weights(job: TrainingJob, plan: Plan):
    """Numbers of weights that ZeRO-3 has whole. Every module that runs gathers ahead while fewer than
    stage3_max_live_parameters are there, so that the last weight goes beyond (_fetch_sub_module_impl in
    partitioned_param_coordinator.py). What the backward pass uses within stage3_max_reuse_distance is kept,
    and between the two uses lies all behind it twice (__params_to_release)."""
    ahead = larger(job.stack.live_weights or 0.0, job.stack.reuse_distance / 2)
    return smaller(ahead + largest_weight(job, plan), numbers_of(job, plan, elements_of))


def step_gradient_bytes(job: TrainingJob, plan: Plan):
    """Bytes that the step makes for each of the gradients that it turns to. Without ZeRO each is cast (step
    in deepspeed/runtime/fp16/unfused_optimizer.py). ZeRO's are joined first, and the joined ones are cast
    (step in stage_1_and_2.py, _prepare_fp32_grad_for_sub_group in stage3.py)."""
    if "optimizer" in job.offload:
        return 0
    return (0 if job.half else SINGLE) + (plan.zero > 0) * job.stack.gradient_bytes


def most_made(job: TrainingJob, plan: Plan) -> float:
    """The most bytes of gradients that the step makes at once: ZeRO-3's by sub_group_size."""
    return job.stack.sub_group * step_gradient_bytes(job, plan) if plan.zero == 3 else float("inf")


# ----------------------------------------------------------------------------------------- of the whole model


def numbers_of(job: TrainingJob, plan: Plan, of: Count):
    """Numbers in a stage's share of the model."""
    (kinds,) = kinds_by_stage(job.shape, 1)
    return sum_of(count * sum_of(of(job, plan, kind)) for kind, count in Counter(kinds).items()) / plan.pp


def largest_gradient(job: TrainingJob, plan: Plan):
    """Numbers in the largest gradient of the model: of a frozen one, in a matrix of an adapter."""
    if not job.adapters:
        return largest_weight(job, plan)
    return job.adapters.rank * max(max(inputs, outputs) for inputs, outputs in matrices(job))


def smallest_weight(job: TrainingJob) -> float:
    """Numbers in the smallest matrix of the model as Hugging Face has it."""
    return min(inputs * outputs for inputs, outputs in matrices(job))


def largest_weight(job: TrainingJob, plan: Plan):
    """Numbers in the largest matrix of the model as Hugging Face has it."""
    table = embedding_elements(job, plan.tp)
    return larger(table, max(inputs * outputs for inputs, outputs in matrices(job)) / plan.tp)


def matrices(job: TrainingJob) -> list[tuple[float, float]]:
    """Inputs and outputs of a layer's matrices, each as Hugging Face has it."""
    shape, experts = job.shape, job.shape.experts
    mixers = [(each, matrix) for each in shape.with_heads for matrix in each.attention()]
    others = *shape.linear_attention(), *shape.mlp(shape.ffn), *(shape.mlp(experts.ffn) if experts else ())
    return [
        (matrix.inputs, matrix.outputs * share)
        for each, matrix in (*mixers, *((shape, matrix) for matrix in others))
        for share in adapted_parts(each, matrix.name).values()
    ]
