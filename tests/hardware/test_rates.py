"""Claims about rates by type of number, against published measurements of kernels.

Transformer Engine, docs/examples/gemm_profiling: the twelve products of one layer (hidden 4096, MLP 16384)
for 15,872 tokens, in ms, on a B300 of 1,100 W and an H200 NVL: the kernels alone, and with their casts.
"""

import pytest

from gpu import Operation
from ndparallel.hardware.accelerator import data_sheets, preset_of
from ndparallel.hardware.dtypes import checked_peaks
from ndparallel.planner.number_types import NUMBER_TYPES
from tests.support.accelerators import accelerator

TOKENS, HIDDEN, MLP = 31 * 512, 4096, 16384
MATRICES = ((HIDDEN, 3 * HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, MLP), (MLP, HIDDEN))
KERNELS_ALONE = [
    ("b300", "bf16", 13.102),
    ("b300", "fp8", 6.812),
    ("b300", "mxfp8", 7.161),
    ("b300", "nvfp4", 3.764),
    ("h200-nvl", "bf16", 31.968),
    ("h200-nvl", "fp8", 16.785),
]
WITH_CASTS = [
    ("b300", "fp8-current", 9.147),
    ("b300", "mxfp8", 8.984),
    ("b300", "nvfp4", 6.453),
    ("h200-nvl", "fp8", 18.978),
    ("h200-nvl", "fp8-current", 20.285),
]


def products(dtype: str):
    for inputs, outputs in MATRICES:
        for m, n, k in ((TOKENS, outputs, inputs), (TOKENS, inputs, outputs), (outputs, inputs, TOKENS)):
            yield Operation("product", "matmul", (m, n, k), dtype, 2.0 * m * n * k, 2.0 * m * n)


def casts(name: str, transposes: bool):
    """In that benchmark both inputs of each of the twelve products are cast."""
    kind = NUMBER_TYPES[name]
    for product in products(kind.dtype):
        m, n, k = product.shape
        elements = m * k + k * n
        moved = elements * kind.cast_bytes(transposes)
        yield Operation("cast", "elementwise", (elements,), "bfloat16", 0.0, moved, 2 * kind.kernels)


@pytest.mark.parametrize(("gpu", "name", "milliseconds"), KERNELS_ALONE)
def test_a_layers_products_take_what_was_measured_within_12_percent(gpu, name, milliseconds):
    hardware = accelerator(gpu)
    seconds = sum(map(hardware.seconds, products(NUMBER_TYPES[name].dtype)))
    assert seconds * 1e3 == pytest.approx(milliseconds, rel=0.12)


@pytest.mark.parametrize(("gpu", "name", "milliseconds"), WITH_CASTS)
def test_a_layers_products_with_their_casts_take_what_was_measured_within_20_percent(gpu, name, milliseconds):
    hardware = accelerator(gpu)
    alone = sum(map(hardware.seconds, products(NUMBER_TYPES[name].dtype)))
    with_casts = alone + sum(map(hardware.seconds, casts(name, transposes=gpu.startswith("h"))))
    assert with_casts * 1e3 == pytest.approx(milliseconds, rel=0.2)
    assert alone < 0.95 * with_casts


@pytest.mark.parametrize(
    ("gpu", "kernel", "width", "tflops"),
    [  # causal: arXiv:2407.08608, figure 5, at 512, 2k and 16k; cudnn-frontend's results on a GB300 at 4k
        ("h100", "flash2 forward", 128, {512: 191, 2048: 298, 16384: 335}),
        ("h100", "cudnn forward", 128, {512: 315, 2048: 484, 16384: 539}),
        ("h100", "cudnn forward", 64, {2048: 334, 16384: 388}),
        ("h100", "flash2 forward", 64, {512: 180, 2048: 262}),
        ("gb300", "cudnn-2026 backward", 128, {4096: 1248, 2048: 967}),
    ],
)
def test_attention_is_as_fast_as_published_at_each_length(gpu, kernel, width, tflops):
    """Narrow heads are one factor for all lengths and both kernels: within 15%."""
    tolerance = 0.01 if width == 128 else 0.15
    for length, rate in tflops.items():
        operation = Operation("attention", kernel, (1, length, width), "bfloat16", 1.0)
        assert accelerator(gpu).rate(operation) == pytest.approx(rate * 1e12, rel=tolerance)


@pytest.mark.parametrize("name", ["l40", "l40s", "l4", "rtx-4090"])
def test_ada_has_the_attention_of_ampere_and_no_kernel_of_hoppers(name):
    ada = preset_of(name).attention_fractions
    assert ada == preset_of("a100-80").attention_fractions != preset_of("h100").attention_fractions
    assert ada["cudnn forward"] == ada["flash2 forward"]


def test_attention_between_two_measured_lengths_lies_between_their_rates():
    at_3k = Operation("attention", "flash2 forward", (1, 3072, 128), "bfloat16", 1.0)
    assert 298e12 < accelerator("h100").rate(at_3k) < 319e12


def test_large_products_on_a_b200_reach_what_the_published_sweep_reaches():
    """SimuMax, configs/system/b200_bf16_ceperm.json: 0.482 of 2,250 TFLOP/s, the mean of 113 large shapes."""
    assert accelerator("b200").sustained("bf16") == pytest.approx(0.482 * 2250e12, rel=0.01)


def test_scales_make_a_short_types_copy_longer_by_their_bytes():
    assert NUMBER_TYPES["mxfp8"].cast_bytes(transposes=False) == 2 + 2 * 33 / 32
    assert NUMBER_TYPES["nvfp4"].cast_bytes(transposes=False) == 4 + 2 * 9 / 16
    assert NUMBER_TYPES["fp8"].cast_bytes(transposes=True) == 4
    assert NUMBER_TYPES["fp8"].cast_bytes(transposes=False) == 3


def test_every_dtype_that_a_gpu_gains_by_it_multiplies():
    for name, table in data_sheets().items():
        if "based_on" not in table:
            assert set(table.get("gains", {})) <= set(table["peak"]), name


def test_every_hopper_multiplies_the_blocks_of_8_bits_that_an_h100_does():
    """Transformer Engine asks for compute capability 9.0 (check_fp8_block_scaling_support). An H20, and cards
    with PCIe, were refused."""
    for name, table in data_sheets().items():
        if table["architecture"] == "sm_90":
            gpu = accelerator(name)
            assert (
                gpu.peak("fp8-block") == gpu.peak("fp8") > gpu.sustained("fp8-block") > gpu.sustained("bf16")
            )


def test_tf32_is_half_of_16_bits_where_a_data_sheet_does_not_say_it():
    """NVIDIA A100: 312 TFLOP/s in BF16, 156 in TF32."""
    assert checked_peaks("peak", {"bf16": "312 TFLOP/s"}) == {"bf16": 312e12, "tf32": 156e12}
    assert checked_peaks("peak", {"bf16": "312 TFLOP/s", "tf32": "99 TFLOP/s"})["tf32"] == 99e12
