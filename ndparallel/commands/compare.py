"""Run the best-known strategies of every lesson on one model, one batch and one kind of GPU, and say what won
and what bounds each.

Idea   One GPU runs first; everything else is held against it, in one table. On N GPUs a step cannot take less
       than the single GPU's / N. What it takes beyond that is lost to exactly three things: communication
       that a GPU waits for, bubble, and compute that more GPUs do not shorten (work that all repeat, the
       overhead of every kernel). The largest of the three is what bounds a strategy:
           efficiency + exposed / step + bubble / step + the rest / step = 1
Limit  Strategies run at their lesson's own settings; each lesson has more of them, and options of its own.
"""

import argparse

from ndparallel.lessons.comparison import closing, contrast, one_run, title
from ndparallel.lessons.options import add_common_options, disturbed_hardware_from
from ndparallel.lessons.registry import LESSONS, load
from ndparallel.lessons.scenarios import SCENARIOS, what_if
from ndparallel.results.outputs import check_outputs, refuse_outputs
from ndparallel.results.show import show, show_sweep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, gpus=None)
    parser.add_argument(
        "--what-if", action="store_true", help="instead: who wins on other networks, models and batches"
    )


def cases() -> list[str]:
    """Name the scenarios, and how many there are, for whoever waits for them."""
    return [f"{each.name} ({number} of {len(SCENARIOS)})" for number, each in enumerate(SCENARIOS, start=1)]


def run(arguments: argparse.Namespace) -> int:
    if arguments.what_if:
        refuse_outputs(arguments, "--what-if")
    check_outputs(arguments)
    hardware = disturbed_hardware_from(arguments)
    lessons = [load(name).named_for(arguments.gpus) if arguments.gpus else load(name) for name in LESSONS]
    if arguments.what_if:
        runs = [
            (each, one_run(arguments, lessons, each.job, each.hardware(hardware), case))
            for each, case in zip(SCENARIOS, cases())
        ]
        show_sweep(what_if(runs), arguments.json)
        return int(not all(run.report.equal() for _, run in runs))
    run = one_run(arguments, lessons, lambda job: job, hardware)
    show(title(lessons), run, arguments, contrast(run), closing)
    return int(not run.report.equal())
