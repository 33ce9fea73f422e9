"""What the tests of experts and of context parallelism share: one training step on any mesh, and how far it
is from the single GPU's."""

from gpu import GPU
from ndparallel.engines.launch import RankResult, launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.gradient_check import gradient_difference, whole_tensors
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica
from tests.support.common import reference


def train(gpu: GPU, job: Job) -> Outcome:
    """One step, everything summed and averaged at its end."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.sum_shared()
        for bucket in replica.buckets:
            bucket.all_reduce()
        replica.optimizer_step()
    return replica.outcome


def forward_only(gpu: GPU, job: Job) -> tuple[float, Outcome]:
    """The bytes of activations that a forward pass keeps, and what it did."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
    return gpu.held_bytes["activations"], replica.outcome


def both_passes(gpu: GPU, job: Job) -> tuple[float, Outcome]:
    """The bytes of activations that are left after a backward pass: none should be."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
    return gpu.held_bytes["activations"], replica.outcome


def run(job: Job, program=train, hardware=POCKET) -> list[RankResult]:
    return launch(program, job.mesh.world_size, hardware, job, engine="inline")


def alone(job: Job) -> Job:
    """The same job on one GPU."""
    return job.replace(
        mesh=Mesh(),
        sequence_parallel="none",
        context_parallel="ring",
        recompute="none",
        schedule="1f1b",
        stage_chunks=None,
    )


def differences(job: Job, results: list[RankResult] | None = None) -> tuple[float, float]:
    """How far a run is from the single GPU's: its loss, relative, and its gradients."""
    results, expected = results or run(job), reference(alone(job)).value
    losses = [result.value.losses[0] for result in results if result.value.losses]
    loss = abs(sum(losses) / len(losses) - expected.losses[0]) / expected.losses[0]
    return loss, gradient_difference((result.value for result in results), whole_tensors(expected.gradients))


def name(mesh: Mesh) -> str:
    return (
        " ".join(
            f"{axis}{getattr(mesh, axis)}"
            for axis in ("tp", "cp", "dp", "ep", "pp")
            if getattr(mesh, axis) > 1
        )
        or "single"
    )
