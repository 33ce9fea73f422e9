"""2D: tensor and sequence parallelism. The GPUs cut every matrix, and all work on the same tokens.

Idea    Cut the first matrix of a pair by columns and the second by rows. Each GPU multiplies its slices
        without asking anybody, and gets a partial sum of the whole result; one all-reduce adds them up.
        Attention is cut by heads, the vocabulary by its rows.
            TP          activations between the pairs are whole on every GPU
            TP + SP     norms and residuals are cut along the sequence: reduce-scatter and all-gather for sums
            regather    keeps only the shard of what was gathered, and gathers it again in the backward pass
                        (Megatron's way)
            overlapped  sum the gradient of an input while the weight's gradient is multiplied (what
                        CUDA_DEVICE_MAX_CONNECTIONS=1 is set for in Megatron's scripts)
            parts       sum one part of a result while the next is still multiplied
Cost    4 all-reduces of batch * sequence * hidden a layer, two each way: 2 (t-1)/t of their bytes each.
Limit   A forward sum stands between two matmuls and cannot hide: only links in a node are fast enough.

Glossary
    t, tp           GPUs that share every matrix: the tensor-parallel group
    column, row     of a weight as the mathematics writes it, y = x W: columns are outputs, rows are inputs
    parallel        cut that way: column parallel is the first matmul of a pair, row parallel the second
    f, g            Megatron's conjugate operators (Shoeybi et al. 1909.08053), where activations enter and
                    leave a pair: f copies forward and sums backward, g sums forward and copies backward
    shard           a rank's part of the sequence, where norms and residuals are cut

Run     python 2d_tensor_parallel.py          and with --sweep, --parts 4, --gpus-per-node 1, --memory
"""

import sys
from collections.abc import Callable

from collectives import Array, Group, all_reduce
from gpu import GPU
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.main import main
from ndparallel.lessons.tensor_parallel import SWEEPS, add_options, notice
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.slices import part
from ndparallel.training.fully_sharded import fsdp_prefetch
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica
from ndparallel.training.two_layers import TwoLayers


def f(gpu: GPU, x: Array, tp: Group) -> Array:
    return x


def f_backward(gpu: GPU, dx: Array, tp: Group, async_op: bool = False):
    return all_reduce(gpu, dx, tp, async_op=async_op)


def g(gpu: GPU, y: Array, tp: Group) -> Array:
    return all_reduce(gpu, y, tp)


def g_backward(gpu: GPU, dy: Array, tp: Group) -> Array:
    return dy


def column_parallel(mlp: TwoLayers, x: Array, tp: Group) -> Array:
    """z = f(x) A: from whole rows of x, this rank's columns of z."""
    return mlp.matmul("forward first", f(mlp.gpu, x, tp), mlp.a.weight)


def column_parallel_backward(mlp: TwoLayers, dz: Array, tp: Group) -> Array:
    mlp.a.gradient += mlp.matmul("backward first weight", mlp.x.T, dz)
    return f_backward(mlp.gpu, mlp.matmul("backward first", dz, mlp.a.weight.T), tp)


def column_parallel_backward_overlapped(mlp: TwoLayers, dz: Array, tp: Group) -> Array:
    """The layer below waits for the sum of dx; the gradient of A does not, so the sum travels beside it."""
    dx = f_backward(mlp.gpu, mlp.matmul("backward first", dz, mlp.a.weight.T), tp, async_op=True)
    mlp.a.gradient += mlp.matmul("backward first weight", mlp.x.T, dz)
    return dx.wait()


def row_parallel(mlp: TwoLayers, h: Array, tp: Group) -> Array:
    """y = g(h B): from this rank's columns of h, partial sums of y; g adds them up."""
    return g(mlp.gpu, mlp.matmul("forward second", h, mlp.b.weight), tp)


def row_parallel_backward(mlp: TwoLayers, dy: Array, h: Array, tp: Group) -> Array:
    dy = g_backward(mlp.gpu, dy, tp)
    mlp.b.gradient += mlp.matmul("backward second weight", h.T, dy)
    return mlp.matmul("backward second", dy, mlp.b.weight.T)


def columns_then_rows(gpu: GPU, job: Job) -> Outcome:
    """y = relu(x A) B with A column parallel and B row parallel: relu needs no neighbour, and one sum ends
    each pass."""
    return pair(gpu, job, column_parallel_backward)


def sum_beside_weights(gpu: GPU, job: Job) -> Outcome:
    """The same; the backward sum travels while the gradient of A is multiplied. The forward one cannot."""
    return pair(gpu, job, column_parallel_backward_overlapped)


def pair(gpu: GPU, job: Job, backward: Callable[[TwoLayers, Array, Group], Array]) -> Outcome:
    tp = job.mesh.group("tp", gpu.rank)
    mine = part(job.model.ffn, tp.size, tp.index(gpu.rank))
    mlp = TwoLayers(gpu, job).hold_a(columns=mine).hold_b(rows=mine)
    for _ in mlp.steps():
        z = column_parallel(mlp, mlp.x, tp)
        h = mlp.relu(z)
        y = row_parallel(mlp, h, tp)
        dy = mlp.loss_gradient(y)
        dh = row_parallel_backward(mlp, dy, h, tp)
        dz = mlp.relu_backward(dh, z)
        backward(mlp, dz, tp)  # for the layer below
    return mlp.outcome


def columns_then_columns(gpu: GPU, job: Job) -> Outcome:
    """Both column parallel: the second needs all of h, the wide one, so it is gathered, and its gradient
    scattered back."""
    tp = job.mesh.group("tp", gpu.rank)
    mine, outputs = (part(size, tp.size, tp.index(gpu.rank)) for size in (job.model.ffn, job.model.hidden))
    mlp = TwoLayers(gpu, job).hold_a(columns=mine).hold_b(columns=outputs)
    for _ in mlp.steps():
        z = column_parallel(mlp, mlp.x, tp)
        h = mlp.gather_columns(mlp.relu(z), job.model.ffn, tp)
        y = mlp.gather_columns(mlp.matmul("forward second", h, mlp.b.weight), job.model.hidden, tp)
        dy = mlp.loss_gradient(y)[:, outputs]
        mlp.b.gradient += mlp.matmul("backward second weight", h.T, dy)
        parts = mlp.matmul("backward second", dy, mlp.b.weight.T)
        dz = mlp.relu_backward(mlp.reduce_columns(parts, z.shape[1], tp), z)
        column_parallel_backward(mlp, dz, tp)
    return mlp.outcome


def tensor_parallel(gpu: GPU, job: Job) -> Outcome:
    """The single GPU's loop over units whose pairs of matmuls are column parallel and row parallel; f and g
    are in the units (ndparallel/parallel/tensor.py)."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.sum_shared()
        replica.optimizer_step()
    return replica.outcome


def mesh(gpus: int) -> Mesh:
    return Mesh(tp=gpus)


def mesh_over_nodes(gpus: int) -> Mesh:
    return Mesh(tp=gpus, dp=2)


OVERLAP = {"parts": 1, "tp_overlap": "backward"}
STRATEGIES = [
    Strategy("MLP, columns then rows", columns_then_rows, mesh, reference=columns_then_rows),
    Strategy("MLP, sum beside weights", sum_beside_weights, mesh, reference=columns_then_rows),
    Strategy("MLP, columns twice", columns_then_columns, mesh, reference=columns_then_rows),
    Strategy("TP", tensor_parallel, mesh, {"parts": 1}),
    Strategy("TP + SP", tensor_parallel, mesh, {"parts": 1, "sequence_parallel": "sp"}),
    Strategy("TP + SP regather", tensor_parallel, mesh, {"parts": 1, "sequence_parallel": "sp-regather"}),
    Strategy("TP overlapped", tensor_parallel, mesh, OVERLAP),
    Strategy("SP regather overlapped", tensor_parallel, mesh, OVERLAP | {"sequence_parallel": "sp-regather"}),
    Strategy("TP in parts", tensor_parallel, mesh),
    Strategy("TP across nodes", tensor_parallel, mesh, {"parts": 1}, {"gpus_per_node": 1}),
    Strategy("TP x FSDP", fsdp_prefetch, mesh_over_nodes, {"parts": 1}),  # each slice is sharded once more
]

LESSON = Lesson(
    name="2d_tensor_parallel",
    title="2D: tensor and sequence parallelism",
    strategies=STRATEGIES,
    contrast=("TP", "TP across nodes"),
    compare=("TP", "TP + SP", "TP across nodes"),
    defaults={"parts": 2},
    notice=notice,
    add_options=add_options,
    sweeps=SWEEPS,
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
