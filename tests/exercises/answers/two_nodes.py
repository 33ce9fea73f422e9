"""Wrong and slow answers to `two_nodes`. The docstring of each is in what its reader is told."""

import numpy as np

from collectives import Group, all_gather, all_reduce, broadcast, reduce_scatter


def all_of(nodes, gpus_per_node):
    return Group("all", tuple(range(nodes * gpus_per_node)))


def one_ring(gpu, array, nodes, gpus_per_node):
    """What has been summed inside a node need cross only once"""
    all_reduce(gpu, array, all_of(nodes, gpus_per_node))


def calls_the_algorithm(gpu, array, nodes, gpus_per_node):
    """the algorithm 'hierarchical' does what you are asked to write: call the collectives without it"""
    all_reduce(gpu, array, all_of(nodes, gpus_per_node), algorithm="hierarchical")


def calls_its_halves(gpu, array, nodes, gpus_per_node):
    """the algorithm 'hierarchical' does what you are asked to write: call the collectives without it"""
    everybody = all_of(nodes, gpus_per_node)
    piece = np.empty_like(np.array_split(array, everybody.size)[gpu.rank])
    reduce_scatter(gpu, piece, array, everybody, algorithm="hierarchical")
    all_gather(gpu, array, piece, everybody, algorithm="hierarchical")


def leaders_talk(gpu, array, nodes, gpus_per_node):
    """each of the four GPUs can take a quarter of it across"""
    first = gpu.rank - gpu.rank % gpus_per_node
    inside = Group("inside", tuple(range(first, first + gpus_per_node)))
    all_reduce(gpu, array, inside)
    if gpu.rank == first:
        all_reduce(gpu, array, Group("across", tuple(range(0, nodes * gpus_per_node, gpus_per_node))))
    broadcast(gpu, array, inside)


def sums_whole_arrays_inside(gpu, array, nodes, gpus_per_node):
    """inside a node, is the whole array on its way where a quarter is enough?"""
    node, place = divmod(gpu.rank, gpus_per_node)
    inside = Group("inside", tuple(range(node * gpus_per_node, (node + 1) * gpus_per_node)))
    across = Group("across", tuple(range(place, nodes * gpus_per_node, gpus_per_node)))
    all_reduce(gpu, array, inside)
    piece = np.array_split(array, gpus_per_node)[place].copy()
    all_reduce(gpu, piece, across)
    all_gather(gpu, array, piece, inside)


def forgets_the_nodes(gpu, array, nodes, gpus_per_node):
    """lacks the parts of ranks 4, 5, 6 and 7"""
    first = gpu.rank - gpu.rank % gpus_per_node
    all_reduce(gpu, array, Group("inside", tuple(range(first, first + gpus_per_node))))


def sums_twice(gpu, array, nodes, gpus_per_node):
    """element 0 of array"""
    node, place = divmod(gpu.rank, gpus_per_node)
    inside = Group("inside", tuple(range(node * gpus_per_node, (node + 1) * gpus_per_node)))
    all_reduce(gpu, array, inside)
    all_reduce(gpu, array, all_of(nodes, gpus_per_node))


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


def only_for_2_nodes_of_4(gpu, array, nodes, gpus_per_node):
    """With 3 nodes of 2 GPUs and 801 elements:"""
    node, place = divmod(gpu.rank, 4)
    inside = Group("inside", tuple(range(4 * node, 4 * node + 4)))
    piece = np.empty_like(np.array_split(array, 4)[place])
    reduce_scatter(gpu, piece, array, inside)
    all_reduce(gpu, piece, Group("across", (place, place + 4)))
    all_gather(gpu, array, piece, inside)


def only_for_2_nodes(gpu, array, nodes, gpus_per_node):
    """With 3 nodes of 2 GPUs and 801 elements: Rank 0, element 0 of array: 40000, and 364000 is right"""
    node, place = divmod(gpu.rank, gpus_per_node)
    inside = Group("inside", tuple(range(node * gpus_per_node, (node + 1) * gpus_per_node)))
    piece = np.empty_like(np.array_split(array, gpus_per_node)[place])
    reduce_scatter(gpu, piece, array, inside)
    if node < 2:
        all_reduce(gpu, piece, Group("across", (place, place + gpus_per_node)))
    all_gather(gpu, array, piece, inside)


def equal_pieces(gpu, array, nodes, gpus_per_node):
    """With 3 nodes of 2 GPUs and 801 elements: `output` has 400 elements; this rank's piece has 401"""
    node, place = divmod(gpu.rank, gpus_per_node)
    inside = Group("inside", tuple(range(node * gpus_per_node, (node + 1) * gpus_per_node)))
    piece = np.empty(len(array) // gpus_per_node, array.dtype)
    reduce_scatter(gpu, piece, array, inside)
    all_reduce(gpu, piece, Group("across", tuple(range(place, nodes * gpus_per_node, gpus_per_node))))
    all_gather(gpu, array, piece, inside)
