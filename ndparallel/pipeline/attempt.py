"""One attempt of a search: F and I in the order of its head starts, and W where a rank would wait.

Idea   In which order F and I of all ranks can run follows from the head starts alone. So it is found once; an
       attempt goes through it, adds up seconds, and does W before a step that would wait, or has no room.
Cost   0.2 microseconds for every F and I; to find their order takes twice that.

Glossary: see `ndparallel.pipeline.search` and `ndparallel.pipeline.replay`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import islice
from math import inf, nextafter
from typing import NamedTuple

from ndparallel.base.sums import sum_of
from ndparallel.pipeline.actions import Action, Layout, Schedule
from ndparallel.pipeline.recipe import Program, RankSide
from ndparallel.pipeline.replay import Replay
from ndparallel.pipeline.schedules import by_turns
from ndparallel.pipeline.timing import kept_by
from ndparallel.pipeline.work import Work

SOON = nextafter(0, inf)  # a rank that does not wait at all does no W
TINY = 1e-9  # of an activation: sums of shares are not exact


class Memory(NamedTuple):
    """The most activations that a rank may hold, and the share of them that I frees; W frees the rest."""

    limit: float
    released_by_input: float


class Problem(NamedTuple):
    """A pipeline whose order is searched for."""

    ranks: int
    microbatches: int
    work: Work
    memory: Memory


class Policy(NamedTuple):
    """The rules by which an attempt decides: each rank's head start; the share of a W by which it may
    delay what comes next; and whether it may delay the last microbatch's I too, which the whole step
    waits for."""

    head_starts: tuple[int, ...]
    delay: float
    delay_last: bool


class Passes:
    """F and I of all ranks: their schedule, and its steps in an order that can run."""

    def __init__(self, ranks: int, microbatches: int, head_starts: Sequence[int]) -> None:
        layout = Layout("loop", ranks)
        sides = [RankSide(layout, rank, microbatches) for rank in range(ranks)]
        lists = [[*turns(side, first)] for side, first in zip(sides, head_starts)]
        self.schedule = Schedule("searched", layout, microbatches, lists, [[] for _ in lists])
        self.replay = Replay(self.schedule)
        self.steps = self.replay.order.steps
        self.first_rank_ahead, self.last = head_starts[0], microbatches - 1

    @cached_property
    def of_last_microbatch(self) -> list[tuple[int, int]]:
        """The places of the steps that do the last microbatch's I, each with its rank."""
        ranks = range(self.schedule.ranks)
        return [(self.replay.order.step_of(Action("I", rank, self.last)) - 1, rank) for rank in ranks]

    @cached_property
    def unhurried(self) -> list[int]:
        """The places of the first rank's I behind its last F: nobody waits for them."""
        done = range(max(0, self.last - self.first_rank_ahead), self.last + 1)
        return [self.replay.order.step_of(Action("I", 0, microbatch)) - 1 for microbatch in done]

    def least_waits(self, policy: Policy, weight_seconds: Sequence[float]) -> list[float]:
        """By step the least wait in which its rank does a W first."""
        by_rank = [max((1 - policy.delay) * seconds, SOON) for seconds in weight_seconds]
        least = [by_rank[step[0]] for step in self.steps]
        if not policy.delay_last:
            for place, rank in self.of_last_microbatch:
                least[place] = max(weight_seconds[rank], SOON)
        for place in self.unhurried:
            least[place] = -inf
        return least

    def first_starts(self, work: Work) -> list[float]:
        """When each rank starts its first F: as soon as it can come down from the first."""
        ranks, starts = self.schedule.ranks, [0.0]
        latency, wire = self.replay.messages(work)
        for rank, seconds in enumerate(work.seconds_by_stage(ranks)["F"][:-1]):
            link = rank * ranks + rank + 1
            starts.append(starts[-1] + seconds + latency[link] + wire[link])
        return starts

    def effects(self, seconds: dict[str, list[float]], memory: Memory) -> "Effects":
        """What each kind of step does, on the seconds of each op on each stage."""
        kinds = [action for (action,) in self.replay.order.kinds]
        change = kept_by(memory.released_by_input)
        return Effects(
            [seconds[op][stage] for op, stage in kinds],
            [memory.limit + TINY - 1 if op == "F" else inf for op, _ in kinds],
            [change[op] for op, _ in kinds],
            [int(op == "I") for op, _ in kinds],
        )


class Effects(NamedTuple):
    """By kind of step: its seconds; the most activations that its rank may hold before it; by how many it
    changes what is held; and how many W it leaves to do."""

    seconds: list[float]
    most_held: list[float]
    kept: list[float]
    weights: list[int]


def turns(at: RankSide, head_start: int) -> Program:
    """F and I by turns."""
    each = range(at.microbatches)
    return by_turns((at.F() for _ in each), (at.I() for _ in each), head_start)


@lru_cache(maxsize=9)  # the head starts of one search
def passes_of(ranks: int, microbatches: int, head_starts: tuple[int, ...]) -> Passes:
    """The order, found once for all attempts of these head starts."""
    return Passes(ranks, microbatches, head_starts)


class TriedOrder(NamedTuple):
    """What comes of a policy: how many W are done before each step, the longest span, and the makespan."""

    policy: Policy
    passes: Passes
    weights: list[int]
    span: float
    makespan: float

    def schedule(self) -> Schedule:
        """The lists of all ranks, with W in them."""
        schedule = self.passes.schedule
        before: list[list[int]] = [[] for _ in schedule.actions]
        for (rank, *_), number in zip(self.passes.steps, self.weights):
            before[rank].append(number)
        return replace(schedule, actions=[[*with_weights(*each)] for each in zip(schedule.actions, before)])


def with_weights(actions: Sequence[Action], before: Iterable[int]) -> Iterator[Action]:
    """A rank's F and I, with so many W before each, and all that are left behind them."""
    weights = (Action("W", stage, microbatch) for op, stage, microbatch in actions if op == "I")
    for action, number in zip(actions, before):
        yield from islice(weights, number)
        yield action
    yield from weights


class RankStates(NamedTuple):
    """By rank: its time, how many W it has left to do, the activations that it holds, and the seconds that it
    may still be idle."""

    now: list[float]
    weights_due: list[int]
    held: list[float]
    idle_left: list[float]


def attempt(problem: Problem, policy: Policy, longest: float = inf) -> TriedOrder | None:
    """Try a policy. None as soon as a rank has been idle for so long that its span must be longer than
    `longest`."""
    ranks, microbatches, work, _ = problem
    passes, seconds = passes_of(ranks, microbatches, policy.head_starts), work.seconds_by_stage(ranks)
    starts = passes.first_starts(work)
    each = [sum_of(seconds[op][rank] for op in "FIW") for rank in range(ranks)]
    idle = [longest - microbatches * own + start for own, start in zip(each, starts)]
    states = RankStates([0.0] * ranks, [0] * ranks, [0.0] * ranks, idle)
    weights = fill_waits(problem, passes, passes.least_waits(policy, seconds["W"]), states)
    if weights is None:
        return None
    left = zip(states.now, states.weights_due, seconds["W"])
    ends = [sum_of([now, *[weight] * due]) for now, due, weight in left]
    spans = [end - start for start, end in zip(starts, ends)]
    return TriedOrder(policy, passes, weights, max(spans), max(ends))


def fill_waits(
    problem: Problem, passes: Passes, least_waits: Iterable[float], states: RankStates
) -> list[int] | None:
    """Go through all steps, as `ndparallel.pipeline.steps.run_on_lines` does, with W before them; return how
    many before each. None as soon as a rank has been idle for too long.

    With one chunk each line joins the same two ranks, so that messages may just as well wait at its end.
    """
    seconds, weight_kept = problem.work.seconds_by_stage(problem.ranks), problem.memory.released_by_input - 1
    by_kind, most_held, kept, due = passes.effects(seconds, problem.memory)
    latency, wire = passes.replay.messages(problem.work)
    now, weights_due, held, idle_left = states
    lines, first_byte, weights = passes.replay.at_rest().lines, [0.0], []
    for (rank, kind, sender, line, link, _, out_link), least in zip(passes.steps, least_waits):
        start, there, free = now[rank], first_byte[sender], lines[line]
        if free > there:
            there = free
        lines[line] = there = there + wire[link]
        before = left = weights_due[rank]
        while left and (there - start >= least or held[rank] > most_held[kind]):
            start += seconds["W"][rank]
            held[rank] += weight_kept
            left -= 1
        weights.append(before - left)
        weights_due[rank] = left + due[kind]
        held[rank] += kept[kind]
        if there > start:
            idle_left[rank] -= there - start
            if idle_left[rank] < 0:
                return None
            start = there
        now[rank] = end = start + by_kind[kind]
        first_byte.append(end + latency[out_link])
    return weights
