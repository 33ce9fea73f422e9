"""Wrong and slow answers to `capstone`. The docstring of each is in what its reader is told."""

from ndparallel.planner.job import Plan


def does_not_fit():
    """It needs 103.4 GB a GPU, and 79.0 GB may be used. Most of it: optimizer 52.9 GB, activations"""
    return Plan(tp=8, pp=2, dp=4, sequence_parallel=True)


def everything_again():
    """more than a prediction may be wrong. Yours spends 5.58 s more on compute and 5.13 s"""
    return Plan(tp=8, pp=8, dp=1, zero=0, sequence_parallel=True, recompute="full")


def everything_sharded():
    """takes 1.68 s less: more than a prediction may be wrong. Yours spends 5.09 s more on compute and"""
    return Plan(tp=1, dp=64, zero=3, recompute="full")


def recomputes_nothing_and_is_cut_more():
    """can buy time: cut less."""
    return Plan(tp=8, pp=8, dp=1, sequence_parallel=True)


def half_of_the_gpus():
    """The plan is for 32 GPUs, and there are 64"""
    return Plan(tp=8, pp=4)


def a_dict():
    """return Plan(...)"""
    return {"tp": 8}


def cannot_be_cut():
    """a global batch of 128 cannot be cut"""
    return Plan(dp=64, micro_batch=4)


def a_number_in_quotes():
    """tp is '8', and should be a whole number, as 1 is"""
    return Plan(tp="8", pp=8)


def less_than_none():
    """tp is -8, and is at least 1"""
    return Plan(tp=-8, pp=-8)


def one_for_true():
    """sequence_parallel is 1, and should be True or False, as False is"""
    return Plan(tp=8, pp=4, dp=2, sequence_parallel=1)  # type: ignore[arg-type]
