"""Search an order for the times and the memory that there are: the idea of ZB-1p and ZB-2p (arXiv 2401.10241,
section 3.1).

Idea   Every rank does F and I by turns, after a head start of some F. Once it is known when the next of them
       can begin, W fills the wait until then, and W makes room where memory does not allow the next F. How
       long the head start is, and how late W may make what comes next, are a few numbers; all their
       combinations are tried, and the handwritten orders that keep to the memory. The shortest span wins,
       of those that no handwritten order ends before.
Cost   About 50 attempts of 0.2 microseconds for every F and I, in an order that is found once for every head
       start. Of more microbatches than four rounds of the ranks only the attempts that were best with so many
       are made with all.
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
from ndparallel.pipeline.actions import Layout, Schedule
from ndparallel.pipeline.attempt import TINY, Memory, Policy, Problem, TriedOrder, attempt
from ndparallel.pipeline.recipe import write
from ndparallel.pipeline.schedule_timer import ScheduleTimer
from ndparallel.pipeline.schedules import RECIPES
from ndparallel.pipeline.timing import peak_activations
from ndparallel.pipeline.work import Work

# F for every rank below: 1 is 1F1B, 2 is ZB-H2, more hides slow messages
HEAD_STARTS = np.arange(1, 3.25, 0.25)
DELAYS = (0.0, 0.5, 1.0)
ROUNDS_TRIED = 4  # of as many microbatches as there are ranks
FINALISTS = 8
MOST_STEPS = 50_000  # microbatches on all ranks, of which each attempt goes through all actions
ROUNDING = 1e-12  # of a makespan: sums of seconds are not exact


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
    cannot be, and for more than can be searched in some seconds.
    """
    check_size(ranks, microbatches)
    memory = checked(Memory(ranks if memory_limit is None else memory_limit, released_by_input))
    problem, few = Problem(ranks, microbatches, work, memory), ROUNDS_TRIED * ranks + microbatches % ranks
    tried = list(policies(problem))
    if microbatches > few:
        shorter = problem._replace(microbatches=few)
        tried = [made.policy for made in attempts(shorter, tried, FINALISTS)]
    written = list(handwritten(problem))
    latest = min((order.makespan for order in written), default=inf) * (1 + ROUNDING)
    in_time = [order for order in written if order.makespan <= latest]
    longest = min((order.span for order in in_time), default=inf)
    found = attempts(problem, tried, 1, latest, longest)
    orders: list[TriedOrder | Handwritten] = [*found, *in_time]
    return min(orders, key=length).schedule()


def checked(memory: Memory) -> Memory:
    """Return it. Raises UserError for a limit or a share that cannot be."""
    limit, released = memory
    if not limit >= 1:
        raise UserError(f"a memory limit of {limit:g} activations is too low: a rank holds at least 1.")
    if not 0 <= released <= 1:
        raise UserError(f"the share of the activations that I frees is from 0 to 1, not {released:g}.")
    return memory


def check_size(ranks: int, microbatches: int, name: str = "searched") -> None:
    """Raise UserError where a search would take long."""
    if ranks * microbatches > MOST_STEPS:
        raise UserError(
            f"{name} tries about 50 orders, too many for {ranks} stages and {microbatches} "
            f"microbatches: choose a product of {MOST_STEPS:,} at most, or a written schedule."
        )


class Handwritten(NamedTuple):
    """A handwritten order by its name, its longest span, and its makespan."""

    name: str
    problem: Problem
    span: float
    makespan: float

    def schedule(self) -> Schedule:
        ranks, microbatches, *_ = self.problem
        return write("searched", RECIPES[self.name], Layout("loop", ranks), microbatches)


def handwritten(problem: Problem) -> Iterator[Handwritten]:
    """The handwritten orders of one chunk that keep to the memory."""
    ranks, microbatches, work, memory = problem
    for name, recipe in RECIPES.items():
        if recipe.chunks == 1 and not recipe.is_searched:
            timer = ScheduleTimer(name, ranks, 1, microbatches)
            if most_held(timer, memory.released_by_input) <= memory.limit + TINY:
                ends = timer.exact_ends(work)
                yield Handwritten(name, problem, ends.longest_span, max(ends.end))


def most_held(timer: ScheduleTimer, released_by_input: float) -> float:
    """The most activations that a rank of a schedule holds."""
    recipe, microbatches, ranks = timer.recipe, timer.microbatches, timer.ranks
    if recipe.splits and released_by_input:
        return max(peak_activations(timer.replay(microbatches).schedule, released_by_input))
    return max(recipe.peak_in_flight(microbatches, rank, ranks, 1) for rank in range(ranks))


def attempts(
    problem: Problem,
    tried: Iterable[Policy],
    keep: int | None = None,
    latest: float = inf,
    longest: float = inf,
) -> list[TriedOrder]:
    """The `keep` best attempts that end by `latest` (None: all), the best first; of equals those of the least
    head starts and delays. One is given up once its span must be longer than theirs, or than `longest`."""
    found: list[TriedOrder] = []
    for policy in tried:
        full = found and len(found) == keep
        useful = min(longest, found[-1].span) if full else longest
        made = attempt(problem, policy, useful * (1 + ROUNDING))
        if made and made.makespan <= latest:
            found = sorted([*found, made], key=lambda one: (length(one), one.policy))[:keep]
    return found


def length(order: TriedOrder | Handwritten) -> tuple[float, float]:
    """The longest span, without the digits that rounding may change; and the makespan."""
    return float(f"{order.span:.12g}"), order.makespan


def policies(problem: Problem) -> Iterator[Policy]:
    """All policies, the long head starts first: these are seldom bad, so that others are soon given up."""
    starts = dict.fromkeys(tuple(head_starts(problem, per_rank)) for per_rank in HEAD_STARTS)
    return itertools.starmap(Policy, itertools.product(reversed(starts), reversed(DELAYS), (True, False)))


def head_starts(problem: Problem, per_rank: float) -> list[int]:
    """`per_rank` F for every rank below, as far as memory allows; each rank stays ahead of the next, which
    would wait for it."""
    wanted = [int(per_rank * (problem.ranks - 1 - rank)) for rank in range(problem.ranks)]
    limit = problem.memory.limit
    if limit >= problem.microbatches:
        return wanted
    return [max(0, min(first, int(limit + TINY) - 1 - rank)) for rank, first in enumerate(wanted)]
