"""Two steps of one schedule, of which the longer one has a round of microbatches more.

Idea   A full pipeline does the same again and again. So the longer step is the shorter one with a round put
       in on every rank, like the round before it. Seconds are sums and maxima of sums: once that round has
       left every rank, and every message that the next one waits for, later by the same seconds than it found
       them, each round behind it does too, and what follows the last one is so much later.
Cost   That of the shorter step; which of its ends are compared is found out once.
Limit  Only where no message finds its line taken, and gradients stay until the step's end.

Glossary
    place   of a step: how many steps its rank does before it
    cut     of a rank: the place where the longer step has a round more
"""

from functools import lru_cache
from math import isclose

from ndparallel.pipeline.replay import Ends, Replay
from ndparallel.pipeline.work import Work

# what a step does: its kind; the rank whose step it waits for, and how many places that one is behind it
Placed = tuple[int, int, int]
SAME = 1e-12  # the share by which rounding may part moments that are equal


def round_seconds(few: Replay, more: Replay, work: Work) -> tuple[Ends, float] | None:
    """Time the shorter step; return its ends, and the seconds by which every further round makes them later.
    None where they may differ from round to round."""
    tariff = few.tariff(work)
    if tariff.reductions or not tariff.lines_free or not (compared := round_before(few, more)):
        return None
    clocks = few.clocks(tariff)
    before, after = ([clocks.ends[step] for step in steps] for steps in zip(*compared))
    seconds = shift(before, after)
    return None if seconds is None else (few.ends_of(clocks, tariff), seconds)


def shift(before: list[float], after: list[float]) -> float | None:
    """Seconds by which all moments are later; None where they differ."""
    seconds = after[0] - before[0]
    same = all(isclose(later, moment + seconds, rel_tol=SAME) for moment, later in zip(before, after))
    return seconds if same else None


@lru_cache(maxsize=64)
def round_before(few: Replay, more: Replay) -> list[tuple[int, int]]:
    """The shorter step's own steps that the round put in waits for, each behind the one that the round before
    waits for in its place; none where the longer step is another."""
    (numbers, short), (_, long) = by_rank(few), by_rank(more)
    length = len(long[0]) - len(short[0])
    cuts = [first_difference(*both) for both in zip(short, long)]
    waited = {(rank, cut - 1) for rank, cut in enumerate(cuts)}
    for one, other, cut in zip(short, long, cuts):
        if cut <= length or one[cut - length :] != other[cut:] or not closed(one[:cut], cuts):
            return []
        waited |= {(rank, place - back) for place, (_, rank, back) in enumerate(other[cut:], cut)}
    ends = [(rank, place) for rank, place in waited if place < cuts[rank]]
    if few.kinds != more.kinds or any(place < length for _, place in ends):
        return []
    return [(numbers[rank][place - length], numbers[rank][place]) for rank, place in ends]


def by_rank(replay: Replay) -> tuple[list[list[int]], list[list[Placed]]]:
    """The numbers of every rank's steps, and what they do. One without a sender waits for the one before."""
    numbers: list[list[int]] = [[] for _ in range(replay.schedule.ranks)]
    placed: list[list[Placed]] = [[] for _ in numbers]
    places = [(0, 0)]
    for number, (rank, kind, sender, *_) in enumerate(replay.steps, 1):
        place = len(numbers[rank])
        there, its_place = places[sender] if sender else (rank, place - 1)
        places.append((rank, place))
        numbers[rank].append(number)
        placed[rank].append((kind, there, place - its_place))
    return numbers, placed


def first_difference(short: list[Placed], long: list[Placed]) -> int:
    """The place of the first step that differs."""
    return next((place for place, (one, other) in enumerate(zip(short, long)) if one != other), len(short))


def closed(steps: list[Placed], cuts: list[int]) -> bool:
    """Whether a rank's steps before its cut wait for none behind another's."""
    return all(place - back < cuts[rank] for place, (_, rank, back) in enumerate(steps))
