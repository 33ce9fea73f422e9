"""Schedules in a V that repeat one building block, packed as tightly as memory allows.

Idea   Every microbatch goes the same way: down the V and up again forward, then down and up backward. A
       building block says when it is at each of the 4P stops; the next microbatch follows six ticks later,
       which are F, I and W of a rank's two chunks. How long a block keeps an activation is what a rank
       holds (Qi et al., arXiv 2405.15362, section 2). At the ends of a step there are gaps: every rank
       takes the first action of its blocks that can run, and fills what is left with W.
Cost   About 6 microseconds for every action.
Limit  Made for F, I and W that take the same time.

Glossary
    stop    one of the 4P places of a microbatch: 0 is rank 0's first forward, 2P - 1 its second, 2P its first
            backward, 4P - 1 its second
    kind    which of its four stops a rank is at: forward of chunk 0, of 1, backward of chunk 1, of 0
    tick    what an action takes
    room    the most that a rank may hold, in chunks of one microbatch
"""

from functools import lru_cache

PERIOD = 6  # ticks of a microbatch on a rank: F, I and W of two chunks
WEIGHT = 4  # W, beside the four kinds
Ticks = tuple[int, ...]


def straight(ranks: int, turn: int) -> Ticks:
    """A block that waits only `turn` ticks, before its first backward."""
    return tuple(stop + turn * (stop >= 2 * ranks) for stop in range(4 * ranks))


def slow_down(ranks: int, turn: int) -> Ticks:
    """A block that takes two ticks at each stop of its ways down, and `turn` before its first backward."""
    way = [2 * rank for rank in range(ranks)] + [2 * ranks - 1 + up for up in range(ranks)]
    return (*way, *(3 * ranks - 1 + turn + tick for tick in way))


@lru_cache(maxsize=8)
def packed(microbatches: int, block: Ticks, room: int) -> list[list[int]]:
    """Return every rank's kinds in order; `block` has the ticks by stop."""
    done = [microbatches] + [0] * len(block)  # by stop, behind the batch that waits before the first
    ranks = [PackedRank(rank, microbatches, block, room) for rank in range(len(block) // 4)]
    while done[-1] < microbatches or any(rank.weights_due for rank in ranks):
        chosen = [rank.choose(done) for rank in ranks]
        for rank, kind in zip(ranks, chosen):
            rank.do(kind, done)
    return [rank.kinds for rank in ranks]


class PackedRank:
    """One rank while blocks are packed: decides at each tick what to do."""

    def __init__(self, rank: int, microbatches: int, block: Ticks, room: int):
        ranks = len(block) // 4
        self.stops = (rank, 2 * ranks - 1 - rank, 2 * ranks + rank, 4 * ranks - 1 - rank)
        self.ticks = [block[stop] for stop in self.stops]
        self.microbatches, self.room = microbatches, room
        self.held, self.weights_due = 0, 0
        self.kinds: list[int] = []

    def choose(self, done: list[int]) -> int | None:
        """The first action of the blocks that can run and has room; else a W."""
        mine = [done[stop + 1] for stop in self.stops]
        for tick, kind in sorted((self.ticks[kind] + PERIOD * mine[kind], kind) for kind in range(4)):
            can_run = done[self.stops[kind]] > mine[kind]
            if can_run and (kind >= 2 or self.has_room(tick, mine)):
                return kind
        return WEIGHT if self.weights_due else None

    def has_room(self, tick: int, mine: list[int]) -> bool:
        """Whether a forward now leaves room for what was planned before its `tick` and is still to be
        done."""
        if self.held == self.room:
            return False
        held, weights_due = self.held + 1, self.weights_due
        for kind in self.planned(tick, mine):
            weights_due += kind >= 2
            if kind < 2 and held == self.room and weights_due:
                weights_due -= 1  # a W makes room, as late as it can
            elif kind < 2:
                held += 1
        return held <= self.room

    def planned(self, until: int, mine: list[int]) -> list[int]:
        """The kinds that the blocks do before the tick `until`, and that this rank has not done yet."""
        ends = [min(self.microbatches, -(-(until - first) // PERIOD)) for first in self.ticks]
        ticks = [
            (self.ticks[kind] + PERIOD * microbatch, kind)
            for kind in range(4)
            for microbatch in range(mine[kind], ends[kind])
        ]
        return [kind for _, kind in sorted(ticks)]

    def do(self, kind: int | None, done: list[int]) -> None:
        if kind is None:
            return
        self.kinds.append(kind)
        self.held += (1, 1, 0, 0, -1)[kind]
        self.weights_due += (0, 0, 1, 1, -1)[kind]
        if kind != WEIGHT:
            done[self.stops[kind] + 1] += 1
