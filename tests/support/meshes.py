"""What the tests of experts and of context parallelism share: one training step on any mesh, and how far it
is from the single GPU's."""

from dataclasses import replace

import pytest

from gpu import GPU
from ndparallel.engines.launch import RankResult, launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica
from tests.support.common import SMALL, loss_and_gradient_difference

CONTEXT_MESHES = [
    Mesh(cp=2),
    Mesh(cp=4),
    Mesh(cp=8),
    Mesh(cp=2, tp=2),
    Mesh(cp=2, tp=4),
    Mesh(cp=2, dp=2),
    Mesh(cp=2, tp=2, dp=2),
]
MANY_HEADS = replace(SMALL, heads=8)  # which an all-to-all cuts on all of these
EXPERT_MESHES = [
    Mesh(),
    Mesh(dp=2),
    Mesh(dp=2, ep=2),
    Mesh(dp=4, ep=2),
    Mesh(dp=4, ep=4),
    Mesh(tp=2),
    Mesh(tp=4),
    Mesh(cp=2),
    Mesh(tp=2, cp=2),
    Mesh(tp=2, dp=2, ep=2),
    Mesh(cp=2, dp=2, ep=2),
    Mesh(tp=2, cp=2, dp=2, ep=2),
    Mesh(tp=2, etp=1),
    Mesh(tp=4, ep=2, etp=2),
    Mesh(tp=2, dp=2, ep=4, etp=1),
    Mesh(cp=2, dp=2, ep=4),
    Mesh(tp=2, dp=2, ep=2, etp=1, order="dp-ep-tp"),
]
MOE = replace(SMALL, layers=2, experts=4, top_k=2, expert_ffn=8, shared_experts=1)
EXPERT_MODELS = {
    "shared": MOE,
    "unshared": replace(MOE, shared_experts=0, renormalise=False),
    "many": replace(MOE, experts=8, top_k=3, shared_experts=2, balance_loss=0.5),
    "one": replace(MOE, top_k=1, balance_loss=0.0),
}
# with this seed no choice of an expert is near a tie
EXPERT_JOBS = {name: Job(model=model, seed=2) for name, model in EXPERT_MODELS.items()}


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


def differences(job: Job) -> tuple[float, float]:
    """How far one step on the job's mesh is from the single GPU's: its loss, relative, and its gradients."""
    return loss_and_gradient_difference(run(job), job)


def name(mesh: Mesh) -> str:
    return (
        " ".join(
            f"{axis}{getattr(mesh, axis)}"
            for axis in ("tp", "cp", "dp", "ep", "pp", "etp")
            if getattr(mesh, axis) > 1 or (axis == "etp" and mesh.tp > 1)
        )
        or "single"
    )


def layouts(meshes: list[Mesh]) -> pytest.MarkDecorator:
    """Parametrize by mesh and kind of sequence parallelism: each mesh without, and with both where it has
    tensor parallelism."""
    pairs = [(mesh, "none") for mesh in meshes]
    pairs += [(mesh, variant) for mesh in meshes if mesh.tp > 1 for variant in ("sp", "sp-regather")]
    ids = [f"{name(mesh)} {variant}" for mesh, variant in pairs]
    return pytest.mark.parametrize(("mesh", "sequence_parallel"), pairs, ids=ids)
