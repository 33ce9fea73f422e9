"""Which attention kernels Transformer Engine has to train heads of these widths on a GPU.

Idea   One row a kernel, read in its code: nvte_get_fused_attn_backend in
       transformer_engine/common/fused_attn/fused_attn.cpp (cuDNN), and get_attention_backend in
       transformer_engine/pytorch/attention/dot_product_attention/utils.py (FlashAttention 2).
Limit  The newest cuDNN and FlashAttention 2. FlashAttention 3 and 4, which train more widths, are left out.

Glossary
    keys, values   the widths of one head of keys, which queries have, too, and of one head of values
    capability     compute capability, times ten: 90 of Hopper
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpu import Hardware
from ndparallel.hardware.architecture import AMPERE, HOPPER, capability
from ndparallel.planner.models.shape import ModelShape

BLACKWELL, AFTER_SM10X = 100, 110
OF_FLASH_256 = (80, 90, 100, 120)  # capabilities on which FlashAttention 2 trains heads wider than 192
LATENT = (192, 128)  # DeepSeek-V3's


def cudnn_trains(capability: int, keys: int, values: int) -> bool:
    if max(keys, values) <= 128:
        return True
    if capability == HOPPER:
        unlike = keys != values and min(keys, values) >= 128 and (keys, values) != LATENT
        return max(keys, values) <= 256 and not unlike
    wide = (keys, values) == (256, 256) and capability < AFTER_SM10X
    return capability >= BLACKWELL and ((keys, values) == LATENT or wide)


def flash2_trains(capability: int, keys: int, values: int) -> bool:
    """Values are padded to the width of keys."""
    return max(keys, values) <= (256 if capability in OF_FLASH_256 else 192)


TRAINS: Mapping[str, Callable[[int, int, int], bool]] = MappingProxyType(
    {"cudnn": cudnn_trains, "cudnn-2026": cudnn_trains, "flash2": flash2_trains}
)


def trains(kernel: str, hardware: Hardware, shape: ModelShape) -> bool:
    """Whether the kernel trains all heads of a model; true of other kernels, and of GPUs that no kernel of
    this list knows."""
    known = capability(hardware)
    if kernel not in TRAINS or known is None or known < AMPERE:
        return True
    widths = ((each.head_dim, each.value_dim) for each in shape.with_heads)
    return all(width[0] % 8 == width[1] % 8 == 0 and TRAINS[kernel](known, *width) for width in widths)


def fitting_kernel(kernel: str, hardware: Hardware, shape: ModelShape) -> str:
    """The kernel, or where it cannot train the model's heads FlashAttention 2, or else unfused attention."""
    return next(one for one in (kernel, "flash2", "unfused") if trains(one, hardware, shape))
