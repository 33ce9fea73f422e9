"""A schedule's record: how it is written, what it keeps in memory, what bounds it, and its names elsewhere.

Idea   All that is known of a schedule stands above the function that writes it, in one `@register`. Whoever
       needs to know asks RECIPES: `ndparallel schedule`, the planner's clock and memory, the search and its
       bounds, launch formats, and the reader of published runs. docs/extending.md adds a schedule.
Limit  Of a schedule that is searched for the record has only its memory and its names; see
       `ndparallel.pipeline.search`.

Glossary: see `ndparallel.pipeline.actions`; and
    m, r, p, v   microbatches, rank (these two may be arrays), ranks and chunks of the pipeline
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count, repeat
from typing import Any

import numpy as np

from ndparallel.base.functions import check_free
from ndparallel.pipeline.actions import Action, Layout, Schedule

Program = Iterator[Action]


class RankSide:
    """One rank's side of a schedule while it is written: hands out the next microbatch of every kind, in
    order."""

    def __init__(self, layout: Layout, rank: int, microbatches: int, group: int = 0):
        self.rank = rank
        self.microbatches = microbatches
        self.ranks = layout.ranks
        self.chunks = layout.chunks
        self.group = group
        self.below = layout.ranks - 1 - rank
        self.pairs: list[tuple[Action, Action]] = []
        stages, backwards = layout.stages_of(rank), [count() for _ in range(layout.chunks)]
        self._forwards = [one_after_another("F", stage, count()) for stage in stages]
        self._backwards, self._inputs = (
            [one_after_another(op, stage, numbers) for stage, numbers in zip(stages, backwards)]
            for op in "BI"
        )
        self._weights_due: deque[tuple[int, int]] = deque()

    def F(self, chunk: int = 0) -> Action:
        return next(self._forwards[chunk])

    def B(self, chunk: int = 0) -> Action:
        return next(self._backwards[chunk])

    def I(self, chunk: int = 0) -> Action:  # noqa: E743
        action = next(self._inputs[chunk])
        self._weights_due.append(action[1:])
        return action

    def W(self) -> Action:
        """The weight gradient that has been due the longest."""
        return Action("W", *self._weights_due.popleft())

    def fused(self, first: Action, second: Action) -> Program:
        """Two actions that run as one."""
        self.pairs.append((first, second))
        yield from (first, second)


def one_after_another(op: str, stage: int, microbatches: Iterator[int]) -> Iterator[Action]:
    """An op on a stage, microbatch after microbatch: thousands, so without a call of Python for each."""
    return map(partial(tuple.__new__, Action), zip(repeat(op), repeat(stage), microbatches))


@dataclass(frozen=True)
class Recipe:
    """All that is known of one schedule.

    What it is
        program           writes one rank's actions; None where the order is searched for
        source            where it was published
        chunks            how many a rank keeps, None for any number
        layout            loop or v
        group             (m, p) -> how many microbatches go through one chunk before they go through the
                          next, where a rank takes them in groups; there are at least as many as ranks
        fewest            p -> the fewest microbatches that its authors' program takes; None where it is not
                          theirs, or takes any number
        chunk_by_chunk    (m, p) -> whether a rank does the backward passes of all microbatches through one
                          chunk before it begins those of the next
    What it keeps
        peak_in_flight    (m, r, p, v) -> the most that rank r keeps at any time, in chunks of one microbatch.
                          A search may keep less
        memory_limit      p -> as many as a search may keep; None where an order is written
    What bounds its seconds from below (`ndparallel.search.bounds.pipeline_bound`): `splits` and `pairs` are
    what the program does; what else is left out bounds less
        head_start        p -> the most forwards that rank 0 does before its first I; None: unknown
        splits            whether some backwards are split into I and W, so that the last gradients go up
                          before weights are done
        pairs             whether forwards run as one with backwards of a rank's other chunk, which hides
                          messages between experts
        peaks_before_backward  whether a rank keeps most just before its first backward pass
        one_at_a_time     whether one microbatch is in the pipeline at a time
        waits_on_messages whether ranks have no head start to hide messages in, so that every second
                          microbatch of neighbours waits for two
    Who tries it
        by_name_only      whether a search of plans tries it only where it is named
    What others call it
        names             its name in each framework that has it, as {"torchtitan": "1F1B"}
        spelled           a pattern of its names in papers, small, without blanks and hyphens; where several
                          match, the last entry of RECIPES is meant
    """

    program: Callable[[RankSide], Program] | None
    source: str
    peak_in_flight: Callable[[Any, Any, int, int], Any]
    chunks: int | None = 1
    layout: str = "loop"
    group: Callable[[Any, int], Any] | None = None
    fewest: Callable[[int], int] | None = None
    chunk_by_chunk: Callable[[Any, Any], Any] | None = None
    memory_limit: Callable[[int], int] | None = None
    head_start: Callable[[int], int] | None = None
    splits: bool = False
    pairs: bool = False
    peaks_before_backward: bool = False
    one_at_a_time: bool = False
    waits_on_messages: bool = False
    by_name_only: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    spelled: str = r"$^"

    @property
    def is_searched(self) -> bool:
        return self.program is None

    @property
    def default_chunks(self) -> int:
        return self.chunks or self.least_chunks

    @property
    def least_chunks(self) -> int:
        """The fewest that a plan cuts a rank's layers into: with one chunk a schedule of several is that of
        another recipe."""
        return self.chunks or 2

    def fewest_microbatches(self, ranks: int, published: bool = True) -> int:
        """Return the fewest microbatches of the lists that are written here, or of the `published` program
        where it takes more."""
        own = ranks if self.group else 1
        return max(own, self.fewest(ranks)) if self.fewest and published else own

    def microbatches_per_round(self, microbatches: int, ranks: int) -> int:
        """The number of microbatches after which a full pipeline does the same again."""
        return int(self.group(microbatches, ranks)) if self.group else ranks

    def chunks_begun(self, microbatches: Any, ranks: Any, chunks: Any) -> Any:
        """Return the most chunks whose backward passes a rank has begun and not ended."""
        in_turn = self.chunk_by_chunk(microbatches, ranks) if self.chunk_by_chunk else False
        return chunks - (chunks - 1) * in_turn

    def microbatches_ahead(self, microbatches: Any, rank: Any, ranks: int, chunks: int) -> Any:
        """Return how many microbatches a rank takes forward through all its chunks before its first backward
        pass, at least."""
        if not self.peaks_before_backward:
            return 0
        group = self.group(microbatches, ranks) if self.group else microbatches
        passes = self.peak_in_flight(microbatches, rank, ranks, chunks)
        return np.clip(passes - (chunks - 1) * group, 0, group)

    @property
    def summary(self) -> str:
        if self.program is None:
            return "The order found for these times and this memory."
        return " ".join((self.program.__doc__ or "").split())


RECIPES: dict[str, Recipe] = {}


def register(name: str, **known: Any) -> Callable[[Callable], Callable]:
    """Enter the function below this line into RECIPES, with what else is known of its schedule. Raises
    UserError for a name that is taken."""

    def decorator(program: Callable[[RankSide], Program]) -> Callable[[RankSide], Program]:
        check_free(
            f"there is a schedule {name!r}", RECIPES[name].program if name in RECIPES else None, program
        )
        RECIPES[name] = Recipe(program, **known)
        return program

    return decorator


def write(name: str, recipe: Recipe, layout: Layout, microbatches: int, group: int | None = None) -> Schedule:
    """Write all ranks' lists. Where a batch is too short to fill the pipeline, a program runs past the last
    microbatch; what is past it is left out here. `group` stands in for the recipe's own."""
    if recipe.program is None:
        raise ValueError(f"the order of {name} is searched for, not written.")
    actions, fused = [], []
    group = group or recipe.microbatches_per_round(microbatches, layout.ranks)
    for rank in range(layout.ranks):
        side = RankSide(layout, rank, microbatches, group)
        actions.append([action for action in recipe.program(side) if action.microbatch < microbatches])
        fused.append(pair_positions(actions[-1], side.pairs))
    return Schedule(name, layout, microbatches, actions, fused)


def pair_positions(actions: list[Action], pairs: list[tuple[Action, Action]]) -> list[int]:
    """Return the position in `actions` of each pair's first action; a pair that has lost one of its two
    is no pair."""
    position = {action: place for place, action in enumerate(actions)} if pairs else {}
    return [position[first] for first, second in pairs if first in position and second in position]
