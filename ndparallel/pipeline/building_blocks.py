"""Schedules in a V whose ranks decide tick by tick: a planned order, packed as tightly as memory allows.

Idea   Every microbatch goes the same way: down the V and up again forward, then down and up backward. A
       building block says when it is at each of the 4P stops; the next microbatch follows six ticks later,
       which are F, I and W of a rank's two chunks. How long a block keeps an activation is what a rank
       holds (Qi et al., arXiv 2405.15362, section 2). At the ends of a step there are gaps: every rank
       takes the first action of its plan that can run, and fills what is left with W. In between it may do
       better to keep to the order of its plan, and to wait.
Cost   About 6 microseconds for every action.
Limit  Made for F, I and W that take the same time.

Glossary
    stop    one of the 4P places of a microbatch: 0 is rank 0's first forward, 2P - 1 its second, 2P its first
            backward, 4P - 1 its second
    kind    which of its four stops a rank is at: forward of chunk 0, of 1, backward of chunk 1, of 0
    tick    what an action takes
    plan    a rank's forwards and backwards, each with the tick at which it would be done
    room    the most that a rank may hold, in chunks of one microbatch
"""

from bisect import bisect_left
from functools import lru_cache

PERIOD = 6  # ticks of a microbatch on a rank: F, I and W of two chunks
WEIGHT = 4  # W, beside the four kinds
ALWAYS, NEVER = 0.0, float("inf")  # from which tick on ranks keep to the order of their plans
Ticks = tuple[int, ...]
Planned = list[tuple[int, int]]  # ticks and kinds


def straight(ranks: int, turn: int) -> Ticks:
    """A block that waits only `turn` ticks, before its first backward."""
    return tuple(stop + turn * (stop >= 2 * ranks) for stop in range(4 * ranks))


def slow_down(ranks: int, turn: int) -> Ticks:
    """A block that takes two ticks at each stop of its ways down, and `turn` before its first backward."""
    way = [2 * rank for rank in range(ranks)] + [2 * ranks - 1 + up for up in range(ranks)]
    return (*way, *(3 * ranks - 1 + turn + tick for tick in way))


def stops_of(rank: int, ranks: int) -> Ticks:
    return rank, 2 * ranks - 1 - rank, 2 * ranks + rank, 4 * ranks - 1 - rank


@lru_cache(maxsize=8)
def packed_blocks(microbatches: int, block: Ticks, room: int, ordered_from: float) -> list[list[int]]:
    """Return every rank's kinds in order; `block` has the ticks by stop."""
    ranks = len(block) // 4
    plans = [
        sorted(
            (block[stop] + PERIOD * microbatch, kind)
            for kind, stop in enumerate(stops_of(rank, ranks))
            for microbatch in range(microbatches)
        )
        for rank in range(ranks)
    ]
    return packed(plans, room, ordered_from)


def packed(plans: list[Planned], room: int, ordered_from: float) -> list[list[int]]:
    """Return every rank's kinds in order. From the tick `ordered_from` on a rank keeps to its plan's order,
    until a period behind its last forward from the batch."""
    microbatches = len(plans[0]) // 4
    done = [microbatches] + [0] * (4 * len(plans))  # by stop, behind the batch that waits before the first
    ranks = [
        PackedRank(stops_of(rank, len(plans)), plan, room, ordered_from) for rank, plan in enumerate(plans)
    ]
    while done[-1] < microbatches or any(rank.weights_due for rank in ranks):
        chosen = [rank.choose(done) for rank in ranks]
        assert any(kind is not None for kind in chosen), "every rank waits for another"
        for rank, kind in zip(ranks, chosen):
            rank.do(kind, done)
    return [rank.kinds for rank in ranks]


class PackedRank:
    """One rank while plans are packed: decides at each tick what to do."""

    def __init__(self, stops: Ticks, plan: Planned, room: int, ordered_from: float):
        self.stops, self.plan, self.room = stops, plan, room
        self.ordered = ordered_from, plan[0][0] + PERIOD * (len(plan) // 4)
        self.places = [[place for place, (_, one) in enumerate(plan) if one == kind] for kind in range(4)]
        self.count = [0] * 4  # of what is done, by kind
        self.held, self.weights_due = 0, 0
        self.kinds: list[int] = []

    def choose(self, done: list[int]) -> int | None:
        """The first action of the plan that can run and has room; else a W."""
        left = sorted(places[count] for places, count in zip(self.places, self.count) if count < len(places))
        for place in left:
            tick, kind = self.plan[place]
            keeps_order = self.ordered[0] <= tick <= self.ordered[1]
            if keeps_order and place != left[0]:
                break
            can_run = done[self.stops[kind]] > self.count[kind]
            if can_run and (kind >= 2 or self.has_room(place)):
                return kind
            if keeps_order:
                break
        return WEIGHT if self.weights_due else None

    def has_room(self, place: int) -> bool:
        """Whether a forward now leaves room for what was planned before this place and is still to be
        done."""
        if self.held == self.room:
            return False
        held, weights_due = self.held + 1, self.weights_due
        for kind in self.planned_before(place):
            weights_due += kind >= 2
            if kind < 2 and held == self.room and weights_due:
                weights_due -= 1  # a W makes room, as late as it can
            elif kind < 2:
                held += 1
        return held <= self.room

    def planned_before(self, place: int) -> list[int]:
        """The kinds that the plan has before this place and that this rank has not done yet."""
        left = [
            before
            for places, count in zip(self.places, self.count)
            for before in places[count : bisect_left(places, place)]
        ]
        return [self.plan[before][1] for before in sorted(left)]

    def do(self, kind: int | None, done: list[int]) -> None:
        if kind is None:
            return
        self.kinds.append(kind)
        self.held += (1, 1, 0, 0, -1)[kind]
        self.weights_due += (0, 0, 1, 1, -1)[kind]
        if kind != WEIGHT:
            self.count[kind] += 1
            done[self.stops[kind] + 1] += 1
