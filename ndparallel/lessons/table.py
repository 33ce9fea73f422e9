"""The table of a lesson: an entry for each strategy, run on the same ranks, and the report of all.

Idea   All strategies train the same model on the same batch; the single GPU runs it first, and every
       strategy's loss and gradients are compared with its.
"""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from gpu import Hardware
from ndparallel.base.errors import UserError, find_choice
from ndparallel.engines.garbage import rare_garbage_collection
from ndparallel.engines.launch import check_ranks
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.runner import Entry, Reference, RefusedEntry, Runner, baseline, entry_of
from ndparallel.results.against_one_gpu import WEIGHT_TOLERANCE, Tolerance
from ndparallel.results.measure import Measurement
from ndparallel.results.progress import Announce, ignore
from ndparallel.results.report import Report, Run
from ndparallel.training.gradient_check import tolerance_of
from ndparallel.training.job import Job


def run_lesson(
    lesson: Lesson,
    job: Job,
    hardware: Hardware,
    gpus: int,
    names: Sequence[str],
    engine: str,
    announce: Announce = ignore,
    contention: bool = False,
) -> Run:
    """Run the strategies of these names, or all after the single GPU where none is named."""
    entries = entries_of(lesson, job, gpus, names)
    keep_going = not names and len(lesson.strategies) > 1
    return run_entries(lesson.name, entries, job, Runner(hardware, engine, announce, keep_going, contention))


def entries_of(lesson: Lesson, job: Job, gpus: int, names: Sequence[str]) -> Sequence[Entry | RefusedEntry]:
    """Return the entries of these names, or all after the single GPU where none is named."""
    if names:
        return named_entries(lesson, job, gpus, names)
    return [baseline(job)] * (lesson.gpus > 1) + all_entries(lesson, job, gpus)


def named_entries(lesson: Lesson, job: Job, gpus: int, names: Sequence[str]) -> list[Entry]:
    """Return an entry for every name. Raises UserError for one that is unknown, or cannot be cut to so many
    GPUs."""
    alone = [baseline(job)] * (lesson.gpus > 1)
    known = {entry.strategy.name: entry for entry in alone}
    chosen = choose([*(entry.strategy for entry in alone), *lesson.strategies], names)
    return [known.get(strategy.name) or entry_of(strategy, job, gpus) for strategy in chosen]


def all_entries(lesson: Lesson, job: Job, gpus: int) -> list[Entry | RefusedEntry]:
    """Return an entry for every strategy. Raises UserError where none of the lesson's contrast can be cut to
    so many GPUs."""
    entries = [enter_or_refuse(strategy, job, gpus) for strategy in lesson.strategies]
    needed = [entry for entry in entries if entry.strategy.name in lesson.contrast] or entries
    refuse_all(needed)
    return entries


def refuse_all(entries: Sequence[Entry | RefusedEntry]) -> None:
    """Raise the first reason where none of them can run."""
    refusals = [entry for entry in entries if isinstance(entry, RefusedEntry)]
    if refusals and len(refusals) == len(entries):
        raise refusals[0].reason


def enter_or_refuse(strategy: Strategy, job: Job, gpus: int) -> Entry | RefusedEntry:
    """Return an entry, or why the strategy cannot be cut to so many GPUs."""
    try:
        return entry_of(strategy, job, gpus)
    except UserError as refusal:
        return RefusedEntry(strategy, size_on(strategy, gpus), refusal)


def size_on(strategy: Strategy, gpus: int) -> int:
    """Return how many of so many GPUs a strategy takes: a few choose for themselves."""
    try:
        return strategy.mesh(gpus).world_size
    except UserError:
        return gpus


def run_entries(name: str, entries: Sequence[Entry | RefusedEntry], job: Job, runner: Runner) -> Run:
    """Run all entries on the same ranks, and compare each with the single GPU."""
    largest = max(entry.gpus for entry in entries)
    check_ranks(runner.engine, largest)
    if runner.hardware.disturbances:
        runner.hardware.disturbances.check(largest)
    with runner, rare_garbage_collection():
        # before any ranks start, which are then born with what the single GPU has drawn and derived
        reference, rounding = runner.reference(job), runner.rounding(job)
        rows, left = zip(*runner.measured_in_turn(entries, import_tables))
    results = {entry.strategy.name: ranks for entry, ranks in zip(entries, left)}
    rows = [with_its_work(row, entry, job) for row, entry in zip(rows, entries)]
    report = make_report(name, job, runner.hardware, rows, reference, rounding)
    return Run(replace(report, contention=runner.contention), runner.hardware, results)


def import_tables() -> None:
    """Import what shows the rows. Ranks that are started after it would copy its memory, and wait for it."""
    import_module("ndparallel.results.show")


def names_as_written(strategies: Sequence[Strategy], names: Sequence[str]) -> list[str]:
    """Return names in the spelling of the strategies that have them. Raises UserError for one that none
    has."""
    return [strategy.name for strategy in choose(strategies, names)] if names else []


def choose(strategies: Sequence[Strategy], names: Sequence[str]) -> list[Strategy]:
    """Return the strategies of these names, or all. Raises UserError for a name that none has."""
    by_name = {strategy.name: strategy for strategy in strategies}
    return [by_name[find_choice("strategy", name, by_name)] for name in names] or list(strategies)


def make_report(
    name: str,
    job: Job,
    hardware: Hardware,
    rows: list[Measurement],
    reference: Reference,
    rounding: float,
) -> Report:
    disturbed = {"disturbances": hardware.disturbances.as_dict()} if hardware.disturbances else {}
    return Report(
        lesson=name,
        hardware={key: getattr(hardware, key) for key in ("name", "gpus_per_node", "memory_bytes")}
        | disturbed,
        model=work_of(job),
        strategies=tuple(rows),
        baseline=reference.measurement,
        tolerance=Tolerance(
            tolerance_of(job, rounding), WEIGHT_TOLERANCE.get((job.dtype, job.optimizer)), steps=job.steps
        ),
    )


def with_its_work(row: Measurement, entry: Entry | RefusedEntry, job: Job) -> Measurement:
    """Note in a row what of its model and batch is another than the lesson's."""
    if isinstance(entry, RefusedEntry):
        return row
    usual = work_of(job)
    return replace(
        row, model={key: value for key, value in work_of(entry.job).items() if value != usual[key]}
    )


def work_of(job: Job) -> dict[str, Any]:
    """Return what is trained, and on how much, for JSON."""
    fields = {key: getattr(job, key) for key in ("batch", "dtype", "seed", "steps", "optimizer")}
    return vars(job.model) | fields | ({"sizes_only": True} if job.sizes_only else {})
