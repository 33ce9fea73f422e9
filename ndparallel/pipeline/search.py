"""Search an order for the times and the memory that there are: the idea of ZB-1p and ZB-2p (arXiv 2401.10241,
section 3.1).

Idea   Every rank does F and I by turns, after a head start of some F. Once it is known when the next of them
       can begin, W fills the wait until then, and W makes room where memory does not allow the next F. How
       long the head start is, and how late W may make what comes next, are a few numbers; all their
       combinations are tried, and the handwritten orders that keep to the memory. The shortest span wins,
       of those that no handwritten order ends before.
Cost   About 50 attempts of 5 microseconds for every action: half a second for 16 ranks and 48 microbatches.
       Of more microbatches than four rounds of the ranks only the attempts that were best with so many are
       made with all.
Limit  One chunk per rank, so that orders of two chunks (ZB-V, V-Half, V-Min) may end before it in the same
       memory. And greedy: an attempt takes no choice back, so a better order may exist.

Glossary
    head start  how many F a rank does before F and I go by turns
    span        seconds from a rank's first start to its own last end: what a step costs when steps follow one
                another without a stop
    held        activations kept, in those of one microbatch on one stage
"""

import itertools
from collections.abc import Iterable, Iterator
from math import inf
from typing import NamedTuple

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.base.sums import sum_of
from ndparallel.pipeline.actions import Action, Layout, Schedule
from ndparallel.pipeline.checker import run_ranks, waits_for
from ndparallel.pipeline.clock import Clock
from ndparallel.pipeline.recipe import RankSide, write
from ndparallel.pipeline.schedules import RECIPES, by_turns
from ndparallel.pipeline.timing import Timing, kept_by, peak_activations, time_schedule
from ndparallel.pipeline.work import Work

# F for every rank below: 1 is 1F1B, 2 is ZB-H2, more hides slow messages
HEAD_STARTS = np.arange(1, 3.25, 0.25)
DELAYS = (0.0, 0.5, 1.0)
ROUNDS_TRIED = 4  # of as many microbatches as there are ranks
FINALISTS = 8
WEIGHTS_DUE = {"F": 0, "I": 1, "W": -1}  # how many W each op leaves to do
TINY = 1e-9  # of an activation: sums of shares are not exact
MOST_STEPS = 20_000  # microbatches on all ranks, of which each attempt goes through all actions
ROUNDING = 1e-12  # of a makespan: sums of seconds are not exact


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


def search(
    ranks: int,
    microbatches: int,
    work: Work,
    memory_limit: float | None = None,
    released_by_input: float = 0.0,
) -> Schedule:
    """The best order found in which no rank holds more than `memory_limit` activations of a stage; the
    default is `ranks`, as in 1F1B.

    released_by_input: the share of them that I frees, 0 to 1. Raise UserError for a limit or a share that
    cannot be, and for more than can be searched in a minute.
    """
    check_size(ranks, microbatches)
    memory = checked(Memory(ranks if memory_limit is None else memory_limit, released_by_input))
    problem, few = Problem(ranks, microbatches, work, memory), ROUNDS_TRIED * ranks + microbatches % ranks
    tried = list(policies(problem))
    if microbatches > few:
        shorter = problem._replace(microbatches=few)
        tried = [policy for _, policy in attempts(shorter, tried, keep=FINALISTS)]
    written = list(handwritten(problem))
    latest = min((timing.makespan for timing in written), default=inf) * (1 + ROUNDING)
    in_time = [timing for timing in written if timing.makespan <= latest]
    longest = min((length(timing)[0] for timing in in_time), default=inf)
    found = attempts(problem, tried, 1, latest, longest)
    return min([*(timing for timing, _ in found), *in_time], key=length).schedule


def checked(memory: Memory) -> Memory:
    """Return it. Raises UserError for a limit or a share that cannot be."""
    limit, released = memory
    if not limit >= 1:
        raise UserError(f"a memory limit of {limit:g} activations is too low: a rank holds at least 1.")
    if not 0 <= released <= 1:
        raise UserError(f"the share of the activations that I frees is from 0 to 1, not {released:g}.")
    return memory


def check_size(ranks: int, microbatches: int, name: str = "searched") -> None:
    """Raise UserError where a search would take minutes."""
    if ranks * microbatches > MOST_STEPS:
        raise UserError(
            f"{name} tries about 50 orders, too many for {ranks} stages and {microbatches} "
            f"microbatches: choose a product of {MOST_STEPS:,} at most, or a written schedule."
        )


def handwritten(problem: Problem) -> Iterator[Timing]:
    """The handwritten orders of one chunk that keep to the memory."""
    layout, memory = Layout("loop", problem.ranks), problem.memory
    for recipe in RECIPES.values():
        if recipe.chunks == 1 and not recipe.is_searched:
            schedule = write("searched", recipe, layout, problem.microbatches)
            if max(peak_activations(schedule, memory.released_by_input)) <= memory.limit + TINY:
                yield time_schedule(schedule, problem.work)


def attempts(
    problem: Problem,
    tried: Iterable[Policy],
    keep: int | None = None,
    latest: float = inf,
    longest: float = inf,
) -> list[tuple[Timing, Policy]]:
    """The `keep` best policies that end by `latest` (None: all), and what comes of them, the best first. An
    attempt is given up once its span must be longer than theirs, or than `longest`."""
    found: list[tuple[Timing, Policy]] = []
    for policy in tried:
        full = found and len(found) == keep
        useful = min(longest, length(found[-1][0])[0]) if full else longest
        timing = attempt(problem, policy, useful * (1 + ROUNDING))
        if timing and timing.makespan <= latest:
            found = sorted([*found, (timing, policy)], key=lambda one: length(one[0]))[:keep]
    return found


def length(timing: Timing) -> tuple[float, float]:
    return max(timing.spans), timing.makespan


def policies(problem: Problem) -> Iterator[Policy]:
    starts = dict.fromkeys(tuple(head_starts(problem, per_rank)) for per_rank in HEAD_STARTS)
    return itertools.starmap(Policy, itertools.product(starts, DELAYS, (False, True)))


def head_starts(problem: Problem, per_rank: float) -> list[int]:
    """`per_rank` F for every rank below, as far as memory allows; each rank stays ahead of the next, which
    would wait for it."""
    wanted = [int(per_rank * (problem.ranks - 1 - rank)) for rank in range(problem.ranks)]
    limit = problem.memory.limit
    if limit >= problem.microbatches:
        return wanted
    return [max(0, min(first, int(limit + TINY) - 1 - rank)) for rank, first in enumerate(wanted)]


def attempt(problem: Problem, policy: Policy, longest: float = inf) -> Timing | None:
    """What comes of a policy; None where a span is longer than `longest`."""
    ranks, microbatches, work, memory = problem
    layout = Layout("loop", ranks)
    clock = Clock(layout, work)
    sides = [RankSide(layout, rank, microbatches) for rank in range(ranks)]
    greedy = [GreedyRank(side, clock, memory, policy, longest) for side in sides]
    try:
        run_ranks([rank.program() for rank in greedy], clock.done)
    except SpanTooLong:
        return None
    schedule = Schedule(
        "searched", layout, microbatches, [rank.actions for rank in greedy], [[] for _ in greedy]
    )
    return Timing(schedule, clock.start, clock.end, clock.busy)


class SpanTooLong(Exception):
    """An attempt takes longer than is of use."""


class GreedyRank:
    """One rank of an attempt: decides, as the clock moves, when to do W. Raises SpanTooLong as soon as it has
    been idle for so long that its span must be longer than `longest`."""

    def __init__(self, at: RankSide, clock: Clock, memory: Memory, policy: Policy, longest: float):
        self.at, self.clock, self.memory, self.policy = at, clock, memory, policy
        self.most_idle = longest - at.microbatches * sum_of(clock.seconds[op][at.rank] for op in "FIW")
        self.head_start = policy.head_starts[at.rank]
        self.weight_seconds = clock.seconds["W"][at.rank]
        self.change = kept_by(memory.released_by_input)
        self.actions: list[Action] = []
        self.weights_due, self.held = 0, 0.0

    def program(self) -> Iterator[Action]:
        """Run this rank on the clock; while it waits, yield what it waits for."""
        forwards = (self.at.F() for _ in range(self.at.microbatches))
        inputs = (self.at.I() for _ in range(self.at.microbatches))
        for action in by_turns(forwards, inputs, self.head_start):
            while need := waits_for(action, self.clock.done, self.clock.last_stage):
                yield need
            arrival = self.clock.arrival(action)
            while self.weights_due and self.weight_goes_first(action, arrival):
                self.do(self.at.W())
            self.do(action, arrival)
        while self.weights_due:
            self.do(self.at.W())

    def weight_goes_first(self, action: Action, arrival: float) -> bool:
        """Whether to do a W before `action`, whose message comes at `arrival`."""
        last = self.at.microbatches - 1
        if action.op == "F" and self.held + 1 > self.memory.limit + TINY:
            return True
        if action.op == "I" and self.at.rank == 0 and action.microbatch >= last - self.head_start:
            return True  # no F is left, and nobody waits for the first rank's I
        on_time = action.op == "I" and action.microbatch == last and not self.policy.delay_last
        delay = 0.0 if on_time else self.policy.delay
        wait = arrival - self.clock.now[self.at.rank]
        return wait > 0 and wait >= (1 - delay) * self.weight_seconds

    def do(self, action: Action, arrival: float = 0.0) -> None:
        now = self.clock.now[self.at.rank]
        if arrival > now and self.actions:
            self.most_idle -= arrival - now
            if self.most_idle < 0:
                raise SpanTooLong
        self.clock.run(self.at.rank, [action], max(arrival, now))
        self.actions.append(action)
        self.held += self.change[action.op]
        self.weights_due += WEIGHTS_DUE[action.op]
