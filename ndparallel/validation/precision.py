"""The numbers that a measured run computes with: 16 bits, 8, or 32.

Idea   The planner's bytes are those of 16 bits. A run in TF32 or float32 has all of them twice: it takes as
       long as one in 16 bits on a machine with half of each bandwidth, at that type's peak.
Limit  Kernels in float32 are as good as those in 16 bits.
"""

import re
from dataclasses import replace
from typing import Any

from ndparallel.hardware.accelerator import Accelerator
from ndparallel.hardware.disturbances import slower
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.stack import Stack
from ndparallel.validation.words.number_types import number_of_bits

SINGLE_BITS = 19  # TF32 and float32 numbers take 4 bytes
SINGLE_OPTIMIZER_BYTES = 14  # AdamW in float32 reads 4 arrays and writes 3; in numbers of 2 bytes
SINGLE_LOGITS = 4  # logits and their gradient; in numbers of 2 bytes


def half_of(stated: Any, stack: Stack, plan: Plan, framework: str) -> bool:
    """Return whether weights and optimizer states have the number type of the matmuls. FSDP2 shards weights
    in the type that they have; FSDP 1 keeps those of mixed precision in float32."""
    precision = str(stated or "").lower()
    own_type = plan.dp == 1 or re.search(r"fsdp ?2|fully.shard", framework)
    plain = stack.name.startswith("pytorch") and own_type and not re.search("mixed|amp", precision)
    return bool("pure" in precision or plain or number_of_bits(precision) >= SINGLE_BITS)


def in_four_bytes(job: TrainingJob, dtype: str) -> TrainingJob:
    """Return a job in 4-byte numbers as a job in 2-byte numbers on hardware with half the memory and half
    the bandwidth. Flash attention takes only numbers of 16 bits and less
    (github.com/Dao-AILab/flash-attention, README)."""
    assert isinstance(job.hardware, Accelerator)
    gpu = job.hardware
    peaks = gpu.peak_flops_per_second
    peak = peaks.get(dtype, peaks["bf16"] / 16)
    hardware = replace(
        gpu,
        flops_per_second=gpu.flops_per_second * peak / peaks["bf16"],
        peak_flops_per_second={**peaks, "bf16": peak},
        memory_bandwidth_bytes_per_second=gpu.memory_bandwidth_bytes_per_second / 2,
        memory_bytes=gpu.memory_bytes / 2,
        inside=slower(gpu.inside, 2),
        across=slower(gpu.across, 2),
    )
    stack = replace(
        job.stack, optimizer_bytes=SINGLE_OPTIMIZER_BYTES, logits_kept=SINGLE_LOGITS, attention="unfused"
    )
    return replace(job, hardware=hardware, stack=stack)
