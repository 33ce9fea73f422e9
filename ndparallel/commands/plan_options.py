"""The options of a search, and what they leave to be searched.

Idea   What was given of the plan can be told from what was not, because its options have no defaults here;
       where nothing was given, or a search was asked for, what was given stays and the rest is searched.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.launch_flags.frameworks import FRAMEWORKS
from ndparallel.launch_flags.options import described, priced, script_given
from ndparallel.planner.job import Plan
from ndparallel.planner.options import add_plan_options, job_from
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.search.space import FIXABLE, parsed
from ndparallel.search.what_if import Variant, what_if


def add_search_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "the search, where no part of the plan is given; or --search, and what is given stays"
    )
    group.add_argument("--search", action="store_true", help="find the fastest of all legal plans")
    group.add_argument("--top", type=int, metavar="N", help="plans to show (default 10)")
    group.add_argument(
        "--fix",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a part of the plan that is given, as tp=8",
    )
    group.add_argument(
        "--max-memory", metavar="SIZE", help="that a GPU may hold, as 70GiB (default: what it has)"
    )
    change = "a field of hardware, job or model and what becomes of it, as bandwidth_across*2"
    group.add_argument("--what-if", action="append", default=[], metavar="CHANGE", help=change)


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
    asked = (
        arguments.search
        or arguments.top is not None
        or arguments.fix
        or arguments.max_memory is not None
        or arguments.csv
    )
    return bool(asked) or not (given(arguments) or script_given(arguments))


def asked_for(arguments: argparse.Namespace) -> tuple[Variant, list[Plan]]:
    """The job to search for, and the plan that a launch script has already."""
    if script_given(arguments):
        read = described(usual(arguments))
        return Variant(read.job, int(read.plan.gpus)), [read.plan]
    return Variant(priced(arguments, job_from(arguments)), arguments.gpus), []


def fixed(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the search has to keep: what the framework has, plan options, and --fix."""
    asked = {} if script_given(arguments) else given(arguments)
    for name in asked:
        if name not in FIXABLE:
            raise UserError(
                f"--{name.replace('_', '-')} is nothing to search with: leave it out, or give the whole plan "
                "without --search."
            )
    can_launch = FRAMEWORKS[arguments.emit].can_launch if arguments.emit else {}
    return {**can_launch} | asked | dict(parsed(words) for words in arguments.fix)


def same_plan(arguments: argparse.Namespace, found: Prediction) -> Iterator[tuple[str, Prediction]]:
    """The same degrees after every change; more GPUs are more data parallelism."""
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
