"""Claims about attention kernels: which train a model's heads on a GPU, as Transformer Engine's code says."""

import pytest

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.attention_kernels import fitting_kernel, trains
from ndparallel.planner.fitted_software import software_on
from ndparallel.planner.models.presets import preset

WIDE = {"llama-3-8b": "128", "deepseek-v3": "192 and 128", "nemotron-4-340b": "192", "qwen3.5-27b": "256"}
TRAINED = {  # by cuDNN: nvte_get_fused_attn_backend in fused_attn.cpp
    "a100-80": {"128"},
    "l40s": {"128"},
    "h100": {"128", "192 and 128", "192", "256"},
    "b200": {"128", "192 and 128", "256"},
    "gb300": {"128", "192 and 128", "256"},
}


@pytest.mark.parametrize("gpu", TRAINED)
def test_cudnn_trains_wide_heads_on_hopper_and_some_on_blackwell(gpu):
    found = {heads for model, heads in WIDE.items() if trains("cudnn", find_hardware(gpu), preset(model))}
    assert found == TRAINED[gpu]


@pytest.mark.parametrize(
    ("gpu", "model", "kernel"),
    [
        ("a100-80", "deepseek-v3", "flash2"),
        ("a100-80", "qwen3.5-27b", "flash2"),
        ("b200", "nemotron-4-340b", "flash2"),
        ("l40s", "deepseek-v3", "flash2"),
        ("l40s", "qwen3.5-27b", "unfused"),  # FlashAttention 2 trains heads of 256 on sm80, 90, 100 and 120
        ("h100", "qwen3.5-27b", "cudnn"),
        ("mi300x", "qwen3.5-27b", "cudnn"),  # of which nothing is known here
        ("v100", "qwen3.5-27b", "cudnn"),
    ],
)
def test_where_cudnn_trains_no_such_heads_megatron_has_the_next_kernel_that_does(gpu, model, kernel):
    hardware, shape = find_hardware(gpu), preset(model)
    assert fitting_kernel("cudnn", hardware, shape) == kernel
    assert software_on("megatron-core", hardware, shape).attention == kernel
    assert software_on("pytorch", hardware, shape).attention == "cudnn", "torch chooses for itself"
