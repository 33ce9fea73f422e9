"""Arrays that say whose parts they are the sum of.

Idea   Rank r holds base^r * (1000 + i) in element i. So a sum over ranks, divided by 1000 + i, has in its
       digits how often each rank's part is in it: with base 4, 1 + 4 + 16 + 64 is all four ranks once. The
       sums of four ranks and more do not fit into 16 bits, so no message can be shortened.
Limit  Exact while the whole sum stays below 2^24, which float32 holds: 4 ranks with base 4, 8 with base 3
       and at most 1,500 elements.
"""

import numpy as np

from ndparallel.base.words import listed

FIRST = 1000  # of rank 0 in element 0


def base_of(ranks: int) -> int:
    return 4 if ranks <= 4 else 3


def part(rank: int, ranks: int, size: int) -> np.ndarray:
    """Return what a rank holds at the start: a float32 array."""
    return np.float32(base_of(ranks) ** rank) * np.arange(FIRST, FIRST + size, dtype=np.float32)


def whole(ranks: int, size: int) -> np.ndarray:
    """Return the sum of all ranks' parts."""
    return np.sum(np.stack([part(rank, ranks, size) for rank in range(ranks)]), axis=0)


def explain(
    rank: int, found: np.ndarray, expected: np.ndarray, ranks: int, name: str = "array", first: int = 0
) -> str:
    """Say what is wrong with an array of sums, and what that usually means; nothing where it is right. Its
    elements are those from `first` on of what all ranks held."""
    if not isinstance(found, np.ndarray) or found.shape != expected.shape:
        shape = list(found.shape) if isinstance(found, np.ndarray) else type(found).__name__
        return f"Rank {rank}'s {name} should have shape {list(expected.shape)}, and has {shape}."
    places = np.flatnonzero(found.reshape(-1) != expected.reshape(-1))
    if not places.size:
        return ""
    place = int(places[0])
    value, right = float(found.reshape(-1)[place]), float(expected.reshape(-1)[place])
    many = f" ({places.size} of {found.size} elements are wrong)" if found.size > 1 else ""
    return (
        f"Rank {rank}, element {place} of {name}: {value:.8g}, and {right:.8g} is right{many}. "
        f"{meaning(rank, value, first + place, ranks)}"
    )


def meaning(rank: int, value: float, place: int, ranks: int) -> str:
    """Say whose parts a wrong sum has."""
    times = contributions(value, place, ranks)
    if times is None:
        return (
            "It is no sum of the ranks' parts of this element: is a piece in the wrong place, or added where "
            "it should be written, or sent in fewer bits than it has?"
        )
    if times == [int(other == rank) for other in range(ranks)]:
        return (
            f"It is rank {rank}'s own part: nothing was added to it, or only to a copy, or the sum was "
            "written over."
        )
    if len(set(times)) == 1:
        return f"It is {times[0]} times the right sum: every part was added {times[0]} times."
    missing = [str(other) for other, number in enumerate(times) if number == 0]
    often = [str(other) for other, number in enumerate(times) if number > 1]
    words = [f"lacks {parts_of(missing)}"] if missing else []
    words += [f"has {parts_of(often)} more than once"] if often else []
    advice = (
        "a hop is missing, or it comes too late"
        if missing
        else "a piece was combined where it should be taken"
    )
    return f"It {listed(words)}: {advice}."


def parts_of(ranks: list[str]) -> str:
    return f"the part of rank {ranks[0]}" if len(ranks) == 1 else f"the parts of ranks {listed(ranks)}"


def contributions(value: float, place: int, ranks: int) -> list[int] | None:
    """Return how often each rank's part is in a value of element `place`; None where it is no such sum."""
    number, rest = divmod(value, FIRST + place)
    if rest or not np.isfinite(value) or number < 0 or number >= base_of(ranks) ** ranks:
        return None
    times = []
    for _ in range(ranks):
        number, digit = divmod(number, base_of(ranks))
        times.append(int(digit))
    return times
