"""0D: one GPU, the baseline of everything, and the wall that all other lessons climb over.

Idea    One training step: forward, backward, optimizer. Most of its memory are activations, kept for the
        backward pass, and there are two ways to keep fewer of them and still compute the same gradients:
            microbatches    take the batch in parts, one after another, and add up their gradients (gradient
                            accumulation)
            recompute       forget activations in the forward pass, and compute them once more just before the
                            backward pass needs them. Selective: only attention's probabilities, the largest
                            and the cheapest. Full: all but the input of each layer.
Cost    compute, and nothing else: 6 FLOPs for every parameter and token, and more for attention; 8 where all
        is computed again.
Limit   The memory of one GPU. In float32, weights take 4 bytes a parameter, gradients 4, AdamW's moments 8,
        before the first activation. Try --model-size large.

Glossary
    microbatch      a part of the batch that goes through forward and backward at once
    activations     what the forward pass keeps for the backward pass
    probabilities   what a softmax makes of attention's scores: a number for every pair of tokens, in every
                    head

Run     python 0d_single_gpu.py --memory
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

from gpu import GPU, si
from ndparallel.base.errors import UserError
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.main import main
from ndparallel.parallel.mesh import Mesh
from ndparallel.results.run import Run
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica


def single_gpu(gpu: GPU, job: Job) -> Outcome:
    """Forward, backward, step: once for each microbatch, and the step once for all. What is forgotten, layers
    know by themselves."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.optimizer_step()
    return replica.outcome


def notice(run: Run) -> str:
    """What is saved, what it costs, and what cannot be saved this way."""
    if "single GPU" not in run and "4 microbatches" in run:
        return (
            "This batch does not fit on one GPU whole, and does in 4 parts: their gradients add up to the "
            "same."
        )
    if all(row.error for row in run.report.strategies):
        return (
            "This model does not fit on one GPU: sharding it over several is what the other lessons are "
            "about."
        )
    if "single GPU" not in run:
        return ""
    return " ".join([*about_saving(run), *about_states(run)])


def about_saving(run: Run) -> Iterator[str]:
    whole = run["single GPU"]
    for name, how in SAVINGS.items():
        if name in run:
            kept = run[name].peak_memory_bytes["activations"] / whole.peak_memory_bytes["activations"]
            slower = run[name].step_seconds / whole.step_seconds - 1
            more = f"{100 * slower:.2g}" if slower < 1 else f"{100 * slower:.0f}"
            yield f"{how} keeps {kept:.0%} of the activations and costs {more}% more time."


def about_states(run: Run) -> Iterator[str]:
    recomputed = [name for name in RECOMPUTED if name in run]
    if recomputed and all(run[name].max_gradient_difference == 0 for name in recomputed):
        yield "What is computed again is the same to the bit, and so are the gradients."
    yield (
        f"Weights, gradients and optimizer ({si(states(run['single GPU'].peak_memory_bytes), 'B')}) do not "
        "shrink."
    )


def states(memory: dict[str, float]) -> float:
    return memory["weights"] + memory["gradients"] + memory["optimizer"]


def one(gpus: int) -> Mesh:
    return Mesh()


def chosen(arguments: argparse.Namespace) -> Sequence[Strategy]:
    if arguments.gpus != 1:
        raise UserError(
            f"0D is one GPU, and --gpus asks for {arguments.gpus}: leave it out, or take another lesson."
        )
    return LESSON.strategies


SAVINGS = {
    "4 microbatches": "Taking the batch in 4 parts",
    "selective recompute": "Computing attention's probabilities twice",
    "full recompute": "Computing every layer twice",
}
RECOMPUTED = ("selective recompute", "full recompute")

LESSON = Lesson(
    name="0d_single_gpu",
    title="0D: one GPU",
    gpus=1,
    strategies=[
        Strategy("single GPU", single_gpu, one),
        Strategy("4 microbatches", single_gpu, one, {"microbatches": 4}),
        Strategy("selective recompute", single_gpu, one, {"recompute": "selective"}),
        Strategy("full recompute", single_gpu, one, {"recompute": "full"}),
    ],
    contrast=("single GPU", "full recompute"),
    notice=notice,
    chosen=chosen,
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
