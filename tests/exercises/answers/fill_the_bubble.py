"""Wrong and slow answers to `fill_the_bubble`. The docstring of each is in what its reader is told."""

from ndparallel.pipeline.actions import Action


def one_f_one_b(rank, ranks, microbatches):
    """with every W right behind its I"""
    ahead = ranks - 1 - rank
    for turn in range(ahead + microbatches):
        if turn < microbatches:
            yield Action("F", rank, turn)
        if turn >= ahead:
            yield Action("I", rank, turn - ahead)
            yield Action("W", rank, turn - ahead)


def all_w_at_the_end(rank, ranks, microbatches):
    """Some W come later than they must"""
    ahead = ranks - 1 - rank
    for turn in range(ahead + microbatches):
        if turn < microbatches:
            yield Action("F", rank, turn)
        if turn >= ahead:
            yield Action("I", rank, turn - ahead)
    for microbatch in range(microbatches):
        yield Action("W", rank, microbatch)


def one_w_behind(rank, ranks, microbatches):
    """There is a bubble left"""
    ahead, later = ranks - 1 - rank, min(rank, 1)
    for turn in range(microbatches + ahead + later):
        if turn < microbatches:
            yield Action("F", rank, turn)
        if 0 <= turn - ahead < microbatches:
            yield Action("I", rank, turn - ahead)
        if 0 <= turn - ahead - later < microbatches:
            yield Action("W", rank, turn - ahead - later)


def forgets_w(rank, ranks, microbatches):
    """Rank 0 never does W of microbatch 0"""
    for microbatch in range(microbatches):
        yield Action("F", rank, microbatch)
        yield Action("I", rank, microbatch)


def w_before_i(rank, ranks, microbatches):
    """waits for its own I of microbatch 0"""
    for microbatch in range(microbatches):
        yield Action("F", rank, microbatch)
        yield Action("W", rank, microbatch)
        yield Action("I", rank, microbatch)
