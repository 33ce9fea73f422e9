"""3D: pipeline parallelism. The GPUs cut the model across its depth; microbatches follow one another through
it.

Idea    Each GPU holds some of the layers, and sends activations on and gradients back. With one microbatch
        only one GPU is ever busy; with many, all are, but for the bubble while the pipeline fills and drains.
        A schedule is the order in which a GPU takes its forwards and backwards: it decides how large the
        bubble is, and how many microbatches wait in memory.
            naive         one microbatch at a time
            GPipe         all forwards, then all backwards
            1F1B          a backward as soon as there is one: the same bubble, far less memory
            interleaved   several smaller stages on each GPU: the bubble divided by their number, for more
                          messages
            ZB-H1, ZB-V   the gradient of the weights waits for nobody and nobody for it: it fills the bubble
            DualPipeV     a forward and a backward run as one pair, so that the messages of one hide behind
                          the other
Cost    GPipe, 1F1B: a bubble of (P-1)(F+B) for M (F+B) of work. Messages: one activation forward, one
        gradient back, for each cut.
Limit   The batch must be cut into several microbatches for every stage, and the slowest stage sets the pace.

Glossary
    P, M, V         GPUs in the pipeline, microbatches in a step, stages (chunks of the model) on each GPU
    F, B            forward and full backward of one microbatch through one stage
    I, W            the halves of B: the gradient of the stage's input, and of its weights
    bubble          time in which a GPU has nothing to do

Run     python 3d_pipeline_parallel.py    and with --microbatches 16, --sweep (microbatches, chunks, overhead)
"""

import argparse
import sys
from dataclasses import replace
from math import inf

from gpu import GPU, Link
from ndparallel.base.words import listed
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.main import main
from ndparallel.lessons.runner import Runner, enter
from ndparallel.parallel.mesh import Mesh
from ndparallel.results.measure import Measurement
from ndparallel.results.run import Run, Sweep
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica
from ndparallel.training.two_layers import TwoLayers


def two_gpus(gpu: GPU, job: Job) -> Outcome:
    """One layer on each of two GPUs, one activation forward, one gradient back: the barest model
    parallelism."""
    mlp = TwoLayers(gpu, job)
    if gpu.rank == 0:
        mlp.hold_a()
        z = mlp.matmul("forward first", mlp.x, mlp.a.weight)
        gpu.send(1, mlp.relu(z), "activations")
        dz = mlp.relu_backward(gpu.receive(1, "gradients"), z)
        mlp.a.gradient += mlp.matmul("backward first weight", mlp.x.T, dz)
        return mlp.outcome()
    mlp.hold_b()
    h = gpu.receive(0, "activations")
    loss, dy = mlp.loss_and_gradient(mlp.matmul("forward second", h, mlp.b.weight))
    gpu.send(0, mlp.matmul("backward second", dy, mlp.b.weight.T), "gradients")
    mlp.b.gradient += mlp.matmul("backward second weight", h.T, dy)
    return mlp.outcome(loss)


def one_gpu(gpu: GPU, job: Job) -> Outcome:
    """Both layers on one GPU: what two_gpus is held against."""
    mlp = TwoLayers(gpu, job).hold_a().hold_b()
    z = mlp.matmul("forward first", mlp.x, mlp.a.weight)
    h = mlp.relu(z)
    loss, dy = mlp.loss_and_gradient(mlp.matmul("forward second", h, mlp.b.weight))
    mlp.b.gradient += mlp.matmul("backward second weight", h.T, dy)
    dz = mlp.relu_backward(mlp.matmul("backward second", dy, mlp.b.weight.T), z)
    mlp.a.gradient += mlp.matmul("backward first weight", mlp.x.T, dz)
    return mlp.outcome(loss)


def pipeline(gpu: GPU, job: Job) -> Outcome:
    """Any schedule: take what comes in, compute, hand on what goes out. A fused pair takes both inputs, then
    hands on both outputs."""
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


def notice(run: Run) -> str:
    """Bubble and memory of the schedules that ran."""
    sentences = []
    if "GPipe" in run and "1F1B" in run:
        gpipe, one = run["GPipe"], run["1F1B"]
        kept = one.peak_memory_bytes["activations"] / gpipe.peak_memory_bytes["activations"]
        bubbles = list(dict.fromkeys(bubble_share(row) for row in (gpipe, one)))
        have = "the same bubble" if len(bubbles) == 1 else f"bubbles of {listed(bubbles)} of the step"
        keep = (
            "and keep as many activations"
            if f"{kept:.0%}" == "100%"
            else f"but 1F1B keeps {kept:.0%} of the activations"
        )
        sentences.append(f"GPipe and 1F1B have {have}, {keep}.")
    if "1F1B" in run and "ZB-V" in run and run["1F1B"].bubble_seconds > 0:
        before, after = (bubble_share(run[name]) for name in ("1F1B", "ZB-V"))
        takes = f"takes it from {before} of the step to" if before != after else "leaves it at"
        sentences.append(f"Filling the bubble with weight gradients {takes} {after} (ZB-V).")
    return " ".join(sentences)


def bubble_share(row: Measurement) -> str:
    return f"{row.bubble_seconds / row.step_seconds:.0%}"


def row(runner: Runner, name: str, job: Job, **point) -> dict:
    """One row of a sweep: what changes, and what that does to the step of a strategy."""
    strategy = next(strategy for strategy in LESSON.strategies if strategy.name == name)
    measured = runner.measured(enter(strategy, job, 4))[0]
    point = {"strategy": name} | point
    if measured.step_seconds is None:
        return point | dict.fromkeys(FIGURES)
    figures = (
        measured.step_seconds,
        runner.reference(job).measurement.step_seconds / measured.step_seconds,
        measured.bubble_seconds / measured.step_seconds,
        measured.exposed_communication_seconds / measured.step_seconds,
    )
    return point | dict(zip(FIGURES, figures))


FIGURES = ("step_seconds", "speedup", "bubble share", "waiting share")


def microbatches(runner: Runner, job: Job) -> Sweep:
    """1F1B: the same four batches at once in more and more parts."""
    rows = in_parts(runner, job.replace(batch=4 * job.batch))
    return Sweep(
        f"Bubble against microbatches, 4 GPUs, {4 * job.batch} sequences", rows, best_of(rows, "microbatches")
    )


def in_parts(runner: Runner, job: Job) -> list[dict]:
    parts = [m for m in (1, 2, 4, 8, 16, 32) if job.batch % m == 0]
    return [
        row(runner, "1F1B", job.replace(microbatches=m), microbatches=m, theory_ratio=3 / (m + 3))
        for m in parts
    ]


def chunks(runner: Runner, job: Job) -> Sweep:
    """Interleaved: more stages on each GPU, where messages cost nothing, inside a node, and across, where
    they cost nine times as much."""
    job = job.replace(microbatches=job.batch, model=replace(job.model, layers=16))
    costless = Link(latency_seconds=0.0, bandwidth_bytes_per_second=inf)
    with runner.with_hardware(inside=costless) as free, runner.with_hardware(gpus_per_node=1) as across:
        links = {"free": free, "inside": runner, "across": across}
        rows = [
            row(links[kind], "interleaved", job.replace(stage_chunks=v), chunks=v, links=kind)
            for kind in links
            for v in (1, 2, 4)
        ]
    return Sweep("Bubble against chunks, 4 GPUs, 16 layers", rows, best_of(rows, "chunks", "links"))


def overhead(runner: Runner, job: Job) -> Sweep:
    """1F1B on a GPU whose kernels cost 2 ms each: more microbatches are more kernels."""
    with runner.with_hardware(kernel_overhead_seconds=2e-3) as slow:
        rows = in_parts(slow, job.replace(batch=4 * job.batch))
    return Sweep(
        "Bubble against microbatches where every kernel costs 2 ms", rows, best_of(rows, "microbatches")
    )


def best_of(rows: list[dict], *what: str) -> str:
    rows = [row for row in rows if row["step_seconds"] is not None]
    if not rows:
        return "None of them fits into the memory of a GPU."
    best = min(rows, key=lambda row: row["step_seconds"])
    bubble = min(rows, key=lambda row: row["bubble share"])
    named = ", ".join(f"{name} {best[name]}" for name in what)
    if best is bubble:
        return f"The step is shortest at {named}, where the bubble is smallest."
    smallest = ", ".join(f"{name} {bubble[name]}" for name in what)
    return (
        f"The step is shortest at {named}; the bubble is smallest at {smallest}, but what that costs is more "
        "than what it saves."
    )


def pipeline_of(gpus: int) -> Mesh:
    return Mesh(pp=gpus)


def pair(gpus: int) -> Mesh:
    return Mesh(pp=2)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chunks",
        type=int,
        dest="stage_chunks",
        metavar="V",
        help="stages a GPU holds, where interleaved (2)",
    )


LESSON = Lesson(
    name="3d_pipeline_parallel",
    title="3D: pipeline parallelism",
    strategies=[
        Strategy(
            "MLP on two GPUs", two_gpus, pair, {"microbatches": 1, "stage_chunks": None}, reference=one_gpu
        ),
        Strategy(
            "naive", pipeline, pipeline_of, {"schedule": "naive", "microbatches": 1, "stage_chunks": None}
        ),
        Strategy("GPipe", pipeline, pipeline_of, {"schedule": "gpipe", "stage_chunks": None}),
        Strategy("1F1B", pipeline, pipeline_of, {"schedule": "1f1b", "stage_chunks": None}),
        Strategy("interleaved", pipeline, pipeline_of, {"schedule": "interleaved"}),
        Strategy("ZB-H1", pipeline, pipeline_of, {"schedule": "zb-h1", "stage_chunks": None}),
        Strategy("ZB-V", pipeline, pipeline_of, {"schedule": "zb-v", "stage_chunks": None}),
        Strategy("DualPipeV", pipeline, pipeline_of, {"schedule": "dualpipev", "stage_chunks": None}),
    ],
    contrast=("1F1B", "ZB-V"),
    notice=notice,
    add_options=add_options,
    compare=("GPipe", "1F1B", "ZB-V"),
    defaults={"microbatches": 8, "stage_chunks": 2},
    sweeps={"microbatches": microbatches, "chunks": chunks, "overhead": overhead},
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
