"""2D: what to notice, its sweep over the degree, and its option."""

import argparse
from collections.abc import Iterator, Sequence

from ndparallel.lessons.lesson import Lesson
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.lessons.sweeps import fitting, sweep_row
from ndparallel.results.report import Run, Sweep
from ndparallel.training.job import Job

TWO_LAYERS = ("MLP, columns then rows", "MLP, columns twice")
OVERLAP = ("TP", "TP overlapped")
SEQUENCE = ("TP + SP", "TP + SP regather")
COLUMNS = ("step_seconds", "speedup", "compute_seconds", "exposed_communication_seconds")


def notice(run: Run) -> Sequence[str]:
    """Say what the cut costs: the right one and the wrong one, inside a node and across."""
    return [*about_the_cut(run), *about_overlap(run), *about_nodes(run), *about_sequence_parallelism(run)]


def about_the_cut(run: Run) -> Iterator[str]:
    right, wrong = (run[name].exposed_communication_seconds if name in run else None for name in TWO_LAYERS)
    if right and wrong:
        yield f"Cut the wrong way, the two-layer MLP waits {wrong / right:.1f}x as long for its neighbours."


def about_overlap(run: Run) -> Iterator[str]:
    waits = [run[name].exposed_communication_seconds for name in OVERLAP if name in run]
    if len(waits) == 2 and waits[0]:
        hidden = 1 - waits[1] / waits[0]
        yield f"Backward sums that travel beside weight gradients hide {hidden:.0%} of what TP waits for."


def about_nodes(run: Run) -> Iterator[str]:
    if "TP" in run and "TP across nodes" in run and 1 < run["TP"].gpus <= run.hardware.gpus_per_node:
        inside, across = (
            100 * row.exposed_communication_seconds / row.step_seconds
            for row in (run["TP"], run["TP across nodes"])
        )
        yield (
            f"TP waits for {inside:.0f}% of its step inside a node, {across:.0f}% across nodes: the same "
            "code."
        )


def about_sequence_parallelism(run: Run) -> Iterator[str]:
    if all(name in run for name in ("TP", *SEQUENCE)) and run["TP"].bytes_sent_per_gpu:
        kept, again = (
            run[name].peak_memory_bytes["activations"] / run["TP"].peak_memory_bytes["activations"]
            for name in SEQUENCE
        )
        longer = run["TP + SP"].step_seconds / run["TP"].step_seconds - 1
        time = f"{longer:.1%} more" if longer > 0 else "no more"
        yield (
            f"Sequence parallelism keeps {kept:.0%} of TP's activations in {time} time, and {again:.0%} if "
            "it gathers again."
        )


def degree(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Cut the model over 1, 2, 4 and 8 GPUs: where does communication pass compute?"""
    strategy = lesson.strategy("TP")
    rows = [
        sweep_row(
            runner,
            entry_of(strategy, job, tp),
            COLUMNS,
            tp=tp,
            links=strategy.mesh(tp).link("tp", runner.hardware),
        )
        for tp in (1, 2, 4, 8)
    ]
    passed = [
        row["tp"] for row in fitting(rows) if row["exposed_communication_seconds"] > row["compute_seconds"]
    ]
    sentence = (
        f"At tp={passed[0]} communication passes compute."
        if passed
        else "Communication stays below compute at every degree."
    )
    return Sweep("Tensor parallelism by degree", rows, sentence)


SWEEPS = {"degree": degree}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parts", type=int, metavar="N", help="parts of an activation, for TP in parts (default 2)"
    )
