"""Wrong and slow answers to `fill_the_bubble`. The docstring of each is in what its reader is told."""

from ndparallel.pipeline.actions import Action


def one_f_one_b(rank, ranks, microbatches):
    """It takes as long as with every W right behind its I, where it is in the way"""
    ahead = ranks - 1 - rank
    for turn in range(ahead + microbatches):
        if turn < microbatches:
            yield Action("F", rank, turn)
        if turn >= ahead:
            yield Action("I", rank, turn - ahead)
            yield Action("W", rank, turn - ahead)


def all_w_at_the_end(rank, ranks, microbatches):
    """some W come later than they must"""
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
    """Rank 0 never does W, the gradient of the weights, of microbatch 0"""
    for microbatch in range(microbatches):
        yield Action("F", rank, microbatch)
        yield Action("I", rank, microbatch)


def w_before_i(rank, ranks, microbatches):
    """waits for its own I of microbatch 0"""
    for microbatch in range(microbatches):
        yield Action("F", rank, microbatch)
        yield Action("W", rank, microbatch)
        yield Action("I", rank, microbatch)


def gpipe(rank, ranks, microbatches):
    """too many F go ahead"""
    yield from (Action("F", rank, microbatch) for microbatch in range(microbatches))
    for microbatch in range(microbatches):
        yield Action("I", rank, microbatch)
        yield Action("W", rank, microbatch)


def one_microbatch_at_a_time(rank, ranks, microbatches):
    """P - 1 - rank forwards ahead, then F and I by turns"""
    for microbatch in range(microbatches):
        yield from (Action(op, rank, microbatch) for op in "FIW")


def nothing(rank, ranks, microbatches):
    """schedule() returned None for GPU 0"""


def numbers(rank, ranks, microbatches):
    """schedule() yields 0 for GPU 0: yield Action(op, stage, microbatch)"""
    return list(range(microbatches))


def microbatches_in_quotes(rank, ranks, microbatches):
    """a letter and two whole numbers"""
    return [("F", rank, "0")]


def whole_backward_passes(rank, ranks, microbatches):
    """the op 'B' for GPU 0: here an op is one of F, I, W"""
    for op in "FB":
        yield from (Action(op, rank, microbatch) for microbatch in range(microbatches))
