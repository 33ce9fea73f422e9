"""Two steps of one schedule, of which the longer one has rounds of microbatches more.

Idea   A full pipeline does the same again and again. So the longer step is the shorter one with rounds put in
       on every rank, like the round before them. Seconds are sums and maxima of sums: once that round has
       left every rank, and every message that the next one waits for, later by the same seconds than it found
       them, each round behind it does too, and what follows the last one is so much later. A schedule that is
       searched for is made shorter: rounds are taken out of its middle.
Cost   That of the shorter step; which of its ends are compared is found out once.
Limit  Only where no message finds its line taken, and gradients stay until the step's end.

Glossary
    place   of an action: how many its rank does before it
    cut     of a rank: the place where the longer step has rounds more

1F1B on two ranks, where a forward takes 1 s and a backward 2 s; | is the cut:

    3 microbatches   rank 0   F0 F1 B0 F2 B1 | B2          rank 1   F0 B0 F1 B1 F2 B2 |
    4 microbatches   rank 0   F0 F1 B0 F2 B1 | F3 B2 B3    rank 1   F0 B0 F1 B1 F2 B2 | F3 B3

Of the steps before the cuts, those behind wait for B1 of rank 0 and B2 of rank 1, which end at 9 and 10 s. A
round, two places, before these are B0 of rank 0 and B1 of rank 1, which end at 6 and 7 s. Both are 3 s later.
So every round that is put in takes 3 s: the step of 3 microbatches ends at 12 s, that of 4 at 15 s.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from math import isclose

import numpy as np

from ndparallel.pipeline.actions import Action, Schedule
from ndparallel.pipeline.checker import explain
from ndparallel.pipeline.replay import Ends, Replay
from ndparallel.pipeline.work import Work

DOES, RANK, BEHIND = range(3)  # columns of what a rank does
NOBODY = -1
SAME = 1e-12  # the share by which rounding may part moments that are equal
ROUNDS = re.compile("(?:FIW)+|(?:FWI)+")  # of one microbatch each
KEPT = 6  # rounds of a middle that is shortened: ranks are in their stride then, or not for long


def ends_by_rounds(replay: Replay, work: Work) -> Ends:
    """Time a step, without the rounds in its middle that follow from those before."""
    few, rounds = shortened(replay)
    if rounds and (found := round_seconds(few, replay, work, rounds)):
        ends, seconds = found
        return ends.later(rounds * seconds)
    return replay.ends(work)


def round_seconds(few: Replay, more: Replay, work: Work, rounds: int = 1) -> tuple[Ends, float] | None:
    """Time the shorter step; return its ends, and the seconds by which every further round makes them later.
    None where they may differ from round to round."""
    durations = few.durations(work)
    if durations.reductions or not durations.lines_free or not (compared := round_before(few, more, rounds)):
        return None
    clocks = few.clocks(durations)
    before, after = ([clocks.ends[step] for step in steps] for steps in zip(*compared))
    seconds = delay_of_all(before, after)
    return None if seconds is None else (few.ends_of(clocks, durations), seconds)


def delay_of_all(before: list[float], after: list[float]) -> float | None:
    """Seconds by which all moments are later; None where these differ from one another."""
    seconds = after[0] - before[0]
    same = all(isclose(later, moment + seconds, rel_tol=SAME) for moment, later in zip(before, after))
    return seconds if same else None


@lru_cache(maxsize=64)
def round_before(few: Replay, more: Replay, rounds: int = 1) -> list[tuple[int, int]]:
    """Steps before the cuts that those behind wait for, each with the step a round before it, which is named
    first: by their numbers in the shorter step. Empty where the longer step has not just rounds more."""
    both = [*zip(waits_by_rank(few.schedule), waits_by_rank(more.schedule))]
    length = (len(both[0][1]) - len(both[0][0])) // rounds
    cuts = np.array([cut_of(short, long) for short, long in both])
    waited = {(rank, cut - 1) for rank, cut in enumerate(cuts.tolist())}
    for (short, long), cut in zip(both, cuts):
        there, place = long[:, RANK], np.arange(len(long)) - long[:, BEHIND]
        early = place < cuts[there]
        if not (has_rounds_more(short, long, cut, length, rounds) and early[:cut].all()):
            return []
        early[:cut] = False
        waited |= {*zip(there[early].tolist(), place[early].tolist())}
    if any(place < length for _, place in waited):
        return []
    step, lists = few.order.step_of, few.schedule.actions
    return [(step(lists[rank][place - length]), step(lists[rank][place])) for rank, place in waited]


def waits_by_rank(schedule: Schedule) -> list[np.ndarray]:
    """Each rank's actions, one a row: DOES, a number for its op, its stage, and whether it runs as one with
    the next; RANK, whose action it waits for, and how many places it stands BEHIND that one. What waits for
    no other rank waits for the action before it."""
    stages, starts = schedule.layout.stages, np.cumsum([0, *map(len, schedule.actions)])
    own, start = (np.repeat(each, np.diff(starts)) for each in (np.arange(schedule.ranks), starts[:-1]))
    place = np.arange(starts[-1]) - start
    ops, *numbers = zip(*chain(*schedule.actions))
    op, stage, microbatch = map(np.array, ([*map(ord, ops)], *numbers))
    forward, given = (op == ord("F")).astype(int), op != ord("W")
    done = np.zeros((2, stages + 1, schedule.microbatches), dtype=int)
    done[forward[given], stage[given], microbatch[given]] = place[given]
    before = np.where(forward, stage - 1, stage + 1)  # the stage waited for
    holder = np.array([*map(schedule.layout.rank, range(stages)), NOBODY])
    there = np.where(given & (holder[before] != NOBODY), holder[before], own)
    behind = np.where(there == own, 1, place - done[forward, before, microbatch])
    as_one = np.zeros(len(op), dtype=int)
    as_one[[first + at for first, pairs in zip(starts, schedule.fused) for at in pairs]] = 1
    return np.split(np.stack([(op * stages + stage) * 2 + as_one, there, behind], axis=1), starts[1:-1])


def cut_of(short: np.ndarray, long: np.ndarray) -> int:
    """The place of the first action that differs; of two that run as one the first."""
    both = min(len(short), len(long))
    differs = (short[:both] != long[:both]).any(axis=1)
    cut = int(differs.argmax()) if differs.any() else both
    return cut - int(cut > 0 and short[cut - 1, DOES] % 2)


def has_rounds_more(short: np.ndarray, long: np.ndarray, cut: int, length: int, rounds: int) -> bool:
    """Whether the longer list is the shorter one with the `length` actions before the cut put in so many
    times."""
    put_in = np.tile(short[cut - length : cut], (rounds, 1))
    return length > 0 and np.array_equal(np.concatenate([short[:cut], put_in, short[cut:]]), long)


@lru_cache(maxsize=8)
def shortened(replay: Replay) -> tuple[Replay, int]:
    """A schedule without most of the rounds in its middle, and how many it lacks; itself where it has few."""
    schedule = replay.schedule
    middles = [middle(actions) for actions in schedule.actions]
    rounds = min(length for _, length in middles) - KEPT
    actions = [
        renumbered(each[:start] + each[start + 3 * rounds :])
        for each, (start, _) in zip(schedule.actions, middles)
    ]
    shorter = replace(schedule, microbatches=schedule.microbatches - rounds, actions=actions)
    return (replay, 0) if rounds < 1 or explain(shorter) else (Replay(shorter), rounds)


def middle(actions: Sequence[Action]) -> tuple[int, int]:
    """Where a rank's longest row of rounds begins, and how many they are."""
    rows = [row.span() for row in ROUNDS.finditer("".join(action.op for action in actions))]
    start, stop = max(rows, key=lambda row: row[1] - row[0], default=(0, 0))
    return start, (stop - start) // 3


def renumbered(actions: Iterable[Action]) -> list[Action]:
    """Number actions without gaps: each op on a stage counts its microbatches."""
    done: Counter[tuple[str, int]] = Counter()
    numbered = []
    for op, stage, _ in actions:
        numbered.append(Action(op, stage, done[op, stage]))
        done[op, stage] += 1
    return numbered
