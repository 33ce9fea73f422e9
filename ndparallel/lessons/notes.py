"""Notes below a table: what its run does not know, and what it took otherwise than usual; and microbatches
that cannot be."""

import argparse
from collections.abc import Iterator
from contextlib import suppress
from math import lcm

from gpu import CLASSROOM
from ndparallel.base.errors import UserError
from ndparallel.base.words import count
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.runner import MOST_WITH_EVENTS
from ndparallel.results.report import Run
from ndparallel.training.cuts import check_batch
from ndparallel.training.job import Job


def sizes_only_notes(job: Job, run: Run) -> Iterator[str]:
    """Say what a run of sizes alone does not know."""
    if not job.sizes_only:
        return
    yield (
        "Sizes only: loss and =0D are not computed, for arrays have no content; messages, clocks and memory "
        "are those of a run with numbers."
    )
    if run.hardware.name == POCKET.name and not any(row.step_seconds for row in run.report.strategies):
        yield (
            "pocket, and its memory, was scaled down for the lessons' own model: --hardware h100 takes a "
            "real GPU."
        )
    if any(
        result.value.routed and result.value.routed[0] for ranks in run.results.values() for result in ranks
    ):
        yield "Routers are in balance: every expert gets as many rows of every GPU, which no text would do."
    if any(row.gpus > MOST_WITH_EVENTS for row in run.report.strategies):
        yield (f"The events of more than {MOST_WITH_EVENTS} GPUs are added up as they happen, and not drawn.")


def hardware_notes(run: Run) -> Iterator[str]:
    """Say why seconds on the classroom's hardware are so many."""
    if run.hardware.name == CLASSROOM.name:
        flops, rate = run.hardware.flops_per_second, run.hardware.inside.bandwidth_bytes_per_second
        yield (
            f"classroom has round numbers for sums by hand: {flops:g} FLOP/s, and {rate:g} B/s over a link. "
            "A model has far too many FLOPs for it: 1 Ms is a million seconds, and nearly all of a step is "
            "compute. Without --hardware, a lesson takes pocket, which was scaled to its model."
        )


def asked(lesson: Lesson, arguments: argparse.Namespace) -> list[Strategy]:
    """Return the lesson's strategies that --strategy names, or all."""
    names = arguments.strategy
    return [strategy for strategy in lesson.strategies if not names or strategy.name in names]


def check_microbatches(lesson: Lesson, arguments: argparse.Namespace) -> None:
    """Raise UserError where not even one GPU can cut the batch into so many microbatches, with the sizes that
    all strategies asked for can be cut to."""
    batch, microbatches = arguments.batch, arguments.microbatches or 1
    if batch > 0 and microbatches > 0 and batch % microbatches:
        sizes = (data_parallel_size(strategy, arguments.gpus) for strategy in asked(lesson, arguments))
        check_batch(batch, microbatches, lcm(*sizes))


def data_parallel_size(strategy: Strategy, gpus: int) -> int:
    """Return how many parts of the batch a strategy needs; 1 where it cannot be cut to so many GPUs."""
    with suppress(UserError):
        return strategy.mesh(gpus).dp
    return 1


def fewer_microbatches(lesson: Lesson, job: Job, arguments: argparse.Namespace) -> Iterator[str]:
    """Say where the lesson's usual number of microbatches does not divide the batch, and a smaller one was
    taken."""
    usual, taken = lesson.defaults.get("microbatches", 1), job.microbatches
    if (
        arguments.microbatches is None
        and job.batch % usual
        and any("microbatches" not in strategy.changes for strategy in asked(lesson, arguments))
    ):
        each = f"{count(taken, 'microbatch', 'es')} of {count(job.batch // taken, 'sequence')}"
        yield f"{lesson.dimension} takes {each}: {usual} do not divide a batch of {job.batch}."


def gpus_notes(lesson: Lesson, run: Run, arguments: argparse.Namespace) -> Iterator[str]:
    """Say which rows have more GPUs than --gpus asks for, and that one GPU has nobody to share with."""
    gpus, rows = arguments.gpus, run.report.strategies
    if gpus == lesson.gpus:
        return
    for row in rows:
        if row.gpus > gpus:
            sizes = next(each for each in lesson.strategies if each.name == row.name).mesh(gpus).sizes
            mesh = " x ".join(f"{axis.upper()}{size}" for axis, size in sizes.items() if size > 1)
            yield f"{row.name!r} has {row.gpus} GPUs and not {gpus}: it is {mesh}."
    if gpus == 1 and rows and all(row.gpus == 1 for row in rows):
        yield "One GPU has nobody to share its work with: all of these rows do what the single GPU does."
