"""What the optimizer's step moves for each parameter, and what ZeRO-3 copies of it, as counted in the code.

Idea   A step is bound by memory, so the bytes of its kernels price it. Gradients that are zeroed and
       divided before they are summed are no part of it: see ndparallel.planner.step.parameter_kernels.
Limit  AdamW alone; its kernels are few and large, so their launches are not counted.

Glossary
    share     parameters that the rank steps: all, or its part where the optimizer is sharded
    main      weights and gradients in float32, beside the model's in 16 bits
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class OptimizerKernel:
    """One kernel of the step, with the bytes that it moves for each parameter of the rank's share."""

    name: str
    moved: int
    source: str


ADAM = OptimizerKernel("adam", 7 * 4, "apex, multi_tensor_adam.cu: 4 arrays read, 3 written")
TO_MODEL = "megatron/core/optimizer/distrib_optimizer.py, _copy_main_params_to_model_params"
CLIP = "megatron/core/optimizer/clip_grads.py"
OPTIMIZERS: dict[str, tuple[OptimizerKernel, ...]] = {
    "megatron-2021": (
        OptimizerKernel("gradients to main", 2 + 4, "megatron/optimizer/optimizer.py, _copy_model_grads"),
        OptimizerKernel("unscale, check", 4 + 4, "megatron/optimizer/optimizer.py, _unscale_main_grads"),
        OptimizerKernel("norm", 4, "megatron/optimizer/clip_grads.py"),
        OptimizerKernel("clip", 4 + 4, "megatron/optimizer/clip_grads.py"),
        ADAM,
        OptimizerKernel("main to weights", 4 + 2, "megatron/optimizer/optimizer.py, _copy_main_params"),
    ),
    "megatron-core": (
        OptimizerKernel("norm", 4, f"{CLIP}, get_grad_norm_fp32"),
        OptimizerKernel("clip", 4 + 4, f"{CLIP}, clip_grad_by_total_norm_fp32"),
        ADAM,
        OptimizerKernel("main to weights", 4 + 2, TO_MODEL),
    ),
    "torch": (
        OptimizerKernel("norm", 4, "torch/nn/utils/clip_grad.py, get_total_norm"),
        OptimizerKernel("clip", 4 + 4, "torch/nn/utils/clip_grad.py, _foreach_mul_"),
        OptimizerKernel("adam", 7 * 4, "torch/optim/adamw.py, fused"),
    ),
    # one kernel for each operator: mul_, add_, mul_, addcmul_, sqrt, div, add_, addcdiv_
    "composer": (
        OptimizerKernel("norm", 4, "torch/distributed/fsdp/fully_sharded_data_parallel.py, clip_grad_norm_"),
        OptimizerKernel("clip", 4 + 4, "the same"),
        OptimizerKernel(
            "adam", (2 + 3 + 2 + 3 + 2 + 2 + 2 + 4) * 4, "composer/optim/decoupled_weight_decay.py, adamw"
        ),
    ),
}
# beside them, where gradients are reduced in 16 bits
TO_MAIN = {
    "megatron-core": OptimizerKernel(
        "gradients to main",
        2 + 4,
        "megatron/core/optimizer/distrib_optimizer.py, _copy_model_grads_to_main_grads: float",
    )
}


def kernels_of(optimizer: str, gradient_bytes: int) -> tuple[OptimizerKernel, ...]:
    """The kernels of an optimizer whose model has gradients of so many bytes."""
    to_main = (TO_MAIN[optimizer],) if gradient_bytes == 2 and optimizer in TO_MAIN else ()
    return *to_main, *OPTIMIZERS[optimizer]


def bytes_of(optimizer: str) -> int:
    """Bytes of all kernels of an optimizer."""
    return sum(kernel.moved for kernel in OPTIMIZERS[optimizer])


@dataclass(frozen=True)
class ShardingCopies:
    """What is copied for each parameter of a unit: by ZeRO-3 whole weights, after each gather; by ZeRO-2 too
    whole gradients, as they are made (2 bytes), as other kernels join, cast and divide them, before they are
    reduced."""

    source: str
    weight_bytes: int = 0
    joined: int = 0  # passes over gradients as they are made
    casts: bool = False  # in a kernel of its own, where they are reduced in another type
    divided: int = 0  # passes over gradients as they travel

    def gradient_bytes(self, size: int) -> int:
        """Bytes for each gradient that travels in so many."""
        return 2 * self.joined + (2 + size) * (self.casts and size != 2) + size * self.divided

    def added_bytes(self, size: int) -> int:
        """Bytes for each gradient of a microbatch that is added to those before it, which stay whole: as many
        for one that is but cast, and joined with the others before they are reduced (FSDPParam,
        accumulate_unsharded_grad_if_needed in torch/distributed/fsdp/_fully_shard/_fsdp_param.py)."""
        return 2 + 2 * size


SHARDING = {
    # the gradient of flat_param's split is a concatenation; one kernel casts, one divides
    "fsdp1": ShardingCopies(
        "torch/distributed/fsdp/flat_param.py, _get_unflat_views; _runtime_utils.py, _post_backward_hook and "
        "_reduce_grad",
        joined=2,
        casts=True,
        divided=2,
    ),
    # split_with_sizes_copy; chunk_cat, which casts
    "fsdp2": ShardingCopies(
        "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_all_gather_copy_out and "
        "foreach_reduce_scatter_copy_in",
        weight_bytes=2 + 2,
        joined=1,
        divided=1,
    ),
    "deepspeed": ShardingCopies(
        "deepspeed/runtime/zero/partition_parameters.py, _allgather_params; stage3.py, "
        "reduce_independent_p_g_buckets_and_remove_grads",
        weight_bytes=2 + 2,
        joined=2,
    ),
}
