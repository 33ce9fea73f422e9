"""Wrong and slow answers to `one_f_one_b`. The docstring of each is in what its reader is told."""

from ndparallel.pipeline.actions import Action


def one_at_a_time(rank, ranks, microbatches):
    """The GPUs wait for one another"""
    for microbatch in range(microbatches):
        yield Action("F", rank, microbatch)
        yield Action("B", rank, microbatch)


def everybody_takes_p_ahead(rank, ranks, microbatches):
    """Rank 0 never does the backward pass of microbatch 5"""
    for turn in range(microbatches):
        yield Action("F", rank, turn)
        if turn >= ranks - 1:
            yield Action("B", rank, turn - ranks + 1)


def one_too_many_ahead(rank, ranks, microbatches):
    """A GPU takes forwards that nobody needs yet"""
    ahead = min(ranks - rank, microbatches)
    for turn in range(ahead + microbatches):
        if turn < microbatches:
            yield Action("F", rank, turn)
        if turn >= ahead:
            yield Action("B", rank, turn - ahead)


def as_many_ahead_as_the_first(rank, ranks, microbatches):
    """a GPU near the end takes forwards while the one before it waits for a gradient"""
    ahead = min(ranks - 1, microbatches)
    for turn in range(ahead + microbatches):
        if turn < microbatches:
            yield Action("F", rank, turn)
        if turn >= ahead:
            yield Action("B", rank, turn - ahead)


def one_too_few_ahead(rank, ranks, microbatches):
    """a GPU far from the end needs more forwards before its first backward"""
    ahead = min(max(ranks - 2 - rank, 0), microbatches)
    for turn in range(ahead + microbatches):
        if turn < microbatches:
            yield Action("F", rank, turn)
        if turn >= ahead:
            yield Action("B", rank, turn - ahead)


def backward_before_forward(rank, ranks, microbatches):
    """waits for its own F of microbatch 0"""
    for microbatch in range(microbatches):
        yield Action("B", rank, microbatch)
        yield Action("F", rank, microbatch)


def without_end(rank, ranks, microbatches):
    """24 are the most that a step can have: does a loop end?"""
    while True:
        yield Action("F", rank, 0)


def wrong_stage(rank, ranks, microbatches):
    """Rank 1 lists F of microbatch 0 on stage 0: its only stage is 1"""
    for microbatch in range(microbatches):
        yield Action("F", 0, microbatch)
        yield Action("B", 0, microbatch)


def only_for_4_gpus(rank, ranks, microbatches):
    """With 3 GPUs and 5 microbatches: Rank 0 lists F of microbatch 5"""
    ahead = 3 - rank
    for turn in range(ahead + 8):
        if turn < 8:
            yield Action("F", rank, turn)
        if turn >= ahead:
            yield Action("B", rank, turn - ahead)


def more_ahead_than_there_are(rank, ranks, microbatches):
    """With 4 GPUs and 2 microbatches: Rank 0 lists F of microbatch 2"""
    ahead = ranks - 1 - rank
    yield from (Action("F", rank, microbatch) for microbatch in range(ahead))
    for turn in range(ahead, microbatches):
        yield Action("F", rank, turn)
        yield Action("B", rank, turn - ahead)
    yield from (Action("B", rank, microbatch) for microbatch in range(microbatches - ahead, microbatches))


def with_halves_of_the_backward_pass(rank, ranks, microbatches):
    """schedule() yields the op 'I' for GPU 0: here an op is one of F, B"""
    for op in "FIW":
        yield from (Action(op, rank, microbatch) for microbatch in range(microbatches))


def small_letters(rank, ranks, microbatches):
    """schedule() yields the op 'f' for GPU 0: here an op is one of F, B"""
    for op in "fb":
        yield from (Action(op, rank, microbatch) for microbatch in range(microbatches))
