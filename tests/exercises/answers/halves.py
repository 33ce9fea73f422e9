"""Wrong and slow answers to `halves`. The docstring of each is in what its reader is told."""

import numpy as np

import collectives
from ndparallel.exercises.tasks.halves import all_gather, reduce_scatter


class AllReduce:
    """Somebody sends pieces that nobody needs"""

    @staticmethod
    def reduce_scatter(gpu, pieces, ranks):
        for other in range(ranks):
            for number, piece in enumerate(pieces):
                if other != gpu.rank:
                    gpu.send(other, piece, number)
        for other in range(ranks):
            for number, piece in enumerate(pieces):
                if other != gpu.rank:
                    gpu.receive(other, number, into=piece, combine=np.add)

    all_gather = staticmethod(all_gather)


class AllInTheFirst:
    """300 of 400 elements were wiped between the two functions"""

    @staticmethod
    def reduce_scatter(gpu, pieces, ranks):
        reduce_scatter(gpu, pieces, ranks)
        all_gather(gpu, pieces, ranks)

    @staticmethod
    def all_gather(gpu, pieces, ranks):
        pass


class NeighboursPiece:
    """or the sum was written over. But rank 0 has the whole sum of piece 1: should it end there?"""

    @staticmethod
    def reduce_scatter(gpu, pieces, ranks):
        right, left = (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
        for step in range(ranks - 1):
            gpu.send(right, pieces[(gpu.rank - step) % ranks], step)
            gpu.receive(left, step, into=pieces[(gpu.rank - step - 1) % ranks], combine=np.add)

    all_gather = staticmethod(all_gather)


class AddsWhileGathering:
    """is a piece in the wrong place, or added where it should be written, or sent in fewer bits"""

    reduce_scatter = staticmethod(reduce_scatter)

    @staticmethod
    def all_gather(gpu, pieces, ranks):
        right, left = (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
        for step in range(ranks - 1):
            gpu.send(right, pieces[(gpu.rank - step) % ranks], step)
            gpu.receive(left, step, into=pieces[(gpu.rank - step - 1) % ranks], combine=np.add)


class OneAfterAnother:
    """The GPUs wait for one another"""

    @staticmethod
    def reduce_scatter(gpu, pieces, ranks):
        for number, piece in enumerate(pieces):
            if gpu.rank == number:
                for other in range(ranks):
                    if other != number:
                        gpu.receive(other, number, into=piece, combine=np.add)
            else:
                gpu.send(number, piece, number)

    all_gather = staticmethod(all_gather)


class Renames:
    """all_gather wrote nothing there"""

    reduce_scatter = staticmethod(reduce_scatter)

    @staticmethod
    def all_gather(gpu, pieces, ranks):
        pieces[gpu.rank] = pieces[gpu.rank].copy()


class OnlyFor4GPUs:
    """With 3 GPUs:"""

    @staticmethod
    def reduce_scatter(gpu, pieces, ranks):
        for hop in range(3):
            gpu.send((gpu.rank + 1) % 4, pieces[(gpu.rank - hop - 1) % 4], ("add", hop))
            into = pieces[(gpu.rank - hop - 2) % 4]
            gpu.receive((gpu.rank - 1) % 4, ("add", hop), into=into, combine=np.add)

    all_gather = staticmethod(all_gather)


class ReadyMade:
    """all_gather of collectives.py does what you are asked to write"""

    reduce_scatter = staticmethod(reduce_scatter)

    @staticmethod
    def all_gather(gpu, pieces, ranks):
        whole = np.concatenate(pieces)
        collectives.all_gather(gpu, whole, pieces[gpu.rank], collectives.Group("all", tuple(range(ranks))))
        for piece, came in zip(pieces, np.split(whole, ranks)):
            piece[:] = came


class Appends:
    """After all_gather: pieces of GPU 0 has 7 elements in the end, and should have 4"""

    reduce_scatter = staticmethod(reduce_scatter)

    @staticmethod
    def all_gather(gpu, pieces, ranks):
        own, others = pieces[gpu.rank], [other for other in range(ranks) if other != gpu.rank]
        for other in others:
            gpu.send(other, own, "piece")
        pieces += [gpu.receive(other, "piece") for other in others]


class LeavesANumber:
    """After reduce_scatter: pieces[0] of GPU 0 is 0, and should be an array of shape (100,)"""

    @staticmethod
    def reduce_scatter(gpu, pieces, ranks):
        pieces[gpu.rank] = 0

    all_gather = staticmethod(all_gather)
