"""What the guides of the frameworks say about parallelism, walked for this job, and how much that leaves on
the table.

Idea   Their rules are followed step by step, with this job's numbers at every branch; beside their advice
       stands the best plan that search finds among all legal ones.

  ndparallel advise --model llama-3-70b --gpus 512 --global-batch 512 --sequence 8192
"""

import argparse
from collections.abc import Iterator

from rich.console import Console

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.words import compare_durations, listed
from ndparallel.launch_flags.frameworks import own_refusal
from ndparallel.launch_flags.options import job_words
from ndparallel.planner.describe import node_sentences, room_words, shared_ports_named
from ndparallel.planner.job import HEADROOM
from ndparallel.planner.option_groups import add_job_options
from ndparallel.planner.options import job_from, overlapped, with_defaults
from ndparallel.planner.plan_name import name_of, plan_option
from ndparallel.planner.prediction import Prediction
from ndparallel.planner.state_options import add_state_options
from ndparallel.results.printing import plain_console, print_json, print_paragraphs, prose
from ndparallel.results.progress import counted, progress
from ndparallel.results.tables import quiet_table
from ndparallel.search.advice import Advice, advise
from ndparallel.search.guides import GUIDES
from ndparallel.search.kinds import margin
from ndparallel.search.layouts import LAYOUTS, LayoutCompared, compare_layout
from ndparallel.search.tables import certainty, effort_words, memory_words, ranking, tighter_sentences

HEADROOM_WORDS = f"All plans leave {HEADROOM:.0%} of the memory free, as those of `ndparallel plan` do."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_options(parser)
    add_state_options(parser)
    output = parser.add_argument_group("the answer")
    output.add_argument(
        "--published", action="store_true", help="instead of a job: layouts that were run in production"
    )
    output.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    if arguments.published:
        if job_words(arguments):
            raise UserError("--published is of jobs that were run: leave out the options of another job.")
        return show_published(arguments.json)
    typed, arguments = arguments, with_defaults(arguments)
    with progress() as announce:
        announce(effort_words(arguments.gpus))
        advice = advise(job_from(arguments), arguments.gpus)
    if arguments.json:
        print_json(advice.as_dict())
    else:
        show(advice, job_options(typed, advice))
    return 0


def job_options(typed: argparse.Namespace, advice: Advice) -> str:
    """The options of the job, with what the guides switched on."""
    stack = advice.found.job.stack
    switched = {"overlap": overlapped(stack)} if stack.hides_dispatch else {}
    return job_words(argparse.Namespace(**vars(typed) | switched))


def show(advice: Advice, words: str) -> None:
    console, width = plain_console()
    questions = [(each.question, each.guide.name, each.follows) for each in advice.branches]
    columns = ("question", "guide", "its answer")
    console.print(quiet_table(columns, questions, width, words=columns))
    console.print()
    if advice.advised:
        console.print(ranking(advice.ways, width, "their plan"))
        show_command(console, words, advice.advised)
    console.print(ranking([advice.found.best], width, "the best plan"))
    show_command(console, words, advice.found.best)
    console.print(prose(" ".join([conclusion(advice), *doubts(advice)]), width))
    console.print(prose(f"{certainty(advice.found)} {HEADROOM_WORDS}", width))
    best = advice.found.best
    print_paragraphs(
        console, [*tighter_sentences(advice.found), *node_sentences(best), *shared_ports_named(best)], width
    )
    console.print()
    for guide in GUIDES:
        if guide in [branch.guide for branch in advice.branches]:
            console.print(prose(f"{guide.name}: {guide.source}.", width))


def show_command(console: Console, words: str, found: Prediction) -> None:
    console.print(f"\nndparallel plan{words} {plan_option(found.plan)}\n", soft_wrap=True)


def conclusion(advice: Advice) -> str:
    if advice.longer_than_best is None:
        return "The guides end in no plan that is legal and fits; the search does."
    if advice.longer_than_best < 0.0005:
        return "The search finds no plan that is faster than the guides'."
    best = advice.found.best
    alike = advice.longer_than_best <= margin(best.job, best.plan)
    return (
        f"Against the best, the guides' plan {compare_durations(1 + advice.longer_than_best, 1)}"
        f"{', which predictions cannot tell apart' * alike}."
    )


def doubts(advice: Advice) -> list[str]:
    """Say which of both plans may not fit after all, and which its framework cannot launch."""
    plans = {"their plan": advice.advised, "the best plan": advice.found.best}
    both = {name: found for name, found in plans.items() if found}
    tight = [room_words(found, name.capitalize()) for name, found in both.items() if found.is_tight]
    refused: dict[str, list[str]] = {}
    for name, found in both.items():
        refused.setdefault(own_refusal(found.job, found.plan), []).append(name)
    return [*tight, *(refused_words(names, why) for why, names in refused.items() if why)]


def refused_words(names: list[str], why: str) -> str:
    their = "their" if names[1:] else "its"
    return f"{listed(names).capitalize()} cannot be launched by {their} framework: {why}"


def show_published(json: bool) -> int:
    """Print what was run in production beside what is advised and found, all predicted."""
    with progress() as announce:
        found = [compare_layout(one) for one in counted(LAYOUTS, announce, lambda one: one.model)]
    if json:
        print_json([each.as_dict() for each in found])
        return 0
    console, width = plain_console()
    rows = [row for each in found for row in published_rows(each)]
    columns = ("", "step", "to the run", "memory", "plan")
    console.print(quiet_table(columns, rows, console.width, words=("plan",)))  # names are long
    console.print(prose("*: with --overlap ep, all-to-alls behind another microbatch.", width))
    console.print()
    for each in found:
        console.print(prose(f"{titled(each)}: {each.published.source}.", width))
    return 0


def titled(one: LayoutCompared) -> str:
    thousands = one.published.sequence // 1024
    return f"{one.published.model} at {thousands}k, {int(one.run.plan.gpus):,} {one.published.hardware}"


def published_rows(one: LayoutCompared) -> Iterator[tuple[str, ...]]:
    yield "", "", "", "", titled(one)
    for way, found in one.rows.items():
        if found:
            ratio = "" if found is one.run else f"{one.difference(way):+.1%}"
            marked = way + "*" * found.job.stack.hides_dispatch
            yield marked, si(found.seconds, "s"), ratio, memory_words(found), name_of(found.plan)
        else:
            yield way, "-", "-", "-", "none that fits"
