"""Software stacks: training frameworks as they were in one year, because a 2021 Megatron is not a 2025 one.

Idea   A framework is what `stack.py` says by default, and what sets it apart is said here.
Cost   none.

Where the numbers come from. Bytes that the optimizer and the loss move, and that logits keep, are counted
from the arrays that the frameworks' code reads, writes and saves: to within a copy. What overlaps, and what
is gathered how often, is read in the code; launches are counted in ndparallel.planner.launches.
"""

from dataclasses import replace

from ndparallel.base.errors import find_choice
from ndparallel.planner.optimizer_kernels import bytes_of
from ndparallel.planner.stack import Stack

# types that --fp8-param-gather takes (megatron/core/fp8_utils.py)
FP8_PARAM_GATHER = ("fp8", "fp8-current", "fp8-block", "mxfp8")
MEGATRON_2021 = Stack(
    name="megatron-2021",
    fusion="fused",
    attention="unfused",
    dropout=True,
    gradient_bytes=2,
    tp_overlap="none",
    sequence_parallel=False,
    keeps_shards=True,
    dp_overlap=False,
    gathers_first=False,
    pp_overlap=False,
    pp_in_parts=True,
    logit_bytes=44,
    vocabulary_multiple=128,
    optimizer="megatron-2021",
    optimizer_bytes=bytes_of("megatron-2021"),
    launching="modules",
    small_kernels="megatron",
)
MEGATRON_2022 = replace(MEGATRON_2021, name="megatron-2022", tp_overlap="backward")
# NVIDIA/TransformerEngine, pull request 1468: gates go to the experts' MLP, so that the large input of
# unpermutation is not kept
MEGATRON_CORE = Stack(
    name="megatron-core",
    fusion="engine",
    attention="cudnn",
    keeps_shards=True,
    rotary_kernels=2,
    latent_on_shards=True,
    linear_cut_by=("tp", "cp"),
    dispatcher="deepep",
    sorts_alone=True,
    early_gates=True,
    bridge_adapters=True,
    keeps_cast=True,
    dummy_gradients=True,
    replicas_last=True,
    vocabulary_multiple=128,
    chooses_modules=True,
    pp_overlaps_chunks=True,
    launching="modules",
    small_kernels="megatron-core",
)
# fp8_param_gather by precision (src/megatron/bridge/training/mixed_precision.py)
NEMO = replace(
    MEGATRON_CORE,
    name="nemo",
    tp_overlap="all",
    scales_gradients=False,
    cast_weights=("fp8", "fp8-current", "mxfp8"),
)
DEEPSPEED_2021 = replace(
    MEGATRON_2021,
    name="deepspeed-2021",
    accumulates=False,
    rail_share=1 / 8,
    collectives_per_layer=4,
    sharding="deepspeed",
)
# Experts in one kernel: MegaBlocks' in LLM Foundry (2211.15841), torch._grouped_mm in torchtitan
# (torchtitan/models/moe.py); Hugging Face's
# layers multiply one after another. Checkpoints of torch 2.1 stop early (torch/utils/checkpoint.py).
FSDP_2023 = Stack(
    name="fsdp-2023",
    linear_cut_by=(),
    fusion="fused",
    attention="triton",
    accumulates=False,
    tp_overlap="none",
    logits_kept=10,
    optimizer="composer",
    optimizer_bytes=bytes_of("composer"),
    launching="eager",
    whole_in_pipeline=True,
    keeps_outputs=True,
    grouped_experts=True,
    early_stop=True,
    sharding="fsdp1",
)
TORCHTITAN = replace(
    FSDP_2023,
    name="torchtitan",
    # logits in 16 bits; in 32 they, their log-softmax, and the gradients of both, one in the logits' place
    logits_kept=14,
    logits_kept_more=4,
    gathers_head=True,
    joins_parts=True,
    optimizer="torch",
    optimizer_bytes=bytes_of("torch"),
    prints_reserved=True,
    fusion="eager",
    attention="flash2",
    selective=("half",),
    small_kernels="torch",
    sharding="fsdp2",
    linear_cut_by=("tp",),  # torchtitan/models/qwen3_5/sharding.py
    # torch/distributed/tensor/experimental/_context_parallel/_attention.py, _ContextParallelOptions of 2.13,
    # which torchtitan's apply_cp_to_forward leaves as they are
    context_parallel="all-gather",
    cp_merges=True,
    shards_over_one="always",
    offloads_together=True,
    prefetches_alone=False,
)
TORCHTITAN_COMPILED = replace(
    TORCHTITAN, name="torchtitan-compiled", fusion="compiled", launching="compiled", small_kernels=""
)
# PyTorch's ColwiseParallel makes a DTensor of each matrix's input for itself
# (torch/distributed/tensor/parallel/style.py), so models that name q, k, v, gate and up in their plan have
# five sums behind them (KempnerInstitute/KempnerForge, kempnerforge/distributed/tensor_parallel.py);
# torchtitan's PrepareModuleInput saves three. The same file leaves the table whole. Gradients of all but the
# last microbatch stay whole (kempnerforge/training/grad.py). Of logits in 16 bits there are four copies:
# they, their log-softmax, and the gradients of both.
# Its attention is cuDNN's on Hopper and Blackwell from the wheels of torch 2.11 on, of March 2026
# (check_prefer_cudnn_attention in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp; which wheels:
# huggingface/transformers, pull request 48163). torchtitan 0.3 calls flex_attention instead, which is
# FlashAttention 2 in Triton (torchtitan/models/llama3/__init__.py, model_registry).
PYTORCH = replace(
    TORCHTITAN,
    name="pytorch",
    attention="cudnn",
    linear_cut_by=(),
    logits_kept_half=8,
    prints_reserved=False,
    parallel_loss=False,
    cuts_table=False,
    whole_between=True,
    shards_over_one="tp",
    tp_by_matrix=True,
    grouped_experts=False,
)
PYTORCH_COMPILED = replace(
    PYTORCH,
    name="pytorch-compiled",
    fusion="compiled",
    logits_kept=9,
    logit_bytes=16,
    launching="compiled",
    small_kernels="",
)
# Hugging Face's layers under DeepSpeed of 2022 and later: gradients travel in the model's 16 bits, stepped
# weights are gathered at the end of the step (deepspeed/runtime/zero/stage_1_and_2.py), and recomputation
# runs to the block's last matrix.
# Gradients wait in a buffer of reduce_bucket_size numbers (deepspeed/runtime/zero/config.py, as the other
# numbers here; what they do to memory: ndparallel/planner/memory/deepspeed.py).
# Every microbatch reduces its gradients (stage3.py, reduce_ready_partitions_and_remove_grads). Its tensor
# parallelism all-reduces what parts of matrices give, and cuts no sequence (LinearAllreduce and LinearLayer
# in deepspeed/module_inject/layers.py). Its pipeline sends and receives in turn, and keeps of microbatches
# that are done their losses alone (_exec_forward_pass in deepspeed/runtime/pipe/engine.py).
DEEPSPEED = replace(
    PYTORCH,
    name="deepspeed",
    gradient_bytes=2,
    reduce_bucket=5e8,
    casts_gradients=True,
    sub_group=1e9,
    live_weights=1e9,
    reuse_distance=1e9,
    gathers_first=False,
    early_stop=False,
    whole_between=False,
    keeps_outputs=False,
    pp_overlap=False,
    pp_in_turn=True,
    dp_overlap_by_zero=True,
    sharding="deepspeed",
    offloads_together=False,
    prefetches_alone=True,
    sequence_parallel=False,
    # Ulysses: UlyssesSPAttentionHF in deepspeed/runtime/sequence_parallel/ulysses_sp.py
    context_parallel="all-to-all",
    resends_heads=False,
    shares_kv_heads=True,
)
# Hugging Face's layers and transformers' Trainer under Accelerate's FSDP2 (fsdp2_prepare_model in
# accelerate/utils/fsdp_utils.py): gradients travel in the 16 bits of the layers, which are also reduce_dtype
# (set_mixed_precision in accelerate/utils/dataclasses.py). Experts are multiplied by torch's grouped kernel
# (grouped_mm_experts_forward in transformers/integrations/moe.py). The loss casts logits to 32 bits, and
# keeps of all copies their log-softmax, beside the gradients of both (ForCausalLMLoss in
# transformers/loss/loss_utils.py). Pipelines it has none, and its tensor parallelism is the model's own.
ACCELERATE = replace(
    PYTORCH,
    name="accelerate",
    gradient_bytes=2,
    logits_kept=12,
    logits_kept_half=0,
    grouped_experts=True,
)
# With sync_each_batch in accelerator_config every microbatch sums gradients (transformers/trainer.py)
ACCELERATE_SYNC = replace(ACCELERATE, name="accelerate-sync-each-batch", whole_between=False)
# The lessons' own layers (ndparallel/model); tests/ladder/test_rung3_lists.py holds these switches to them
POCKET = Stack(
    name="pocket",
    fusion="minimal",
    attention="masked",
    accumulates=False,
    tp_overlap="none",
    gathers_first=False,
    logit_bytes=16,
    logits_kept=4,
    vocabulary_sums=True,
    table_waits=True,
    copies_kv_heads=True,
    keeps_mixed=True,
    head_copies=1,
    resends_heads=False,
    shares_kv_heads=True,
    in_order=True,
    expert_tp=True,
    experts_in_turn=True,
    routing_in_full=True,
    ep_overlap=True,
    dtype="float32",
    executed=True,
    grid=True,
    bucket_bytes=0.1e6,
)
_STACKS = (
    *(MEGATRON_2021, MEGATRON_2022, MEGATRON_CORE, NEMO, DEEPSPEED_2021, FSDP_2023, TORCHTITAN),
    *(TORCHTITAN_COMPILED, PYTORCH, PYTORCH_COMPILED, DEEPSPEED, ACCELERATE, ACCELERATE_SYNC, POCKET),
)
STACKS = {stack.name: stack for stack in _STACKS}


def find_stack(name: str) -> Stack:
    """The stack of that name, in capitals or not. Raises UserError with the nearest."""
    return STACKS[find_choice("software", name, STACKS)]
