"""Wrong and slow answers to `two_nodes`. The docstring of each is in what its reader is told."""

import numpy as np

from collectives import Group, all_gather, all_reduce, broadcast, reduce_scatter

ALL = Group("all", tuple(range(8)))


def one_ring(gpu, array, nodes, gpus_per_node):
    """What has been summed inside a node need cross only once"""
    all_reduce(gpu, array, ALL)


def leaders_talk(gpu, array, nodes, gpus_per_node):
    """each of the four GPUs can take a quarter of it across"""
    first = gpu.rank - gpu.rank % gpus_per_node
    inside = Group("inside", tuple(range(first, first + gpus_per_node)))
    all_reduce(gpu, array, inside)
    if gpu.rank == first:
        all_reduce(gpu, array, Group("across", tuple(range(0, nodes * gpus_per_node, gpus_per_node))))
    broadcast(gpu, array, inside)


def forgets_the_nodes(gpu, array, nodes, gpus_per_node):
    """the parts of 4 ranks (4, 5, 6 and 7) are missing"""
    first = gpu.rank - gpu.rank % gpus_per_node
    all_reduce(gpu, array, Group("inside", tuple(range(first, first + gpus_per_node))))


def sums_twice(gpu, array, nodes, gpus_per_node):
    """element 0 of array"""
    node, place = divmod(gpu.rank, gpus_per_node)
    inside = Group("inside", tuple(range(node * gpus_per_node, (node + 1) * gpus_per_node)))
    all_reduce(gpu, array, inside)
    all_reduce(gpu, array, ALL)


def whole_array_across(gpu, array, nodes, gpus_per_node):
    """The slow links decide"""
    node, place = divmod(gpu.rank, gpus_per_node)
    inside = Group("inside", tuple(range(node * gpus_per_node, (node + 1) * gpus_per_node)))
    all_reduce(gpu, array, inside)
    all_reduce(gpu, array, Group("across", tuple(range(place, nodes * gpus_per_node, gpus_per_node))))


def wrong_group(gpu, array, nodes, gpus_per_node):
    """is not in group 'inside'"""
    inside = Group("inside", tuple(range(gpus_per_node)))
    piece = np.empty_like(np.array_split(array, gpus_per_node)[gpu.rank % gpus_per_node])
    reduce_scatter(gpu, piece, array, inside)
    all_gather(gpu, array, piece, inside)
