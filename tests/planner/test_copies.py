"""What ZeRO-3 copies of weights and gradients, as the frameworks' code has it."""

from dataclasses import replace

import pytest

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import preset
from ndparallel.planner.optimizer_kernels import SHARDING, bytes_of
from ndparallel.planner.prediction import time_step
from ndparallel.planner.software import find_stack

H100 = find_hardware("h100")


@pytest.mark.parametrize(
    ("software", "size", "moved"),
    [("fsdp1", 4, 4 + 6 + 8), ("fsdp1", 2, 4 + 4), ("fsdp2", 4, 6), ("deepspeed", 2, 4)],
)
def test_bytes_that_each_gradient_moves_before_it_is_reduced(software, size, moved):
    assert SHARDING[software].gradient_bytes(size) == moved


def test_composers_adamw_reads_and_writes_20_arrays_where_a_fused_one_has_7():
    assert bytes_of("composer") - bytes_of("torch") == (20 - 7) * 4


@pytest.mark.parametrize(("dp", "microbatches"), [(1, 1), (8, 1), (8, 4)])
def test_every_microbatch_copies_whole_weights_twice_and_gradients_once(dp, microbatches):
    shape, stack = preset("llama-3-8b"), replace(find_stack("torchtitan-compiled"), selective=())
    seconds = [
        time_step(
            TrainingJob(shape, H100, replace(stack, sharding=sharding), 8192, dp * microbatches),
            Plan(dp=dp, zero=3),
        ).breakdown["compute"]
        for sharding in ("fsdp2", "")
    ]
    moved = shape.parameters().total * (4 + 4 + 6) / H100.memory_bandwidth_bytes_per_second
    launched = (shape.layers + 2) * 3 * H100.kernel_overhead_seconds
    expected = microbatches * (moved + launched) * (dp > 1)
    assert seconds[0] - seconds[1] == pytest.approx(expected, rel=1e-6, abs=1e-9)
