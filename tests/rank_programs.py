"""Programs that tests run on ranks: at the top level of a file, so that every engine and start method finds them."""

import os

import numpy as np

from gpu import Operation


def ring_all_reduce(gpu, world_size, array, name=("ring", 0), pieces=None):
    """Sum `array` over all ranks, in place, by a ring written out over send and receive. Returns it."""
    pieces = np.array_split(array, world_size)
    right, left = (gpu.rank + 1) % world_size, (gpu.rank - 1) % world_size
    for step in range(2 * (world_size - 1)):
        gpu.send(right, pieces[(gpu.rank - step) % world_size], (name, step))
        into = pieces[(gpu.rank - step - 1) % world_size]
        gpu.receive(left, (name, step), into=into, combine=np.add if step < world_size - 1 else None)
    return array


def ring_of(gpu, world_size, size, dtype):
    """A ring after work that differs from rank to rank. Returns (the summed array, the seconds on its clock)."""
    gpu.compute(Operation("work", flops=1 + gpu.rank))
    array = np.arange(size).astype(dtype) + np.array(gpu.rank, dtype)
    return ring_all_reduce(gpu, world_size, array), gpu.now


def echo(gpu, arrays):
    """Rank 0 sends arrays and overwrites them at once; rank 1 returns what came."""
    if gpu.rank == 0:
        for number, array in enumerate(arrays):
            gpu.send(1, array, number)
            if array.flags.writeable:
                array[...] = 0
        return None
    return [gpu.receive(0, number) for number in range(len(arrays))]


def rank_number(gpu):
    return gpu.rank


def which_module(gpu):
    return __name__


def process_number(gpu):
    return os.getpid()
