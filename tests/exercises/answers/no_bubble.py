"""Wrong and slow answers to `no_bubble`. The docstring of each is in what its reader is told."""

from ndparallel.pipeline.actions import Action


def zb_h1(rank, ranks, microbatches):
    """A GPU still waits"""
    ahead, later = ranks - 1 - rank, rank
    for turn in range(microbatches + ahead + later):
        if turn < microbatches:
            yield Action("F", rank, turn)
        if 0 <= turn - ahead < microbatches:
            yield Action("I", rank, turn - ahead)
        if 0 <= turn - ahead - later < microbatches:
            yield Action("W", rank, turn - ahead - later)


def too_many_ahead(rank, ranks, microbatches):
    """A GPU holds 8 microbatches at once, and may hold 7"""
    for op in "FIW":
        for microbatch in range(microbatches):
            yield Action(op, rank, microbatch)


def w_at_once(rank, ranks, microbatches):
    """A GPU still waits"""
    ahead = 2 * (ranks - 1 - rank)
    for turn in range(microbatches + ahead):
        if turn < microbatches:
            yield Action("F", rank, turn)
        if turn >= ahead:
            yield Action("I", rank, turn - ahead)
            yield Action("W", rank, turn - ahead)


def only_for_4_gpus_and_8_microbatches(rank, ranks, microbatches):
    """With 3 GPUs and 5 microbatches:"""
    ahead, later = 2 * (3 - rank), 2 * rank
    for turn in range(8 + ahead + later):
        if turn < 8:
            yield Action("F", rank, turn)
        if 0 <= turn - ahead < 8:
            yield Action("I", rank, turn - ahead)
        if 0 <= turn - ahead - later < 8:
            yield Action("W", rank, turn - ahead - later)
