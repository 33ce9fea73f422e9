"""0D: one GPU, the baseline of all other lessons, and the limit that they are for.

Idea    One training step: forward, backward, optimizer. Most of its memory is activations, kept for the
        backward pass, and there are two ways to keep fewer of them and still compute the same gradients:
            microbatches    take the batch in parts, one after another, and add up their gradients (gradient
                            accumulation)
            recompute       discard activations in the forward pass, and compute them again just before the
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

import sys

from gpu import GPU
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.main import main
from ndparallel.lessons.single_gpu import notice, strategies_for
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica


def single_gpu(gpu: GPU, job: Job) -> Outcome:
    """Forward and backward for each microbatch, and one step for all. The layers know what to recompute."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.optimizer_step()
    return replica.outcome


def mesh(gpus: int) -> Mesh:
    return Mesh()


STRATEGIES = [
    Strategy("single GPU", single_gpu, mesh),
    Strategy("4 microbatches", single_gpu, mesh, {"microbatches": 4}),
    Strategy("selective recompute", single_gpu, mesh, {"recompute": "selective"}),
    Strategy("full recompute", single_gpu, mesh, {"recompute": "full"}),
]

LESSON = Lesson(
    name="0d_single_gpu",
    title="0D: one GPU",
    gpus=1,
    strategies=STRATEGIES,
    contrast=("single GPU", "full recompute"),
    notice=notice,
    strategies_for=strategies_for,
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
