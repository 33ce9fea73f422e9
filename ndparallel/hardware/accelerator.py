"""GPUs that exist: presets from data sheets, files of one's own, and a physical price for a matrix
multiplication.

Idea   A data sheet gives peaks. A matmul reaches a fraction of the peak, the share that the best one was
       measured to reach, times how well its tiles fill the multiprocessors, and never more than the board's
       power sustains; all else is bound by the bytes that it reads and writes. Links and memory deliver a
       fraction of their nominal bandwidth too. `presets.toml` holds the data sheets' numbers, with their
       sources.
Cost   matmul: flops / (peak * min(matmul_fraction, power / (joules_per_flop * peak)) * tile fill), the peak
       of bf16; of a shorter type as many times faster as its kernels were measured to be (`gains`).
       others: bytes / (nominal bandwidth * MEMORY_FRACTION).
Limit  One tile for all matmuls, unless a file gives a measured curve; caches are not modelled.

The type of number. Hardware prices the dtype that an operation asks for. The lessons' arrays are float32, so
on these GPUs they multiply as TF32: half the rate of bf16, for twice the bytes. All seconds are twice those
of a bf16 run, and their ratios are the same.

Glossary
    SM          streaming multiprocessor: one of about a hundred processors of a GPU; each computes one tile
                of a matmul at a time
    tile        the block of the result that one SM computes
    wave        one tile on every SM; the last wave is rarely full, which is "wave quantisation"
    dtype       type of number: float32 (fp32), tf32, bfloat16 (bf16), float16 (fp16), float8 (fp8)
    TF32        float32 arrays, multiplied with 10 bits of mantissa
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from gpu import Hardware, Link, Operation
from ndparallel.base.errors import UserError, check_known, unknown
from ndparallel.base.files import parse_toml, read_json, read_toml
from ndparallel.base.quoting import brief
from ndparallel.hardware.attention_rates import fraction_at
from ndparallel.hardware.collective_links import SLOWDOWN, LinkShares, link_shares
from ndparallel.hardware.dtypes import DTYPES
from ndparallel.hardware.figures import (
    ACROSS_FRACTION,
    FIGURES,
    HOST_FRACTION,
    INSIDE_FRACTION,
    MEMORY_FRACTION,
    USUAL,
    checked_host,
    checked_linked,
    figure_of,
    needed_keys,
    sustained_fraction,
)
from ndparallel.hardware.matmul_efficiency import Curve, along, tile_fill
from ndparallel.hardware.pocket import IDEALIZED

WIDE_HEAD = 128  # from which on heads are as good as published kernels' best
MOST_BYTES = 256e3  # of a file


@dataclass(frozen=True, kw_only=True)
class Accelerator(Hardware):
    """A real GPU in its node. The inherited rates are achieved rates; `peak_flops_per_second`, by dtype,
    is the data sheet's."""

    peak_flops_per_second: Mapping[str, float] = field(hash=False)
    matmul_fraction: float
    multiprocessors: int  # 0 where `efficiency` stands instead of tiles
    # how many times bf16's sustained rate another dtype reaches; of others it is the peaks' ratio
    gains: Mapping[str, float] = field(default_factory=dict, hash=False)
    # of the bf16 peak, by kind of operation ("flash2 forward") and length of the sequence
    attention_fractions: Mapping[str, Curve] = field(default_factory=dict, hash=False)
    # what heads of 64 reach of it, by kind
    narrow_heads: Mapping[str, float] = field(default_factory=dict, hash=False)
    # instead of tiles: (FLOPs of a matmul, share that it reaches of the best one's rate)
    efficiency: Curve = ()
    architecture: str = ""  # as "sm_90": which kernels there are for it (architecture.py)
    description: str = ""
    # of its host's CPU, to launch one kernel from plain eager PyTorch
    host_launch_seconds: float = 0.0
    inside_fraction: float = INSIDE_FRACTION  # of NVLink's nominal rate, that collectives reach
    gpus_per_host: int = 0  # where a node, one NVLink, is of several hosts; 0 where it is one
    gpus_per_leaf: int = 0  # under one switch of the network, or one of each rail; 0: all
    gpus_linked_directly: int = 0  # of a node without a switch: each has an equal part of a GPU's links
    leaf_share: float = 1.0  # of the network's bandwidth that uplinks leave beyond it
    host_bytes_per_second: float = 0.0  # each way between the GPU and its host's memory; 0: not known
    # of modes that were measured, in those of plain eager PyTorch
    host_launch_multiples: Mapping[str, float] = field(default_factory=dict, hash=False)
    kernel_overhead_multiples: Mapping[str, float] = field(default_factory=dict, hash=False)
    slowdown: float = SLOWDOWN  # of compute, while a collective is under way
    optimizer_fraction: float = 1.0  # of the memory bandwidth, that the optimizer's kernels reach
    # of collectives that were measured
    collectives: Mapping[str, LinkShares] = field(default_factory=dict, hash=False)

    def rate(self, operation: Operation):
        """Return the FLOP/s that an operation achieves: its dtype's peak, times the matmul fraction, times
        the share of the SMs that its tiles use."""
        achieved = self.sustained(operation.dtype)
        if operation.kind in self.attention_fractions:
            fused = self.attention_rate(operation)
            return min(fused, achieved) if isinstance(fused, float) else fused.clip(max=achieved)
        if operation.kind != "matmul":
            return achieved
        if self.efficiency:
            return achieved * along(self.efficiency, operation.flops)
        m, n, k = operation.shape
        return achieved * tile_fill(
            operation.shape, self.multiprocessors, operation.flops / (2.0 * m * n * k)
        )

    def attention_rate(self, operation: Operation) -> Any:
        """Return the FLOP/s of a fused kernel; its shape is (pairs, length of the sequence, head width)."""
        _, length, width = operation.shape
        full = fraction_at(self.attention_fractions[operation.kind], length)
        narrow = self.narrow_heads.get(operation.kind, 1.0)
        share = min(1.0, max(0.0, math.log2(WIDE_HEAD / width)))
        return self.peak("bfloat16") * full * narrow**share

    def sustained(self, dtype: str) -> float:
        """Return the FLOP/s that large matmuls of a dtype sustain."""
        peak, gain = self.peak(dtype), self.gains.get(DTYPES[dtype])
        return (peak if gain is None else gain * self.peak("bfloat16")) * self.matmul_fraction

    def peak(self, dtype: str) -> float:
        """Return the data sheet's FLOP/s for a dtype. Raises UserError for a dtype that this GPU cannot
        multiply."""
        name = DTYPES.get(dtype)
        if name is None:
            raise unknown("dtype", dtype, DTYPES)
        if name not in self.peak_flops_per_second:
            raise UserError(
                f"{self.name} does not multiply {dtype}: it has {', '.join(self.peak_flops_per_second)}."
            )
        return self.peak_flops_per_second[name]


# ------------------------------------------------------------------------------------------- finding hardware


def find_hardware(name_or_path: str | os.PathLike[str]) -> Hardware:
    """Return the preset of that name, or the hardware that a JSON or TOML file describes. Raises UserError
    for an unknown name or a wrong file."""
    name_or_path = os.fspath(name_or_path)
    if Path(name_or_path).suffix in (".json", ".toml"):
        return read_hardware(Path(name_or_path))
    name = name_or_path.lower()
    if name in IDEALIZED:
        return IDEALIZED[name]
    if name not in data_sheets():
        if name_or_path and Path(name_or_path).is_dir():
            raise UserError(f"{name_or_path} is a directory; name a .json or .toml file in it.")
        raise unknown("hardware", name_or_path, hardware_names(), "ndparallel plan --help")
    return preset_of(name)


@cache
def preset_of(name: str) -> Accelerator:
    return accelerator(name, data_sheets()[name])


def hardware_names() -> list[str]:
    return [*IDEALIZED, *data_sheets()]


def host_size(hardware: Hardware) -> int:
    """Return the GPUs of one machine: a node's, or fewer where several machines share one NVLink."""
    return getattr(hardware, "gpus_per_host", 0) or hardware.gpus_per_node


def host_bandwidth(hardware: Hardware) -> float:
    """Return the bytes a second between a GPU and its host's memory. Raises UserError where they are not
    known."""
    if found := getattr(hardware, "host_bytes_per_second", 0.0):
        return found
    raise UserError(
        f"{hardware.name} does not say how fast its link to the host is, which offloading and bridged cards "
        'need: give bandwidth_host in its file, as "32 GB/s".'
    )


def inside_fraction(hardware: Hardware) -> float:
    """Return the share of NVLink's nominal rate that collectives reach."""
    return float(getattr(hardware, "inside_fraction", INSIDE_FRACTION))


def host_launch(hardware: Hardware) -> float:
    """Return the CPU's seconds to launch a kernel from plain PyTorch; none on idealized hardware."""
    return float(getattr(hardware, "host_launch_seconds", 0.0))


def optimizer_fraction(hardware: Hardware) -> float:
    """Return the share of the memory bandwidth that the optimizer's kernels reach."""
    return float(getattr(hardware, "optimizer_fraction", 1.0))


def slower_host(hardware: Hardware) -> Hardware:
    """Return the hardware with a CPU that takes twice as long for a launch."""
    if not isinstance(hardware, Accelerator):
        return hardware
    return replace(hardware, host_launch_seconds=2 * hardware.host_launch_seconds)


@cache
def data_sheets() -> dict[str, dict[str, Any]]:
    """Return the tables of `presets.toml` by name, each with the figures of the one that it is based on."""
    whole: dict[str, dict[str, Any]] = {}
    for name, table in parse_toml(Path(__file__).with_name("presets.toml").read_text("utf-8")).items():
        whole[name] = {**whole.get(table.get("based_on", ""), {}), **table}
    return whole


def read_hardware(path: Path) -> Accelerator:
    """Read hardware from a JSON or TOML file. Its keys are those of a preset; `based_on = "h100"` takes
    the missing ones from a preset."""
    if not path.exists():
        raise UserError(f"there is no file {path}; presets are {', '.join(hardware_names())}.")
    table = (read_json if path.suffix == ".json" else read_toml)(path, MOST_BYTES)
    if not isinstance(table, dict):
        raise UserError(f"{path} must hold one table of keys and values, not {brief(table)}.")
    return accelerator(str(table.pop("name", path.stem)), table)


def accelerator(name: str, table: Mapping[str, Any]) -> Accelerator:
    """Build an Accelerator from a data sheet's numbers. Raises UserError for unknown or missing keys and
    for wrong values."""
    value = {key: figure_of(name, key, given) for key, given in complete(name, table).items()}
    return Accelerator(
        name=name,
        architecture=value["architecture"],
        description=value["description"],
        source=value["source"],
        **rate_fields(value),
        **kernel_fields(value),
        **memory_fields(value),
        **node_fields(name, value),
    )


def rate_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an Accelerator that say how fast it multiplies."""
    limited = sustained_fraction(value)
    return {
        "flops_per_second": value["peak"]["bf16"] * limited,
        "peak_flops_per_second": value["peak"],
        "matmul_fraction": limited,
        "multiprocessors": value.get("multiprocessors", 0),
        "gains": value["gains"],
        "attention_fractions": value["attention"].curves,
        "narrow_heads": value["attention"].narrow,
        "efficiency": tuple((flops, share / limited) for flops, share in value["efficiency"]),
        "slowdown": value["slowdown"],
    }


def kernel_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an Accelerator that say what a kernel takes whatever its size, on the GPU and on its
    host."""
    return {
        "kernel_overhead_seconds": value["kernel_overhead"].eager,
        "kernel_overhead_multiples": value["kernel_overhead"].multiples,
        "host_launch_seconds": value["host_launch"].eager,
        "host_launch_multiples": value["host_launch"].multiples,
    }


def memory_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an Accelerator that say how large its memory is, and how fast that and its host's are."""
    return {
        "memory_bytes": value["memory"],
        "memory_bandwidth_bytes_per_second": value["memory_bandwidth"] * MEMORY_FRACTION,
        "optimizer_fraction": value["optimizer_fraction"],
        "host_bytes_per_second": (value["bandwidth_host"] or 0.0) * HOST_FRACTION,
    }


def node_fields(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an Accelerator that say which GPUs are linked, and how well."""
    inside = Link(value["latency_inside"], value["bandwidth_inside"] * value["inside_fraction"])
    across = Link(value["latency_across"], value["bandwidth_across"] * ACROSS_FRACTION)
    node = value["gpus_per_node"]
    return {
        "gpus_per_node": node,
        "gpus_per_host": checked_host(name, value["gpus_per_host"] or 0, node),
        "gpus_per_leaf": value["gpus_per_leaf"] or 0,
        "gpus_linked_directly": checked_linked(name, value["gpus_linked_directly"] or 0, node),
        "leaf_share": value["leaf_share"],
        "inside_fraction": value["inside_fraction"],
        "inside": inside,
        "across": across,
        "collectives": link_shares(f"hardware {name!r}: collectives", value["collectives"], inside, across),
    }


def complete(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with what it leaves out: from the preset that it is based on, else what is usual.
    Raises UserError for unknown or missing keys."""
    base = table.get("based_on", "")
    if base:
        check_known("hardware", str(base), data_sheets())
    whole = {**USUAL, **data_sheets().get(str(base), {}), **table}
    whole.pop("based_on", None)
    for key in whole:
        check_known(f"key of hardware {name!r}:", key, FIGURES)
    if missing := [key for key in needed_keys(whole) if whole.get(key) is None]:
        raise UserError(
            f'hardware {name!r} lacks {", ".join(missing)}; based_on = "h100" would take them from a preset.'
        )
    return whole
