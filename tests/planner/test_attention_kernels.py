"""Claims about attention kernels: which train a model's heads on a GPU, as Transformer Engine's code says."""

from dataclasses import replace

import pytest

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.frameworks import FRAMEWORKS, launched_by
from ndparallel.launch_flags.megatron.rules import ATTENTION
from ndparallel.planner.attention_kernels import fitting_kernel, trains
from ndparallel.planner.fitted_software import software_on
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import preset
from ndparallel.search.search import search

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


@pytest.mark.parametrize(
    ("model", "way"),
    [
        ("llama-3-8b", "ring"),
        ("mistral-7b", "all-gather"),
        ("gemma-3-27b", "all-gather"),
        ("gpt-oss-20b", "all-to-all"),  # sinks
        ("llama-4-scout", "ring"),  # chunks, which Megatron-Core does not have anyway
    ],
)
def test_megatron_has_a_way_over_cp_ranks_that_its_rules_allow_for_windows_and_sinks(model, way):
    hardware, shape = find_hardware("h100"), preset(model)
    stack = software_on("megatron-core", hardware, shape)
    assert stack.context_parallel == way
    job = TrainingJob(shape, hardware, stack, 4096, 8)
    assert not any(rule.breaks(job, Plan(cp=2)) for rule in ATTENTION)
    assert software_on("deepspeed", hardware, shape).context_parallel == "all-to-all"
    assert software_on("torchtitan", hardware, shape).context_parallel == "all-gather"


def test_a_search_takes_sequences_of_layers_with_a_window_over_cp_ranks_where_that_is_faster():
    """Mistral 7B, 4 sequences of 131,072 tokens on 16 GPUs: without cp tp is the only way to use all."""
    hardware, shape = find_hardware("h100"), preset("mistral-7b")
    job = TrainingJob(shape, hardware, software_on("megatron-core", hardware, shape), 131072, 4)
    best, alone = search(job, 16, top=1).best, search(job, 16, {"cp": 1}, top=1).best
    assert best.plan.cp > 1 and best.seconds < 0.9 * alone.seconds
    assert launched_by(job, best.plan)[0] == "megatron"


def test_the_way_that_megatron_has_for_windows_is_not_asked_of_another_framework():
    hardware, shape = find_hardware("h100"), preset("mistral-7b")
    job = TrainingJob(shape, hardware, software_on("megatron-core", hardware, shape), 8192, 8)
    assert FRAMEWORKS["deepspeed"].priced(job).stack.context_parallel == "all-to-all"
    asked = replace(job, stack=replace(job.stack, context_parallel="ring"))
    assert FRAMEWORKS["deepspeed"].priced(asked).stack.context_parallel == "ring"
