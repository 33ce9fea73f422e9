"""The record of a software stack: what a training framework fuses, overlaps and keeps.

Idea   Everything that depends on software, and not on the GPU, the model or the plan, is a field of a stack.
       A class holds the fields of one theme, and a `Stack` has them all. `RunSettings` are options that
       frameworks leave off until a run asks for them; `LessonSettings` only the lessons' software has.
Limit  A stack stands for a framework's common settings in one year, not for every switch that it has.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ndparallel.base.errors import check_known
from ndparallel.planner.optimizer_kernels import bytes_of
from ndparallel.planner.stack_words import check_words

# what selective recomputation can run again; all but the last are Megatron-Core's names (--recompute-modules)
MODULES = {
    "core_attn": "attention's scores, softmax and values",
    "layernorm": "the norms before experts and before latent attention",
    "moe_act": "the experts' activation",
    "mla_up_proj": "latent attention's matrices from its ranks to its heads",
    "mlp": "the MLP of a dense layer",
    "moe": "the experts of a layer, routing and all-to-alls included",
    "half": "every second matrix and all small kernels (torchtitan)",
}


def ordered_modules(modules: Iterable[str]) -> tuple[str, ...]:
    """Each of these modules once, in the order of MODULES, so that a set of them has one name."""
    wanted = {*modules}
    return tuple(module for module in MODULES if module in wanted)


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """How work is cut into kernels, and how they are launched.

    fusion: element-by-element work. "eager": one kernel for each operator, norms in float32. "fused":
    hand-written ones for norms, activations, dropout. "engine": the same, with Transformer Engine's norms.
    "compiled": torch.compile, whole chains in one kernel. "minimal": every array moves once, and a norm's
    backward pass is one kernel (the lessons' prices).

    attention: "unfused": all pairs are multiplied, scores go through memory. "masked": scores, softmax and
    values of the pairs that the mask keeps, through memory; round a ring block by block. "flash1". "triton":
    its kernel of that time. "flash2". "cudnn": that and flash 3, of 2024 and 2025. "cudnn-2026".

    launching: what a pass takes no less than. "none": free. "compiled". "eager": plain PyTorch. "modules":
    Megatron's and Transformer Engine's.
    """

    fusion: str
    attention: str
    dtype: str = "bfloat16"  # of weights and activations
    dropout: bool = False
    # 2: queries and keys each (megatron/core/models/common/embeddings/rope_utils.py)
    rotary_kernels: int = 1
    optimizer: str = "megatron-core"  # what its step consists of: one of OPTIMIZERS
    optimizer_bytes: int = bytes_of("megatron-core")  # that moves for each parameter of the rank's share
    launching: str = "none"
    small_kernels: str = ""  # beside those of the lists: one of SMALL_KERNELS


@dataclass(frozen=True, kw_only=True)
class KeptSettings:
    """What stays in memory from the forward pass, and what runs again instead."""

    # recomputation ends when it has all that the backward pass needs (torch): not with the last matrix
    early_stop: bool = False
    selective: tuple[str, ...] = ("core_attn",)  # what selective recomputation runs again, out of MODULES
    chooses_modules: bool = False  # a plan may name other modules (--recompute-modules)
    # inputs of matrices are kept as they were cast to fewer bits, and not in 16; so are weights, beside those
    # in 16 (quantize_weight in transformer_engine/pytorch/module/base.py, with the is_first_microbatch of
    # megatron/core/extensions/transformer_engine.py)
    keeps_cast: bool = False
    # types in which weights are kept alone (--fp8-param-gather)
    cast_weights: tuple[str, ...] = ()
    # the memory that it prints has the allocator's free blocks in it (max_reserved in
    # torchtitan/components/metrics.py)
    prints_reserved: bool = False


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """The matrix of the vocabulary, its logits and the loss."""

    cuts_table: bool = True  # tp cuts the embedding's table
    # rows of a rank's part of it are a multiple of this (--make-vocab-size-divisible-by)
    vocabulary_multiple: int = 1
    parallel_loss: bool = True  # the loss is computed on tp shards of the logits
    # the head is plain PyTorch: it gathers its input, async TP or not, and where a microbatch has several
    # sequences puts the ranks' parts into a copy (_maybe_view_chunk_cat in
    # torch/distributed/_functional_collectives.py)
    gathers_head: bool = False
    logit_bytes: int = 24  # moved for each logit by the loss, both passes together, besides the matmuls
    logits_kept: int = 6  # bytes kept for each logit while the loss turns round: in 16 and in 32 bits
    # more of them where tp cuts the logits (_log_softmax, _nll_loss_and_log_softmax_backward in
    # torch/distributed/tensor/parallel/loss.py)
    logits_kept_more: int = 0
    # the same where weights have 16 bits and the loss casts nothing; 0: as with others
    logits_kept_half: int = 0


@dataclass(frozen=True, kw_only=True)
class TensorSettings:
    """Tensor and sequence parallelism.

    tp_overlap: what communication is beside. "none". "backward": the gradients' matmuls. "all": with sequence
    parallelism cut into chunks beside every matmul, else as "backward". "products": the same but for the sum
    of several products' gradients, which is as with "none" (fuse_matmul_reduce_scatter in
    torch/_inductor/fx_passes/micro_pipeline_tp.py), as all is without sequence parallelism.
    """

    tp_overlap: str = "backward"
    # q, k, v, gate and up gather their inputs, and sum the gradients of them, each for itself
    tp_by_matrix: bool = False
    sequence_parallel: bool = True  # with tensor parallelism, where nobody says otherwise
    # the matrices that lead to latent attention's ranks run on a rank's shard of the sequence, and what they
    # give is gathered (parallel_mode="duplicated" in megatron/core/transformer/multi_latent_attention.py);
    # else their input is (NoParallel of wq_a and wkv_a in torchtitan/models/deepseek_v3)
    latent_on_shards: bool = False
    # over what linear attention's heads are cut: (), whole on every rank; None, there is none
    linear_cut_by: tuple[str, ...] | None = None
    # of sequence parallelism: column matrices keep the shard of their input and gather it again for their
    # weights' gradients, hidden or not (LinearWithGradAccumulationAndAsyncCommunication in
    # megatron/core/tensor_parallel/layers.py)
    keeps_shards: bool = False
    # tp gathers and sums along sequences, the second dimension, where a copy joins the parts of several, or
    # cuts what is summed (all_gather_tensor and reduce_scatter_tensor in
    # torch/distributed/_functional_collectives.py)
    joins_parts: bool = False


@dataclass(frozen=True, kw_only=True)
class GradientSettings:
    """Gradients, and weights that are stepped: how they are kept, and how they travel over dp."""

    accumulates: bool = True  # weight gradients are added to one that stays, in float32, by the matmul itself
    gradient_bytes: int = 4  # of a gradient as it is kept and reduced, beside weights of 2 bytes
    # a gradient in 16 bits that nobody reads is kept of each shape of weights, for autograd
    # (get_dummy_wgrad in transformer_engine/pytorch/module/base.py)
    dummy_gradients: bool = False
    # gradients that stay are divided by dp before they are summed (Megatron, without
    # --ddp-average-in-collective), which reads and writes them once
    scales_gradients: bool = True
    dp_overlap: bool = True  # gradients beside the last backward pass (FSDP: beside every one)
    # only ZeRO's are, and none in a pipeline (allreduce_gradients and _configure_zero_optimizer in
    # deepspeed/runtime/engine.py)
    dp_overlap_by_zero: bool = False
    # numbers in the buffer where ZeRO's gradients wait to be reduced (reduce_bucket_size)
    reduce_bucket: float = 0.0
    # the step makes gradients in float32 of those in 16 bits, of so many numbers of ZeRO-3's at a time
    # (sub_group_size)
    casts_gradients: bool = False
    sub_group: float = 0.0
    # ZeRO-1: stepped weights come beside the next forward pass, not at the end of the step
    gathers_first: bool = True
    rail_share: float = 1.0  # of a node's rails, that one collective uses
    collectives_per_layer: int = 1  # that gather a layer of weights: one flat one, or one for each matrix


@dataclass(frozen=True, kw_only=True)
class FSDPSettings:
    """FSDP and ZeRO-3, whose ranks gather the weights of a layer when they need them."""

    sharding: str = ""  # what copies and casts whole weights and gradients: one of SHARDING
    prefetch: bool = True  # the next layer's weights beside this one's compute
    reshards: bool = True  # weights are freed after the forward pass, and gathered again
    # numbers of weights that may be whole before no more are gathered ahead (stage3_max_live_parameters), and
    # within which one that is used again stays (stage3_max_reuse_distance); None: a layer, and the next one
    live_weights: float | None = None
    reuse_distance: float = 0.0
    # in a pipeline: weights stay whole from their first use, and gradients from one microbatch to the
    # next, until the step ends (torch/distributed/pipelining/stage.py, backward_maybe_with_nosync;
    # torchtitan's reshard_after_forward, which is off in a pipeline)
    whole_in_pipeline: bool = False
    # gradients stay whole from one microbatch to the next, in the type in which they travel
    # (set_requires_gradient_sync(False) in all but the last; FSDPParam.to_accumulated_grad_if_needed in
    # torch/distributed/fsdp/_fully_shard/_fsdp_param.py)
    whole_between: bool = False
    # replicas sum their shards of gradients once a step, behind the last microbatch, and not behind each
    # (outer_fsdp_group_grad_reduce in megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py);
    # in a pipeline, which that software does not have with FSDP, behind each
    replicas_last: bool = False
    # over a single rank, too: "always", for the types that it casts to (_mesh_exist in
    # torchtitan/distributed/parallel_dims.py), or where tp cuts the model, "tp", so that the optimizer finds
    # all weights alike (KempnerInstitute/KempnerForge, kempnerforge/distributed/setup.py, init_distributed)
    shards_over_one: str = ""
    # weights on the host have gradients and optimizer there, too: gradients follow each reduction, and the
    # host adds up those of several microbatches (CPUOffloadPolicy; foreach_reduce in
    # torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)
    offloads_together: bool = False
    # weights that come from the host to a single rank come beside compute (else in its own stream:
    # wait_for_unshard in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, world_size == 1)
    prefetches_alone: bool = True


@dataclass(frozen=True, kw_only=True)
class ContextSettings:
    """Context parallelism."""

    cp_overlap: bool = True  # keys and values go round beside attention
    # one of ndparallel.parallel.context's VARIANTS: keys and values go round, are gathered before attention
    # (Llama 3, 2407.21783, 3.3.2), or ranks have all tokens of a part of the heads (Ulysses, 2309.14509)
    context_parallel: str = "ring"
    # keys and values are gathered by blocks, as torch.distributed's context parallelism does
    cp_merges: bool = False
    # of all-to-alls: copies around each that order its heads; whether attention's result is sent again for
    # its backward pass, and not kept by heads too; and whether ranks beyond the heads of keys have copies
    # (flash_attn_a2a_communicate and AttnFuncWithCPAndQKVOA2A in
    # transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py)
    head_copies: int = 2
    resends_heads: bool = True
    shares_kv_heads: bool = False


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """Messages between stages, and what the last stage keeps."""

    pp_overlap: bool = True  # beside compute; else a rank stands still while it sends and receives
    # with several chunks alone (megatron/training/arguments.py turns overlap_p2p_comm off in 1F1B)
    pp_overlaps_chunks: bool = False
    # without sequence parallelism tp ranks send a part of an activation each, and gather it (2104.04473, 4.1;
    # scatter_gather_tensors_in_pipeline in Megatron-LM's p2p_communication.py until 2022); else each sends
    # all of it (get_tensor_shapes in megatron/core/pipeline_parallel/schedules.py; get_fwd_send_ops in
    # torch/distributed/pipelining/stage.py)
    pp_in_parts: bool = False
    # where a rank stands still: both messages with its neighbour one after the other (a gradient, then an
    # activation: TrainSchedule.steps in deepspeed/runtime/pipe/schedule.py), and where tp cuts them each in
    # two (PartitionedTensor: where the parts lie, then the part)
    pp_in_turn: bool = False
    # pipelines are those of torch/distributed/pipelining/stage.py: the last stage keeps the logits of all
    # microbatches (output_chunks) and joins them at the end of the step (_merge_outputs in schedules.py);
    # every stage has a buffer for each microbatch's input and output gradient (_RecvInfo), and the gradients
    # of its inputs until the next step (clear_runtime_states)
    keeps_outputs: bool = False


@dataclass(frozen=True, kw_only=True)
class MixtureSettings:
    """Mixtures of experts."""

    dispatcher: str = "alltoall"  # of rows: one of ndparallel.planner.dispatchers
    sorts_alone: bool = False  # rows of several experts are sorted behind an all-to-all of one rank, too
    grouped_experts: bool = False  # one kernel multiplies all experts of a rank, and not one each
    # experts' activations are weighed, and not their outputs, which then need not be kept
    early_gates: bool = False
    # tp ranks hold a part of each expert (Megatron-Core's etp = tp): rows go over ep, and from there to all
    # of them (else ep ranks have whole experts)
    expert_tp: bool = False


@dataclass(frozen=True, kw_only=True)
class AdapterSettings:
    """LoRA's adapters."""

    # they are Megatron-Bridge's: one pair for a fused matrix and one for all experts of a rank, each of whose
    # two matrices tp cuts (src/megatron/bridge/peft: lora.py, ParallelLinearAdapter in utils.py); else
    # PEFT's, a pair for each of Hugging Face's matrices
    bridge_adapters: bool = False


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Options that a framework leaves off, and a run may turn on."""

    graphs: str = ""  # what CUDA graphs hold: one of GRAPHS
    # rows travel beside the compute of another microbatch (--overlap-moe-expert-parallel-comm)
    hides_dispatch: bool = False
    fused_permutation: bool = False  # --moe-permute-fusion
    fused_router: bool = False  # --moe-router-fusion
    fp32_router: bool = False  # --moe-router-dtype fp32
    fused_mask: bool = False  # of DeepEP's choices: --enable-experimental, with a fused permutation
    # the grouped products activate and cast in their own kernels (--use-transformer-engine-op-fuser)
    fused_experts: bool = False
    fp8_attention: bool = False  # --fp8-dot-product-attention
    fp8_head: bool = False  # --fp8-output-proj


@dataclass(frozen=True, kw_only=True)
class LessonSettings:
    """What the lessons' software does, and real frameworks do not."""

    # ---- in the lists of its layers
    # sequence parallelism keeps shards of the column matrices' inputs and gathers them again right before
    # their weights' gradients (`keeps_shards`: beside the gradients of inputs, once for several matrices)
    regathers: bool = False
    tp_parts: int = 1  # parts of an activation, one all-reduced while the next is multiplied
    # over tp the embedding is summed, and three numbers of the loss for each token
    vocabulary_sums: bool = False
    # the gradient of the embedding's table is one of weights, which a schedule may put off
    table_waits: bool = False
    copies_kv_heads: bool = False  # tp ranks beyond kv_heads hold copies of heads, and not parts of them
    # selective recomputation of attention ends with the probabilities: what they gave was kept
    keeps_mixed: bool = False
    # backward lists are in the order of the program: the last matrix first, the residual's sum behind the
    # norm. The others' order is older; seconds are a sum
    in_order: bool = False
    experts_in_turn: bool = False  # each kernel is launched for one of a rank's experts after another
    # the router's kernels and messages one by one: choosing, counting, permuting, sorting and combining rows,
    # balancing (else a rough number of launches)
    routing_in_full: bool = False
    ep_overlap: bool = False  # rows travel beside shared experts, or the router's backward pass
    # ---- in its runs
    executed: bool = False  # steps are put together as the lessons do, on the clocks of all GPUs
    grid: bool = False  # the loop is that of 4d_combined.py
    clips: bool = False  # gradients are clipped by their global norm, which all GPUs wait for
    bucket_bytes: float = 0.0  # the smallest bucket of gradients


@dataclass(frozen=True, kw_only=True)
class Stack(
    KernelSettings,
    KeptSettings,
    HeadSettings,
    TensorSettings,
    GradientSettings,
    FSDPSettings,
    ContextSettings,
    PipelineSettings,
    MixtureSettings,
    AdapterSettings,
    RunSettings,
    LessonSettings,
):
    """One framework in one year. Raises UserError for a word that its field does not know."""

    name: str

    def __post_init__(self) -> None:
        check_words(self)
        for module in self.selective:
            check_known("module of selective recomputation", module, MODULES)

    def running(self, zero: int, pp: int, shards: int = 2) -> "Stack":
        """The stack as it runs such a plan, over so many shards of ZeRO-3: without an overlap that it then
        does not have."""
        reduces = self.dp_overlap_by_zero and (zero == 0 or pp > 1)
        gathers = not self.prefetches_alone and shards == 1
        if not (reduces or gathers):
            return self
        return replace(
            self, dp_overlap=self.dp_overlap and not reduces, prefetch=self.prefetch and not gathers
        )

    @property
    def has_torch_fsdp(self) -> bool:
        """Whether FSDP is PyTorch's own, of either version."""
        return self.sharding.startswith("fsdp")

    @property
    def flash(self) -> bool:
        return self.attention not in ("unfused", "masked")
