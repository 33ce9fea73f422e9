"""`ndparallel plan` where the plan is given: its step, its memory, and how sure that is."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.words import WIDTH, count
from ndparallel.drawing.timeline import Timelines
from ndparallel.launch_flags.options import described, launch, script_given
from ndparallel.planner.describe import bound, layout_words, shared_ports, unusual_words
from ndparallel.planner.imbalance import imbalance_sentences
from ndparallel.planner.layers.flops import DEFINITIONS
from ndparallel.planner.legality import is_folded
from ndparallel.planner.memory.total import KINDS
from ndparallel.planner.picture import some, timeline_of
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.results.printing import plain_console, print_json, progress, prose
from ndparallel.results.report import quiet_table

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


def run_one(arguments: argparse.Namespace) -> int:
    asked = described(arguments)
    with progress() as announce:
        announce(f"one plan, on a batch of {asked.job.global_batch:,} sequences")
        found = predict(asked.job, asked.plan)
        changed = dict(same_plan(arguments, found)) if arguments.what_if else {}
    better, sentences = compared(arguments, found)
    if arguments.json:
        training = {"days": found.days(arguments.tokens), "tokens": arguments.tokens, "notes": asked.notes}
        what_if = [{"change": change} | now.as_dict() for change, now in changed.items()]
        changes = {"what_if": what_if} if changed else {}
        print_json(found.as_dict() | training | better | changes | launch(arguments.emit, found))
        return 0
    if arguments.emit:
        print(launch(arguments.emit, found)["launch"], end="")
        return 0
    console, _ = plain_console()
    show(console, found, arguments, [*asked.notes, *sentences])
    if changed:
        from ndparallel.search.tables import show_changes

        show_changes(console, found, changed)
    return 0


def compared(arguments: argparse.Namespace, found: Prediction) -> tuple[dict[str, Any], list[str]]:
    """What would be better than the plan of a launch script, for JSON and in sentences; nothing beside an
    emitted script."""
    script = script_given(arguments)
    if not script or arguments.emit:
        return {}, []
    from ndparallel.commands.plan_better import comparison

    return comparison(found, script[0])


def same_plan(arguments: argparse.Namespace, found: Prediction) -> Iterator[tuple[str, Prediction]]:
    """The same degrees after every change; more GPUs are more data parallelism."""
    from ndparallel.search.what_if import Variant, what_if

    plan = found.plan
    for change in arguments.what_if:
        cluster = what_if(Variant(found.job, int(plan.gpus)), change)
        others = plan.tp * plan.pp * plan.cp
        if cluster.gpus % others:
            raise UserError(
                f"--what-if {change}: {cluster.gpus} GPUs are no multiple of tp*pp*cp = {others}; leave "
                "these out to search."
            )
        yield change, predict(cluster.job, replace(plan, dp=cluster.gpus // others))


# ---------------------------------------------------------------------------------------------------- printed


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
    words = ", ".join([*layout_words(plan), *unusual_words(job, plan)])
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
        *shared_ports(found),
        *([FOLDED.format(plan=found.plan)] if is_folded(found.plan) else []),
    ]
