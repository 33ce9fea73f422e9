"""The command line of a lesson: from its options to the table that it prints.

Idea   All strategies train the same model on the same batch; the single GPU runs it first, and every
       strategy's loss and gradients are compared with its.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpu import Hardware
from ndparallel.base.errors import UserError, guarded, unknown
from ndparallel.base.options import Parser
from ndparallel.base.words import count
from ndparallel.engines.garbage import rare_garbage_collection
from ndparallel.engines.launch import RankError, check_ranks, join
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.options import add_common_options, disturbed_hardware_from, engine_from, job_from
from ndparallel.lessons.own import add_option, told, with_own
from ndparallel.lessons.runner import MOST_WITH_EVENTS, Entry, Reference, Runner, baseline, enter
from ndparallel.parallel.mesh import AXES, DEFAULT_ORDER
from ndparallel.results.measure import Measurement
from ndparallel.results.report import WEIGHT_TOLERANCE, Report
from ndparallel.results.run import Run
from ndparallel.training.gradient_check import tolerance_of
from ndparallel.training.job import Job


def run_lesson(
    lesson: Lesson,
    job: Job,
    hardware: Hardware,
    gpus: int,
    names: Sequence[str],
    engine: str,
    announce,
    contention: bool = False,
) -> Run:
    """Run the strategies of these names, or all after the single GPU where none is named."""
    if names:
        entries = named_entries(lesson, job, gpus, names)
    else:
        entries = [baseline(job)] * (lesson.gpus > 1) + all_entries(lesson, job, gpus)
    keep_going = not names and len(lesson.strategies) > 1
    return run_entries(lesson.name, entries, job, Runner(hardware, engine, announce, keep_going, contention))


def named_entries(lesson: Lesson, job: Job, gpus: int, names: Sequence[str]) -> list[Entry]:
    """Return an entry for every name. Raises UserError for one that is unknown, or cannot be cut to so many
    GPUs."""
    alone = [baseline(job)] * (lesson.gpus > 1)
    known = {entry.strategy.name: entry for entry in alone}
    chosen = choose([*(entry.strategy for entry in alone), *lesson.strategies], names)
    return [known.get(strategy.name) or enter(strategy, job, gpus) for strategy in chosen]


def all_entries(lesson: Lesson, job: Job, gpus: int) -> list[Entry]:
    """Return an entry for every strategy. Raises UserError where none of the lesson's contrast can be cut to
    so many GPUs."""
    entries = [enter_or_explain(strategy, job, gpus) for strategy in lesson.strategies]
    needed = [entry for entry in entries if entry.strategy.name in lesson.contrast] or entries
    refusals = [entry.refusal for entry in needed if entry.refusal]
    if len(refusals) == len(needed):
        raise refusals[0]
    return entries


def enter_or_explain(strategy: Strategy, job: Job, gpus: int) -> Entry:
    """Return an entry; one that only says why where the strategy cannot be cut to so many GPUs."""
    try:
        return enter(strategy, job, gpus)
    except UserError as refusal:
        return Entry(strategy, size_on(strategy, gpus), None, refusal)


def size_on(strategy: Strategy, gpus: int) -> int:
    """Return how many of so many GPUs a strategy takes: a few choose for themselves."""
    try:
        return strategy.mesh(gpus).world_size
    except UserError:
        return gpus


def run_entries(name: str, entries: Sequence[Entry], job: Job, runner: Runner) -> Run:
    """Run all entries on the same ranks, and compare each with the single GPU."""
    largest = max(entry.gpus for entry in entries)
    check_ranks(runner.engine, largest)
    if runner.hardware.disturbances:
        runner.hardware.disturbances.check(largest)
    with runner, rare_garbage_collection():
        # before any ranks start, which are then born with what the single GPU has drawn and derived
        reference = runner.reference(job)
        rows, left = zip(*runner.measured_in_turn(entries))
    results = {entry.strategy.name: ranks for entry, ranks in zip(entries, left)}
    report = make_report(name, job, runner.hardware, list(rows), reference)
    return Run(replace(report, contention=runner.contention), runner.hardware, results)


def choose(strategies: Sequence[Strategy], names: Sequence[str]) -> list[Strategy]:
    """Return the strategies of these names, or all. Raises UserError for a name that none has."""
    by_name = {strategy.name: strategy for strategy in strategies}
    for name in names:
        if name not in by_name:
            raise unknown("strategy", name, by_name)
    return [by_name[name] for name in names] or list(strategies)


def make_report(
    name: str, job: Job, hardware: Hardware, rows: list[Measurement], reference: Reference
) -> Report:
    disturbed = {"disturbances": hardware.disturbances.as_dict()} if hardware.disturbances else {}
    return Report(
        lesson=name,
        hardware={key: getattr(hardware, key) for key in ("name", "gpus_per_node", "memory_bytes")}
        | disturbed,
        model={
            **vars(job.model),
            "batch": job.batch,
            "dtype": job.dtype,
            "seed": job.seed,
            "steps": job.steps,
            "optimizer": job.optimizer,
        }
        | ({"sizes_only": True} if job.sizes_only else {}),
        strategies=tuple(rows),
        baseline=reference.measurement,
        tolerance=tolerance_of(job),
        weight_tolerance=WEIGHT_TOLERANCE.get((job.dtype, job.optimizer)),
    )


def main(lesson: Lesson, argv: Sequence[str] | None = None) -> int:
    """Parse, run, print. Returns the exit code: 1 where a strategy does not compute what one GPU computes."""
    join(argv)
    return guarded(lambda: run_and_show_words(lesson, argv, f"{lesson.name}.py"))


def run_and_show_words(lesson: Lesson, argv: Sequence[str] | None, prog: str) -> int:
    """Run a lesson on the words of a command line that begins with `prog`."""
    return run_and_show(lesson, parser_of(lesson, prog).parse_args(argv))


def parser_of(lesson: Lesson, prog: str) -> Parser:
    parser = Parser(prog, description=lesson.title)
    add_common_options(parser, lesson.gpus)
    lesson.add_options(parser)
    add_option(parser, lesson)
    if lesson.sweeps:
        first = next(iter(lesson.sweeps))
        parser.add_argument(
            "--sweep",
            nargs="?",
            const=first,
            choices=lesson.sweeps,
            help=f"print a table over one of these instead (default {first})",
        )
    return parser


def run_and_show(lesson: Lesson, arguments: argparse.Namespace) -> int:
    from ndparallel.results.outputs import check_outputs
    from ndparallel.results.printing import progress
    from ndparallel.results.show import show

    check_outputs(arguments)
    job, hardware = job_from(arguments, lesson.defaults, arguments.gpus), disturbed_hardware_from(arguments)
    if getattr(arguments, "sweep", None):
        return run_and_show_sweep(lesson, job, hardware, arguments)
    if lesson.chosen:
        lesson = replace(lesson, strategies=lesson.chosen(lesson, arguments))
    lesson = with_own(lesson.named_for(arguments.gpus), arguments.own, arguments.gpus)
    try:
        with progress() as announce:
            run = run_lesson(
                lesson,
                job,
                hardware,
                arguments.gpus,
                arguments.strategy,
                engine_from(arguments),
                announce,
                arguments.contention,
            )
    except RankError as error:
        raise told(error, arguments.own) from error
    notes = *sizes_only_notes(job, run), *fewer_microbatches(lesson, job, arguments)
    run.report = replace(run.report, notes=notes)
    show(lesson.title, run, arguments, lesson.contrast, lesson.notice, lesson.hierarchy)
    return int(not run.report.equal())


def run_and_show_sweep(lesson: Lesson, job: Job, hardware: Hardware, arguments: argparse.Namespace) -> int:
    from ndparallel.results.outputs import refuse_outputs
    from ndparallel.results.printing import progress
    from ndparallel.results.show import show_sweep

    refuse_outputs(arguments, "--sweep", "sizes_only")
    refuse_choices(lesson, arguments)
    with progress() as announce, Runner(hardware, engine_from(arguments), announce) as runner:
        sweep = lesson.sweep(arguments.sweep, runner, job)
    show_sweep(sweep, arguments.json)
    return 0


def sizes_only_notes(job: Job, run: Run) -> Iterator[str]:
    """Say what a run of sizes alone does not know."""
    if not job.sizes_only:
        return
    yield (
        "Sizes only: loss and =0D are not computed, for arrays have no content; messages, clocks and memory "
        "are those of a run with numbers."
    )
    if any(
        result.value.routed and result.value.routed[0] for ranks in run.results.values() for result in ranks
    ):
        yield "Routers are in balance: every expert gets as many rows of every GPU, which no text would do."
    if any(row.gpus > MOST_WITH_EVENTS for row in run.report.strategies):
        yield (f"The events of more than {MOST_WITH_EVENTS} GPUs are added up as they happen, and not drawn.")


def fewer_microbatches(lesson: Lesson, job: Job, arguments: argparse.Namespace) -> Iterator[str]:
    """Say where the lesson's usual number of microbatches does not divide the batch, and a smaller one was
    taken."""
    usual, taken = lesson.defaults.get("microbatches", 1), job.microbatches
    asked = [
        strategy
        for strategy in lesson.strategies
        if not arguments.strategy or strategy.name in arguments.strategy
    ]
    if (
        arguments.microbatches is None
        and job.batch % usual
        and any("microbatches" not in strategy.changes for strategy in asked)
    ):
        each = f"{count(taken, 'microbatch', 'es')} of {count(job.batch // taken, 'sequence')}"
        yield f"{lesson.dimension} takes {each}: {usual} do not divide a batch of {job.batch}."


def refuse_choices(lesson: Lesson, arguments: argparse.Namespace) -> None:
    """Raise UserError where an option sets what a sweep sets itself: GPUs, strategies, and their mesh."""
    chosen_by_the_sweep = {"gpus": lesson.gpus, "strategy": [], "order": DEFAULT_ORDER} | dict.fromkeys(AXES)
    for option, usual in chosen_by_the_sweep.items():
        if getattr(arguments, option, usual) != usual:
            raise UserError(
                f"--sweep {arguments.sweep} chooses its own GPUs and strategies: leave --{option} out."
            )
