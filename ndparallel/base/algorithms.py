"""The algorithms of the collectives, as records: how each is run, and its closed form.

Idea   collectives.py, and ndparallel/collective/algorithms.py for more of them, enter each function with
       @register. docs/extending.md adds one.

Glossary
    p       ranks in the group
    a, b    latency, and n / bandwidth of a link
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction, isgeneratorfunction, signature
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.functions import check_free, check_parameters


@dataclass
class Algorithm:
    """A way to do a collective, `run(me, ...)`, and how long it takes, `seconds(p, a, b)`.

    ring_passes: how often the pieces go round a ring of all members, 0 where it is no ring. by_node: whether
    it needs equally many members in every node, and `seconds` takes (g, m, a, b, A, B). lockstep: the same
    on clocks alone, which ndparallel/collective/lockstep.py enters.
    """

    run: Callable[..., None]
    seconds: Callable[..., Any]
    ring_passes: int = 0
    by_node: bool = False
    lockstep: Callable[..., None] | None = None

    @property
    def summary(self) -> str:
        return " ".join((self.run.__doc__ or "").split())


ALGORITHMS: dict[str, dict[str, Algorithm]] = defaultdict(dict)


def register(collective: str, name: str, seconds: Callable[..., Any], **more: Any) -> Callable:
    """Enter the function below this line into ALGORITHMS, with its closed form and what else it says. Raises
    UserError for a name that is taken, and for a function that could not be run as the others are."""

    def decorator(run: Callable[..., None]) -> Callable[..., None]:
        known, words = ALGORITHMS[collective], f"{collective} {name}"
        check_free(f"{collective} has an algorithm {name!r}", known[name].run if name in known else None, run)
        if isgeneratorfunction(run) or iscoroutinefunction(run):
            raise UserError(f"{words} is a plain function, without yield and async.")
        for other in list(known.values())[:1]:
            check_parameters(words, run, [*signature(other.run).parameters])
        known[name] = Algorithm(run, seconds, **more)
        return run

    return decorator
