"""What the algorithms of each collective are called with: the arguments behind `run(me, ...)`.

Idea   All algorithms of a collective have one signature. Who runs one by name (on an engine, in lockstep, or
       to draw it) makes its arguments here, so that a new algorithm needs no word about them.

Glossary
    whole     the one array: of an all-reduce, a reduce and a broadcast
    pieces    the array, cut into one piece for each member
    parts     what goes to each member, and what comes from each
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Signature:
    """The arguments of a collective: `given` is whole, pieces, parts or nothing; `root` is whether data go
    from or to one, None without. `addressed`: what a member brings are pieces for different members."""

    given: str
    root: str | None = None
    combines: bool = False
    addressed: bool = False

    def arguments(self, root: int, combine: Callable | None = None, **choices: list) -> list[Any]:
        """The arguments in their order: the one of `choices` that is given, the root, and how to combine."""
        given = choices.get(self.given, [])
        return [*given, *[root] * bool(self.root), *[combine] * bool(self.combines and combine)]


SIGNATURES = {
    "all_reduce": Signature("whole", combines=True),
    "reduce": Signature("whole", root="to", combines=True),
    "broadcast": Signature("whole", root="from"),
    "reduce_scatter": Signature("pieces", combines=True),
    "all_gather": Signature("pieces"),
    "gather": Signature("pieces", root="to"),
    "scatter": Signature("pieces", root="from", addressed=True),
    "all_to_all": Signature("parts", addressed=True),
    "barrier": Signature("nothing"),
}
