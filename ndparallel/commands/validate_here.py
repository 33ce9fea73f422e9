"""`ndparallel validate --here`: training steps, measured on this machine and predicted from its kernels."""

import argparse
import json
from statistics import fmean
from typing import Any

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.files import write_atomically
from ndparallel.calibration import machine
from ndparallel.calibration.kernels import SIZES, clock_of, device_of, kernels, load_torch
from ndparallel.calibration.links import launched
from ndparallel.calibration.steps import StepRow, as_runs, kernels_of, rows, steps
from ndparallel.calibration.table import measured
from ndparallel.calibration.timing import Run, measure_in_turn
from ndparallel.results.printing import plain_console, print_json, progress, prose
from ndparallel.results.tables import quiet_table

NAME, ROUNDS, LEAST_SECONDS = "here", 7, 0.05


def validate_here(arguments: argparse.Namespace) -> int:
    if launched()[0] > 1:
        raise UserError("validate --here trains on one process alone: start it without torchrun.")
    torch = load_torch()
    if device_of(torch) == "cpu":
        torch.set_num_threads(1)
    sizes, clock = SIZES[device_of(torch)], clock_of(torch, arguments.cpu_time)
    with progress() as announce:
        runs: dict[Any, Run] = {**kernels(torch, sizes), **steps(torch, sizes)}
        samples = measure_in_turn(runs, ROUNDS, LEAST_SECONDS, clock, announce)
    this = machine.machine(torch, NAME)
    found = rows(this, samples)
    if arguments.save:
        write_atomically(
            arguments.save, json.dumps(as_runs(found, this, kernels_of(samples)), indent=1) + "\n"
        )
    if arguments.json:
        print_json(
            {
                "runs": [row.as_dict() for row in found],
                "mean_absolute_step_error": mean_error(found),
                "kernels": measured(kernels_of(samples)),
                "machine": machine.versions(torch) | {"description": this.description},
            }
        )
    else:
        show(found)
    return 0


def mean_error(found: list[StepRow]) -> float:
    return fmean(abs(row.error) for row in found)


def show(found: list[StepRow]) -> None:
    console, width = plain_console()
    columns = ("step (layers x hidden, batch)", "measured", "predicted", "error", "spread")
    console.print(quiet_table(columns, [cells(row) for row in found], width))
    console.print()
    most = max(abs(row.error) for row in found)
    console.print(
        prose(
            f"{len(found)} steps on this machine. Step time: mean absolute error {mean_error(found):.1%}, "
            f"largest {most:.1%}. Nothing was fitted to a step.",
            width,
        )
    )


def cells(row: StepRow) -> tuple[str, ...]:
    seconds = (si(row.measured_seconds, "s"), si(row.predicted_seconds, "s"))
    return (row.name, *seconds, f"{row.error:+.1%}", f"{row.spread:.0%}")
