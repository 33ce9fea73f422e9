"""0D: what to notice, and its one option."""

import argparse
from collections.abc import Iterator, Sequence

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.results.report import Run

SAVINGS = {
    "4 microbatches": "Taking the batch in 4 parts",
    "selective recompute": "Computing attention's probabilities twice",
    "full recompute": "Computing every layer twice",
}


def notice(run: Run) -> Sequence[str]:
    """Say what is saved, what it costs, and what cannot be saved this way."""
    if "single GPU" not in run and "4 microbatches" in run:
        return [
            "This batch does not fit on one GPU whole, and does in 4 parts: their gradients add up to the "
            "same."
        ]
    if all(row.error for row in run.report.strategies):
        return [
            "This model does not fit on one GPU: sharding it over several is what the other lessons are "
            "about."
        ]
    if "single GPU" not in run:
        return []
    return [*about_saving(run), *about_states(run)]


def about_saving(run: Run) -> Iterator[str]:
    whole = run["single GPU"]
    for name, how in SAVINGS.items():
        if name in run:
            kept = run[name].peak_memory_bytes["activations"] / whole.peak_memory_bytes["activations"]
            slower = run[name].step_seconds / whole.step_seconds - 1
            more = f"{slower:.0%}"
            time = "no more time" if more == "0%" else f"{more} more time"
            yield f"{how} keeps {kept:.0%} of the activations and takes {time}."


def about_states(run: Run) -> Iterator[str]:
    memory = run["single GPU"].peak_memory_bytes
    states = memory["weights"] + memory["gradients"] + memory["optimizer"]
    yield f"Weights, gradients and optimizer ({si(states, 'B')}) do not shrink."


def strategies_for(lesson: Lesson, arguments: argparse.Namespace) -> Sequence[Strategy]:
    """Return all strategies. Raises UserError where --gpus asks for several GPUs."""
    if arguments.gpus != 1:
        raise UserError(
            f"0D is one GPU, and --gpus asks for {arguments.gpus}: leave it out, or take another lesson."
        )
    return lesson.strategies
