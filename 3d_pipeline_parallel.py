"""3D: pipeline parallelism. The GPUs cut the model across its depth; microbatches follow one another through
it.

Idea    Each GPU holds some of the layers, and sends activations on and gradients back. With one microbatch
        only one GPU is ever busy; with many, all are, but for the bubble while the pipeline fills and drains.
        A schedule is the order in which a GPU takes its forwards and backwards: it decides how large the
        bubble is, and how many microbatches wait in memory.
            naive         one microbatch after another
            GPipe         all forwards, then all backwards
            1F1B          a backward as soon as there is one: the same bubble, far less memory
            interleaved   several smaller stages on each GPU: the bubble divided by their number, for more
                          messages
            ZB-H1, ZB-V   no GPU waits for the gradient of another's weights: it can fill the bubble
            DualPipeV     a forward and a backward run as one pair, so that the messages of one hide behind
                          the other
Cost    GPipe, 1F1B: a bubble of (P-1)(F+B) for M (F+B) of work. Messages: one activation forward, one
        gradient back, for each cut.
Limit   The batch must be cut into several microbatches for every stage, and the slowest stage sets the pace.

Glossary
    P, M, V         GPUs in the pipeline, microbatches in a step, stages (chunks of the model) on each GPU
    F, B            forward and full backward of one microbatch through one stage
    I, W            the halves of B: the gradient of the stage's input, and of its weights
    bubble          time in which a GPU waits for a message not sent yet, or is done before the others

Run     python 3d_pipeline_parallel.py    and with --microbatches 16, --sweep (microbatches, chunks, overhead)
"""

import sys
from collections.abc import Iterator

from gpu import GPU
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.main import main
from ndparallel.lessons.pipeline_parallel import SCHEDULE, SWEEPS, add_options, notice
from ndparallel.parallel.mesh import Mesh
from ndparallel.pipeline.actions import Action
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica
from ndparallel.training.two_layers import TwoLayers


def two_gpus(gpu: GPU, job: Job) -> Outcome:
    """One layer on each of two GPUs, one activation forward, one gradient back: the barest model
    parallelism."""
    mlp = TwoLayers(gpu, job)
    return first_layer(mlp.hold_a()) if gpu.rank == 0 else second_layer(mlp.hold_b())


def first_layer(mlp: TwoLayers) -> Outcome:
    for _ in mlp.steps():
        z = mlp.matmul("forward first", mlp.x, mlp.a.weight)
        mlp.gpu.send(1, mlp.relu(z), "activations")
        dz = mlp.relu_backward(mlp.gpu.receive(1, "gradients"), z)
        mlp.a.gradient += mlp.matmul("backward first weight", mlp.x.T, dz)
    return mlp.outcome


def second_layer(mlp: TwoLayers) -> Outcome:
    for _ in mlp.steps():
        h = mlp.gpu.receive(0, "activations")
        dy = mlp.loss_gradient(mlp.matmul("forward second", h, mlp.b.weight))
        mlp.gpu.send(0, mlp.matmul("backward second", dy, mlp.b.weight.T), "gradients")
        mlp.b.gradient += mlp.matmul("backward second weight", h.T, dy)
    return mlp.outcome


def one_gpu(gpu: GPU, job: Job) -> Outcome:
    """Both layers on one GPU: the reference of two_gpus."""
    mlp = TwoLayers(gpu, job).hold_a().hold_b()
    for _ in mlp.steps():
        z = mlp.matmul("forward first", mlp.x, mlp.a.weight)
        h = mlp.relu(z)
        dy = mlp.loss_gradient(mlp.matmul("forward second", h, mlp.b.weight))
        mlp.b.gradient += mlp.matmul("backward second weight", h.T, dy)
        dz = mlp.relu_backward(mlp.matmul("backward second", dy, mlp.b.weight.T), z)
        mlp.a.gradient += mlp.matmul("backward first weight", mlp.x.T, dz)
    return mlp.outcome


def naive(rank: int, ranks: int, microbatches: int) -> Iterator[Action]:
    """One microbatch after another, forward through all GPUs and back: one GPU works at a time."""
    for microbatch in range(microbatches):
        yield Action("F", rank, microbatch)
        yield Action("B", rank, microbatch)


def gpipe(rank: int, ranks: int, microbatches: int) -> Iterator[Action]:
    """All forwards, then all backwards: the activations of M microbatches wait in memory."""
    for microbatch in range(microbatches):
        yield Action("F", rank, microbatch)
    for microbatch in range(microbatches):
        yield Action("B", rank, microbatch)


def one_f_one_b(rank: int, ranks: int, microbatches: int) -> Iterator[Action]:
    """As many forwards as there are GPUs behind this one, then a forward and a backward by turns: the
    activations of at most P - rank microbatches wait in memory."""
    ahead = min(ranks - 1 - rank, microbatches)
    for turn in range(ahead + microbatches):
        if turn < microbatches:
            yield Action("F", rank, turn)
        if turn >= ahead:
            yield Action("B", rank, turn - ahead)


ORDERS = {"naive": naive, "gpipe": gpipe, "1f1b": one_f_one_b}


def pipeline(gpu: GPU, job: Job) -> Outcome:
    """Receive, run, send: one action after another, in one of these orders."""
    replica = Replica(gpu, job)
    stages = replica.stages
    for _ in replica.steps():
        for action in ORDERS[job.schedule](stages.rank, job.mesh.pp, job.microbatches):
            stages.send(action, stages.run(action, stages.receive(action)))
        replica.sum_shared()
        replica.optimizer_step()
    return replica.outcome


def any_schedule(gpu: GPU, job: Job) -> Outcome:
    """Any order of the package: a GPU may hold several stages, and run a forward and a backward as one pair,
    which takes both inputs, then hands on both outputs."""
    replica = Replica(gpu, job)
    stages = replica.stages
    for _ in replica.steps():
        for actions in stages.steps():
            inputs = [stages.receive(action) for action in actions]
            outputs = [stages.run(action, x) for action, x in zip(actions, inputs)]
            for action, output in zip(actions, outputs):
                stages.send(action, output)
        replica.sum_shared()
        replica.optimizer_step()
    return replica.outcome


def mesh(gpus: int) -> Mesh:
    return Mesh(pp=gpus)


def mesh_of_two(gpus: int) -> Mesh:
    return Mesh(pp=2)


STRATEGIES = [
    Strategy(
        "MLP on two GPUs", two_gpus, mesh_of_two, {"microbatches": 1, "stage_chunks": None}, reference=one_gpu
    ),
    Strategy("naive", pipeline, mesh, {"schedule": "naive", "stage_chunks": None}),
    Strategy("GPipe", pipeline, mesh, {"schedule": "gpipe", "stage_chunks": None}),
    Strategy("1F1B", pipeline, mesh, {"schedule": "1f1b", "stage_chunks": None}),
    Strategy("interleaved", any_schedule, mesh, {"schedule": "interleaved"}),
    Strategy("ZB-H1", any_schedule, mesh, {"schedule": "zb-h1", "stage_chunks": None}),
    Strategy("ZB-V", any_schedule, mesh, {"schedule": "zb-v", "stage_chunks": None}),
    Strategy("DualPipeV", any_schedule, mesh, {"schedule": "dualpipev", "stage_chunks": None}),
]

LESSON = Lesson(
    name="3d_pipeline_parallel",
    title="3D: pipeline parallelism",
    strategies=STRATEGIES,
    contrast=("1F1B", "ZB-V"),
    compare=("GPipe", "1F1B", "ZB-V"),
    defaults={"microbatches": 8, "stage_chunks": 2},
    notice=notice,
    add_options=add_options,
    sweeps=SWEEPS,
    own=SCHEDULE,
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
