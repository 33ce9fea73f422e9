"""The rows of `ndparallel explain`: what each pass of a unit does, one by one, on a real framework or in the
lessons' own run.

Idea   A framework's operations are priced alone, and its collectives beside the operation that hides them.
       The lessons' lists run on the clocks of all GPUs, item by item.

Glossary: see `ndparallel.commands.explain`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpu import Operation, si
from ndparallel.hardware.launch_modes import with_launch_mode
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.operations import CollectiveOp, Wait
from ndparallel.planner.lesson_runs.workload import ExecutedWorkload
from ndparallel.planner.prediction import AnyWorkload
from ndparallel.planner.stages import keeps_weights
from ndparallel.planner.step.framework import FrameworkWorkload
from ndparallel.planner.step.parameter_kernels import (
    copies_of_shards,
    host_parts,
    owned,
    step_operations,
)
from ndparallel.planner.step.streams import Item, StreamClock

HOST, HOST_LINK = "the host", "link to the host"
WAITS = {  # of a pass: what it is called, and what bounds the pass
    "launch": ("waits for launches", "launches"),
    "host": ("waits for activations", HOST_LINK),
}


class Row(NamedTuple):
    """What the GPU's compute stream takes for one operation, or waits for a collective. `bound` names what
    takes longest of it, `beside` the operation that it runs beside."""

    name: str
    flops: float
    bytes: float
    seconds: float
    bound: str
    beside: str = ""


def rows_of(work: AnyWorkload) -> "FrameworkRows | ExecutedRows":
    """What lists the rows of a workload."""
    return FrameworkRows(work) if isinstance(work, FrameworkWorkload) else ExecutedRows(work)


@dataclass(frozen=True)
class FrameworkRows:
    """The rows of a real model on a real framework."""

    work: FrameworkWorkload

    def passes(self, unit: str) -> dict[str, list[Row]]:
        """Rows by pass of a unit; "optimizer" is one."""
        if unit == "optimizer":
            return {unit: self.optimizer()}
        waits = self.work.pricing.unit(unit)._asdict()
        return {
            name: [*map(self.row, items), *waits_of(waits[name])] for name, items in self.lists(unit).items()
        }

    def lists(self, unit: str) -> dict[str, list]:
        """Operations and collectives by pass, with the copies that FSDP makes for its shards."""
        work = self.work
        passes = work.pricing.lists.unit(unit, work.plan.recompute)._asdict()
        gathered, again, made = copies_of_shards(work.pricing, unit)
        if keeps_weights(work.job, work.plan):
            gathered = again = []
        passes["forward"] = gathered + passes["forward"]
        passes["backward_input"] = again + made + passes["backward_input"]
        return passes

    def row(self, item: Operation | CollectiveOp) -> Row:
        if isinstance(item, Operation):
            return operation_row(self.work, item)
        whole = float(self.work.machine.seconds_alone(item))
        beside = item.beside.name if item.beside and whole else ""
        return collective_row(item, self.work.machine.exposed(item) if beside else whole, beside)

    def optimizer(self) -> list[Row]:
        """The optimizer's step kernel by kernel, and what of it is on the host."""
        pricing, trained = self.work.pricing, self.work.trained(0)
        on_gpu = [] if "optimizer" in self.work.job.offload else step_operations(pricing, *trained)
        on_host = [
            Row(part.name, 0.0, float(part.bytes), float(part.seconds), HOST_LINK if part.bytes else HOST)
            for part in host_parts(pricing, owned(pricing, *trained))
        ]
        return [*map(self.row, on_gpu), *on_host]

    def beside_another(self, unit: str) -> str:
        """What a plan counts for the passes of a unit that run beside those of another microbatch."""
        if unit == "optimizer":
            return ""
        alone, counted = (float(each.unit(unit).total.total) for each in (self.work.pricing, self.work))
        if counted >= alone:
            return ""
        return (
            f"Each pass is shown for itself, all-to-alls included. A plan counts {si(counted, 's')} for "
            f"these {si(alone, 's')}, as most passes run beside another microbatch's."
        )


@dataclass(frozen=True)
class ExecutedRows:
    """The rows of the lessons' own run."""

    work: ExecutedWorkload

    def passes(self, unit: str) -> dict[str, list[Row]]:
        """Rows by pass of a unit."""
        kind = unit if unit in ("embedding", "head") else "block"
        return {name: self.rows(items) for name, items in self.work.rank.passes(kind).items()}

    def rows(self, items: list[Item]) -> list[Row]:
        """One by one on the clocks of all GPUs: what was started takes what is left of it when it is waited
        for."""
        streams, rows = StreamClock(self.work.machine), []
        for item in items:
            before = np.max(streams.now)
            streams.run([item])
            if isinstance(item, Operation):
                rows.append(operation_row(self.work, item))
            elif isinstance(item, CollectiveOp):
                rows.append(collective_row(item, np.max(streams.now) - before, ""))
            elif isinstance(item, Wait):
                rows.append(collective_row(item.exchange, np.max(streams.now) - before, "what stands above"))
        return rows

    def beside_another(self, unit: str) -> str:
        """Nothing: every pass of a lesson runs alone."""
        return ""


def waits_of(passed: TimeBreakdown) -> list[Row]:
    """Rows of what a pass waits for as a whole."""
    return [Row(name, 0.0, 0.0, float(passed.get(kind, 0.0)), bound) for kind, (name, bound) in WAITS.items()]


def operation_row(work: AnyWorkload, operation: Operation) -> Row:
    """The row of an operation: what takes longest of it, and how long it takes in all."""
    hardware = with_launch_mode(work.job.hardware, work.job.stack.launching)
    parts = {
        "compute": float(operation.flops / hardware.rate(operation)),
        "memory": float(operation.bytes / hardware.memory_bandwidth_bytes_per_second),
        "latency": float(operation.kernels * hardware.kernel_overhead_seconds),
    }
    bound, seconds = max(parts, key=lambda name: parts[name]), float(work.machine.seconds(operation))
    return Row(operation.name, float(operation.flops), float(operation.bytes), seconds, bound)


def collective_row(exchange: CollectiveOp, seconds: float, beside: str) -> Row:
    """The row of a collective."""
    return Row(exchange.name, 0.0, float(exchange.bytes), float(seconds), "network", beside)
