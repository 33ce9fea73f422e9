"""From measurements to hardware: the presets' record, filled with what this machine did.

Idea   Pure arithmetic of measurements, so that recorded ones can be tested. The best rate of a training's
       type of number stands as the peak, and matmuls reach a share of it by their FLOPs; other types have
       gains; attention has a fraction by length; memory is as fast as sums and activations move arrays, and
       the optimizer's kernels reach a share of it. Every key is one that the planner reads.
Limit  A hardware file holds nominal bandwidths, of which a share arrives
       (ndparallel/hardware/figures.py): what was measured is divided by that share. Power is not
       measured, and no price asks for it. Links that were not measured are so slow that no plan can hide it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.calibration.kernels import Kernel
from ndparallel.calibration.timing import median, spread
from ndparallel.hardware.dtypes import DTYPES
from ndparallel.hardware.figures import ACROSS_FRACTION, INSIDE_FRACTION, MEMORY_FRACTION
from ndparallel.model import costs

ATTENTION_KERNELS = ("flash1", "triton", "flash2", "cudnn", "cudnn-2026")  # one stands for all
NO_LINK = "1 kB/s"
LEAST_LATENCY = 1e-9  # seconds, where a line begins below nothing
ADAMW_ARRAYS = 7  # four are read, three written
ARRAYS = {"sum": 3, "silu": 2}  # that such a kernel reads and writes
PRODUCTS = {"matmul": 3, "matmul forward": 1}  # of each kind of matmul
NOISE = "this machine is too busy to be measured; try again."


@dataclass(frozen=True)
class ThisMachine:
    """What is known of a machine beside its measurements."""

    name: str
    memory_bytes: int
    gpus_per_node: int = 1
    description: str = ""
    is_gpu: bool = False

    @property
    def device(self) -> str:
        return "cuda" if self.is_gpu else "cpu"


class FittedLink(NamedTuple):
    latency_seconds: float
    bandwidth_bytes_per_second: float


class RingSteps(NamedTuple):
    """What a collective takes: latencies, and bytes that pass a link, in those of the whole array."""

    latencies: int
    passes: float


Samples = Mapping[Kernel, list[float]]
Links = Mapping[tuple[str, str], FittedLink]  # by collective, and inside or across


def hardware_table(
    machine: ThisMachine, samples: Samples, links: Links, slowdown: float | None
) -> dict[str, Any]:
    """Return the keys and values of a hardware file. The links of all are those that all-reduces show."""
    seconds = {kernel: median(found) for kernel, found in samples.items()}
    matmuls = [kernel for kernel in seconds if kernel.kind in PRODUCTS]
    first = matmuls[0].dtype
    best = {kernel.dtype: 0.0 for kernel in matmuls}
    for kernel in matmuls:
        best[kernel.dtype] = max(best[kernel.dtype], flops(kernel) / seconds[kernel])
    base = best[first]
    return {
        "name": machine.name,
        "description": machine.description,
        "peak": {"bf16": of("FLOP/s", base)} | {DTYPES[dtype]: of("FLOP/s", base) for dtype in best},
        "gains": {DTYPES[dtype]: rate / base for dtype, rate in best.items()},
        "matmul_fraction": 1.0,
        "efficiency": efficiency(seconds, first, base),
        "attention": attention_fractions(seconds, base),
        "memory": of("B", machine.memory_bytes),
        "memory_bandwidth": of("B/s", memory_bandwidth(seconds) / MEMORY_FRACTION),
        "optimizer_fraction": optimizer_fraction(seconds),
        **launch_keys(machine, seconds),
        "gpus_per_node": machine.gpus_per_node,
        **link_keys("inside", links.get(("all_reduce", "inside")), INSIDE_FRACTION),
        **link_keys("across", links.get(("all_reduce", "across")), ACROSS_FRACTION),
        "collectives": collectives(links),
        **({} if slowdown is None else {"slowdown": slowdown}),
        "source": "ndparallel calibrate",
    }


def of(unit: str, value: float) -> str:
    return f"{value:.6g} {unit}"


def flops(kernel: Kernel) -> float:
    """FLOPs of a matmul's products, or of causal attention's forward pass, masked pairs not counted."""
    if kernel.kind in PRODUCTS:
        m, n, k = kernel.shape
        return PRODUCTS[kernel.kind] * float(costs.matmul("", m, n, k).flops)
    batch, heads, length, width = kernel.shape
    return 4.0 * batch * heads * length * (length + 1) / 2 * width


def efficiency(seconds: Mapping[Kernel, float], dtype: str, base: float) -> list[list[float]]:
    """Return the share of the best rate by FLOPs, rising; of equal FLOPs the better."""
    shares: dict[float, float] = {}
    for kernel, taken in seconds.items():
        if kernel.kind == "matmul" and kernel.dtype == dtype:
            size = flops(kernel) / PRODUCTS[kernel.kind]
            shares[size] = max(flops(kernel) / taken / base, shares.get(size, 0.0))
    return [[size, shares[size]] for size in sorted(shares)]


def attention_fractions(seconds: Mapping[Kernel, float], base: float) -> dict[str, list[list[float]]]:
    """Return the fractions of the best matmul by length; backward has 5 products to forward's 2, and takes
    what both take together less forward."""
    curves: dict[str, list[list[float]]] = {"forward": [], "backward": []}
    for kernel, taken in seconds.items():
        if kernel.kind == "attention forward":
            backward = seconds[kernel._replace(kind="attention both")] - taken
            if backward <= 0:
                raise UserError(f"{kernel} takes longer forward than both ways: {NOISE}")
            rates = {"forward": flops(kernel) / taken, "backward": 2.5 * flops(kernel) / backward}
            for direction, rate in rates.items():
                curves[direction].append([float(kernel.shape[2]), min(1.0, rate / base)])
    return {f"{name} {direction}": curve for name in ATTENTION_KERNELS for direction, curve in curves.items()}


def memory_bandwidth(seconds: Mapping[Kernel, float]) -> float:
    """Return the bytes a second that a sum and an activation move together, the two kinds of a layer's
    element-by-element kernels."""
    moved = taken = 0.0
    for kind, arrays in ARRAYS.items():
        kernel = only(seconds, kind)
        moved += float(costs.elementwise("", kernel.shape[0], arrays, kernel.dtype).bytes)
        taken += seconds[kernel]
    return moved / taken


def launch_seconds(seconds: Mapping[Kernel, float]) -> dict[str, float]:
    """Return the seconds of a launch by mode: eager as in a step, and compiled in proportion to what one and
    the same chain takes."""
    step, chain = only(seconds, "launch"), launches_of_chain(seconds)
    eager = seconds[step] / step.shape[0]
    return {"eager": eager} | {
        mode: eager * chain[mode] / chain["eager"] for mode in ("compiled",) if mode in chain
    }


def launches_of_chain(seconds: Mapping[Kernel, float]) -> dict[str, float]:
    """Return the seconds of a launch in the chain that was measured in several modes."""
    return {
        kernel.kind.removeprefix("launch "): taken / kernel.shape[0]
        for kernel, taken in seconds.items()
        if kernel.kind.startswith("launch ")
    }


def launch_keys(machine: ThisMachine, seconds: Mapping[Kernel, float]) -> dict[str, Any]:
    """Name what launches cost. On a CPU every kernel waits for its launch. On a GPU the host launches ahead
    of the kernels, and a graph, which launches all at once, shows how closely they can follow one another."""
    by_mode = {mode: of("s", taken) for mode, taken in launch_seconds(seconds).items()}
    if not machine.is_gpu:
        return {"host_launch": "0 s", "kernel_overhead": by_mode}
    graph = launches_of_chain(seconds).get("graph")
    return {"host_launch": by_mode} | ({"kernel_overhead": of("s", graph)} if graph else {})


def optimizer_fraction(seconds: Mapping[Kernel, float]) -> float:
    """Return the share of the memory bandwidth that AdamW's seven arrays move at: less than 1 where its
    arithmetic is slower than memory."""
    kernel = only(seconds, "optimizer")
    return adamw_bytes(kernel.dtype) * kernel.shape[0] / seconds[kernel] / memory_bandwidth(seconds)


def adamw_bytes(dtype: str) -> int:
    """Return the bytes that AdamW moves for a parameter whose states have its own type of number."""
    return ADAMW_ARRAYS * int(costs.itemsize(dtype))


def only(seconds: Mapping[Kernel, float], kind: str) -> Kernel:
    return next(kernel for kernel in seconds if kernel.kind == kind)


def link_keys(where: str, link: FittedLink | None, fraction: float) -> dict[str, str]:
    if link is None:
        return {f"bandwidth_{where}": NO_LINK, f"latency_{where}": "0 s"}
    return {
        f"bandwidth_{where}": of("B/s", link.bandwidth_bytes_per_second / fraction),
        f"latency_{where}": of("s", link.latency_seconds),
    }


def collectives(links: Links) -> dict[str, dict[str, str]]:
    """Return each collective's own latencies and bandwidths."""
    found: dict[str, dict[str, str]] = {}
    for (kind, where), link in links.items():
        found.setdefault(kind, {}).update(
            {
                f"latency_{where}": of("s", link.latency_seconds),
                f"bandwidth_{where}": of("B/s", link.bandwidth_bytes_per_second),
            }
        )
    return found


def ring_steps(kind: str, ranks: int) -> RingSteps:
    """The steps of a ring, as ndparallel/planner/layers/collective_time.py prices them."""
    round_once = (ranks - 1) / ranks
    return {
        "all_reduce": RingSteps(2 * (ranks - 1), 2 * round_once),
        "all_to_all": RingSteps(1, round_once),
        "point_to_point": RingSteps(1, 1.0),
    }.get(kind, RingSteps(ranks - 1, round_once))


def fitted_link(points: list[tuple[float, float]], ranks: int, kind: str = "all_reduce") -> FittedLink:
    """Return the latency and bandwidth of a collective from (bytes, seconds): the line with the least
    relative errors. Raises UserError where more bytes take no longer."""
    size, seconds = np.array(points).T
    columns = np.stack([np.ones_like(size), size], axis=1) / seconds[:, None]
    constant, slope = np.linalg.lstsq(columns, np.ones_like(size), rcond=None)[0]
    if slope <= 0:
        raise UserError(f"more bytes take no longer: {NOISE}")
    steps = ring_steps(kind, ranks)
    latency = max(LEAST_LATENCY, float(constant) / steps.latencies)
    return FittedLink(latency, steps.passes / float(slope))


def measured(samples: Mapping[Any, list[float]]) -> list[dict[str, Any]]:
    """Return all medians and spreads, as they are kept in the file beside what was made of them."""
    return [
        kernel._asdict() | {"seconds": median(found), "spread": spread(found), "rounds": len(found)}
        for kernel, found in samples.items()
    ]
