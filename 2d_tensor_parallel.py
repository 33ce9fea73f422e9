"""2D: tensor and sequence parallelism. The GPUs cut every matrix, and all work on the same tokens; a second
axis shards over nodes.

Idea    Cut the first matrix of a pair by columns and the second by rows. Each GPU multiplies its slices
        without asking anybody, and gets a part of every number in the result; one all-reduce sums the parts.
        Attention is cut by heads, the vocabulary by its rows.
            TP          activations between the pairs are whole on every GPU
            TP + SP     norms and residuals are cut along the sequence: the all-reduce becomes a
                        reduce-scatter and an all-gather
            regather    keeps only the shard of what was gathered, and gathers it again in the backward pass
                        (Megatron's way)
            chunks      sum one part of a result while the next is still multiplied
Cost    4 all-reduces of batch * sequence * hidden for every layer, two forward, two backward: 2 (t-1)/t of
        their bytes each.
Limit   The sums stand between one matmul and the next, layer after layer: the link must be as fast as those
        inside a node.

Glossary
    t, tp           GPUs that share every matrix: the tensor-parallel group
    columns, rows   of a weight as the mathematics writes it, y = x W: columns are outputs, rows are inputs
    shard           a rank's part of the sequence, where norms and residuals are cut

Run     python 2d_tensor_parallel.py          and with --sweep, --chunks 4, --gpus-per-node 1, --memory
"""

import argparse
import sys
from itertools import pairwise

from collectives import all_gather, all_reduce, reduce_scatter
from gpu import GPU
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.main import main
from ndparallel.lessons.runner import Runner, enter
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.slices import part
from ndparallel.results.run import Run, Sweep
from ndparallel.training.buckets import FullyShardedUnit
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica
from ndparallel.training.two_layers import TwoLayers

# isort: split
import numpy as np


def columns_then_rows(gpu: GPU, job: Job) -> Outcome:
    """y = relu(x A) B with A cut by columns and B by rows: the nonlinearity needs no neighbour, and one sum
    ends each pass."""
    tp = job.mesh.group("tp", gpu.rank)
    mine = part(job.model.ffn, tp.size, tp.index(gpu.rank))
    mlp = TwoLayers(gpu, job).hold_a(columns=mine).hold_b(rows=mine)
    z = mlp.matmul("forward first", mlp.x, mlp.a.weight)
    h = mlp.relu(z)
    y = mlp.matmul("forward second", h, mlp.b.weight)
    all_reduce(gpu, y, tp)
    loss, dy = mlp.loss_and_gradient(y)
    mlp.b.gradient += mlp.matmul("backward second weight", h.T, dy)
    dz = mlp.relu_backward(mlp.matmul("backward second", dy, mlp.b.weight.T), z)
    mlp.a.gradient += mlp.matmul("backward first weight", mlp.x.T, dz)
    dx = mlp.matmul("backward first", dz, mlp.a.weight.T)  # for the layer below
    all_reduce(gpu, dx, tp)
    return mlp.outcome(loss)


def columns_then_columns(gpu: GPU, job: Job) -> Outcome:
    """Both cut by columns: the second needs all of h, the wide one, so it is gathered, and its gradient
    scattered back."""
    tp = job.mesh.group("tp", gpu.rank)
    mine, outputs = (part(size, tp.size, tp.index(gpu.rank)) for size in (job.model.ffn, job.model.hidden))
    mlp = TwoLayers(gpu, job).hold_a(columns=mine).hold_b(columns=outputs)
    z = mlp.matmul("forward first", mlp.x, mlp.a.weight)
    h = np.empty((job.model.ffn, mlp.tokens), job.dtype)
    all_gather(gpu, h, np.ascontiguousarray(mlp.relu(z).T), tp)
    y = np.empty((job.model.hidden, mlp.tokens), job.dtype)
    all_gather(gpu, y, np.ascontiguousarray(mlp.matmul("forward second", h.T, mlp.b.weight).T), tp)
    loss, dy = mlp.loss_and_gradient(y.T)
    mlp.b.gradient += mlp.matmul("backward second weight", h, dy[:, outputs])
    dh = np.empty((z.shape[1], mlp.tokens), job.dtype)
    reduce_scatter(
        gpu, dh, np.ascontiguousarray(mlp.matmul("backward second", dy[:, outputs], mlp.b.weight.T).T), tp
    )
    dz = mlp.relu_backward(dh.T, z)
    mlp.a.gradient += mlp.matmul("backward first weight", mlp.x.T, dz)
    dx = mlp.matmul("backward first", dz, mlp.a.weight.T)
    all_reduce(gpu, dx, tp)
    return mlp.outcome(loss)


def tensor_parallel(gpu: GPU, job: Job) -> Outcome:
    """The single GPU's loop: the units' matmuls are cut, and talk where activations enter and leave them
    (tensor_parallel.py)."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.sum_shared()
        replica.optimizer_step()
    return replica.outcome


def tensor_parallel_fsdp(gpu: GPU, job: Job) -> Outcome:
    """2D: each slice is sharded once more, by FSDP across nodes, with the next unit's slices on their way."""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit, following in pairwise([*reversed(replica.buckets), None]):
                unit.gather()
                if following:
                    following.gather(async_op=True)
                x = unit.forward(x, microbatch)
                unit.reshard()
            gradient, on_its_way = None, None
            for unit, following in pairwise([*replica.buckets, None]):
                unit.gather()
                if following:
                    following.gather(async_op=True)
                unit.stage()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                unit.sum_shared()
                if on_its_way:
                    on_its_way.wait()
                on_its_way = unit.reduce_scatter(async_op=True)
            on_its_way.wait()
        replica.optimizer_step()
    return replica.outcome


def notice(run: Run) -> str:
    """What the cut costs: the right one and the wrong one, inside a node and across."""
    sentences = []
    right, wrong = (run[name].exposed_communication_seconds if name in run else None for name in TWO_LAYERS)
    if right and wrong:
        times = wrong / right
        sentences.append(
            f"Cut the wrong way, the two-layer MLP waits {times:.1f}x as long for its neighbours."
        )
    if "TP" in run and "TP across nodes" in run and 1 < run["TP"].gpus <= run.hardware.gpus_per_node:
        inside, across = run["TP"], run["TP across nodes"]
        shares = (100 * row.exposed_communication_seconds / row.step_seconds for row in (inside, across))
        sentences.append(
            "TP waits for {:.0f}% of its step inside a node, {:.0f}% across nodes: the same code.".format(
                *shares
            )
        )
    if all(name in run for name in ("TP", *SEQUENCE)) and run["TP"].bytes_sent_per_gpu:
        kept, again = (
            run[name].peak_memory_bytes["activations"] / run["TP"].peak_memory_bytes["activations"]
            for name in SEQUENCE
        )
        longer = run["TP + SP"].step_seconds / run["TP"].step_seconds - 1
        time = f"{longer:.1%} more" if longer > 0 else "no more"
        sentences.append(
            f"Sequence parallelism keeps {kept:.0%} of TP's activations in {time} time, and {again:.0%} if "
            "it gathers again."
        )
    return " ".join(sentences)


def degree(runner: Runner, job: Job) -> Sweep:
    """TP over 1, 2, 4, 8 GPUs: where does communication pass compute?"""
    rows = []
    alone = runner.reference(job).measurement
    for tp in (1, 2, 4, 8):
        entry = enter(Strategy("TP", tensor_parallel, over_all, {"chunks": 1}), job, tp)
        row = runner.measured(entry)[0]
        rows.append(
            {
                "tp": tp,
                "links": entry.job.mesh.link("tp", runner.hardware),
                "step_seconds": row.step_seconds,
                "speedup": row.step_seconds and alone.step_seconds / row.step_seconds,
                "compute_seconds": row.compute_seconds,
                "exposed_communication_seconds": row.exposed_communication_seconds,
            }
        )
    passed = [
        row["tp"]
        for row in rows
        if row["step_seconds"] and row["exposed_communication_seconds"] > row["compute_seconds"]
    ]
    sentence = (
        f"At tp={passed[0]} communication passes compute."
        if passed
        else "Communication stays below compute at every degree."
    )
    return Sweep("Tensor parallelism by degree", rows, sentence)


TWO_LAYERS = ("MLP, columns then rows", "MLP, columns twice")
SEQUENCE = ("TP + SP", "TP + SP regather")


def over_all(gpus: int) -> Mesh:
    return Mesh(tp=gpus)


def over_two_nodes(gpus: int) -> Mesh:
    return Mesh(tp=gpus, dp=2)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chunks", type=int, metavar="N", help="parts of an activation, for TP in chunks (default 2)"
    )


LESSON = Lesson(
    name="2d_tensor_parallel",
    title="2D: tensor and sequence parallelism",
    strategies=[
        Strategy("MLP, columns then rows", columns_then_rows, over_all, reference=columns_then_rows),
        Strategy("MLP, columns twice", columns_then_columns, over_all, reference=columns_then_rows),
        Strategy("TP", tensor_parallel, over_all, {"chunks": 1}),
        Strategy("TP + SP", tensor_parallel, over_all, {"chunks": 1, "sequence_parallel": "sp"}),
        Strategy(
            "TP + SP regather", tensor_parallel, over_all, {"chunks": 1, "sequence_parallel": "sp-regather"}
        ),
        Strategy("TP in chunks", tensor_parallel, over_all),
        Strategy("TP across nodes", tensor_parallel, over_all, {"chunks": 1}, {"gpus_per_node": 1}),
        Strategy("TP x FSDP", tensor_parallel_fsdp, over_two_nodes, {"chunks": 1}),
    ],
    contrast=("TP", "TP across nodes"),
    notice=notice,
    add_options=add_options,
    compare=("TP", "TP + SP", "TP across nodes"),
    defaults={"chunks": 2},
    sweeps={"degree": degree},
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
