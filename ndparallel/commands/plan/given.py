"""`ndparallel plan` where the plan is given: its step, its memory, and how sure that is."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from gpu import si
from ndparallel.base.words import WIDTH
from ndparallel.commands.plan.idle_options import idle_options
from ndparallel.commands.plan.measured import differences_from, show_differences
from ndparallel.commands.shared_ports import sharing_of, told_shared_ports
from ndparallel.drawing.terminal.timelines import Timelines
from ndparallel.launch_flags.frameworks import own_refusal
from ndparallel.launch_flags.options import described, launch_script, script_given
from ndparallel.launch_flags.untaken_options import untaken_hints
from ndparallel.planner.describe import headline, parts, sentences
from ndparallel.planner.difference import Difference
from ndparallel.planner.memory.total import STAGE_MEMORY_KINDS
from ndparallel.planner.picture import shown_ranks, timeline_of
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.results.printing import plain_console, print_json, print_paragraphs, prose
from ndparallel.results.progress import progress
from ndparallel.results.tables import quiet_table

Predictions = dict[str, Prediction]  # by what was changed


def run_given(arguments: argparse.Namespace) -> int:
    asked = described(arguments)
    with progress() as announce:
        announce(f"one plan, on a batch of {asked.job.global_batch:,} sequences")
        found = predict(asked.job, asked.plan)
        changed = after_changes(arguments.what_if, found)
    idle = idle_options(arguments, asked, found)
    notes = [*asked.notes, *idle]
    better, compared = better_than_script(arguments, found)
    beside = BesideThePlan(found, changed, differences_from(arguments, found), remedies_for(arguments, found))
    if arguments.json:
        training = found.training(arguments.tokens, arguments.price_per_gpu_hour) | {"notes": notes}
        told = found.as_dict() | training | better | beside.as_dict()
        print_json(told | launch_script(arguments.emit, found))
    elif arguments.emit:
        print(launch_script(arguments.emit, found)["launch"], end="")
        for sentence in idle:
            print(f"careful: {sentence}", file=sys.stderr)
    else:
        console, _ = plain_console()
        show(console, found, arguments, [*notes, *compared, *not_launched(found), *untaken_hints(found)])
        beside.show(console, bool(script_given(arguments)))
    return 0


@dataclass(frozen=True)
class BesideThePlan:
    """What is told beside a plan: predictions after changes, differences from what was measured, and what
    would make it fit."""

    found: Prediction
    changed: Predictions
    measured: list[Difference]
    remedies: list[Any]

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON, and what shared ports add."""
        told: dict[str, Any] = sharing_of(self.found)
        if self.changed:
            told["what_if"] = [{"change": change} | now.as_dict() for change, now in self.changed.items()]
        if self.measured:
            told["measured"] = {each.quantity: each.as_dict() for each in self.measured}
        if self.found.missing_bytes > 0:
            told["remedies"] = [each.as_dict() for each in self.remedies]
        return told

    def show(self, console: Console, of_a_script: bool) -> None:
        if self.found.missing_bytes > 0:
            from ndparallel.commands.plan.remedies import show_remedies

            console.print()
            show_remedies(console, self.remedies, of_a_script)
        if self.measured:
            show_differences(console, self.found, self.measured)
        if self.changed:
            from ndparallel.search.tables import show_changes

            show_changes(console, self.found, self.changed)


def not_launched(found: Prediction) -> list[str]:
    """What is said of a plan that its own framework cannot run."""
    refusal = own_refusal(found.job, found.plan)
    return [f"Its framework cannot launch this plan: {refusal}"] if refusal else []


def remedies_for(arguments: argparse.Namespace, found: Prediction) -> list[Any]:
    """What would make the plan fit, where it does not; nothing beside an emitted script."""
    if found.missing_bytes <= 0 or arguments.emit or found.job.stack.executed:
        return []
    from ndparallel.commands.plan.remedies import remedies_typed

    with progress() as announce:
        announce("what would make it fit")
        return remedies_typed(arguments, found)


def better_than_script(arguments: argparse.Namespace, found: Prediction) -> tuple[dict[str, Any], list[str]]:
    """What would be better than the plan of a launch script, for JSON and in sentences; nothing beside an
    emitted script."""
    script = script_given(arguments)
    if not script or arguments.emit:
        return {}, []
    from ndparallel.commands.plan.better_plan import comparison

    return comparison(found, script[0])


def after_changes(changes: Sequence[str], found: Prediction) -> Predictions:
    """What is predicted of the same degrees after every change."""
    if not changes:
        return {}
    from ndparallel.search.what_if import changed_plan, naming

    predictions = {}
    for change in changes:
        job, plan = changed_plan(found.job, found.plan, change)
        with naming(change):
            predictions[change] = predict(job, plan)
    return predictions


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
    said = sentences(found, arguments.tokens, arguments.price_per_gpu_hour)
    print_paragraphs(console, [*said, *notes], width)
    print_paragraphs(console, told_shared_ports(found), width)
    if arguments.timeline != "none":
        console.print()
        console.print(Timelines([timeline_of(found)]))


def times(found: Prediction, width: int) -> Table:
    rows = [(part, si(seconds, "s"), f"{seconds / found.seconds:.1%}") for part, seconds in parts(found)]
    whose = f" of pipeline rank {found.step.rank}" if found.plan.pp > 1 else ""
    return quiet_table(
        (f"where the time{whose} goes", "seconds", "share"),
        [("step", si(found.seconds, "s"), ""), *rows],
        width,
    )


def memory(found: Prediction, width: int) -> Table:
    ranks = shown_ranks(len(found.memory), found.step.rank)
    rows = [
        [f"{rank}", *(si(float(part), "B") for part in (found.memory[rank].total, *held(found, rank)))]
        for rank in ranks
    ]
    return quiet_table(("pipeline rank", "memory", *STAGE_MEMORY_KINDS), rows, width)


def held(found: Prediction, rank: int) -> list[float]:
    return [getattr(found.memory[rank], kind) for kind in STAGE_MEMORY_KINDS]
