"""`ndparallel plan` where the plan is to be found: the best plans of a job.

Idea   What was given of the plan stays, and the rest is searched.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.quantities import parse_quantity
from ndparallel.launch_flags.frameworks import FRAMEWORKS
from ndparallel.launch_flags.options import described, launch, priced, script_given
from ndparallel.planner.job import Plan
from ndparallel.planner.options import job_from
from ndparallel.results.printing import counted, print_json, progress
from ndparallel.search.search import Found, search
from ndparallel.search.space import FIXABLE, Fixed, parsed
from ndparallel.search.tables import as_csv, as_json, effort_words, show_search, what_if_json
from ndparallel.search.what_if import Variant, what_if

MOST_TOP = 1000


def run_search(arguments: argparse.Namespace, given: Mapping[str, Any]) -> int:
    """Print the best plans; `given` are the options of the plan that were given."""
    cluster, beside = asked_for(arguments)
    wanted = fixed(arguments, given)
    with progress() as announce:
        announce(effort_words(cluster.gpus))
        found = searched(cluster, arguments, wanted, beside)
        changed = {
            change: searched(what_if(cluster, change), arguments, wanted).best
            for change in counted(arguments.what_if, announce, "a search with {}".format)
        }
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


def searched(
    cluster: Variant, arguments: argparse.Namespace, wanted: Fixed, beside: Sequence[Plan] = ()
) -> Found:
    memory = (
        parse_quantity(arguments.max_memory, "bytes", "--max-memory")
        if arguments.max_memory is not None
        else None
    )
    top = 10 if arguments.top is None else arguments.top
    if not 1 <= top <= MOST_TOP:
        raise UserError(
            f"--top is {top}; choose 1 to {MOST_TOP:,}: each plan that is shown is timed exactly."
        )
    return search(cluster.job, cluster.gpus, wanted, max_memory=memory, top=top, also=beside)


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


# ------------------------------------------------------------------------------------------ what is searched


def asked_for(arguments: argparse.Namespace) -> tuple[Variant, list[Plan]]:
    """The job to search for, and the plan that a launch script has already."""
    if script_given(arguments):
        read = described(arguments)
        return Variant(read.job, int(read.plan.gpus)), [read.plan]
    return Variant(priced(arguments, job_from(arguments)), arguments.gpus), []


def fixed(arguments: argparse.Namespace, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the plan that the search must not change: from --emit's framework, the plan options given,
    and --fix. Raises UserError for an option that is no such field."""
    asked = {} if script_given(arguments) else given
    for name in asked:
        if name not in FIXABLE:
            raise UserError(
                f"--{name.replace('_', '-')} is nothing to search with: leave it out, or give the whole plan "
                "without --search."
            )
    can_launch = FRAMEWORKS[arguments.emit].can_launch() if arguments.emit else {}
    return {**can_launch, **asked} | dict(parsed(words) for words in arguments.fix)
