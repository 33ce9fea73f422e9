"""Wrong and slow answers to `broadcast`. The docstring of each is in what its reader is told."""

import numpy as np

import collectives


def one_by_one(gpu, array, ranks):
    """one link is busy at a time"""
    if gpu.rank == 0:
        for other in range(1, ranks):
            gpu.send(other, array, "array")
    else:
        gpu.receive(0, "array", into=array)


def whole_from_neighbour_to_neighbour(gpu, array, ranks):
    """one link is busy at a time"""
    if gpu.rank > 0:
        gpu.receive(gpu.rank - 1, "array", into=array)
    if gpu.rank < ranks - 1:
        gpu.send(gpu.rank + 1, array, "array")


def returns_it(gpu, array, ranks):
    """only into=array fills it"""
    if gpu.rank < ranks - 1:
        gpu.send(gpu.rank + 1, array, "array")
    return gpu.receive(gpu.rank - 1, "array") if gpu.rank > 0 else array


def tree(gpu, array, ranks):
    """as in a tree. But a GPU helps nobody while it waits"""
    distance = ranks // 2
    while distance:
        if gpu.rank % (2 * distance) == 0:
            gpu.send(gpu.rank + distance, array, distance)
        elif gpu.rank % distance == 0:
            gpu.receive(gpu.rank - distance, distance, into=array)
        distance //= 2


def scatter_and_gather(gpu, array, ranks):
    """Many links are busy, but one GPU sends more than the array once"""
    pieces = np.array_split(array, ranks)
    for other in range(1, ranks):
        if gpu.rank == 0:
            gpu.send(other, pieces[other], "its own")
        elif gpu.rank == other:
            gpu.receive(0, "its own", into=pieces[other])
    for hop in range(ranks - 1):
        gpu.send((gpu.rank + 1) % ranks, pieces[(gpu.rank - hop) % ranks], hop)
        gpu.receive((gpu.rank - 1) % ranks, hop, into=pieces[(gpu.rank - hop - 1) % ranks])


def chain_of_few_pieces(gpu, array, ranks):
    """Nearly there: the smaller the pieces"""
    for number, part in enumerate(np.array_split(array, 12)):
        if gpu.rank > 0:
            gpu.receive(gpu.rank - 1, number, into=part)
        if gpu.rank < ranks - 1:
            gpu.send(gpu.rank + 1, part, number)


def forgets_into(gpu, array, ranks):
    """GPU 1 has received nothing, or not into `array`"""
    if gpu.rank > 0:
        array = gpu.receive(gpu.rank - 1, "array")
    if gpu.rank < ranks - 1:
        gpu.send(gpu.rank + 1, array, "array")


def loses_the_last_piece(gpu, array, ranks):
    """GPU 1, element 1800: still empty (200 of 2000 elements are wrong)"""
    for number, part in enumerate(np.array_split(array, 10)[:-1]):
        if gpu.rank > 0:
            gpu.receive(gpu.rank - 1, number, into=part)
        if gpu.rank < ranks - 1:
            gpu.send(gpu.rank + 1, part, number)


def only_for_8_gpus(gpu, array, ranks):
    """With 4 GPUs and 2000 elements:"""
    for number, piece in enumerate(np.array_split(array, 500)):
        if gpu.rank > 0:
            gpu.receive(gpu.rank - 1, number, into=piece)
        if gpu.rank < 7:
            gpu.send(gpu.rank + 1, piece, number)


def ready_made(gpu, array, ranks):
    """broadcast of collectives.py does what you are asked to write"""
    collectives.broadcast(gpu, array, collectives.Group("all", tuple(range(ranks))))
