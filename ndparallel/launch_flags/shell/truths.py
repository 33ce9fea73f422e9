"""True, false, or not known: what may be said of a condition whose variables only the environment knows."""

from collections.abc import Iterable

Truth = bool | None  # None: not known


def every(truths: Iterable[Truth]) -> Truth:
    """False where one is false, else None where one is not known."""
    known = [*truths]
    return False if False in known else None if None in known else True


def some(truths: Iterable[Truth]) -> Truth:
    """True where one is true, else None where one is not known."""
    known = [*truths]
    return True if True in known else None if None in known else False


def opposite(truth: Truth) -> Truth:
    return None if truth is None else not truth
