"""`ndparallel plan` where the plan is to be found: the best plans of a job.

Idea   What was given of the plan stays, and the rest is searched. Where no plan fits, remedies.py says
       what would make one fit.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.quantities import parse_quantity
from ndparallel.base.words import option_of
from ndparallel.commands.plan.remedies import print_remedies
from ndparallel.launch_flags.frameworks import FRAMEWORKS, launched_by
from ndparallel.launch_flags.options import described, launch_script, priced, script_given
from ndparallel.launch_flags.untaken_options import untaken_hints
from ndparallel.planner.describe import node_sentences, shared_ports_named
from ndparallel.planner.job import Plan
from ndparallel.planner.options import job_from
from ndparallel.planner.plan_name import known_modules, plan_option
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.results.printing import plain_console, print_json, print_paragraphs, prose
from ndparallel.results.progress import counted, progress
from ndparallel.results.tables import quiet_table
from ndparallel.search.fixed import FIXABLE, Fixed, parsed
from ndparallel.search.search import Found, NoPlanFits, search, search_whole_too
from ndparallel.search.tables import (
    advice_sentences,
    as_csv,
    as_json,
    effort_words,
    show_changes,
    show_search,
    what_if_json,
)
from ndparallel.search.what_if import Variant, naming, what_if
from ndparallel.search.why import WhyNot, compare_with_recommended, difference_rows, sentences

MOST_TOP = 1000
SEARCHED_ANEW = (
    "Every change is searched anew. The plan is kept where predictions cannot tell it from the fastest; else "
    "it is the one to take then: the simplest of those."
)


def run_search(arguments: argparse.Namespace, given: Mapping[str, Any], words: str) -> int:
    """Print the best plans; where none fits, what would make one fit, and exit with 2 all the same. `given`
    are the options of the plan that were given, `words` those of the job."""
    try:
        print_best(arguments, given, words)
    except NoPlanFits as none:
        print_remedies(none, arguments)
        return 2
    return 0


def print_best(arguments: argparse.Namespace, given: Mapping[str, Any], words: str) -> None:
    """Print the best plans. Raises NoPlanFits."""
    cluster, beside = asked_for(arguments)
    wanted = fixed(arguments, given)
    with progress() as announce:
        announce(effort_words(cluster.gpus))
        way = search if arguments.etp else search_whole_too
        found = searched(cluster, arguments, wanted, beside, way)
        cluster = replace(cluster, job=found.job)
        changed = {
            change: searched_then(change, cluster, arguments, wanted, found.recommended.plan)
            for change in counted(arguments.what_if, announce, "a search with {}".format)
        }
    launches = launch_script(arguments.emit, found.recommended)
    why = [compare_with_recommended(found, name) for name in arguments.why]
    if arguments.json:
        changes = {"what_if": what_if_json(changed)} if changed else {}
        whys = {"why": [one.as_dict() for one in why]} if why else {}
        print_json(as_json(found, arguments.tokens, arguments.price_per_gpu_hour) | whys | changes | launches)
    elif arguments.csv:
        print(as_csv(found.answers), end="")
    elif arguments.emit:
        print(launches["launch"], end="")
    else:
        show(found, arguments, changed, why, words)


def show(
    found: Found,
    arguments: argparse.Namespace,
    changed: dict[str, Prediction],
    why: Sequence[WhyNot],
    words: str,
) -> None:
    show_search(found, arguments.top)
    console, width = plain_console()
    said = advice_sentences(found, arguments.tokens, arguments.price_per_gpu_hour, arguments.top)
    best = found.recommended
    sentences = [*said, *node_sentences(best), *shared_ports_named(best), *untaken_hints(best)]
    print_paragraphs(console, sentences, width)
    show_changes(console, found.recommended, changed)
    if changed:
        console.print(prose(SEARCHED_ANEW, width))
    for one in why:
        show_why(one)
    if not script_given(arguments):
        plan = f"ndparallel plan{words} {plan_option(found.recommended.plan)}"
        emits = "; with --emit NAME, its launch script" * bool(written_by(found))
        console.print(
            f"\nWhere its time goes{emits.replace('NAME', written_by(found))}:\n{plan}", soft_wrap=True
        )


def written_by(found: Found) -> str:
    """The framework that the recommended plan's launch script can be written for; "" where there is none."""
    by = launched_by(found.job, found.recommended.plan)
    return next((name for name in FRAMEWORKS if name in by and name in (found.space.frameworks or by)), "")


def show_why(why: WhyNot) -> None:
    console, width = plain_console()
    console.print()
    print_paragraphs(console, sentences(why), width)
    if why.other:
        heads = ("where the time goes", "recommended", "instead", "difference")
        console.print()
        console.print(quiet_table(heads, difference_rows(why), width))


def searched(
    cluster: Variant,
    arguments: argparse.Namespace,
    wanted: Fixed,
    beside: Sequence[Plan] = (),
    way: Callable[..., Found] = search,
) -> Found:
    top = 10 if arguments.top is None else arguments.top
    if not 1 <= top <= MOST_TOP:
        raise UserError(
            f"--top is {top}; choose 1 to {MOST_TOP:,}: each plan that is shown is timed exactly."
        )
    limits: dict[str, Any] = {"frameworks": frameworks_from(arguments), **memory_from(arguments)}
    return way(cluster.job, cluster.gpus, wanted, top=top, also=beside, kinds=True, tight=True, **limits)


def searched_then(
    change: str, cluster: Variant, arguments: argparse.Namespace, wanted: Fixed, before: Plan
) -> Prediction:
    """The plan to take after a change: the one before where it is no slower. Raises UserError where there is
    none then, whose remedies are other ones."""
    changed = what_if(cluster, change)
    same = changed.gpus == cluster.gpus and changed.job.stack == cluster.job.stack
    with naming(change):
        found = searched(changed, arguments, wanted, [before] * same)
    kept = any(one.plan == before for one in found.equals)
    return predict(changed.job, before) if kept else found.recommended


def memory_from(arguments: argparse.Namespace) -> dict[str, float]:
    """What a plan may hold. Raises UserError where that is asked for twice, or is no share."""
    if arguments.max_memory is not None and arguments.headroom is not None:
        raise UserError("--headroom and --max-memory both say what a plan may hold: choose one.")
    if arguments.max_memory is not None:
        return {"max_memory": parse_quantity(arguments.max_memory, "bytes", "--max-memory")}
    if arguments.headroom is None:
        return {}
    if not 0 <= arguments.headroom < 100:
        raise UserError(
            f"--headroom {arguments.headroom:g} is no share of the memory to leave free: give a percentage, "
            "from 0 to less than 100, as 8."
        )
    return {"headroom": arguments.headroom / 100}


def frameworks_from(arguments: argparse.Namespace) -> list[str] | None:
    """The frameworks of which one can launch the plans; None for those of the software."""
    asked = arguments.emit or arguments.framework
    return [] if arguments.any else [asked] if asked else None


# ------------------------------------------------------------------------------------------ what is searched


def asked_for(arguments: argparse.Namespace) -> tuple[Variant, list[Plan]]:
    """The job to search for, and the plan that a launch script has already."""
    if script_given(arguments):
        read = described(arguments)
        return Variant(read.job, int(read.plan.gpus)), [read.plan]
    return Variant(priced(arguments, job_from(arguments)), arguments.gpus), []


def fixed(arguments: argparse.Namespace, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the plan that the search must not change: the plan options given, and --fix. Raises UserError
    for an option that is no such field."""
    asked = {} if script_given(arguments) else given
    for name in asked:
        if name not in FIXABLE:
            raise UserError(
                f"{option_of(name)} is nothing to search with: leave it out, or give the whole plan "
                "without --search."
            )
    modules = {"recompute_modules": known_modules(named)} if (named := asked.get("recompute_modules")) else {}
    return {**asked, **modules} | dict(parsed(words) for words in arguments.fix)
