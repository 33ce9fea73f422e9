"""Measure this machine, and write it down as hardware: `--hardware FILE` takes it everywhere.

Idea   The kernels of a training step, by shape and type of number, in rounds: the median counts. Where
       several processes are started by torchrun, collectives too, and the links that they show.
Limit  docs/calibration.md says what is measured and what is not. A machine whose repeated measurements
       spread too far is not calibrated.

  ndparallel calibrate                          writes here.json, in some minutes; --quick in seconds
  torchrun --nproc-per-node 4 -m ndparallel calibrate --name node
  ndparallel plan --hardware here.json --gpus 1 --global-batch 8 --sequence 512 --model config.json
"""

import argparse
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.files import write_atomically
from ndparallel.calibration import links, machine
from ndparallel.calibration.kernels import SIZES, clock_of, device_of, kernels, load_torch, more_kernels
from ndparallel.calibration.table import Samples, hardware_table, launch_seconds_by_mode, measured
from ndparallel.calibration.timing import check_spread, measure_in_turn, spread
from ndparallel.results.printing import plain_console, print_json, progress, prose
from ndparallel.results.tables import quiet_table

ROUNDS, LEAST_SECONDS = 15, 0.1
QUICK_ROUNDS, QUICK_SECONDS = 5, 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="here", help="of the hardware (default here)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="what to write (default NAME.json)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count this process's CPU seconds, on a CPU that others use too",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="of a CPU (default: torch's own choice)")
    parser.add_argument("--json", action="store_true", help="print the file's content, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    torch = load_torch()
    set_threads(torch, arguments.threads)
    try:
        with links.joined(torch):
            table = calibrate(torch, arguments.name, arguments.quick, arguments.cpu_time)
    except UserError:
        if is_first():  # the others end with it, and say nothing
            raise
        return 2
    if is_first():
        path = arguments.out or machine.default_path(arguments.name)
        write_atomically(path, json.dumps(table, indent=1) + "\n")
        print_json(table) if arguments.json else show(table, path)
    return 0


def set_threads(torch: Any, threads: int | None) -> None:
    if threads is not None:
        if threads < 1:
            raise UserError(f"threads is {threads}; it must be at least 1.")
        torch.set_num_threads(threads)


def is_first() -> bool:
    """Whether this process is alone, or the first that torchrun has started: it prints."""
    return os.environ.get("RANK", "0") == "0"


def calibrate(torch: Any, name: str, quick: bool, cpu_time: bool) -> dict[str, Any]:
    """Measure, and return what the hardware file holds. Raises UserError where measurements spread too
    far."""
    rounds, least = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, LEAST_SECONDS)
    clock, sizes = clock_of(torch, cpu_time), SIZES[device_of(torch)]
    with progress() if is_first() else nullcontext(ignore) as announce:
        announce("a compiler" if not quick else "the first kernel")
        runs = kernels(torch, sizes) | more_kernels(torch, sizes, compiled=not quick)
        samples = measure_in_turn(runs, rounds, least, clock, announce)
        links.refuse_together(torch, refusal_of(samples))
        of_links: dict = {}
        if links.launched()[0] > 1:
            of_links = links.measure_links(torch, rounds, clock_of(torch, False), announce)
    table = hardware_table(machine.machine(torch, name), samples, links.fitted_links(of_links))
    notes = machine.versions(torch) | {"clock": "CPU seconds" if cpu_time else "wall"}
    return table | {
        "measured": notes
        | {
            "kernels": measured(samples),
            "launch_seconds": launch_seconds_by_mode(samples),
            "transfers": measured(of_links),
            "links": links.links_by_collective(of_links),
            "hidden": links.hidden_shares(of_links),
        }
    }


def ignore(words: str) -> None:
    pass


def refusal_of(samples: Samples) -> str:
    """Return why these are no calibration, or nothing."""
    try:
        check_spread({str(kernel): spread(found) for kernel, found in samples.items()})
    except UserError as error:
        return str(error)
    return ""


def show(table: dict[str, Any], path: Path) -> None:
    console, width = plain_console()
    kernels = table["measured"]["kernels"]
    largest = max(kernel["spread"] for kernel in kernels)
    keys = ("memory", "memory_bandwidth", "kernel_overhead", "host_launch")
    rates = ", ".join(f"{key} {table[key]}" for key in keys if key in table)
    words = (
        f"{path}: {table['description']}. Matmuls reach {table['peak']['bf16']} at their best; {rates} "
        f"(bandwidths are nominal: docs/calibration.md). {len(kernels)} kernels; rounds spread by "
        f"{largest:.0%} of the median at most."
    )
    launches = [f"{si(taken, 's')} {mode}" for mode, taken in table["measured"]["launch_seconds"].items()]
    words += f" A launch takes {', '.join(launch for launch in launches)}."
    if not table["measured"]["transfers"]:
        words += " Links were not measured: this is one device alone."
    console.print(prose(words, width))
    if table["measured"]["links"]:
        show_links(table["measured"]["links"], table["measured"]["hidden"])


def show_links(found: list[dict[str, Any]], hidden: list[dict[str, Any]]) -> None:
    console, width = plain_console()
    rows = [
        (
            f"{link['kind']} {link['where']}",
            f"{link['ranks']}",
            si(link["latency_seconds"], "s"),
            si(link["bandwidth_bytes_per_second"], "B/s"),
        )
        for link in found
    ]
    console.print()
    console.print(quiet_table(("a step of", "ranks", "latency", "bandwidth"), rows, width))
    most = max(hidden, key=lambda one: one["bytes"])
    console.print()
    console.print(
        prose(
            f"Of an all-reduce of {most['bytes']:,} bytes and the matmul beside it, {most['where']}, "
            f"{most['hidden']:.0%} of the shorter one is hidden.",
            width,
        )
    )
