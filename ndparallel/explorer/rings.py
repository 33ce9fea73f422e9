"""The screen "Ring": a collective hop by hop, its algorithms side by side, and which one is fastest when.

Idea   The collective is executed on boards that show whose parts they hold; its algorithms are measured like
       the command measures them, and priced for a range of sizes by the planner's own prices.
Limit  At most 8 ranks, one for each letter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from math import ceil, floor
from typing import Any

import numpy as np

from collectives import ALGORITHMS, Group
from gpu import CLASSROOM, Hardware, si
from ndparallel.base.errors import UserError
from ndparallel.base.quantities import parse_quantity
from ndparallel.collective import hops
from ndparallel.collective.algorithms import candidates
from ndparallel.collective.prices import price
from ndparallel.collective.runs import measure
from ndparallel.explorer.setup import Control, checked, command, controls_and_reason
from ndparallel.hardware.accelerator import find_hardware

WHAT, WHERE = "the collective", "the GPUs and their links"
COLLECTIVES = tuple(name for name in ALGORITHMS if name != "barrier")
NAMES = tuple(dict.fromkeys(name for each in COLLECTIVES for name in ALGORITHMS[each]))
USUAL = "as it is"
LATENCIES = (USUAL, "0s", "1us", "5us", "20us", "100us")
BANDWIDTHS = (USUAL, "1GB/s", "10GB/s", "50GB/s", "200GB/s", "900GB/s")
SIZES = ("1kB", "10kB", "100kB", "1MB", "10MB", "100MB", "1GB")
CONTROLS = (
    Control("collective", "", COLLECTIVES, "all_reduce", "what is done together", WHAT),
    Control("algorithm", "--algorithm", NAMES, "ring", "how", WHAT),
    Control("bytes", "--bytes", SIZES, "100MB", "the whole array", WHAT),
    Control("ranks", "--ranks", (2, 3, 4, 5, 6, 7, 8), 4, "GPUs", WHERE),
    Control("gpus_per_node", "--gpus-per-node", (1, 2, 4, 8), 8, "GPUs in a node", WHERE),
    Control(
        "hardware",
        "--hardware",
        ("classroom", "pocket", "a100-80", "h100", "b200"),
        "h100",
        "whose links",
        WHERE,
    ),
    Control("latency", "--latency", LATENCIES, USUAL, "of a link inside a node", WHERE, usual=USUAL),
    Control("bandwidth", "--bandwidth", BANDWIDTHS, USUAL, "of a link inside a node", WHERE, usual=USUAL),
)
BRACKETS, OUTLINE = "[ ] has", "What has an outline has"  # on the terminal, and on the page
CURVE = np.unique(np.geomspace(1e2, 1e10, 49).astype(np.int64))


def answer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Execute one collective with one algorithm, measure all algorithms, and price them by size."""
    setup = with_its_algorithm(checked(CONTROLS, given))
    refused = partial(refusal_beside, setup["collective"])
    head = {"command": command_line(setup), **controls_and_reason(CONTROLS, setup, refused)}
    if "reason" in head:
        return head
    group, hardware = group_of(setup), hardware_of(setup)
    nbytes = int(parse_quantity(setup["bytes"], "bytes"))
    show = hops.watch(setup["collective"], setup["algorithm"], group, hardware, nbytes)
    return head | {
        "idea": f"{hops.idea(show)} {hops.legend(show).replace(BRACKETS, OUTLINE)}",
        "conclusion": hops.conclusion(show),
        "frames": list(frames(show)),
        "algorithms": list(measured(setup["collective"], group, hardware, nbytes)),
        "curves": curves(setup["collective"], group, hardware),
        "bytes": nbytes,
    }


def with_its_algorithm(setup: dict[str, Any]) -> dict[str, Any]:
    """A collective that lacks the algorithm takes its own first one."""
    own = ALGORITHMS[setup["collective"]]
    return setup if setup["algorithm"] in own else {**setup, "algorithm": next(iter(own))}


def command_line(setup: Mapping[str, Any]) -> str:
    controls = [control for control in CONTROLS if control.name != "collective"]
    return command(f"ndparallel collective {setup['collective']}", controls, setup) + " --show"


def group_of(setup: Mapping[str, Any]) -> Group:
    return Group("collective", tuple(range(setup["ranks"])))


def hardware_of(setup: Mapping[str, Any]) -> Hardware:
    hardware = CLASSROOM if setup["hardware"] == "classroom" else find_hardware(setup["hardware"])
    link = hardware.inside
    if setup["latency"] != USUAL:
        link = replace(link, latency_seconds=parse_quantity(setup["latency"], "seconds"))
    if setup["bandwidth"] != USUAL:
        rate = parse_quantity(setup["bandwidth"], "bytes per second")
        link = replace(link, bandwidth_bytes_per_second=rate)
    return replace(hardware, gpus_per_node=setup["gpus_per_node"], inside=link)


def refusal_beside(collective: str, setup: dict[str, Any]) -> str:
    """As `refusal`, where this collective is chosen now: another one would come with its algorithm."""
    return refusal(setup if setup["collective"] == collective else with_its_algorithm(setup))


def refusal(setup: Mapping[str, Any]) -> str:
    """Say why an algorithm cannot be had here; nothing where it can."""
    if setup["algorithm"] not in ALGORITHMS[setup["collective"]]:
        return f"{setup['collective']} has {', '.join(ALGORITHMS[setup['collective']])}."
    try:
        there = candidates(setup["collective"], group_of(setup), hardware_of(setup))
    except UserError as error:
        return str(error)
    if setup["algorithm"] not in there:
        return f"{setup['algorithm']} needs several nodes, with equally many GPUs in each, and more than one."
    return ""


def frames(show: hops.Show) -> Iterator[dict[str, Any]]:
    """Yield every instant at which messages arrive: what each rank holds, cell by cell, and who sent what."""
    cells = hops.cells_of(show)
    for frame in show.frames:
        yield {
            "seconds": frame.seconds,
            "text": si(frame.seconds, "s"),
            "boards": [[hops.name(show, int(value)) for value in board[cells]] for board in frame.boards],
            "arrivals": [[source, rank] for rank, (source, _) in sorted(frame.arrivals.items())],
        }


def measured(collective: str, group: Group, hardware: Hardware, nbytes: int) -> Iterator[dict[str, Any]]:
    for name in candidates(collective, group, hardware):
        row = measure(collective, name, group, hardware, nbytes, "inline")
        yield asdict(row) | {"text": si(row.seconds, "s"), "sent": si(row.bytes_sent_per_rank, "B")}


def curves(collective: str, group: Group, hardware: Hardware) -> dict[str, Any]:
    """Return the seconds of every algorithm by size, and the powers of ten at which the axes have words."""
    seconds = {
        name: np.broadcast_to(price(collective, name, group, hardware, CURVE), CURVE.shape)
        for name in candidates(collective, group, hardware)
    }
    low, high = (np.log10(edge([edge(each[each > 0]) for each in seconds.values()])) for edge in (min, max))
    return {
        "bytes": CURVE.tolist(),
        "seconds": {name: each.tolist() for name, each in seconds.items()},
        "ticks": {
            "bytes": powers_of_ten(range(2, 11, 2), "B"),
            "seconds": powers_of_ten(range(ceil(low), floor(high) + 1), "s"),
        },
    }


def powers_of_ten(powers: range, unit: str) -> list[list[Any]]:
    return [[10.0**power, si(10.0**power, unit)] for power in powers]
