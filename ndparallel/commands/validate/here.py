"""`ndparallel validate --here`: training steps, measured on this machine and predicted from its kernels."""

import argparse
import json
from statistics import fmean
from typing import Any

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.files import check_writable, write_atomically
from ndparallel.base.startup import keep_freed_memory
from ndparallel.calibration import links, machine
from ndparallel.calibration.kernels import (
    SIZES,
    Kernel,
    clock_of,
    device_of,
    kernel_samplers,
    kernels,
    load_torch,
)
from ndparallel.calibration.steps import StepRow, as_runs, step_rows, steps
from ndparallel.calibration.table import measured
from ndparallel.calibration.timing import Budget, Sampler, Windows, measure_in_turn, of_kind
from ndparallel.hardware.accelerator import Accelerator, find_hardware
from ndparallel.results.printing import plain_console, print_json, prose
from ndparallel.results.tables import quiet_table

NAME, ROUNDS, WINDOWS, SECONDS = "here", 7, Windows(3, 0.02), 300


def validate_here(arguments: argparse.Namespace) -> int:
    check_writable(arguments.save if links.is_first() else None)
    hardware = accelerator_named(arguments.hardware) if arguments.hardware else None
    budget, torch = Budget(SECONDS), load_torch()
    if device_of(torch) == "cpu":
        torch.set_num_threads(1)
    keep_freed_memory()
    if arguments.cpu_time and links.launched()[0] > 1:
        raise UserError("what processes wait for one another is no CPU time: leave out --cpu-time.")
    with links.measuring(torch, budget) as announce:
        measured_here = samplers(torch, arguments.cpu_time, steps_alone=hardware is not None)
        samples = measure_in_turn(measured_here, ROUNDS, budget, announce)
    if links.is_first():
        report(torch, samples, hardware, arguments)
    return 0


def accelerator_named(name: str) -> Accelerator:
    """Return hardware by its name or file. Raises UserError where it is the lessons' own."""
    hardware = find_hardware(name)
    if not isinstance(hardware, Accelerator):
        raise UserError(f"--hardware {name} is the lessons' own: name a GPU that there is.")
    return hardware


def samplers(torch: Any, cpu_time: bool, steps_alone: bool) -> dict[Any, Sampler]:
    """Return what is measured in a round: kernels and collectives between processes, if they are to predict,
    and steps."""
    sizes, clock = SIZES[device_of(torch)], clock_of(torch, cpu_time)
    found: dict[Any, Sampler] = {}
    if not steps_alone:
        found |= kernel_samplers(torch, kernels(torch, sizes), WINDOWS, clock)
        found |= links.transfers(torch, WINDOWS, clock)
    return found | steps(torch, sizes, clock)


def report(
    torch: Any,
    samples: dict[Any, list[float]],
    hardware: Accelerator | None,
    arguments: argparse.Namespace,
) -> None:
    """Predict every step; save and print what was found."""
    this, ranks = machine.machine(torch, NAME), links.launched()[0]
    found = step_rows(this, samples, hardware)
    if arguments.save:
        runs = as_runs(found, this, samples, ranks, hardware)
        write_atomically(arguments.save, json.dumps(runs, indent=1) + "\n")
    if not arguments.json:
        show(found, ranks, hardware)
        return
    print_json(
        {
            "runs": [row.as_dict() for row in found],
            "mean_absolute_step_error": mean_error(found),
            "predicted_from": hardware.name if hardware else "kernels",
            "kernels": measured(of_kind(samples, Kernel)),
            **({"transfers": measured(of_kind(samples, links.MeasuredTransfer))} if ranks > 1 else {}),
            "machine": machine.versions(torch) | {"description": this.description},
        }
    )


def mean_error(found: list[StepRow]) -> float:
    return fmean(abs(row.error) for row in found)


def show(found: list[StepRow], ranks: int, hardware: Accelerator | None) -> None:
    console, width = plain_console()
    columns = ("step (layers x hidden, batch)", "measured", "predicted", "error", "spread")
    console.print(quiet_table(columns, [cells(row) for row in found], width))
    console.print()
    most = max(abs(row.error) for row in found)
    by = f" They are predicted from the figures of {hardware.name}." if hardware else ""
    console.print(
        prose(
            f"{len(found)} steps on this machine.{by} Step time: mean absolute error "
            f"{mean_error(found):.1%}, largest {most:.1%}. Nothing was fitted to a step.{promise(ranks)}",
            width,
        )
    )


def promise(ranks: int) -> str:
    if ranks == 1:
        return ""
    return f" {ranks} processes share one machine, or its network: of their error nothing is promised."


def cells(row: StepRow) -> tuple[str, ...]:
    seconds = (si(row.measured_seconds, "s"), si(row.predicted_seconds, "s"))
    return (row.name, *seconds, f"{row.error:+.1%}", f"{row.spread:.0%}")
