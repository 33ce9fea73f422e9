"""Wrong and slow answers to `why_does_it_hang`. The docstring of each is in what its reader is told."""

from ndparallel.exercises.tasks import why_does_it_hang as tasks


class Unchanged:
    """waits for 'array' from rank 3, which, in why_does_it_hang.py:"""

    pass_right = staticmethod(tasks.pass_right)
    sum_and_print = staticmethod(tasks.sum_and_print)
    two_sums = staticmethod(tasks.two_sums)


class OnlyTheFirst:
    """collective"""

    pass_right = staticmethod(tasks.pass_right_mended)
    sum_and_print = staticmethod(tasks.sum_and_print)
    two_sums = staticmethod(tasks.two_sums)


class TwoOfThree:
    """deadlock"""

    pass_right = staticmethod(tasks.pass_right_mended)
    sum_and_print = staticmethod(tasks.sum_and_print_mended)
    two_sums = staticmethod(tasks.two_sums)


class NoCollectiveAtAll:
    """sum_and_print: GPU 0 returned 100000, and 1000000 is right"""

    pass_right = staticmethod(tasks.pass_right_mended)

    @staticmethod
    def sum_and_print(gpu, array, ranks):
        return array

    two_sums = staticmethod(tasks.two_sums_mended)


class NumbersByHeart:
    """With 6 GPUs: sum_and_print: GPU 0 returned 1000000, and 2100000 is right"""

    pass_right = staticmethod(tasks.pass_right_mended)

    @staticmethod
    def sum_and_print(gpu, array, ranks):
        return array * 0 + 1_000_000

    two_sums = staticmethod(tasks.two_sums_mended)
