"""Bytes that layers keep from their forward to their backward pass.

Cost   One layer, unfused and with dropout: s b h (34 + 5 a s / h) bytes (Korthikanti et al. 2205.05198,
       equation 1).

Glossary
    kept    tensors that a layer keeps from its forward to its backward pass
"""

from typing import Any, NamedTuple

from ndparallel.base.sums import sum_of
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.attention.half import AttentionLists
from ndparallel.planner.layers.layer import LayerLists, lists_of
from ndparallel.planner.layers.parts import ATTENTION, MLP, LayerParts
from ndparallel.planner.models.kinds import has_experts, is_linear
from ndparallel.planner.models.matrices import Linear
from ndparallel.planner.numbers import larger
from ndparallel.planner.stages import kind_and_recompute

IN_TRANSIT = 2  # layers whose activations are on the GPU while others' are on the host


def on_gpu(in_flight: Any, layer: Any, away: Any):
    """Bytes of the activations in flight that a GPU holds: of what goes to the host, the layer that is
    computed and the one that travels."""
    return in_flight - away * larger(0.0, in_flight - IN_TRANSIT * layer)


def passed_bytes(job: TrainingJob, plan: Plan):
    """Bytes of what one microbatch hands from one stage to the next, where stages of PyTorch keep it."""
    if not job.stack.keeps_outputs:
        return 0.0
    lists = lists_of(job, plan)
    return (plan.pp > 1) * lists.share.shard * job.shape.hidden * lists.itemsize


def passed_messages(layout: str, ranks: int, chunks: Any, rank: Any, microbatches: Any, in_flight: Any):
    """How many such messages a rank of PyTorch's pipeline keeps beside the inputs of the chunks `in_flight`:
    the outputs of these (fwd_cache), the inputs of all other microbatches with their gradients, and the
    gradients of all outputs."""
    inputs = chunks - 1 * (rank == 0)
    outputs = chunks - 1 * (rank == (0 if layout == "v" else ranks - 1))
    each = in_flight / chunks
    return 2 * inputs * (microbatches - each) + outputs * (microbatches + each)


class LayerBytes(NamedTuple):
    """Bytes that one layer keeps of one microbatch, and what it holds besides while it is computed again."""

    kept: Any
    once: Any


def layer_bytes(job: TrainingJob, plan: Plan, kind: str) -> LayerBytes:
    """The bytes of a layer of this kind."""
    unit = kind_and_recompute(plan, kind)
    return LayerBytes(kept_bytes(lists_of(job, plan), *unit), once_bytes(job, plan, *unit))


def prediction_bytes(job: TrainingJob, plan: Plan) -> LayerBytes:
    """The bytes of all prediction layers, of the one microbatch whose loss is being computed; they keep
    beside a layer's own the two normed hidden states that they join, and what goes into the norms."""
    if not (layers := job.shape.prediction_layers):
        return LayerBytes(0.0, 0.0)
    own = layer_bytes(job, plan, job.shape.last_kind)
    return LayerBytes(layers * (own.kept + 2 * normed_bytes(lists_of(job, plan), ATTENTION)), own.once)


def once_bytes(job: TrainingJob, plan: Plan, kind: str, recompute: str):
    """Bytes of a layer while it is computed again, beside what was kept of it, and of the keys and values
    that it gathers."""
    lists = lists_of(job, plan)
    again = {
        "none": lambda: 0.0,
        "selective": lambda: again_bytes(lists, kind),
        "full": lambda: kept_bytes(lists, kind, "none") - kept_bytes(lists, kind, "full"),
    }
    return again[recompute]() + gathered_keys_bytes(job, plan, kind)


def again_bytes(lists: LayerLists, kind: str):
    """Bytes of what selective recomputation makes again of one layer: of the half of it that has more, as one
    follows the other. What PyTorch runs again of every second product lies in blocks that logits have left
    (memory/total.py)."""
    again = lists.stack.selective
    if "half" in again:
        return 0.0
    halves = (half(lists, kind, ()) - half(lists, kind, again) for half in (mixer_bytes, feedforward_bytes))
    return larger(*halves) + gathered_bytes(lists) * bool(norms_again(lists, kind, again))


def gathered_keys_bytes(job: TrainingJob, plan: Plan, kind: str):
    """Bytes of the keys and values of all cp ranks (_AllGatherRotater in
    torch/distributed/tensor/experimental/_attention.py)."""
    mixer = lists_of(job, plan).mixer(kind)
    if job.stack.context_parallel != "all-gather" or not isinstance(mixer, AttentionLists):
        return 0.0
    return (plan.cp > 1) * mixer.core.keys_and_values.gathered_keys_bytes


def kept_bytes(lists: LayerLists, kind: str, recompute: str):
    """Bytes that a layer of this kind keeps of one microbatch."""
    shape, share, stack = lists.shape, lists.share, lists.stack
    start = share.shard * shape.hidden * lists.itemsize
    if recompute == "full":
        return start
    again = stack.selective if recompute == "selective" else ()
    if "half" in again:
        return start + half_of_outputs(lists, kind)
    norms = gathered_bytes(lists) * norms_again(lists, kind, again)
    halves = mixer_bytes(lists, kind, again) + feedforward_bytes(lists, kind, again)
    return halves - norms


def norms_again(lists: LayerLists, kind: str, again: tuple[str, ...]) -> int:
    """How many norms of a layer run again with these modules."""
    return len(lists.recomputed.norms_alone(kind)) * ("layernorm" in again)


def mixer_bytes(lists: LayerLists, kind: str, again: tuple[str, ...]):
    """Bytes that a layer's attention keeps, or its linear attention, where these modules run again."""
    mixer = lists.mixer(kind)
    adapters = adapter_bytes(mixer, mixer.matrices, lists.share.rows)
    if not isinstance(mixer, AttentionLists):
        return linear_bytes(lists) + adapters
    scores = scores_bytes(mixer, "core_attn" in again)
    return attention_bytes(mixer, "mla_up_proj" in again) + scores + adapters


def feedforward_bytes(lists: LayerLists, kind: str, again: tuple[str, ...]):
    """Bytes that a layer's MLP keeps, or its experts, where these modules run again."""
    return experts_bytes(lists, again) if has_experts(kind) else mlp_bytes(lists, "mlp" in again)


def scores_bytes(lists: AttentionLists, again: bool):
    """Bytes of attention's probabilities, and of dropout's mask and result."""
    dropout = 1 + lists.itemsize if lists.stack.dropout else 0
    return lists.core.kernels.kept(again) * (lists.itemsize + dropout)


def adapter_bytes(lists: LayerParts, matrices: tuple[Linear, ...], rows: Any):
    """Bytes between the two matrices of each adapter of these matrices, which multiply so many rows."""
    if not (adapters := lists.share.adapters):
        return 0
    adapted = sum(len(adapters.shares(lists.shape, matrix.name, lists.stack)) for matrix in matrices)
    return rows * adapted * adapters.rank * lists.itemsize


def adapter_input_bytes(lists: LayerParts, matrix: Linear):
    """Bytes that an adapter of a column matrix keeps of its input beyond what the frozen matrix is taken to:
    Megatron-Bridge's keeps all rows, in 16 bits (what LoRA's option sequence_parallel_input_regather in
    src/megatron/bridge/peft/lora.py would save)."""
    adapters, stack = lists.share.adapters, lists.stack
    if not (adapters and stack.bridge_adapters and adapters.shares(lists.shape, matrix.name, stack)):
        return 0
    return lists.share.rows * lists.shape.hidden * lists.itemsize - gathered_bytes(lists)


def normed_bytes(lists: LayerParts, half: int = ATTENTION):
    """Bytes of a half's input and of its norm's output, but of what it shares with the other half, and of
    what goes into a second norm; without sequence parallelism every rank keeps all rows, and PyTorch keeps
    the gathered ones."""
    shape, second = lists.shape, half == MLP
    inputs = lists.share.shard * shape.hidden * lists.itemsize
    own = inputs * (1 - (second and shape.parallel) + (shape.norms == "both"))
    return own + gathered_bytes(lists) * (1 - (second and shape.norms == "shared"))


def gathered_bytes(lists: LayerParts):
    """Bytes of what goes into a half's first matrix: of the shard, where software keeps that alone."""
    stack = lists.stack
    keeps_shards = stack.keeps_shards or stack.regathers or stack.tp_overlap == "products"
    rows = lists.share.shard if keeps_shards else lists.share.rows
    return rows * lists.shape.hidden * input_bytes(lists)


def input_bytes(lists: LayerParts):
    """Bytes of a number that goes into a matrix, as it is kept for the weights' gradient: Transformer Engine
    keeps the cast copy alone (transformer_engine/pytorch/module/linear.py)."""
    cast = lists.share.number_type.copy if lists.stack.keeps_cast else 0
    return cast or lists.itemsize


def mask_bytes(lists: LayerParts):
    return lists.share.shard * lists.shape.hidden if lists.stack.dropout else 0


def attention_bytes(lists: AttentionLists, from_ranks: bool):
    """Queries, keys, values, and what attention gives; where latent attention's come again from its ranks,
    those instead of them."""
    shape, tp = lists.shape, lists.share.tp
    widths = (shape.heads / tp + lists.attending_kv_heads) * (shape.head_dim + shape.value_dim)
    if shape.output_gate:  # the gates, and what they let through
        widths += shape.heads * (shape.value_dim + shape.gate_width) / tp
    widths += keeps_heads_too(lists) * shape.heads * shape.value_dim / tp
    if from_ranks and shape.latent:
        ranks = (shape.latent.query_rank + shape.latent.kv_rank) * lists.rows_of_ranks / lists.share.rows
        widths = shape.heads * shape.value_dim / tp + ranks + shape.latent.rope_dim
    # of what attention gives, unless the matrix keeps that as it is (set_save_original_input in
    # megatron/core/transformer/attention.py)
    cast = input_bytes(lists) % lists.itemsize * lists.share.number_type.shares_amax
    kept = lists.share.rows * (widths * lists.itemsize + cast * shape.heads * shape.value_dim / tp)
    kept += 0 if shape.latent else adapter_input_bytes(lists, lists.matrices[0])
    return normed_bytes(lists, ATTENTION) + gate_input_bytes(lists) + kept + mask_bytes(lists)


def gate_input_bytes(lists: AttentionLists):
    """Bytes of what goes into the matrix of heads' gates, in 16 bits: its own where the queries' is cast."""
    cast = input_bytes(lists)
    is_own = cast < lists.itemsize and lists.shape.output_gate == "head"
    return is_own * gathered_bytes(lists) * lists.itemsize / cast


def keeps_heads_too(lists: AttentionLists):
    """Whether fused attention keeps its result for a part of the heads, beside what goes into the next
    product."""
    stack = lists.stack
    by_heads = stack.context_parallel == "all-to-all" and stack.flash and not stack.resends_heads
    return by_heads * (lists.share.cp > 1)


def linear_bytes(lists: LayerLists):
    """Bytes that linear attention keeps; what goes into its last product is kept for that alone."""
    linear = lists.linear
    kept = linear.kept * lists.itemsize + linear.of_tokens(linear.net.values) * input_bytes(lists)
    return normed_bytes(lists, ATTENTION) + kept + mask_bytes(lists)


def mlp_bytes(lists: LayerLists, again: bool):
    """Bytes that the MLP keeps; where it runs again, only what goes into it."""
    each = (1 + lists.shape.gated) * lists.itemsize + input_bytes(lists)
    shape, rows = lists.shape, lists.share.rows
    up, down = shape.mlp(shape.ffn)
    inside = rows * shape.ffn / lists.share.tp * each + adapter_bytes(lists, (up, down), rows)
    inside += adapter_input_bytes(lists, up) * (shape.norms != "shared")
    return normed_bytes(lists, MLP) + inside * (not again) + mask_bytes(lists)


def experts_bytes(lists: LayerLists, again: tuple[str, ...]):
    """Rows before the experts, between their matrices, and after them where their gates are, on the busiest
    rank; beside them what the shared experts keep, and where norms are their own, what goes into the router
    and into the norms of both results."""
    hidden, each, cast = lists.shape.hidden, lists.itemsize, input_bytes(lists)
    experts, own_norms = lists.experts, lists.experts.moe.own_norms
    router = gathered_bytes(lists) * (each / cast - 1) * (not own_norms)  # it casts nothing
    norms = normed_bytes(lists, MLP) + router
    if "moe" in again:
        return norms
    activation = 0 if "moe_act" in again else cast
    between = (1 + lists.shape.gated) * each + activation
    behind = 0 if lists.stack.early_gates else experts.routed * hidden * each
    kept = experts.received * (hidden * cast + between * experts.expert_ffn)
    kept += adapter_bytes(lists, lists.shape.mlp(experts.expert_ffn), experts.received)
    between_norms = own_norms * (experts.own_rows + 2 * lists.share.shard) * hidden * each
    return norms + between_norms + kept + behind + shared_bytes(lists)


def shared_bytes(lists: LayerLists):
    """Bytes that an MLP as wide as all shared experts keeps; where a gate weighs its output, that too
    (Megatron-Core, megatron/core/transformer/moe/shared_experts.py). Its input the router keeps."""
    width = lists.experts.moe.shared_experts * lists.experts.moe.shared_ffn / lists.share.tp
    gated = lists.share.shard * lists.shape.hidden * lists.experts.moe.shared_gate
    each = (1 + lists.shape.gated) * lists.itemsize + input_bytes(lists)
    adapters = adapter_bytes(lists, lists.shape.shared_mlp(), lists.share.rows)
    return lists.share.rows * width * each + gated * lists.itemsize + adapters


def half_of_outputs(lists: LayerLists, kind: str):
    """Every second matrix's output, and attention's, but not what linear attention's rule gives; of experts,
    whose own matrices and router run again, the rows that came over ep, both ways."""
    shape, share = lists.shape.like(kind), lists.share
    attention = 0 if is_linear(kind) else shape.heads * shape.value_dim
    kept = share.rows * (kept_outputs(lists, kind) + attention) / share.tp
    if has_experts(kind):
        kept += (share.ep > 1) * (lists.experts.received + lists.experts.routed) * shape.hidden
    return kept * lists.itemsize


def kept_outputs(lists: LayerLists, kind: str):
    """A token's outputs of every second matrix outside experts. Compiled code does not keep the layer's last
    output, which nobody reads (SelectiveCheckpointContext in torch/utils/checkpoint.py keeps all that its
    policy says). A product in fewer bits is no aten.mm, and keeps none."""
    shape, mixer = lists.shape, lists.mixer(kind)
    if lists.share.linear_dtype != lists.share.dtype:
        return 0
    runs_again = lists.recomputed.second_shares(mixer)
    beside = shape.shared_mlp() if has_experts(kind) else shape.mlp(shape.ffn)
    return sum_of(
        matrix.outputs * (1 - runs_again[matrix.name])
        for matrix in (*mixer.matrices, *beside)
        if matrix.name != "down" or lists.stack.fusion != "compiled"
    )
