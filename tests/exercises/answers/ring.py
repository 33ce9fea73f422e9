"""Wrong and slow answers to `ring`. The docstring of each is in what its reader is told."""

import numpy as np

import collectives
from ndparallel.exercises import sums

BOX: list = []


def all_to_one(gpu, array, ranks):
    """One GPU sends more than the others must: cut the array"""
    if gpu.rank == 0:
        for other in range(1, ranks):
            gpu.receive(other, "part", into=array, combine=np.add)
        for other in range(1, ranks):
            gpu.send(other, array, "sum")
    else:
        gpu.send(0, array, "part")
        gpu.receive(0, "sum", into=array)


def adds_up_and_hands_nothing_on(gpu, array, ranks):
    """The other 125 are right: do all ranks get them?"""
    right, left = (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
    pieces = np.array_split(array, ranks)
    for hop in range(ranks - 1):
        gpu.send(right, pieces[(gpu.rank - hop) % ranks], hop)
        gpu.receive(left, hop, into=pieces[(gpu.rank - hop - 1) % ranks], combine=np.add)


def hands_on_what_is_not_summed(gpu, array, ranks):
    """or the sum was written over"""
    adds_up_and_hands_nothing_on(gpu, array, ranks)
    right, left = (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
    pieces = np.array_split(array, ranks)
    for hop in range(ranks - 1):
        gpu.send(right, pieces[(gpu.rank - hop) % ranks], ("sum", hop))
        gpu.receive(left, ("sum", hop), into=pieces[(gpu.rank - hop - 1) % ranks])


def one_step_too_few(gpu, array, ranks):
    """lacks the part of rank 3: a hop is missing"""
    right, left = (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
    pieces = np.array_split(array, ranks)
    for step in range(ranks - 2):
        gpu.send(right, pieces[(gpu.rank - step) % ranks], step)
        gpu.receive(left, step, into=pieces[(gpu.rank - step - 1) % ranks], combine=np.add)
    for step in range(ranks - 1):
        gpu.send(right, pieces[(gpu.rank - step - 2) % ranks], ("sum", step))
        gpu.receive(left, ("sum", step), into=pieces[(gpu.rank - step - 3) % ranks])


def adds_where_it_should_take(gpu, array, ranks):
    """more than once: a piece was combined where it should be taken"""
    right, left = (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
    for step in range(ranks - 1):
        gpu.send(right, array, step)
        gpu.receive(left, step, into=array, combine=np.add)


def receives_before_it_sends(gpu, array, ranks):
    """deadlock: rank 0, in"""
    left = (gpu.rank - 1) % ranks
    gpu.receive(left, "part", into=array, combine=np.add)
    gpu.send((gpu.rank + 1) % ranks, array, "part")


def shares_a_list(gpu, array, ranks):
    """It is rank 0's own part: nothing was added to it"""
    BOX.append(array)


def sends_and_nobody_receives(gpu, array, ranks):
    """every send needs its receive"""
    gpu.send((gpu.rank + 1) % ranks, array, "part")


def returns_the_sum(gpu, array, ranks):
    """nothing was added to it, or only to a copy"""
    for other in range(ranks):
        gpu.send(other, array, "part") if other != gpu.rank else None
    return array + sum(gpu.receive(other, "part") for other in range(ranks) if other != gpu.rank)


def four_pieces(gpu, array, ranks):
    """With 3 GPUs and 500 elements:"""
    summed_in(np.array_split(array, 4), gpu, 4)


def equal_pieces(gpu, array, ranks):
    """array split does not result in an equal division"""
    summed_in(np.split(array, ranks), gpu, ranks)


def summed_in(pieces, gpu, ranks):
    right, left = (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
    for hop in range(ranks - 1):
        gpu.send(right, pieces[(gpu.rank - hop) % ranks], hop)
        gpu.receive(left, hop, into=pieces[(gpu.rank - hop - 1) % ranks], combine=np.add)
    for hop in range(ranks - 1):
        gpu.send(right, pieces[(gpu.rank + 1 - hop) % ranks], ("sum", hop))
        gpu.receive(left, ("sum", hop), into=pieces[(gpu.rank - hop) % ranks])


def whole_arrays_round(gpu, array, ranks):
    """Every GPU sends 2 times what it must: send pieces, and not the whole array"""
    right, left = (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
    passed = array.copy()
    for hop in range(ranks - 1):
        gpu.send(right, passed, hop)
        passed = gpu.receive(left, hop)
        array += passed


def ready_made(gpu, array, ranks):
    """all_reduce of collectives.py does what you are asked to write"""
    collectives.all_reduce(gpu, array, collectives.Group("all", tuple(range(ranks))))


def knows_the_others(gpu, array, ranks):
    """The numbers are right, with 0 B of bytes sent. But they take at least 3.00 kB: GPUs share nothing"""
    array[:] = sums.whole(ranks, len(array))
