"""What the optimizer's step moves for each parameter, kernel by kernel, as the frameworks' code has it.

Idea   A step is bound by memory, so a ledger of bytes prices it. Gradients that are zeroed and divided before
       they are summed are no part of it: see ndparallel.planner.step.framework.
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
}


def bytes_of(ledger: str) -> int:
    """Bytes of all kernels of a ledger."""
    return sum(kernel.moved for kernel in OPTIMIZERS[ledger])
