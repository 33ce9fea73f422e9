"""How long it takes to write, time, check and search schedules: `python benchmarks/schedules.py`. Wall-clock
seconds of this machine."""

import argparse
import timeit
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table

from ndparallel.base.errors import guarded
from ndparallel.pipeline.actions import Schedule
from ndparallel.pipeline.catalog import build, written_schedules
from ndparallel.pipeline.checker import explain
from ndparallel.pipeline.search import search
from ndparallel.pipeline.timing import time_schedule
from ndparallel.pipeline.work import Work

RANKS, MICROBATCHES = 64, 1024


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """The best of a few runs."""
    return min(timeit.repeat(work, repeat=times, number=1))


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    console = Console(width=100)
    table = Table(
        "schedule",
        "actions",
        "write",
        "time",
        "check",
        title=f"{RANKS} ranks, {MICROBATCHES} microbatches: seconds",
    )
    for name in written_schedules():
        schedule: Schedule = build(name, RANKS, MICROBATCHES)
        steps = (
            partial(build, name, RANKS, MICROBATCHES),
            partial(time_schedule, schedule, Work()),
            partial(explain, schedule),
        )
        table.add_row(
            name, f"{sum(map(len, schedule.actions)):,}", *(f"{seconds(step):.2f}" for step in steps)
        )
    console.print(table)
    for limit in (16, 32):
        taken = seconds(lambda: search(16, 64, Work(1.0, 1.0, 0.7, latency=0.03), limit), times=1)  # noqa: B023
        console.print(f"search, 16 ranks, 64 microbatches, at most {limit} activations: {taken:.2f} s")


if __name__ == "__main__":
    raise SystemExit(guarded(main))
