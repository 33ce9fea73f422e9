"""What a size may be: one check for every size that a person gives, in a file or on the command line.

Idea   A size is a whole number, at least 1 and not absurd; what is not is told in one sentence that names it
       and shows its value.
Limit  A size can pass and still be wrong; only its neighbours can tell (see shape.py).
"""

import reprlib
from collections.abc import Iterable, Sequence

from ndparallel.base.errors import UserError, unknown
from ndparallel.parallel.divisibility import divisors

LARGEST = {
    "layers": 4096,
    "heads": 8192,
    "kv_heads": 8192,
    "experts": 65536,
    "top_k": 65536,
    "shared_experts": 1024,
    "groups": 1024,
    "top_groups": 1024,
}
LARGEST_SIZE = 2**24  # of everything else: beyond every vocabulary and width


def checked_size(value: object, field: str, label: str = "", least: int = 1) -> int:
    """Return `value`, a whole number from `least` to the largest that `field` may be, else raise UserError
    that calls it `label`."""
    label = label or field
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{label} must be a whole number, not {reprlib.repr(value)}.")
    largest = LARGEST.get(field, LARGEST_SIZE)
    if not least <= value <= largest:
        raise UserError(f"{label} is {reprlib.repr(value)}; it must be from {least} to {largest}.")
    return value


def checked_sizes(thing: object, fields: Iterable[str]) -> None:
    """Check several attributes of `thing`."""
    for field in fields:
        checked_size(getattr(thing, field), field)


def checked_choice(value: object, label: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`, else raise UserError with the nearest of them."""
    if not isinstance(value, str):
        raise UserError(f"{label} must be one of {', '.join(choices)}, not {reprlib.repr(value)}.")
    if value not in choices:
        raise unknown(label, value[:80], choices)
    return value


def head_width(hidden: int, heads: int, label: str = "hidden") -> int:
    """Return the width of a head where nobody gave it: hidden / heads, if that is whole, else raise
    UserError."""
    if checked_size(hidden, "hidden", label) % checked_size(heads, "heads"):
        near = near_divisors(hidden, heads)
        raise UserError(
            f"{label} {hidden} is not a multiple of {heads} heads; take {near} heads, or give head_dim."
        )
    return hidden // heads


def near_divisors(number: int, wanted: int) -> str:
    """The divisors of `number` next below and next above `wanted`, as words."""
    return near_values(divisors(number), wanted)


def near_values(values: Sequence[int], wanted: int) -> str:
    """The values next below and next above `wanted`, of some from the smallest on, as words."""
    below = [value for value in values if value < wanted]
    above = [value for value in values if value > wanted]
    return " or ".join(map(str, below[-1:] + above[:1]))
