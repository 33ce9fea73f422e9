"""Clipping by the global norm: all gradients are scaled down together where they are longer than a limit.

Idea   The norm is that of the whole model's gradients, so it takes the squares of every rank. Each rank sums
       those of what it owns, an element that several ranks have counted by one of them: gradients that dp
       ranks have whole, norms on every tp rank, the tied table at both ends. The sums are added up axis by
       axis, wherever ranks own different elements: over dp under ZeRO, over ep for experts, over the ranks
       that cut matrices (tp, and etp for experts), over pp.
       So do torch and torchtitan (torchtitan/distributed/utils.py, one all-reduce for each axis of the mesh);
       Megatron-Core adds up over all these ranks in one all-reduce (megatron/core/optimizer/clip_grads.py).
Cost   One pass over the gradients that the rank owns, and two to scale them; for each axis of p ranks a
       reduction of one number, 2 (p-1) latencies in a ring. None of it can hide: the norm needs the last
       gradient, the optimizer needs the norm. So all ranks of the mesh wait for the last one, also those of a
       pipeline that were done long before. What can hide is the host: with Megatron-Core's older kernels it
       reads the norm before it goes on, torch leaves the norm on the GPU and scales in any case, as here.
Limit  Whether the norm is above the limit makes no difference to seconds: scaling by 1 takes as long.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from collectives import Group, all_reduce
from gpu import GPU
from ndparallel.base.bfloat16 import wide_dtype
from ndparallel.collective.algorithms import usual_algorithm
from ndparallel.model import costs
from ndparallel.model.units import Context
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.slices import Parameter, pieces
from ndparallel.training.buckets import Bucket

EPSILON = 1e-6  # added to the norm, as in both frameworks


def clip_gradients(gpu: GPU, parts: Sequence[Bucket], context: Context, mesh: Mesh, limit: float) -> float:
    """Scale the gradients of all buckets so that their global norm is at most `limit`; return what it was."""
    elements = sum(part.owned_gradients.size for part in parts)
    gpu.compute(costs.elementwise("optimizer norm", elements, 1, context.gradient_dtype))
    norm = math.sqrt(sum_of_squares(gpu, parts, context, mesh))
    gpu.compute(costs.elementwise("optimizer clip", elements, 2, context.gradient_dtype))
    for part in parts:
        part.owned_gradients[...] *= coefficient(norm, limit)
    return norm


def coefficient(norm: float, limit: float) -> float:
    """Return what gradients are multiplied with: at most 1; NaN for a norm that is none."""
    scale = limit / (norm + EPSILON)
    return 1.0 if scale > 1 else scale


def sum_of_squares(gpu: GPU, parts: Sequence[Bucket], context: Context, mesh: Mesh) -> float:
    """Return the same number on all ranks of the mesh."""
    by_owners: dict[tuple[Group, tuple[Group, ...]], float] = defaultdict(float)
    for part in parts:
        by_owners[who_owns(part, mesh, gpu.rank)] += own_squares(part, context)
    by_cut: dict[Group, float] = defaultdict(float)
    for (cut_over, owners), squares in by_owners.items():
        by_cut[cut_over] += added_up(gpu, squares, owners, context)
    total = sum(added_up(gpu, squares, (cut_over,), context) for cut_over, squares in by_cut.items())
    return added_up(gpu, total, (mesh.group("pp", gpu.rank),), context)


def who_owns(part: Bucket, mesh: Mesh, rank: int) -> tuple[Group, tuple[Group, ...]]:
    """Return the ranks that cut a bucket's matrices, and the groups whose ranks own different ones."""
    if part.units[0].is_experts:
        return mesh.expert_slices(rank), (*part.owners, mesh.group("ep", rank))
    return mesh.group("tp", rank), (*part.owners,)


def added_up(gpu: GPU, value: float, groups: Iterable[Group], context: Context) -> float:
    """Add up one number of every rank, group by group."""
    number = np.array([value], wide_dtype(context.dtype))
    for group in groups:
        if group.size > 1:
            # as buckets go over the same ranks
            algorithm = usual_algorithm(group, gpu.hardware) if "dp" in group.name else "ring"
            all_reduce(gpu, number, group, algorithm=algorithm)
    return float(number[0])


def own_squares(part: Bucket, context: Context) -> float:
    """The squares of what this rank owns of a bucket, without what another rank counts."""
    if part.units[0].is_copy:
        return 0.0
    owned = pieces(part.parameters, part.owned.start, part.owned_gradients)
    return sum(
        float(np.vdot(array, array))
        for parameter, _, array in owned
        if part.units[0].is_experts or context.tp.index % copies(parameter, context.tp.size) == 0
    )


def copies(parameter: Parameter, tp: int) -> int:
    """Return how many neighbouring tp ranks hold the same slice of a parameter."""
    is_whole = all(part == slice(0, size) for part, size in zip(parameter.index, parameter.whole))
    return tp if is_whole else parameter.shared_by
