"""Wrong and slow answers to `everybody`. The docstring of each is in what its reader is told."""

import numpy as np

import collectives


def forgets_its_own(gpu, outgoing, incoming):
    """A GPU's own piece needs no message, and has to be copied"""
    for other in range(len(outgoing)):
        if other != gpu.rank:
            gpu.send(other, outgoing[other], "piece")
    for other in range(len(outgoing)):
        if other != gpu.rank:
            gpu.receive(other, "piece", into=incoming[other])


def all_to_gpu_0_first(gpu, outgoing, incoming):
    """all to GPU 0 first, and the messages queue there"""
    incoming[gpu.rank][:] = outgoing[gpu.rank]
    for other in range(len(outgoing)):
        if other != gpu.rank:
            gpu.send(other, outgoing[other], "piece")
    for other in range(len(outgoing)):
        if other != gpu.rank:
            gpu.receive(other, "piece", into=incoming[other])


def in_rounds(gpu, outgoing, incoming):
    """Send everything before you look at what comes"""
    incoming[gpu.rank][:] = outgoing[gpu.rank]
    ranks = len(outgoing)
    for distance in range(1, ranks):
        target, source = (gpu.rank + distance) % ranks, (gpu.rank - distance) % ranks
        gpu.send(target, outgoing[target], "piece")
        gpu.receive(source, "piece", into=incoming[source])


def sends_what_it_should_receive(gpu, outgoing, incoming):
    """incoming[1] of GPU 0 should have what GPU 1 had for it; there is what GPU 1 had for GPU 1"""
    ranks = len(outgoing)
    incoming[gpu.rank][:] = outgoing[gpu.rank]
    for other in range(ranks):
        if other != gpu.rank:
            gpu.send(other, outgoing[gpu.rank], "piece")
    for other in range(ranks):
        if other != gpu.rank:
            gpu.receive(other, "piece", into=incoming[other])


def renames_instead_of_writing(gpu, outgoing, incoming):
    """what is returned, or only given to a name, is not in it"""
    ranks = len(outgoing)
    for other in range(ranks):
        if other != gpu.rank:
            gpu.send(other, outgoing[other], "piece")
    received = (gpu.receive(other, "piece") for other in range(ranks) if other != gpu.rank)
    incoming = [*received, outgoing[gpu.rank]]
    del incoming


def receives_first(gpu, outgoing, incoming):
    """deadlock: rank 0, in"""
    for other in range(len(outgoing)):
        if other != gpu.rank:
            gpu.receive(other, "piece", into=incoming[other])
    for other in range(len(outgoing)):
        if other != gpu.rank:
            gpu.send(other, outgoing[other], "piece")


def only_for_4_gpus(gpu, outgoing, incoming):
    """With 3 GPUs:"""
    incoming[gpu.rank][:] = outgoing[gpu.rank]
    for distance in (1, 2, 3):
        gpu.send((gpu.rank + distance) % 4, outgoing[(gpu.rank + distance) % 4], "piece")
    for distance in (1, 2, 3):
        gpu.receive((gpu.rank - distance) % 4, "piece", into=incoming[(gpu.rank - distance) % 4])


def ready_made(gpu, outgoing, incoming):
    """all_to_all of collectives.py does what you are asked to write"""
    came, ranks = np.stack(incoming), range(len(outgoing))
    collectives.all_to_all(gpu, came, np.stack(outgoing), collectives.Group("all", tuple(ranks)))
    for array, part in zip(incoming, came):
        array[:] = part


def returns_what_comes(gpu, outgoing, incoming):
    """Nothing was put into incoming of GPU 0"""
    for other in range(len(outgoing)):
        gpu.send(other, outgoing[other], "piece")
    return [gpu.receive(other, "piece") for other in range(len(outgoing))]


def leaves_none(gpu, outgoing, incoming):
    """incoming[0] of GPU 0 is None, and should be an array of shape (100,)"""
    incoming[0] = None


def leaves_fewer(gpu, outgoing, incoming):
    """incoming of GPU 0 has 3 elements in the end, and should have 4"""
    forgets_its_own(gpu, outgoing, incoming)
    del incoming[gpu.rank]
