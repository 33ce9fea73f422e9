"""Measure this machine, and write it down as hardware: `--hardware FILE` takes it everywhere.

Idea   The kernels of a training step, by shape and type of number, in rounds: the median counts. Where
       several processes are started by torchrun, collectives too, and the links that they show.
Limit  docs/calibration.md says what is measured and what is not. A machine whose repeated measurements
       spread too far, or that is too busy for three rounds in its time, is not calibrated.

  ndparallel calibrate                          writes here.json, in three minutes; --quick in 20 s
  torchrun --nproc-per-node 4 -m ndparallel calibrate --name node
  ndparallel plan --hardware here.json --gpus 1 --global-batch 8 --sequence 512 --model config.json
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.files import check_writable, write_atomically
from ndparallel.base.startup import keep_freed_memory
from ndparallel.base.words import count
from ndparallel.calibration import links, machine
from ndparallel.calibration.kernels import (
    SIZES,
    Kernel,
    clock_of,
    device_of,
    has_compiler,
    kernel_samplers,
    kernels,
    load_torch,
    more_kernels,
)
from ndparallel.calibration.table import hardware_table, measured
from ndparallel.calibration.timing import (
    Budget,
    Clock,
    Core,
    Sampler,
    Windows,
    check_spread,
    measure_in_turn,
    of_kind,
)
from ndparallel.results.printing import plain_console, print_json, prose
from ndparallel.results.progress import Announce
from ndparallel.results.tables import quiet_table


class Effort(NamedTuple):
    """How much is measured: the command ends within `seconds`, but for the measurement that it is at."""

    seconds: float
    rounds: int
    windows: Windows
    compiles: bool


FULL, QUICK = Effort(150, 15, Windows(5, 0.02), True), Effort(15, 5, Windows(3, 0.01), False)
NOT_TRIED = "kernels from CUDA graphs, and NCCL, were not tried on a GPU before"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="here", help="the hardware's name (default here)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="what to write (default NAME.json)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count this process's CPU seconds, on a CPU that others use too",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of a CPU (default: OMP_NUM_THREADS, or 1)"
    )
    parser.add_argument("--json", action="store_true", help="print the file's content, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    effort = QUICK if arguments.quick else FULL
    path = arguments.out or machine.default_path(arguments.name)
    check_writable(path if links.is_first() else None)
    torch = load_torch()
    budget = Budget(effort.seconds)
    set_threads(torch, arguments.threads)
    keep_freed_memory()
    with links.measuring(torch, budget) as announce:
        samples = measured_samples(torch, effort, budget, arguments.cpu_time, announce)
        table = calibrated(torch, arguments.name, samples, arguments.cpu_time)
    if links.is_first():
        write_atomically(path, json.dumps(table, indent=1) + "\n")
        print_json(table) if arguments.json else show(table, path)
    return 0


def set_threads(torch: Any, threads: int | None) -> None:
    if threads is not None:
        most = machine.processors()
        if not 1 <= threads <= most:
            raise UserError(f"--threads {threads}: there are {count(most, 'processor')}; choose 1 to {most}.")
        torch.set_num_threads(threads)


def measured_samples(
    torch: Any, effort: Effort, budget: Budget, cpu_time: bool, announce: Announce
) -> dict[Any, list[float]]:
    """Measure everything in rounds. Raises UserError where measurements spread too far, or are too few."""
    clock, core = clock_of(torch, cpu_time), Core()
    announce("the first kernel")
    samples = measure_in_turn(samplers(torch, effort, clock, core), effort.rounds, budget, announce)

    def check() -> None:
        on_wall = not cpu_time and device_of(torch) == "cpu"
        if on_wall:
            core.check()
        check_spread(samples, ", or count CPU seconds (--cpu-time)" if on_wall else "")

    links.refuse_together(torch, check)
    return samples


def calibrated(torch: Any, name: str, samples: Mapping[Any, list[float]], cpu_time: bool) -> dict[str, Any]:
    """Return what the hardware file holds: the hardware that the samples show, and what was measured."""
    this = machine.machine(torch, name)
    kernels, transfers = (of_kind(samples, kind) for kind in (Kernel, links.MeasuredTransfer))
    table = hardware_table(this, kernels, links.fitted_links(transfers), links.slowdown(transfers))
    notes = machine.versions(torch) | {"clock": "CPU seconds" if cpu_time else "wall"}
    notes |= {"tried": NOT_TRIED} if this.is_gpu else {}
    return table | {"measured": notes | {"kernels": measured(kernels), "transfers": measured(transfers)}}


def samplers(torch: Any, effort: Effort, clock: Clock, core: Core) -> dict[Any, Sampler]:
    """Return what is measured in a round: kernels, launches by mode, and collectives, which are counted on
    the wall's clock."""
    sizes = SIZES[device_of(torch)]
    runs = kernels(torch, sizes) | more_kernels(torch, sizes, effort.compiles and has_compiler())
    found: dict[Any, Sampler] = {
        key: core.watching(sampler)
        for key, sampler in kernel_samplers(torch, runs, effort.windows, clock).items()
    }
    return found | links.transfers(torch, effort.windows, clock_of(torch, False))


def show(table: dict[str, Any], path: Path) -> None:
    console, width = plain_console()
    kernels = table["measured"]["kernels"]
    largest = max(kernel["spread"] for kernel in kernels)
    memory, bandwidth = (shown(table[key]) for key in ("memory", "memory_bandwidth"))
    launches = next(
        table[key] for key in ("kernel_overhead", "host_launch") if isinstance(table.get(key), dict)
    )
    words = (
        f"{path}: {table['description']}. Matmuls reach {shown(table['peak']['bf16'])} at their best; memory "
        f"{memory}, its bandwidth {bandwidth} (nominal: docs/calibration.md). {len(kernels)} kernels; rounds "
        f"spread by {largest:.0%} of the median at most. A launch takes "
        f"{', '.join(f'{shown(taken)} {mode}' for mode, taken in launches.items())}."
    )
    if not table["collectives"]:
        words += " Links were not measured: this is one device alone."
    console.print(prose(words, width))
    if table["collectives"]:
        show_links(table["collectives"], table["slowdown"])


def shown(quantity: str) -> str:
    """Return a quantity of the file as people read it: "175 GFLOP/s" for "1.75e+11 FLOP/s"."""
    value, _, unit = quantity.partition(" ")
    return si(float(value), unit) if unit else quantity


def show_links(found: dict[str, dict[str, str]], slowdown: float) -> None:
    console, width = plain_console()
    columns = [f"{what} {where}" for where in ("inside", "across") for what in ("latency", "bandwidth")]
    rows = [
        (kind, *(shown(link.get(column.replace(" ", "_"), "-")) for column in columns))
        for kind, link in found.items()
    ]
    console.print()
    console.print(quiet_table(("collective", *columns), rows, width))
    console.print()
    console.print(prose(f"Beside an all-reduce compute is {slowdown:.0%} slower.", width))
