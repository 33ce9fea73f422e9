"""A layer's operations, one by one: how many FLOPs, how many bytes, how long, and what bounds each.

Idea   The same lists that `ndparallel plan` adds up. An operation is bound by compute, by memory bandwidth or
       by the launch of its kernel (latency), whichever takes longest; a collective by the network. One that
       runs beside an operation is listed with that operation's name, and with the time that is not hidden.
       What a pass of all these waits for the CPU that launches its kernels is its last row.
       GPUs and batch that are not given are the fewest that the plan allows.
"""

import argparse
from typing import Any

import numpy as np

from gpu import Operation, si
from ndparallel.base.errors import unknown
from ndparallel.hardware.launch_modes import with_launch_mode
from ndparallel.planner.describe import NEGLIGIBLE, shared_ports, tensor_parallel_across
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.operations import CollectiveOp, Wait
from ndparallel.planner.lesson_runs.workload import ExecutedWorkload
from ndparallel.planner.option_groups import add_job_options, add_plan_options
from ndparallel.planner.options import at_least_one, job_and_plan, with_defaults
from ndparallel.planner.prediction import AnyWorkload, Prediction, prediction_of, workload_of
from ndparallel.planner.stages import ENDS, has_experts, keeps_weights
from ndparallel.planner.state_options import add_state_options
from ndparallel.planner.step.framework import FrameworkWorkload
from ndparallel.planner.step.parameter_kernels import (
    copies_of_shards,
    owned,
    step_on_host,
    step_operations,
)
from ndparallel.planner.step.streams import Item, StreamClock
from ndparallel.results.printing import plain_console, print_json, prose
from ndparallel.results.progress import progress
from ndparallel.results.tables import quiet_table

COLUMNS = ("operation", "FLOPs", "bytes", "takes", "bound by")
UNITS = {
    "dense": "one microbatch through a layer",
    "experts": "one microbatch through a layer with experts",
    "linear-dense": "one microbatch through a layer with linear attention",
    "linear-experts": "one microbatch through a layer with linear attention and experts",
    "embedding": "one microbatch through the embedding",
    "head": "one microbatch through the head",
    "optimizer": "of the first pipeline rank",
}
WAITS = {  # of a pass: what it is called, and what bounds the pass
    "launch": ("waits for launches", "launches"),
    "host": ("waits for activations", "link to the host"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_options(parser, needed="--model NAME|FILE")
    add_state_options(parser)
    add_plan_options(parser)
    output = parser.add_argument_group("the answer")
    output.add_argument(
        "--unit",
        choices=UNITS,
        help="a unit of the model, or the optimizer's step (default: a layer, with experts if there are any)",
    )
    output.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    job, plan = job_and_plan(smallest_job(with_defaults(arguments)))
    unit = arguments.unit or units_of(job)[0]
    if unit not in units_of(job):
        raise unknown(f"unit of {job.shape.name}:", unit, units_of(job))
    work = workload_of(job, plan)
    passes, found = explained(work, unit), prediction_of(job, work)
    with progress() as announce:
        announce("what ports add that several groups share")
        found.sharing_seconds  # noqa: B018  # computed here, while that is announced
    if arguments.json:
        waits = {"step_seconds": found.seconds, "exposed_dp_seconds": float(found.step.breakdown["dp"])}
        sharing = {"sharing_seconds": found.sharing_seconds} if found.sharing_seconds else {}
        print_json({"unit": unit, "passes": passes} | waits | sharing)
        return 0
    console, width = plain_console()
    if busy := busiest(job, plan, unit):
        console.print(prose(busy, width), end="\n\n")
    for name, rows in passes.items():
        taken = sum(row["seconds"] for row in rows)
        console.print(prose(f"{name}  {UNITS[unit]}: {si(taken, 's')}", width, bold=name), end="\n\n")
        console.print(quiet_table(COLUMNS, [cells(row) for row in rows], width))
        console.print()
    if paired := beside_another(work, unit):
        console.print(prose(paired, width))
    for sentence in [*not_listed(found, unit), *tensor_parallel_across(found)]:
        console.print(prose(sentence, width))
    for sentence in shared_ports(found):
        console.print(prose(f"Each collective has its ports to itself here. {sentence}", width))
    return 0


def smallest_job(arguments: argparse.Namespace) -> argparse.Namespace:
    """The job with the fewest GPUs that its degrees allow, and a microbatch for every stage, where neither is
    given: a unit has the same kernels in a larger one, and a little slower ones where the slowest GPU of more
    sets the pace."""
    at_least_one(arguments, "tp", "cp", "pp", "ep", "micro_batch")
    dp = arguments.dp or arguments.ep
    if arguments.gpus is None:
        arguments.gpus = arguments.tp * arguments.cp * dp * arguments.pp
    elif arguments.dp is None:
        dp = max(1, arguments.gpus // (arguments.tp * arguments.cp * arguments.pp))
    if arguments.global_batch is None:
        arguments.global_batch = dp * arguments.micro_batch * arguments.pp
    return arguments


def units_of(job: TrainingJob) -> list[str]:
    """The units that the model has; layers with experts first, and then the kind that there is more of."""
    every = [job.shape.kind(layer) for layer in range(job.shape.layers)]
    layers = sorted(job.shape.layer_kinds, key=lambda kind: (not has_experts(kind), -every.count(kind)))
    return [*layers, *ENDS] + ["optimizer"] * (not job.stack.executed)


def busiest(job: TrainingJob, plan: Plan, unit: str) -> str:
    """Whose rows the lists are of, where routing is uneven."""
    received = float(plan.share(job).received)
    return (
        f"Experts of the busiest rank: {received:g} times the mean's rows."
        if has_experts(unit) and received != 1
        else ""
    )


def beside_another(work: AnyWorkload, unit: str) -> str:
    """What a plan counts for the passes of a unit that run beside those of another microbatch."""
    if unit == "optimizer" or not isinstance(work, FrameworkWorkload):
        return ""
    alone, counted = (float(each.total.total) for each in (work.pricing.unit(unit), work.unit(unit)))
    if counted >= alone:
        return ""
    return (
        f"Each pass is shown for itself, all-to-alls included. A plan counts {si(counted, 's')} for these "
        f"{si(alone, 's')}, as most passes run beside another microbatch's."
    )


def not_listed(found: Prediction, unit: str) -> list[str]:
    """Say what a step waits for gradients and sharded weights, which travel beside whole passes."""
    waits = float(found.step.breakdown["dp"])
    if unit == "optimizer" or waits < NEGLIGIBLE * found.seconds:
        return []
    whose = f"pipeline rank {found.step.rank}" if found.plan.pp > 1 else "a GPU"
    step = si(found.seconds, "s")
    return [f"What dp sends is in no list: {whose} waits {si(waits, 's')} for it in a step of {step}."]


def explained(work: AnyWorkload, unit: str) -> dict[str, list[dict[str, Any]]]:
    """Rows by pass; what takes no time, and passes in which nothing happens, are left out."""
    if unit == "optimizer":
        assert isinstance(work, FrameworkWorkload)
        lists = {unit: optimizer_rows(work)}
    elif isinstance(work, FrameworkWorkload):
        passes = work.pricing.lists.unit(unit, work.plan.recompute)._asdict()
        gathered, again, made = copies_of_shards(work.pricing, unit)
        if keeps_weights(work.job, work.plan):
            gathered = again = []
        passes |= {"forward": gathered + passes["forward"]}
        passes |= {"backward_input": again + made + passes["backward_input"]}
        waits = work.pricing.unit(unit)._asdict()
        lists = {
            name: [row_of(work, item) for item in items] + waits_of(waits[name])
            for name, items in passes.items()
        }
    else:
        lists = {name: executed_rows(work, items) for name, items in executed_passes(work, unit).items()}
    return {
        name: shown
        for name, rows in lists.items()
        if (shown := [row for row in rows if row["seconds"] or row["beside"]])
    }


def optimizer_rows(work: FrameworkWorkload) -> list[dict[str, Any]]:
    """The optimizer's step kernel by kernel, or what it takes on the host."""
    trained = work.trained(0)
    if "optimizer" not in work.job.offload:
        return [row_of(work, item) for item in step_operations(work.pricing, *trained)]
    parts = step_on_host(work.pricing, owned(work.pricing, *trained))
    return [
        {"name": part.name, "flops": 0.0, "bytes": float(part.bytes), "seconds": float(part.seconds)}
        | {"bound": "link to the host" if part.bytes else "the host", "beside": ""}
        for part in parts
    ]


def waits_of(passed: TimeBreakdown) -> list[dict[str, Any]]:
    """Rows of what a pass waits for as a whole."""
    return [
        {"name": name, "flops": 0.0, "bytes": 0.0, "seconds": float(passed.get(kind, 0.0))}
        | {"bound": bound, "beside": ""}
        for kind, (name, bound) in WAITS.items()
    ]


def executed_passes(work: ExecutedWorkload, unit: str) -> dict[str, list[Item]]:
    kind = unit if unit in ("embedding", "head") else "block"
    return {name: work.passes(kind, name) for name in ("forward", "backward")}


def executed_rows(work: ExecutedWorkload, items: list[Item]) -> list[dict[str, Any]]:
    """One by one on the clocks of all GPUs: what was started takes what is left of it when it is waited
    for."""
    streams, rows = StreamClock(work.machine), []
    for item in items:
        before = np.max(streams.now)
        streams.run([item])
        if isinstance(item, Operation):
            rows.append(row_of(work, item))
        elif isinstance(item, CollectiveOp):
            rows.append(said(item, np.max(streams.now) - before, ""))
        elif isinstance(item, Wait):
            rows.append(said(item.exchange, np.max(streams.now) - before, "what stands above"))
    return rows


def row_of(work: AnyWorkload, item: Operation | CollectiveOp) -> dict[str, Any]:
    """One row: what the GPU's compute stream takes or waits."""
    if isinstance(item, Operation):
        bound, seconds = bound_of(work, item)
        return {
            "name": item.name,
            "flops": float(item.flops),
            "bytes": float(item.bytes),
            "seconds": seconds,
            "bound": bound,
            "beside": "",
        }
    assert isinstance(work, FrameworkWorkload)
    whole = float(work.machine.seconds_alone(item))
    beside = item.beside.name if item.beside and whole else ""
    return said(item, work.machine.exposed(item) if beside else whole, beside)


def said(exchange: CollectiveOp, seconds: float, beside: str) -> dict[str, Any]:
    """The row of a collective."""
    row = {"name": exchange.name, "flops": 0.0, "bytes": float(exchange.bytes), "seconds": float(seconds)}
    return row | {"bound": "network", "beside": beside}


def bound_of(work: AnyWorkload, item: Operation) -> tuple[str, float]:
    """What takes longest of an operation, and how long it takes in all."""
    hardware = with_launch_mode(work.job.hardware, work.job.stack.launching)
    parts = {
        "compute": float(item.flops / hardware.rate(item)),
        "memory": float(item.bytes / hardware.memory_bandwidth_bytes_per_second),
        "latency": float(item.kernels * hardware.kernel_overhead_seconds),
    }
    return max(parts, key=lambda name: parts[name]), float(work.machine.seconds(item))


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    bound = f"{row['bound']}, beside {row['beside']}" if row["beside"] else row["bound"]
    return (
        row["name"],
        si(row["flops"], "FLOP") if row["flops"] else "-",
        si(row["bytes"], "B"),
        si(row["seconds"], "s"),
        bound,
    )
