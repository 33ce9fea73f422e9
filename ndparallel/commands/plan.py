"""What a training step of a large model costs: how long, what bounds it, whether it fits, and how sure that
is.

Idea   A layer's operations are priced on the hardware, layers make stages, the schedule's own actions are
       timed, and gradients travel beside them: the model of the lessons, at any size (tests hold the two
       together). Where no part of the plan is given, all legal plans are compared.
Limit  docs/planner.md says what is assumed, and docs/validation.md how far measured runs are from it.

  ndparallel plan --model llama-3-70b --gpus 512 --global-batch 512 --sequence 8192     finds the fastest plan
  ndparallel plan --model llama-3-70b --gpus 512 --global-batch 512 --sequence 8192 --tp 8 --pp 4 --zero 1
  ndparallel plan --model config.json --gpus 64 --zero 3 --global-batch 256 --software torchtitan
"""

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.quantities import parse_quantity
from ndparallel.base.words import WIDTH, count
from ndparallel.commands.plan_better import comparison
from ndparallel.commands.plan_options import (
    add_search_options,
    asked_for,
    fixed,
    same_plan,
    searches,
    usual,
    usual_plan,
)
from ndparallel.drawing.timeline import Timelines
from ndparallel.launch_flags.options import add_launch_options, described, launch, script_given
from ndparallel.planner.imbalance import imbalance_sentences
from ndparallel.planner.job import Plan
from ndparallel.planner.layers.flops import DEFINITIONS
from ndparallel.planner.legality import is_folded
from ndparallel.planner.memory.total import KINDS
from ndparallel.planner.options import add_job_options, add_plan_options
from ndparallel.planner.picture import some, timeline_of
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.results.printing import plain_console, print_json, prose
from ndparallel.results.report import quiet_table
from ndparallel.search.search import Found, search
from ndparallel.search.tables import (
    as_csv,
    as_json,
    besides,
    bound,
    layout,
    show_changes,
    show_search,
    what_if_json,
)
from ndparallel.search.what_if import Variant, what_if

NEGLIGIBLE = 0.0005  # shares of the step that the table leaves out
WORDS = {
    "compute": "compute",
    "bubble": "bubble",
    "imbalance": "stage imbalance",
    "optimizer": "optimizer",
} | {group: f"exposed {group}" for group in ("tp", "cp", "ep", "dp", "pp")}

FOLDED = (
    "EP{plan.ep} does not divide DP{plan.dp}: experts are spread over tensor- and context-parallel ranks too "
    "(folded expert parallelism, "
    "Megatron's with expert tensor parallelism 1). Such a plan is priced, but the search leaves it out and "
    "4d_combined.py does not run it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_options(parser)
    add_plan_options(parser)
    # so that what was asked for can be told from what was not
    parser.set_defaults(**dict.fromkeys(usual_plan()))
    add_search_options(parser)
    output = parser.add_argument_group("the answer")
    output.add_argument(
        "--tokens", type=float, default=1e12, metavar="N", help="to train on: how many days? (default 1e12)"
    )
    output.add_argument(
        "--timeline", choices=("auto", "none"), default="auto", help="the picture of a step (default auto)"
    )
    add_launch_options(parser)
    output.add_argument("--json", action="store_true", help="print JSON and nothing else")
    output.add_argument(
        "--csv", action="store_true", help="print the plans found, one a line, and nothing else"
    )


def run(arguments: argparse.Namespace) -> int:
    if not 0 < arguments.tokens < float("inf"):
        raise UserError(f"--tokens {arguments.tokens:g} cannot be trained on; give a number above 0.")
    if arguments.json and arguments.csv:
        raise UserError("--json and --csv are two ways to print the same: choose one.")
    return run_search(arguments) if searches(arguments) else run_one(arguments)


def run_search(arguments: argparse.Namespace) -> int:
    cluster, beside = asked_for(arguments)
    found = searched(cluster, arguments, beside)
    changed = {change: searched(what_if(cluster, change), arguments).best for change in arguments.what_if}
    launches = launch_of(arguments, found) if arguments.emit else {}
    if arguments.json:
        changes = {"what_if": what_if_json(changed)} if changed else {}
        print_json(as_json(found, arguments.tokens) | changes | launches)
    elif arguments.csv:
        print(as_csv(found.answers), end="")
    elif arguments.emit:
        print(launches["launch"], end="")
    else:
        show_search(found, changed)
    return 0


def searched(cluster: Variant, arguments: argparse.Namespace, beside: Sequence[Plan] = ()) -> Found:
    memory = (
        parse_quantity(arguments.max_memory, "bytes", "--max-memory")
        if arguments.max_memory is not None
        else None
    )
    top = 10 if arguments.top is None else arguments.top
    if top < 1:
        raise UserError(f"--top is {top}; at least 1 plan can be shown.")
    return search(cluster.job, cluster.gpus, fixed(arguments), max_memory=memory, top=top, also=beside)


def launch_of(arguments: argparse.Namespace, found: Found) -> dict[str, str]:
    """The launch script of the best plan that the framework can run. Raises UserError, for the first one,
    where it can run none."""
    reasons = []
    for each in found.answers:
        try:
            return launch(arguments.emit, each)
        except UserError as reason:
            reasons.append(reason)
    raise reasons[0]


# --------------------------------------------------------------------------------------------------- one plan


def run_one(arguments: argparse.Namespace) -> int:
    asked = described(usual(arguments))
    found = predict(asked.job, asked.plan)
    changed = dict(same_plan(arguments, found))
    script = script_given(arguments)
    beside, sentences = comparison(found, script[0]) if script and not arguments.emit else ({}, [])
    if arguments.json:
        changes = {"what_if": what_if_json(changed)} if changed else {}
        training = {"days": found.days(arguments.tokens), "tokens": arguments.tokens}
        beside = training | {"notes": asked.notes} | beside
        print_json(found.as_dict() | beside | changes | launch(arguments.emit, found))
        return 0
    if arguments.emit:
        print(launch(arguments.emit, found)["launch"], end="")
        return 0
    console, _ = plain_console()
    show(console, found, arguments, [*asked.notes, *sentences])
    show_changes(console, found, changed)
    return 0


def show(
    console: Console, found: Prediction, arguments: argparse.Namespace, notes: Sequence[str] = ()
) -> None:
    width = min(console.width, WIDTH)
    title = found.job.shape.name
    console.print(prose(f"{title}  {headline(found)}", width, bold=title), end="\n\n")
    for table in (times(found, width), memory(found, width)):
        console.print(table)
        console.print()
    for sentence in [*sentences(found, arguments.tokens), *notes]:
        console.print(prose(sentence, width))
    if arguments.timeline != "none":
        console.print()
        console.print(Timelines([timeline_of(found)]))


def headline(found: Prediction) -> str:
    """The job and the plan, what was derived included."""
    job, plan, microbatches = found.job, found.plan, found.microbatches
    billions, gpus = job.shape.parameters().total / 1e9, count(int(plan.gpus), "GPU")
    parts = f"{microbatches} microbatch{'es' * (microbatches != 1)} of {plan.micro_batch}"
    dtype = job.stack.dtype if job.stack.executed else job.dtype
    words = ", ".join([*layout(plan), *besides(job, plan)])
    return (
        f"{billions:.4g} billion parameters on {gpus} ({job.hardware.name}), {dtype}, {job.stack.name}. "
        f"{words}. "
        f"Batch {job.global_batch} x {job.sequence}: {parts} for each of "
        f"{count(plan.dp, 'data-parallel rank')}."
    )


def times(found: Prediction, width: int) -> Table:
    parts = sorted(found.step.breakdown.items(), key=lambda part: -part[1])
    rows = [
        (WORDS[kind], si(float(part), "s"), f"{part / found.seconds:.1%}")
        for kind, part in parts
        if part > NEGLIGIBLE * found.seconds
    ]
    whose = f" of pipeline rank {found.step.rank}" if found.plan.pp > 1 else ""
    return quiet_table(
        (f"where the time{whose} goes", "seconds", "share"),
        [("step", si(found.seconds, "s"), ""), *rows],
        width,
    )


def memory(found: Prediction, width: int) -> Table:
    ranks = some(len(found.memory))
    rows = [
        [f"{rank}", *(si(float(part), "B") for part in (found.memory[rank].total, *held(found, rank)))]
        for rank in ranks
    ]
    return quiet_table(("pipeline rank", "memory", *KINDS), rows, width)


def held(found: Prediction, rank: int) -> list[float]:
    return [getattr(found.memory[rank], kind) for kind in KINDS]


def sentences(found: Prediction, tokens: float) -> list[str]:
    """What the tables do not say."""
    room, has = found.missing_bytes, si(found.job.hardware.memory_bytes, "B")
    fits = (
        f"It does not fit: the fullest GPU has {has} and needs {si(room, 'B')} more."
        if room > 0
        else f"It fits: {si(-room, 'B')} of {has} are left."
    )
    kind, lost = bound(found)
    whose = f"rank {found.step.rank}'s step" if found.plan.pp > 1 else "the step"
    return [
        f"A step takes {si(found.seconds, 's')} {found.error_bar.sentence}",
        f"{found.tokens_per_second_per_gpu:,.0f} tokens/s and {found.flops_per_second_per_gpu / 1e12:.4g} "
        "TFLOP/s per GPU; "
        f"{tokens:.3g} tokens take {found.days(tokens):.3g} days.",
        f"MFU {found.mfu:.1%}: {DEFINITIONS['mfu']}. HFU {found.hfu:.1%}: {DEFINITIONS['hfu']}.",
        f"Beside compute, {WORDS[kind]} takes most: {lost:.1%} of {whose}. {fits}",
        *imbalance_sentences(found),
        *([FOLDED.format(plan=found.plan)] if is_folded(found.plan) else []),
    ]
