"""A layer's operations, one by one: how many FLOPs, how many bytes, how long, and what bounds each.

Idea   The same lists that `ndparallel plan` adds up. An operation is bound by compute, by memory bandwidth or
       by the launch of its kernel (latency), whichever takes longest; a collective by the network. One that
       runs beside an operation is listed with that operation's name, and with the time that is not hidden.
       What a pass of all these waits for the CPU that launches its kernels is its last row.
       GPUs and batch that are not given are the fewest that the plan allows.
"""

import argparse

from gpu import si
from ndparallel.base.errors import check_known
from ndparallel.base.options import at_least_one
from ndparallel.commands.explain.rows import ExecutedRows, FrameworkRows, Row, rows_of
from ndparallel.commands.shared_ports import sharing_of, told_shared_ports
from ndparallel.planner.describe import NEGLIGIBLE, tensor_parallel_across
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.kinds import WORDS, has_experts
from ndparallel.planner.option_groups import add_job_options, add_plan_options
from ndparallel.planner.options import job_and_plan, with_defaults
from ndparallel.planner.prediction import Prediction, prediction_of, workload_of
from ndparallel.planner.stages import ENDS
from ndparallel.planner.state_options import add_state_options
from ndparallel.planner.step.step import HOST
from ndparallel.results.printing import plain_console, print_json, print_paragraphs, prose
from ndparallel.results.tables import quiet_table

COLUMNS = ("operation", "FLOPs", "bytes", "takes", "bound by")
HEADINGS = {
    "backward_input": "backward, gradients of inputs",
    "backward_weight": "backward, gradients of weights",
}
UNITS = {
    **{kind: f"one microbatch through a layer{words}" for kind, words in WORDS.items()},
    "embedding": "one microbatch through the embedding",
    "head": "one microbatch through the head",
    "optimizer": "of the first pipeline rank",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_options(parser, needed="--model NAME|FILE")
    add_state_options(parser)
    add_plan_options(parser)
    output = parser.add_argument_group("the answer")
    output.add_argument(
        "--unit",
        choices=UNITS,
        metavar="UNIT",
        help="a unit of the model, or the optimizer's step: " + ", ".join(UNITS) + " (default: a layer, with "
        "experts if there are any)",
    )
    output.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    job, plan = job_and_plan(smallest_job(with_defaults(arguments)))
    unit = arguments.unit or units_of(job)[0]
    check_known(f"unit of {job.shape.name}:", unit, units_of(job))
    work = workload_of(job, plan)
    rows, found = rows_of(work), prediction_of(job, work)
    passes = explained(rows, unit)
    if arguments.json:
        waits = {"step_seconds": found.seconds, "exposed_dp_seconds": float(found.step.breakdown["dp"])}
        told = {name: [row._asdict() for row in each] for name, each in passes.items()}
        print_json({"unit": unit, "passes": told} | waits | sharing_of(found))
        return 0
    show(found, passes, unit, rows.beside_another(unit))
    return 0


def show(found: Prediction, passes: dict[str, list[Row]], unit: str, paired: str) -> None:
    """Print a table of each pass, and what none of them tells; `paired` is of passes beside others."""
    console, width = plain_console()
    if busy := busiest(found.job, found.plan, unit):
        console.print(prose(busy, width), end="\n\n")
    for name, each in passes.items():
        heading = HEADINGS.get(name, name)
        taken = sum(row.seconds for row in each)
        console.print(prose(f"{heading}  {UNITS[unit]}: {si(taken, 's')}", width, bold=heading), end="\n\n")
        console.print(quiet_table(COLUMNS, [*map(cells, each)], width))
        console.print()
    if paired:
        console.print(prose(paired, width))
    print_paragraphs(console, [*not_listed(found, unit), *tensor_parallel_across(found)], width)
    for sentence in told_shared_ports(found):
        console.print(prose(f"Each collective has its ports to itself here. {sentence}", width))


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


def not_listed(found: Prediction, unit: str) -> list[str]:
    """Say what a step waits for gradients and sharded weights, which travel beside whole passes, and for a
    host that adds up gradients."""
    if unit == "optimizer":
        return []
    whose = f"pipeline rank {found.step.rank}" if found.plan.pp > 1 else "a GPU"
    step = si(found.seconds, "s")
    waits = {"What dp sends": float(found.step.breakdown["dp"])}
    if found.job.states_away and not found.job.activations_away:
        waits["What the host adds up of gradients"] = float(found.step.breakdown.get(HOST, 0.0))
    return [
        f"{what} is in no list: {whose} waits {si(seconds, 's')} for it in a step of {step}."
        for what, seconds in waits.items()
        if seconds >= NEGLIGIBLE * found.seconds
    ]


def explained(rows: FrameworkRows | ExecutedRows, unit: str) -> dict[str, list[Row]]:
    """Rows by pass; what takes no time, and passes in which nothing happens, are left out."""
    taking = {
        name: [row for row in each if row.seconds or row.beside] for name, each in rows.passes(unit).items()
    }
    return {name: shown for name, shown in taking.items() if shown}


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        si(row.flops, "FLOP") if row.flops else "-",
        si(row.bytes, "B"),
        si(row.seconds, "s"),
        f"{row.bound}, beside {row.beside}" if row.beside else row.bound,
    )
