"""What a training step of a large model costs: how long, what bounds it, whether it fits, and how sure that is.

Idea   A layer's operations are priced on the hardware, layers make stages, the schedule's own actions are timed, and gradients travel
       beside them: the model of the lessons, at any size (tests hold the two together). Where no part of the plan is given, all legal
       plans are compared.
Limit  docs/planner.md says what is assumed, and docs/validation.md how far measured runs are from it.

  ndparallel plan --model llama-3-70b --gpus 512 --global-batch 512 --sequence 8192             finds the fastest plan
  ndparallel plan --model llama-3-70b --hardware h100 --gpus 512 --tp 8 --pp 4 --global-batch 512 --sequence 8192 --zero 1
  ndparallel plan --model config.json --gpus 64 --zero 3 --global-batch 256 --software torchtitan
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from gpu import si
from ndparallel.choice.search import Found, search
from ndparallel.choice.space import FIXABLE, parsed
from ndparallel.choice.tables import (
    as_csv,
    as_json,
    besides,
    bound,
    certainty,
    layout,
    plain_console,
    ranking,
    rejected,
    with_words_last,
    words_of,
)
from ndparallel.choice.what_if import Cluster, what_if
from ndparallel.errors import UserError
from ndparallel.launch_flags.better import comparison
from ndparallel.launch_flags.fields import TITAN_SCHEDULES
from ndparallel.launch_flags.options import described, launch
from ndparallel.planner.answer import Answer, answer
from ndparallel.planner.flops import DEFINITIONS
from ndparallel.planner.legality import is_folded
from ndparallel.planner.memory import KINDS
from ndparallel.planner.options import add_job_options, add_plan_options, job_from
from ndparallel.planner.picture import some, timeline_of
from ndparallel.planner.plan import Plan
from ndparallel.planner.stack import find_stack
from ndparallel.quantities import parse_quantity
from ndparallel.report import quiet_table
from ndparallel.show import WIDTH, prose
from ndparallel.timeline import Timelines
from ndparallel.words import count

CAN_LAUNCH: dict[str, dict[str, Any]] = {  # what --emit leaves the search to choose from
    "megatron": {"schedule": ("1f1b", "interleaved"), "zero": (0, 1, 3)},
    "torchtitan": {"schedule": tuple(TITAN_SCHEDULES), "zero": (0, 2, 3)},
}
NEGLIGIBLE = 0.0005  # shares of the step that the table leaves out
WORDS = {"compute": "compute", "bubble": "bubble", "optimizer": "optimizer"} | {
    group: f"exposed {group}" for group in ("tp", "cp", "ep", "dp", "pp")
}

FOLDED = (
    "EP{plan.ep} does not divide DP{plan.dp}: experts are spread over tensor- and context-parallel ranks too (folded expert parallelism, "
    "Megatron's with expert tensor parallelism 1). Such a plan is priced, but the search leaves it out and 4d_combined.py does not run it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_options(parser)
    add_plan_options(parser)
    parser.set_defaults(**dict.fromkeys(usual_plan()))  # so that what was asked for can be told from what was not
    add_search_options(parser)
    output = parser.add_argument_group("the answer")
    output.add_argument("--tokens", type=float, default=1e12, metavar="N", help="to train on: how many days? (default 1e12)")
    output.add_argument("--timeline", choices=("auto", "none"), default="auto", help="the picture of a step (default auto)")
    flags = parser.add_argument_group("launch flags")
    flags.add_argument(
        "--emit", choices=("megatron", "torchtitan"), help="print this framework's launch script or recipe, and nothing else"
    )
    flags.add_argument("--from-megatron", metavar="FILE", help="the job and the plan of a launch script of Megatron-LM, instead of options")
    output.add_argument("--json", action="store_true", help="print JSON and nothing else")
    output.add_argument("--csv", action="store_true", help="print the plans found, one a line, and nothing else")


def add_search_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the search, where no part of the plan is given; or --search, and what is given stays")
    group.add_argument("--search", action="store_true", help="find the fastest of all legal plans")
    group.add_argument("--top", type=int, metavar="N", help="plans to show (default 10)")
    group.add_argument("--fix", action="append", default=[], metavar="NAME=VALUE", help="a part of the plan that is given, as tp=8")
    group.add_argument("--max-memory", metavar="SIZE", help="that a GPU may hold, as 70GiB (default: what it has)")
    change = "a field of hardware, job or model and what becomes of it, as bandwidth_across*2"
    group.add_argument("--what-if", action="append", default=[], metavar="CHANGE", help=change)


def run(arguments: argparse.Namespace) -> int:
    if not 0 < arguments.tokens < float("inf"):
        raise UserError(f"--tokens {arguments.tokens:g} cannot be trained on; give a number above 0.")
    if arguments.json and arguments.csv:
        raise UserError("--json and --csv are two ways to print the same: choose one.")
    return run_search(arguments) if searches(arguments) else run_one(arguments)


def usual_plan() -> dict[str, Any]:
    """The options of the plan with their defaults."""
    parser = argparse.ArgumentParser()
    add_plan_options(parser)
    return vars(parser.parse_args([]))


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the plan that were given."""
    return {name: value for name in usual_plan() if (value := getattr(arguments, name)) is not None}


def usual(arguments: argparse.Namespace) -> argparse.Namespace:
    """The options, with the defaults of what was not given."""
    return argparse.Namespace(**vars(arguments) | usual_plan() | given(arguments))


def searches(arguments: argparse.Namespace) -> bool:
    asked = arguments.search or arguments.top is not None or arguments.fix or arguments.max_memory or arguments.csv
    return bool(asked) or not (given(arguments) or arguments.from_megatron)


# -------------------------------------------------------------------------------------------------------------- searched


def run_search(arguments: argparse.Namespace) -> int:
    cluster, beside = asked_for(arguments)
    found = searched(cluster, arguments, beside)
    changed = {change: searched(what_if(cluster, change), arguments).best for change in arguments.what_if}
    launches = launch_of(arguments, found) if arguments.emit else {}
    if arguments.json:
        changes = {"what_if": what_if_json(changed)} if changed else {}
        print(json.dumps(as_json(found, arguments.tokens) | changes | launches, indent=2, allow_nan=False))
    elif arguments.csv:
        print(as_csv(found.answers), end="")
    elif arguments.emit:
        print(launches["launch"], end="")
    else:
        show_search(found, changed)
    return 0


def asked_for(arguments: argparse.Namespace) -> tuple[Cluster, list[Plan]]:
    """The job to search for, and the plan that a launch script has already."""
    if arguments.from_megatron:
        read = described(usual(arguments))
        return Cluster(read.job, int(read.plan.gpus)), [read.plan]
    job = job_from(arguments)
    if arguments.emit == "torchtitan" and not arguments.software:
        job = replace(job, stack=find_stack("torchtitan"))
    return Cluster(job, arguments.gpus), []


def searched(cluster: Cluster, arguments: argparse.Namespace, beside: Sequence[Plan] = ()) -> Found:
    memory = parse_quantity(arguments.max_memory, "bytes", "--max-memory") if arguments.max_memory else None
    top = 10 if arguments.top is None else arguments.top
    if top < 1:
        raise UserError(f"--top is {top}; at least 1 plan can be shown.")
    return search(cluster.job, cluster.gpus, fixed(arguments), max_memory=memory, top=top, also=beside)


def fixed(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the search has to keep: what the framework has, plan options, and --fix."""
    asked = {} if arguments.from_megatron else given(arguments)
    for name in asked:
        if name not in FIXABLE:
            raise UserError(f"--{name.replace('_', '-')} is nothing to search with: leave it out, or give the whole plan without --search.")
    return CAN_LAUNCH.get(arguments.emit, {}) | asked | dict(parsed(words) for words in arguments.fix)


def launch_of(arguments: argparse.Namespace, found: Found) -> dict[str, str]:
    """The launch script of the best plan that the framework can run. Raises UserError, for the first one, where it can run none."""
    reasons = []
    for each in found.answers:
        try:
            return launch(arguments.emit, each)
        except UserError as reason:
            reasons.append(reason)
    raise reasons[0]


def show_search(found: Found, changed: dict[str, Answer]) -> None:
    console, width = plain_console()
    job, title = found.job, found.job.shape.name
    billions = job.shape.parameters().total / 1e9
    words = f"{billions:.4g} billion parameters on {count(found.gpus, 'GPU')} ({job.hardware.name}), {job.dtype}, {job.stack.name}."
    console.print(prose(f"{title}  {words} Batch {job.global_batch} x {job.sequence}.", width, bold=title), end="\n\n")
    for table in (ranking(found.answers, width), rejected(found, width)):
        console.print(table)
        console.print()
    console.print(prose(certainty(found), width))
    console.print(prose(f"The first takes {si(found.best.seconds, 's')} {found.best.error_bar.sentence}", width))
    show_changes(console, found.best, changed)


# ------------------------------------------------------------------------------------------------------------- what if


def show_changes(console: Console, before: Answer, changed: dict[str, Answer]) -> None:
    if changed:
        console.print()
        rows = [("as it is", si(before.seconds, "s"), "-", words_of(before.plan))]
        rows += [
            (change, si(now.seconds, "s"), f"{now.seconds / before.seconds - 1:+.1%}", words_of(now.plan))
            for change, now in changed.items()
        ]
        console.print(with_words_last(quiet_table(("what if", "step", "change", "plan"), rows, min(console.width, WIDTH))))


def what_if_json(changed: dict[str, Answer]) -> list[dict[str, Any]]:
    return [{"change": change} | now.as_dict() for change, now in changed.items()]


# ------------------------------------------------------------------------------------------------------------- one plan


def run_one(arguments: argparse.Namespace) -> int:
    asked = described(usual(arguments))
    found = answer(asked.job, asked.plan)
    changed = dict(same_plan(arguments, found))
    beside, sentences = comparison(found) if arguments.from_megatron and not arguments.emit else ({}, [])
    if arguments.json:
        changes = {"what_if": what_if_json(changed)} if changed else {}
        told = {"days": found.days(arguments.tokens), "tokens": arguments.tokens, "notes": asked.notes} | beside
        print(json.dumps(found.as_dict() | told | changes | launch(arguments.emit, found), indent=2, allow_nan=False))
        return 0
    if arguments.emit:
        print(launch(arguments.emit, found)["launch"], end="")
        return 0
    console, _ = plain_console()
    show(console, found, arguments, [*asked.notes, *sentences])
    show_changes(console, found, changed)
    return 0


def same_plan(arguments: argparse.Namespace, found: Answer) -> Iterator[tuple[str, Answer]]:
    """The same degrees after every change; more GPUs are more data parallelism."""
    plan = found.plan
    for change in arguments.what_if:
        cluster = what_if(Cluster(found.job, int(plan.gpus)), change)
        others = plan.tp * plan.pp * plan.cp
        if cluster.gpus % others:
            raise UserError(f"--what-if {change}: {cluster.gpus} GPUs are no multiple of tp*pp*cp = {others}; leave these out to search.")
        yield change, answer(cluster.job, replace(plan, dp=cluster.gpus // others))


def show(console: Console, found: Answer, arguments: argparse.Namespace, notes: Sequence[str] = ()) -> None:
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
        console.print(Timelines([timeline_of(found.job, found.plan)]))


def headline(found: Answer) -> str:
    """The job and the plan, what was derived included."""
    job, plan, microbatches = found.job, found.plan, int(found.plan.microbatches(found.job))
    billions, gpus = job.shape.parameters().total / 1e9, count(int(plan.gpus), "GPU")
    parts = f"{microbatches} microbatch{'es' * (microbatches != 1)} of {plan.micro_batch}"
    dtype = job.stack.dtype if job.stack.executed else job.dtype
    words = ", ".join([*layout(plan), *besides(job, plan)])
    return (
        f"{billions:.4g} billion parameters on {gpus} ({job.hardware.name}), {dtype}, {job.stack.name}. {words}. "
        f"Batch {job.global_batch} x {job.sequence}: {parts} for each of {count(plan.dp, 'data-parallel rank')}."
    )


def times(found: Answer, width: int) -> Table:
    parts = sorted(found.step.breakdown.items(), key=lambda part: -part[1])
    rows = [(WORDS[kind], si(float(part), "s"), f"{part / found.seconds:.1%}") for kind, part in parts if part > NEGLIGIBLE * found.seconds]
    return quiet_table(("where the time goes", "seconds", "share"), [("step", si(found.seconds, "s"), ""), *rows], width)


def memory(found: Answer, width: int) -> Table:
    ranks = some(len(found.memory))
    rows = [[f"{rank}", *(si(float(part), "B") for part in (found.memory[rank].total, *held(found, rank)))] for rank in ranks]
    return quiet_table(("pipeline rank", "memory", *KINDS), rows, width)


def held(found: Answer, rank: int) -> list[float]:
    return [getattr(found.memory[rank], kind) for kind in KINDS]


def sentences(found: Answer, tokens: float) -> list[str]:
    """What the tables do not say."""
    room, has = found.missing_bytes, si(found.job.hardware.memory_bytes, "B")
    fits = (
        f"It does not fit: the fullest GPU has {has} and needs {si(room, 'B')} more."
        if room > 0
        else f"It fits: {si(-room, 'B')} of {has} are left."
    )
    kind, lost = bound(found)
    return [
        f"A step takes {si(found.seconds, 's')} {found.error_bar.sentence}",
        f"{found.tokens_per_second_per_gpu:,.0f} tokens/s and {found.flops_per_second_per_gpu / 1e12:.4g} TFLOP/s per GPU; "
        f"{tokens:.3g} tokens take {found.days(tokens):.3g} days.",
        f"MFU {found.mfu:.1%}: {DEFINITIONS['mfu']}. HFU {found.hfu:.1%}: {DEFINITIONS['hfu']}.",
        f"Beside compute, {WORDS[kind]} takes most: {lost:.1%} of the step. {fits}",
        *([FOLDED.format(plan=found.plan)] if is_folded(found.plan) else []),
    ]
