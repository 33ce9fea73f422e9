"""The comparison of all lessons: their best-known strategies in one table, and the paragraph below it."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from gpu import Hardware, si
from ndparallel.base.words import listed
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.notes import fewer_microbatches, hardware_notes, sizes_only_notes
from ndparallel.lessons.options import engine_from, job_from
from ndparallel.lessons.runner import Entry, RefusedEntry, Runner, baseline
from ndparallel.lessons.table import choose, enter_or_refuse, names_as_written, refuse_all, run_entries
from ndparallel.results.measure import Measurement
from ndparallel.results.progress import Announce, progress
from ndparallel.results.report import Report, Run
from ndparallel.training.job import Job

COMMUNICATION = "exposed communication"
BUBBLE = "bubble"
EXTRA = "compute that more GPUs do not shorten"
WORK = "the work itself"
Row = dict[str, Any]  # of a report, as in JSON
NEGLIGIBLE = 0.01  # a loss below this share of the step bounds nobody


def one_run(
    arguments: argparse.Namespace,
    lessons: Sequence[Lesson],
    change: Callable[[Job], Job],
    hardware: Hardware,
    case: str = "",
) -> Run:
    """Run all that is asked for, with changed jobs, beside the single GPU; what is being run is told with
    the `case` that it is run for."""
    job = change(job_from(arguments))
    jobs = {
        lesson.name: change(job_from(arguments, lesson.defaults, arguments.gpus or lesson.gpus))
        for lesson in lessons
    }
    every = [strategy for lesson in lessons for strategy in lesson.strategies]
    arguments.strategy = names_as_written(every, without_dimensions(lessons, arguments.strategy))
    entries = entries_of(lessons, jobs, arguments.gpus, arguments.strategy)
    if not arguments.strategy:
        entries = [baseline(job), *entries]
    with progress() as announce:
        named: Announce = (lambda words: announce(f"{words}, {case}")) if case else announce
        runner = Runner(hardware, engine_from(arguments), named, True, arguments.contention)
        run = run_entries("compare", entries, job, runner)
    notes = [*hardware_notes(run), *sizes_only_notes(job, run)]
    notes += [note for lesson in lessons for note in fewer_microbatches(lesson, jobs[lesson.name], arguments)]
    run.report = replace(run.report, lessons=dimensions(lessons), notes=tuple(notes))
    return run


# ------------------------------------------------------------------------------------------------ what is run


def entries_of(
    lessons: Sequence[Lesson], jobs: dict[str, Job], gpus: int | None, names: Sequence[str]
) -> list[Entry | RefusedEntry]:
    """Every lesson's choice, or the strategies of these names, each with its lesson's job. Raises UserError
    where none can run."""
    owners = {strategy.name: lesson for lesson in lessons for strategy in lesson.strategies}
    every = [strategy for lesson in lessons for strategy in lesson.strategies]
    wanted = (
        choose(every, names) if names else [strategy for lesson in lessons for strategy in choose_of(lesson)]
    )
    entries = []
    for strategy in wanted:
        lesson = owners[strategy.name]
        entries.append(enter_or_refuse(strategy, jobs[lesson.name], gpus or lesson.gpus))
    refuse_all(entries)
    return entries


def choose_of(lesson: Lesson) -> list[Strategy]:
    return choose(lesson.strategies, lesson.compare) if lesson.compare else []


# ---------------------------------------------------------------------------------------------- what is shown


def dimensions(lessons: Sequence[Lesson]) -> dict[str, str]:
    """Return the lesson of each strategy whose name does not say it."""
    return {
        strategy.name: lesson.dimension
        for lesson in lessons
        for strategy in lesson.strategies
        if not strategy.name.startswith(lesson.dimension)
    }


def without_dimensions(lessons: Sequence[Lesson], names: Sequence[str]) -> list[str]:
    """Return names without the lesson that the table prints before them: "DDP ring" for "1D DDP ring"."""
    printed = {f"{dimension} {name}".lower(): name for name, dimension in dimensions(lessons).items()}
    return [printed.get(name.lower(), name) for name in names]


def title(lessons: Sequence[Lesson]) -> str:
    """Name what is compared: "0D to 4D, CP"."""
    names = [lesson.dimension for lesson in lessons]
    numbered = [name for name in names if name[0].isdigit()]
    return ", ".join([f"{numbered[0]} to {numbered[-1]}", *names[len(numbered) :]])


def contrast(run: Run) -> tuple[str, ...]:
    """Return the strategies that make the worst and the best use of their GPUs."""
    names = [row["name"] for row in sorted(parallel(run.report), key=lambda row: row["efficiency"])]
    return (names[0], names[-1]) if len(names) > 1 else ()


def closing(run: Run) -> Sequence[str]:
    """Say what is fastest on each number of GPUs, who loses most to the two causes that cost most, and who
    needs the least memory."""
    rows = parallel(run.report)
    return [*fastest(rows), *bounds(rows), *least_memory(rows, run.report.baseline)]


def parallel(report: Report) -> list[Row]:
    """Return the rows of several GPUs that have numbers."""
    return [row for row in report.as_dict()["strategies"] if row["gpus"] > 1 and row["efficiency"]]


def fastest(rows: Sequence[Row]) -> Iterator[str]:
    """Name the fastest on each number of GPUs in one sentence."""
    firsts = [
        max((row for row in rows if row["gpus"] == gpus), key=lambda row: row["speedup"])
        for gpus in sorted({row["gpus"] for row in rows})
    ]
    if firsts and max(row["speedup"] for row in firsts) <= 1:
        best = max(firsts, key=lambda row: row["speedup"])
        yield f"Nothing here beats one GPU alone: {best['name']} comes nearest, with {best['speedup']:.2f}x."
    elif firsts:
        each = listed([f"{row['name']} on {row['gpus']} GPUs ({row['speedup']:.2f}x)" for row in firsts])
        yield f"Fastest {'is' if len(firsts) == 1 else 'are'} {each}."


def bounds(rows: Sequence[Row]) -> Iterator[str]:
    """Say of the two causes that cost most who loses most to each."""
    bounded: dict[str, list[tuple[float, str]]] = {}
    for row in rows:
        cause, share = bound(row)
        bounded.setdefault(cause, []).append((share, row["name"]))
    bounded.pop(WORK, None)
    worst = sorted(((max(found)[0], cause) for cause, found in bounded.items()), reverse=True)
    for share, cause in worst[:2]:
        names = [name for lost, name in bounded[cause] if f"{lost:.0%}" == f"{share:.0%}"]
        yield f"{cause[0].upper()}{cause[1:]} costs most in {listed(names)}: {share:.0%} of the step."


def bound(row: Row) -> tuple[str, float]:
    """Return the largest loss and its share of the step; the work itself where no loss is worth naming."""
    lost = losses(row)
    cause = max(lost, key=lambda name: lost[name])
    return (cause, lost[cause]) if lost[cause] >= NEGLIGIBLE else (WORK, row["efficiency"])


def losses(row: Row) -> dict[str, float]:
    """Return shares of the step by cause; with the efficiency they add up to 1."""
    exposed, bubble = (
        row[key] / row["step_seconds"] for key in ("exposed_communication_seconds", "bubble_seconds")
    )
    return {COMMUNICATION: exposed, BUBBLE: bubble, EXTRA: 1 - row["efficiency"] - exposed - bubble}


def least_memory(rows: Sequence[Row], alone: Measurement | None) -> Iterator[str]:
    """Name all strategies that need the least, as far as it is shown."""
    if rows and alone and alone.peak_memory_bytes:
        needed = {row["name"]: row["peak_memory_bytes"]["total"] for row in rows}
        least = si(min(needed.values()), "B")
        names = [name for name, total in needed.items() if si(total, "B") == least]
        yield (
            f"{listed(names)} need{'s' * (len(names) == 1)} the least memory a GPU: {least}, where one GPU "
            f"alone needs {si(alone.peak_memory_bytes['total'], 'B')}."
        )
