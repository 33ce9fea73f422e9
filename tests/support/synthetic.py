"""A small training step of real GPUs, driven in lockstep in one process: what the tests of pictures and
numbers look at."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from gpu import COLLECTIVE, GPU, Handle, Hardware, Link, Mailboxes, Operation

HARDWARE = Hardware(
    name="bench",
    flops_per_second=1e9,
    memory_bandwidth_bytes_per_second=1e12,
    kernel_overhead_seconds=2e-6,
    memory_bytes=1e6,
    gpus_per_node=4,
    inside=Link(latency_seconds=2e-6, bandwidth_bytes_per_second=1e9),
    across=Link(latency_seconds=8e-6, bandwidth_bytes_per_second=2e8),
)
UNITS = ("embedding", "layers.0", "layers.1", "layers.2", "head")
OPERATIONS = ("norm1", "qkv", "scores", "softmax", "values", "out", "norm2", "gate_up", "swiglu", "down")
GRADIENT = 40_000  # float32 numbers of a unit
ACTIVATION_BYTES = 30_000


@dataclass(frozen=True)
class Run:
    """What a launcher gives for one rank."""

    rank: int
    events: tuple
    end_seconds: float
    peak_bytes: dict


def data_parallel(
    gpus: int = 4, overlapped: bool = True, operations: tuple = OPERATIONS, hardware: Hardware = HARDWARE
) -> list[Run]:
    """Forward, backward with a ring all-reduce of every unit's gradient, optimizer; rank r is slowed by
    r/50."""
    boxes = Mailboxes()
    ranks = [GPU(rank, hardware, boxes.of(rank)) for rank in range(gpus)]
    for gpu in ranks:
        gpu.allocate("weights", 4 * GRADIENT)
        for unit, operation in product(UNITS, operations):
            compute(gpu, f"forward {unit} {operation}", 20_000)
            gpu.allocate("activations", ACTIVATION_BYTES / 10)
    handles: list[list[Handle]] = [[] for _ in ranks]
    for number, unit in enumerate(reversed(UNITS)):
        for gpu in ranks:
            backward(gpu, unit, operations)
        for gpu, handle in zip(ranks, ring_all_reduce(ranks, number) if gpus > 1 else []):
            handles[gpu.rank].append(handle)
            if not overlapped:
                handle.wait()
    for gpu in ranks:
        for handle in handles[gpu.rank]:
            handle.wait()
        compute(gpu, "optimizer adamw", 50_000)
    return [finished(gpu) for gpu in ranks]


def compute(gpu: GPU, name: str, flops: float) -> None:
    gpu.compute(Operation(name, flops=flops * (1 + gpu.rank / 50)))


def backward(gpu: GPU, unit: str, operations: Iterable[str]) -> None:
    for operation in operations:
        compute(gpu, f"backward {unit} {operation}", 40_000)
        gpu.free("activations", ACTIVATION_BYTES / 10)
    gpu.allocate("gradients", 4 * GRADIENT / len(UNITS))


def ring_all_reduce(gpus: list[GPU], number: int) -> list[Handle]:
    """A ring over all GPUs on the stream "dp", with events as a collective leaves them; each sends 2 (p-1)/p
    of the gradient."""
    label = ("dp", number, "all_reduce", "ring")
    starts: dict[int, float] = {}
    pieces = {
        gpu.rank: np.array_split(np.zeros(GRADIENT // len(UNITS), np.float32), len(gpus)) for gpu in gpus
    }
    for step in range(2 * (len(gpus) - 1)):
        for gpu in gpus:
            with gpu.on("dp", waits=step == 0) as stream:
                starts.setdefault(gpu.rank, stream.now)
                gpu.send(
                    (gpu.rank + 1) % len(gpus),
                    pieces[gpu.rank][(gpu.rank - step) % len(gpus)],
                    (("dp", number), step),
                )
        for gpu in gpus:
            with gpu.on("dp", waits=False):
                gpu.receive((gpu.rank - 1) % len(gpus), (("dp", number), step))
    return [ended(gpu, label, starts[gpu.rank], tuple(range(len(gpus)))) for gpu in gpus]


def ended(gpu: GPU, label: tuple, start: float, ranks: tuple[int, ...]) -> Handle:
    with gpu.on("dp", waits=False) as stream:
        gpu.record(COLLECTIVE, label, start, stream.now, 4 * GRADIENT / len(UNITS), 0, ranks)
    return Handle(gpu, label, start, stream.now, lambda: None, stream.name)


def pipeline(microbatches: int = 3, hardware: Hardware = HARDWARE) -> list[Run]:
    """Two stages, forward only: stage 0 sends on a stream of its own, stage 1 receives on its compute
    stream."""
    boxes = Mailboxes()
    first, last = (GPU(rank, hardware, boxes.of(rank)) for rank in range(2))
    sent = []
    for microbatch in range(microbatches):
        compute(first, "forward layers.0 qkv", 30_000)
        sent.append(first.isend(1, np.zeros(5000, np.float32), ("F", 1, microbatch), stream="pp"))
        last.receive(0, ("F", 1, microbatch))
        compute(last, "forward layers.1 qkv", 30_000)
    for handle in sent:
        handle.wait()
    return [finished(first), finished(last)]


def finished(gpu: GPU) -> Run:
    return Run(gpu.rank, tuple(gpu.events), gpu.end, dict(gpu.peak_bytes))
