"""Wrong and slow answers to `f_and_g`. The docstring of each is in what its reader is told."""

import numpy as np

from collectives import Group, all_reduce


def copy(gpu, array, tp):
    return array


def add_up(gpu, array, tp):
    return all_reduce(gpu, array, tp)


class SumsNothing:
    """A part is summed"""

    enter = enter_backward = leave = leave_backward = staticmethod(copy)


class SumsEverything:
    """what is whole must not be"""

    enter = enter_backward = leave = leave_backward = staticmethod(add_up)


class TheWrongWayRound:
    """is what I am given whole, or this GPU's part of a sum?"""

    enter = leave_backward = staticmethod(add_up)
    enter_backward = leave = staticmethod(copy)


class ForgetsTheWayBack:
    """A part is summed"""

    enter = enter_backward = leave_backward = staticmethod(copy)
    leave = staticmethod(add_up)


def sum_slowly(gpu, array, tp):
    return all_reduce(gpu, array, tp, algorithm="naive")


class ThroughOneGPU:
    """two sums forward and two backward in every layer are enough"""

    enter = leave_backward = staticmethod(copy)
    enter_backward = leave = staticmethod(sum_slowly)


def sum_and_forget(gpu, array, tp):
    all_reduce(gpu, array, tp)


class ForgetsToReturn:
    """leave returned a NoneType: return an array of the shape"""

    enter = leave_backward = staticmethod(copy)
    enter_backward = leave = staticmethod(sum_and_forget)


def sum_in_float64(gpu, array, tp):
    return all_reduce(gpu, array.astype(np.float64), tp)


class SumsInFloat64:
    """of the numbers as they are given, float32"""

    enter = leave_backward = staticmethod(copy)
    enter_backward = leave = staticmethod(sum_in_float64)


def begin_to_sum(gpu, array, tp):
    return all_reduce(gpu, array, tp, async_op=True)


class ReturnsAHandle:
    """leave returned a Handle: return an array of the shape"""

    enter = leave_backward = staticmethod(copy)
    enter_backward = leave = staticmethod(begin_to_sum)


def flatten(gpu, array, tp):
    return array.reshape(-1)


class ReturnsAnotherShape:
    """enter returned the shape (16384,)"""

    enter = staticmethod(flatten)
    leave_backward = staticmethod(copy)
    enter_backward = leave = staticmethod(add_up)


def sum_of_four(gpu, array, tp):
    return all_reduce(gpu, array, Group("tp", (0, 1, 2, 3)))


class OfFourGPUs:
    """With 2 GPUs:"""

    enter = leave_backward = staticmethod(copy)
    enter_backward = leave = staticmethod(sum_of_four)
