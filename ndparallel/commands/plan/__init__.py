"""What a training step of a large model costs: how long, what bounds it, whether it fits, and how sure that
is.

Idea   A layer's operations are priced on the hardware, layers make stages, the schedule's own actions are
       timed, and gradients travel beside them: the model of the lessons, at any size (tests hold the two
       together). Where no part of the plan is given, all legal plans are compared.
Limit  docs/planner.md says what is assumed, and docs/validation.md how far measured runs are from it.

  ndparallel plan --model llama-3-70b --gpus 512 --global-batch 512 --sequence 8192  # search
  ndparallel plan --model llama-3-70b --gpus 512 --global-batch 512 --tp 8 --pp 4 --zero 1
  ndparallel plan --model config.json --gpus 64 --zero 3 --global-batch 256 --software torchtitan
"""

import argparse
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.words import listed, option_of
from ndparallel.launch_flags.options import add_launch_options, job_words, script_given
from ndparallel.planner.job import HEADROOM
from ndparallel.planner.option_groups import add_job_options, add_plan_options
from ndparallel.planner.options import plan_options_given, with_defaults
from ndparallel.planner.state_options import add_state_options

QUESTIONS = ("why", "what_if", "measured", "measured_memory", "price_per_gpu_hour")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_options(parser)
    add_state_options(parser)
    add_plan_options(parser)
    add_search_options(parser)
    add_questions(parser)
    answer = parser.add_argument_group("the answer")
    add_measures(answer)
    add_launch_options(parser)
    answer.add_argument("--json", action="store_true", help="print JSON and nothing else")
    answer.add_argument(
        "--csv", action="store_true", help="print the plans found, one a line, and nothing else"
    )


def add_measures(group: argparse._ArgumentGroup) -> None:
    """What is told of a step beside its seconds, and what it is held against."""
    group.add_argument(
        "--tokens",
        type=float,
        default=1e12,
        metavar="N",
        help="tokens to train on: how many days? (default 1e12)",
    )
    group.add_argument(
        "--price-per-gpu-hour", type=float, metavar="X", help="what do these tokens cost, in any currency?"
    )
    group.add_argument(
        "--timeline", choices=("auto", "none"), default="auto", help="the picture of a step (default auto)"
    )
    group.add_argument(
        "--measured", metavar="TIME", help="a measured step, as 12.3s: what would explain the difference?"
    )
    group.add_argument(
        "--measured-memory", metavar="SIZE", help="measured on the fullest GPU, as 71GB: the same"
    )


def add_search_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "the search, where no part of the plan is given; or --search, and what is given stays"
    )
    group.add_argument("--search", action="store_true", help="find the fastest of all legal plans")
    group.add_argument("--top", type=int, metavar="N", help="show the N fastest plans, not one of each kind")
    group.add_argument(
        "--fix",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a part of the plan that is given, as tp=8",
    )
    group.add_argument(
        "--headroom",
        type=float,
        metavar="N",
        help=f"share of the memory to leave free, in percent (default {100 * HEADROOM:g})",
    )
    group.add_argument("--max-memory", metavar="SIZE", help="the most that a GPU may hold, as 70GiB")
    group.add_argument(
        "--any", action="store_true", help="plans that no framework can launch, too: for research"
    )


def add_questions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("questions about it")
    group.add_argument(
        "--why",
        action="append",
        default=[],
        metavar="PLAN",
        help="why not this plan, by its name; of degrees alone, as TP8xPP4, the best",
    )
    change = (
        "a field of hardware, job or model and what becomes of it, as bandwidth_across*2; together: "
        "gpus*2,global_batch*2"
    )
    group.add_argument("--what-if", action="append", default=[], metavar="CHANGE", help=change)


def run(arguments: argparse.Namespace) -> int:
    if not 0 < arguments.tokens < float("inf"):
        raise UserError(f"--tokens {arguments.tokens:g} cannot be trained on; give a number above 0.")
    if (price := arguments.price_per_gpu_hour) is not None and not 0 <= price < float("inf"):
        raise UserError(f"--price-per-gpu-hour {price:g} is no price; give a number from 0 on.")
    refuse_contradictions(arguments)
    given, words = plan_options_given(arguments), job_words(arguments)
    arguments = with_defaults(arguments)
    if searches(arguments, given):
        refuse_measured(arguments)
        from ndparallel.commands.plan.search import run_search

        return run_search(arguments, given, words)
    from ndparallel.commands.plan.given import run_given

    return run_given(arguments)


def refuse_contradictions(arguments: argparse.Namespace) -> None:
    """Raise UserError for options of which one would be ignored."""
    if arguments.json and arguments.csv:
        raise UserError("--json and --csv are two ways to print the same: choose one.")
    if arguments.csv and arguments.emit:
        raise UserError("--csv prints plans, and --emit a launch script: choose one.")
    refuse_unanswered(arguments)
    asked = {"--emit": arguments.emit, "--framework": arguments.framework, "--any": arguments.any}
    given = {option: value for option, value in asked.items() if value}
    if len({*given.values()}) > 1:
        raise UserError(f"{' and '.join(given)} name other frameworks: choose one.")


def refuse_unanswered(arguments: argparse.Namespace) -> None:
    """Raise UserError for questions beside what prints plans, or a launch script, and nothing else."""
    prints = {"--csv": "plans" * arguments.csv, "--emit": "a launch script" * bool(arguments.emit)}
    asked = [option_of(name) for name in QUESTIONS if getattr(arguments, name) not in (None, [])]
    for option, what in prints.items():
        if what and asked and not arguments.json:
            raise UserError(
                f"{option} prints {what}, and no answer to {listed(asked)}: leave one or the other out."
            )


def refuse_measured(arguments: argparse.Namespace) -> None:
    """Raise UserError for a measurement without its plan."""
    for name in ("measured", "measured_memory"):
        if getattr(arguments, name) is not None:
            raise UserError(f"{option_of(name)} is of one plan: give that too, as --tp 8 --pp 4 --zero 1.")


def searches(arguments: argparse.Namespace, given: dict[str, Any]) -> bool:
    """Whether plans are to be found: something of a search was asked for, or no part of a plan was given."""
    limits = (arguments.top, arguments.max_memory, arguments.headroom)
    asked = arguments.search or arguments.fix or arguments.csv or arguments.any or arguments.why
    return bool(asked) or any(limit is not None for limit in limits) or not (given or script_given(arguments))
