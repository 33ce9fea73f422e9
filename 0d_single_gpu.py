"""0D: one GPU, the baseline of everything, and the wall that all other lessons climb over.

Idea    One training step: forward, backward, optimizer. The batch may be taken in parts (gradient accumulation): the same gradients, less
        memory for activations, a little more time.
Cost    compute, and nothing else: 6 FLOPs for every parameter and token, and more for attention.
Limit   The memory of one GPU. In float32, weights take 4 bytes a parameter, gradients 4, AdamW's moments 8, before the first activation.
        Try --model-size large.

Glossary
    microbatch      a part of the batch that goes through forward and backward at once
    activations     what the forward pass keeps for the backward pass

Run     python 0d_single_gpu.py --memory
"""

import sys

from gpu import GPU, si
from ndparallel.job import Job
from ndparallel.lesson import Lesson, Run, Strategy, main
from ndparallel.mesh import Mesh
from ndparallel.replica import Outcome, Replica


def single_gpu(gpu: GPU, job: Job) -> Outcome:
    """Forward, backward, step: once for each microbatch, and the step once for all."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.optimizer_step()
    return replica.outcome


def notice(run: Run) -> str:
    failed = [row.name for row in run.report.strategies if row.error]
    if failed == ["single GPU"]:
        return "This batch does not fit on one GPU whole, and does in 4 parts: their gradients add up to the same."
    if failed:
        return "This model does not fit on one GPU: sharding it over several is what the other lessons are about."
    if "single GPU" not in run or "4 microbatches" not in run:
        return ""
    whole, parts = run["single GPU"], run["4 microbatches"]
    ratio = parts.peak_memory_bytes["activations"] / whole.peak_memory_bytes["activations"]
    slower = parts.step_seconds / whole.step_seconds - 1
    return (
        f"Taking the batch in 4 parts keeps {ratio:.0%} of the activations and costs {slower:.2%} more time: the same FLOPs, "
        f"in four times as many kernels. Weights, gradients and optimizer ({si(states(whole.peak_memory_bytes), 'B')}) do not shrink."
    )


def states(memory: dict[str, float]) -> float:
    return memory["weights"] + memory["gradients"] + memory["optimizer"]


def one(gpus: int) -> Mesh:
    return Mesh()


LESSON = Lesson(
    name="0d_single_gpu",
    title="0D: one GPU",
    gpus=1,
    strategies=[
        Strategy("single GPU", single_gpu, one),
        Strategy("4 microbatches", single_gpu, one, {"microbatches": 4}),
    ],
    contrast=("single GPU",),
    notice=notice,
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
