"""3D: what to notice, its sweeps over microbatches, chunks and the cost of a kernel, and its option."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from gpu import Link
from ndparallel.base.words import listed
from ndparallel.lessons.lesson import Lesson, Own, Strategy
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.lessons.sweeps import NOTHING_FITS, Row, fitting, sweep_row
from ndparallel.model.stages import head_in_blocks, layers_per_stage
from ndparallel.model.units import ModelConfig
from ndparallel.results.report import Run, Sweep
from ndparallel.training.job import Job

COLUMNS = ("step_seconds", "speedup", "bubble share", "exposed share")


def notice(run: Run) -> Sequence[str]:
    """Compare bubble and memory of the schedules that ran."""
    return [*about_memory(run), *about_the_bubble(run)]


def about_memory(run: Run) -> Iterator[str]:
    if "GPipe" in run and "1F1B" in run:
        gpipe, one = run["GPipe"], run["1F1B"]
        kept = one.peak_memory_bytes["activations"] / gpipe.peak_memory_bytes["activations"]
        bubbles = list(dict.fromkeys(bubble_share(row) for row in (gpipe, one)))
        same = f"the same bubble: {bubbles[0]}" if len(bubbles) == 1 else f"bubbles of {listed(bubbles)}"
        yield f"GPipe and 1F1B have {same} of the step."
        less = "as many activations as" if f"{kept:.0%}" == "100%" else f"{kept:.0%} of the activations of"
        yield f"1F1B keeps {less} GPipe."


def about_the_bubble(run: Run) -> Iterator[str]:
    if "1F1B" in run and "ZB-H1" in run and run["1F1B"].bubble_seconds > 0:
        before, after = (bubble_share(run[name]) for name in ("1F1B", "ZB-H1"))
        takes = f"takes it from {before} of the step to" if before != after else "leaves it at"
        yield f"Filling the bubble with weight gradients {takes} {after} (ZB-H1)."
        if "ZB-V" in run:
            yield f"Two chunks on each GPU, placed like a V, as well: {bubble_share(run['ZB-V'])} (ZB-V)."


def bubble_share(row: Any) -> str:
    return f"{row.bubble_seconds / row.step_seconds:.0%}"


def microbatches(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Run 1F1B on four batches at once, in more and more parts."""
    rows = in_parts(lesson, runner, job)
    sentence = f"{best_of(rows, 'microbatches')} {about_theory(job.model)}".rstrip()
    return Sweep(f"Bubble against microbatches, 4 GPUs, {4 * job.batch} sequences", rows, sentence)


def about_theory(model: ModelConfig) -> str:
    """Say what the theory leaves out: all GPUs wait for the one that has most to do, however many
    microbatches there are. "" where all have the same."""
    work: list[float] = list(layers_per_stage(model, 4))
    work[-1] += head_in_blocks(model)
    idle = 1 - sum(work) / (len(work) * max(work))
    if idle < 0.0005:
        return ""
    return (
        "The theory, (P-1)/(M+P-1), is for equal stages. Here the last one also has the head. By their FLOPs "
        f"the GPUs are idle for at least {idle:.1%} of the step, however large M is."
    )


def overhead(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Run the same on a GPU whose kernels cost 2 ms each: more microbatches are more kernels."""
    with runner.with_hardware(kernel_overhead_seconds=2e-3) as slow:
        rows = in_parts(lesson, slow, job)
    return Sweep(
        "Bubble against microbatches where every kernel costs 2 ms", rows, best_of(rows, "microbatches")
    )


def in_parts(lesson: Lesson, runner: Runner, job: Job) -> list[Row]:
    job = job.replace(batch=4 * job.batch)
    return [
        row(
            lesson,
            runner,
            "1F1B",
            job.replace(microbatches=m),
            microbatches=m,
            theory_bubble_share=3 / (m + 3),
        )
        for m in (1, 2, 4, 8, 16, 32)
        if job.batch % m == 0
    ]


def chunks(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Hold more stages on each GPU (interleaved), where messages cost nothing, inside a node, and across,
    where they cost nine times as much."""
    job = job.replace(microbatches=job.batch, model=replace(job.model, layers=16))
    costless = Link(latency_seconds=0.0, bandwidth_bytes_per_second=inf)
    with runner.with_hardware(inside=costless) as free, runner.with_hardware(gpus_per_node=1) as across:
        rows = [
            row(lesson, linked, "interleaved", job.replace(stage_chunks=v), chunks=v, links=links)
            for links, linked in {"free": free, "inside": runner, "across": across}.items()
            for v in (1, 2, 4)
        ]
    return Sweep("Bubble against chunks, 4 GPUs, 16 layers", rows, best_of(rows, "chunks", "links"))


def row(lesson: Lesson, runner: Runner, name: str, job: Job, **point) -> Row:
    """Run one strategy on 4 GPUs for a row of a sweep."""
    return sweep_row(runner, entry_of(lesson.strategy(name), job, 4), COLUMNS, strategy=name, **point)


def best_of(rows: list[Row], *columns: str) -> str:
    """Say, by these columns, where the step is shortest, and whether the bubble is smallest there too."""
    fit = fitting(rows)
    if not fit:
        return NOTHING_FITS
    best, bubble = (min(fit, key=lambda row: row[column]) for column in ("step_seconds", "bubble share"))
    shortest, smallest = (
        ", ".join(f"{column} {found[column]}" for column in columns) for found in (best, bubble)
    )
    if best is bubble:
        return f"The step is shortest at {shortest}, where the bubble is smallest."
    return (
        f"The step is shortest at {shortest}; the bubble is smallest at {smallest}, but what that costs is "
        "more than what it saves."
    )


SWEEPS = {"microbatches": microbatches, "chunks": chunks, "overhead": overhead}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chunks",
        type=int,
        dest="stage_chunks",
        metavar="V",
        help="stages a GPU holds, where interleaved (default 2)",
    )


def as_schedule(lesson: Lesson, name: str, words: str, function: Callable, gpus: int) -> Strategy:
    """Run a reader's order of actions, one stage on each GPU."""
    changes = {"schedule": words, "stage_chunks": None}
    return replace(lesson.strategy("ZB-H1"), name=name, changes=changes)


SCHEDULE = Own(
    "the order of one GPU's actions, yielded from (rank, ranks, microbatches)",
    ("rank", "ranks", "microbatches"),
    as_schedule,
)
