"""HSDP: FSDP inside every node, and a copy of the whole model in each node (hybrid sharding, as in Zhao et
al. 2304.11277, section 3.2).

Idea   Weights are gathered, and gradients reduced and scattered, over the fast links inside a node. Only what
       a rank then holds of the gradients goes across, in one all-reduce with the ranks of the other nodes
       that hold the same shard.
Cost   Across nodes each rank sends 2 (m-1)/m of its shard of the gradients, n / g, and no weights; FSDP over
       all g m GPUs sends 3 (m-1)/m of n / g.
Limit  Weights, gradients and optimizer are divided by the GPUs of a node, not by all GPUs.

Glossary
    g, m        GPUs of the group in each node, nodes
    shard       the ranks of one node, over which a unit is cut: the stream "dp shard"
    replicate   the ranks, one in each node, that hold the same shard: the stream "dp replicate"
"""

import numpy as np

from collectives import Group, all_reduce, reduce_scatter
from gpu import GPU, Handle
from ndparallel.base.errors import UserError
from ndparallel.base.words import listed
from ndparallel.collective.algorithms import nodes_of
from ndparallel.model.units import Unit
from ndparallel.training.buckets import FullyShardedUnit
from ndparallel.training.fully_sharded import fsdp_prefetch
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome


def hsdp(gpu: GPU, job: Job) -> Outcome:
    """FSDP's loop over units that are sharded inside each node only; what a node has reduced then goes across
    nodes once."""
    return fsdp_prefetch(gpu, job, HybridShardedUnit)


class HybridShardedUnit(FullyShardedUnit):
    """An HSDP unit: sharded over the ranks of its node, and replicated across nodes. Raises UserError
    where nodes hold unequal numbers of the group's ranks."""

    def __init__(self, gpu: GPU, units: list[Unit], group: Group, seed: int) -> None:
        shard, self.copies = node_and_rail(group, gpu)
        super().__init__(gpu, units, shard, seed)

    def average(self, whole: np.ndarray) -> Handle:
        """Reduce-scatter inside the node, then all-reduce across nodes; the second starts on a stream of
        its own where the first ends."""
        piece = np.empty_like(self.gradient_shard)
        with self.gpu.on(self.group.name) as line:
            start = line.now
            reduce_scatter(self.gpu, piece, whole, self.group, "average")
            handle: Handle = all_reduce(self.gpu, piece, self.copies, "average", async_op=True)
        handle.start = start  # a wait for the second is one for the first as well
        return handle


def node_and_rail(group: Group, gpu: GPU) -> tuple[Group, Group]:
    """Return two groups: the ranks in this rank's node, and the ranks with its place in every node."""
    nodes = [
        tuple(group.ranks[member] for member in node) for node in nodes_of(group, gpu.hardware.gpus_per_node)
    ]
    sizes = [len(node) for node in nodes]
    if len(set(sizes)) > 1:
        raise UserError(
            f"HSDP keeps one copy of the model in each node, and these {group.size} GPUs stand "
            f"{listed([*map(str, sizes)])} in a node: "
            f"choose a number of GPUs that nodes of {gpu.hardware.gpus_per_node} divide."
        )
    rails = list(zip(*nodes))
    node, rail = (next(part for part in parts if gpu.rank in part) for parts in (nodes, rails))
    return Group(f"{group.name} shard", node), Group(f"{group.name} replicate", rail)
