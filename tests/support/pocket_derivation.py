"""The derivation of the pocket GPU's constants, as ndparallel/hardware/pocket.py tells it."""

from gpu import Hardware, Link, Operation
from ndparallel.hardware.pocket import POCKET
from ndparallel.model.units import ModelConfig
from tests.support import hand_count
from tests.support.hand_count import Sizes

COMPUTE_SECONDS, TP_INSIDE_SECONDS, TP_ACROSS_SECONDS = 14.2e-3, 2.09e-3, 18.8e-3
NODE, KERNEL_OVERHEAD_SECONDS, LATENCY_INSIDE_SECONDS, LATENCY_ACROSS_SECONDS = 4, 3e-6, 3.4e-6, 14e-6
H100_MEMORY_BANDWIDTH_BYTES_PER_SECOND = 3.35e12 * 0.9
MEMORY_BYTES = 48e6
LLAMA_70B = ModelConfig(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256, sequence=8192)


def layer_operations(sizes: Sizes) -> list[Operation]:
    """A block's operations, forward and backward."""
    block = hand_count.block(sizes)
    return block.forward + block.backward


def memory_bound_bytes(operations: list[Operation]) -> float:
    """What the elementwise kernels move; not softmax, which a fused attention does not write."""
    return sum(
        operation.bytes
        for operation in operations
        if operation.kind == "elementwise" and operation.name != "softmax"
    )


def derive(model: ModelConfig, tp: int) -> Hardware:
    """The hardware on which one layer of `model` at this tp takes the milliseconds above."""
    layer = layer_operations(Sizes(model, 1, tp))
    llama = layer_operations(Sizes(LLAMA_70B, 1, 8, dtype="float16"))
    memory_bound_seconds = memory_bound_bytes(llama) / H100_MEMORY_BANDWIDTH_BYTES_PER_SECOND
    all_reduced_bytes = 4 * 2 * (tp - 1) / tp * model.sequence * model.hidden * 4
    return Hardware(
        name="pocket",
        flops_per_second=sum(operation.flops for operation in layer) / COMPUTE_SECONDS,
        memory_bandwidth_bytes_per_second=memory_bound_bytes(layer) / memory_bound_seconds,
        kernel_overhead_seconds=KERNEL_OVERHEAD_SECONDS,
        memory_bytes=MEMORY_BYTES,
        gpus_per_node=NODE,
        inside=Link(LATENCY_INSIDE_SECONDS, all_reduced_bytes / TP_INSIDE_SECONDS),
        across=Link(LATENCY_ACROSS_SECONDS, all_reduced_bytes / TP_ACROSS_SECONDS),
        source=POCKET.source,
    )
