"""The figures of a GPU's data sheet: how each is read from a table, what it is where the table leaves it out,
and what share of a nominal figure is reached.

Idea   One row a figure. Nominal bandwidths and peaks are what tables have; the constants here say how much of
       them real programs get, each with its source.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ndparallel.base.errors import UserError
from ndparallel.base.quantities import MOST, parse_quantity
from ndparallel.base.quoting import brief
from ndparallel.hardware.attention_rates import attention_rates
from ndparallel.hardware.collective_links import SLOWDOWN
from ndparallel.hardware.dtypes import checked_gains, checked_peaks, number_up_to, positive
from ndparallel.hardware.launch_modes import launch_seconds
from ndparallel.hardware.matmul_efficiency import checked_curve

# of nominal, for kernels of several arrays: fitted once, with joules_per_flop (a plain copy reaches 0.9)
MEMORY_FRACTION = 0.75
# NCCL counts 20 of the 25 GB/s of an NVLink (20.6 on H100): src/graph/topo.h; presets know better
INSIDE_FRACTION = 0.8
# of the network's nominal rate: a ring of NCCL over 32 H200s moves 364.9 GB/s of a node's 400
# (stas00/ml-engineering, network/README.md)
ACROSS_FRACTION = 0.9
# of the link to the host: nvbandwidth gives 24.8 of 32 GB/s on eight A100s, pinned memory
# (forums.developer.nvidia.com/t/352186)
HOST_FRACTION = 0.775
# from the end of one kernel to the start of the next, ramps included: fitted with it
KERNEL_OVERHEAD_SECONDS = 5e-6
# a linear layer of plain PyTorch on the Xeon of a DGX H100: NVIDIA/TransformerEngine, issue 2053
HOST_LAUNCH_SECONDS = 13.48e-6
# one hop of a ring of NCCL, measured on B200: MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json
LATENCY_INSIDE_SECONDS = 8e-6
LATENCY_ACROSS_SECONDS = 14e-6  # the same, network, protocol Simple: NCCL, src/graph/tuning.cc, hwLat

MOST_COUNT = 2**24
NVIDIAS = re.compile(r"sm_(\d+)[a-z]?")  # an architecture's name, with its compute capability
LEAST_BARE = 1_000_000  # bytes per second that a whole number without a unit may say
NEEDED = object()  # of a figure: every table has it
Reader = Callable[[str, Any], Any]  # from what a figure is called and what is given


def quantity(unit: str, zero: bool = False) -> Reader:
    return lambda subject, given: positive(subject, parse_quantity(given, unit, subject), zero=zero)


def bandwidth(subject: str, given: Any) -> float:
    """Read bytes per second. Raises UserError for a whole number that was meant in GB/s or Gb/s."""
    if type(given) is int and 0 < given < LEAST_BARE:
        raise UserError(
            f'{subject} = {given} would be {given} bytes per second: write "{given} Gb/s" (bits) or '
            f'"{given} GB/s" (bytes).'
        )
    return quantity("bytes per second")(subject, given)


def number(most: float, zero: bool = False) -> Reader:
    return lambda subject, given: number_up_to(subject, given, most, zero=zero)


def whole_number(subject: str, given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MOST_COUNT:
        raise UserError(f"{subject} must be a whole number from 1 to {MOST_COUNT:,}, not {brief(given)}.")
    return given


def architecture(subject: str, given: Any) -> str:
    """Read an architecture's name. Raises UserError for a compute capability that is written in another
    way."""
    if re.fullmatch(r"(sm|compute)?[ _-]?\d[\d.]*[a-z]?", str(given)) and not NVIDIAS.fullmatch(str(given)):
        raise UserError(f'{subject} is {brief(given)}: write a compute capability as "sm_90".')
    return str(given)


def as_text(subject: str, given: Any) -> str:
    return str(given)


class Figure(NamedTuple):
    """One figure of a data sheet: how it is read, and what it is where a table leaves it out."""

    read: Reader
    usual: Any = NEEDED


FIGURES = {
    "peak": Figure(checked_peaks),
    "matmul_fraction": Figure(number(1)),
    "gpus_per_node": Figure(whole_number),
    "multiprocessors": Figure(whole_number),
    "memory": Figure(quantity("bytes")),
    "memory_bandwidth": Figure(bandwidth),
    "bandwidth_inside": Figure(bandwidth),
    "bandwidth_across": Figure(bandwidth),
    "power": Figure(quantity("watts")),
    "latency_inside": Figure(quantity("seconds", zero=True), LATENCY_INSIDE_SECONDS),
    "latency_across": Figure(quantity("seconds", zero=True), LATENCY_ACROSS_SECONDS),
    "kernel_overhead": Figure(launch_seconds, KERNEL_OVERHEAD_SECONDS),
    "host_launch": Figure(launch_seconds, HOST_LAUNCH_SECONDS),
    "inside_fraction": Figure(number(1), INSIDE_FRACTION),
    "power_limit": Figure(quantity("watts"), None),
    "bandwidth_host": Figure(bandwidth, None),
    "gpus_per_host": Figure(whole_number, None),
    "gpus_per_leaf": Figure(whole_number, None),
    "gpus_linked_directly": Figure(whole_number, None),
    "leaf_share": Figure(number(1), 1.0),
    "joules_per_flop": Figure(number(MOST), None),
    "slowdown": Figure(number(1000, zero=True), SLOWDOWN),
    "optimizer_fraction": Figure(number(1000), 1.0),
    # read with the links, which they are measured in
    "collectives": Figure(lambda subject, given: given, {}),
    "gains": Figure(checked_gains, {}),
    "attention": Figure(attention_rates, {}),
    "efficiency": Figure(checked_curve, ()),
    "architecture": Figure(architecture, ""),
    "description": Figure(as_text, ""),
    "source": Figure(as_text, ""),
    "words": Figure(as_text, ()),
    "measured": Figure(as_text, ""),  # what `ndparallel calibrate` made the other figures of
}
USUAL = {key: figure.usual for key, figure in FIGURES.items() if figure.usual is not NEEDED}


def needed_keys(table: Mapping[str, Any]) -> list[str]:
    """Return what this table must have: SMs for tiles, not for a curve; watts where they limit."""
    for_watts = table["power_limit"] or table["joules_per_flop"]
    asked = {"multiprocessors": not table["efficiency"], "power": for_watts}
    return [key for key in FIGURES if key not in USUAL and asked.get(key, True)]


def figure_of(name: str, key: str, given: Any) -> Any:
    """Read one figure of the hardware of this name."""
    read, usual = FIGURES[key]
    return None if given is None and usual is None else read(f"hardware {name!r}: {key}", given)


def checked_host(name: str, host: int, node: int) -> int:
    """Return the GPUs of a host, no more than a node's. Raises UserError where hosts do not fill a node."""
    if host and node % min(host, node):
        raise UserError(
            f"hardware {name!r}: hosts of {host} GPUs do not fill a node of {node}: change gpus_per_host or "
            "gpus_per_node."
        )
    return min(host, node)


def checked_linked(name: str, linked: int, node: int) -> int:
    """Return how many GPUs are linked without a switch; of a node with fewer, links lead out of it. Raises
    UserError where such GPUs do not fill a node."""
    if linked and node % min(linked, node):
        raise UserError(
            f"hardware {name!r}: groups of {linked} linked GPUs do not fill a node of {node}: change "
            "gpus_linked_directly or gpus_per_node."
        )
    return linked


def sustained_fraction(value: Mapping[str, Any]) -> float:
    """Return the share of the peak that matmuls sustain: the kernels' best, or less where the power limit
    allows less. No limit allows more than the board's own."""
    limit, joules, best = value["power_limit"], value["joules_per_flop"], value["matmul_fraction"]
    if not limit and joules is None:
        return best
    watts = min(limit or value["power"], value["power"])
    return min(best, watts / (joules * value["peak"]["bf16"])) if joules else best * watts / value["power"]
