"""All schedules by name: where each comes from, what it can do, and `build`, which writes their lists.

Idea   What a schedule cannot do is said here, once, in one sentence with the nearest choice that it can.
Cost   About a microsecond for every action; `searched` tries many orders (see `ndparallel.pipeline.search`).
Limit  `searched` alone looks at times and memory; the others are the same for every work.

Glossary: see `ndparallel.pipeline.actions`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from operator import index

import numpy as np

from ndparallel.base.errors import UserError, check_whole, find_choice
from ndparallel.base.functions import check_parameters, file_in, in_words, is_own, own_function
from ndparallel.base.quoting import brief
from ndparallel.base.words import count
from ndparallel.engines.time_limit import in_time
from ndparallel.pipeline.actions import Action, Layout, Schedule
from ndparallel.pipeline.checker import explain
from ndparallel.pipeline.recipe import Recipe, write
from ndparallel.pipeline.schedules import RECIPES
from ndparallel.pipeline.timing import peak_activations
from ndparallel.pipeline.work import Work

__all__ = [
    "RECIPES", "SEARCHED", "build", "check_sizes", "contradictions", "default_schedule", "most_actions",
    "names_in", "written_schedules",
]  # fmt: skip
SEARCHED = "searched"  # the order that is found for given seconds and a given memory
SURPLUS = 100  # times the actions that a list can have, after which a reader's is not read on


def written_schedules() -> list[str]:
    """The schedules whose order is written, and not searched for."""
    return [name for name, recipe in RECIPES.items() if not recipe.is_searched]


def names_in(framework: str) -> dict[str, str]:
    """The schedules that a framework has: our names, and its own."""
    return {name: recipe.names[framework] for name, recipe in RECIPES.items() if framework in recipe.names}


def schedule_named(name: str) -> str:
    """Return the name of a schedule as it is written here, a reader's own as it is. Raises UserError for one
    that there is not."""
    if name.endswith(".py"):
        raise UserError(f"{name!r} names no function: write FILE.py:FUNCTION.")
    return name if is_own(name) else find_choice("schedule", name, [*written_schedules(), SEARCHED])


def default_schedule(chunks: int) -> str:
    """The schedule where nobody names one: 1F1B, interleaved with several chunks."""
    return "interleaved" if chunks > 1 else "1f1b"


def build(
    name: str,
    ranks: int,
    microbatches: int,
    chunks: int | None = None,
    work: Work | None = None,
    memory_limit: float | None = None,
    released_by_input: float = 0.0,
    group: int | None = None,
) -> Schedule:
    """Write the schedule `name`. Three serve `searched` alone: the seconds it is searched for, the most
    activations that a rank may hold (default: `ranks`), and the share of them that I frees. `group` stands in
    for a schedule's own groups.

    Raise UserError, with the nearest valid choice, for what the schedule cannot do.
    """
    if is_own(name):
        return own_schedule(name, Layout("loop", ranks, chunks or 1), microbatches)
    name = schedule_named(name)
    check_sizes(name, ranks, microbatches, chunks)
    if name == SEARCHED:
        # only where it is asked for, with the clocks that it needs
        from ndparallel.pipeline.search import search

        return search(ranks, microbatches, work or Work(), memory_limit, released_by_input)
    recipe = RECIPES[name]
    layout = Layout(recipe.layout, ranks, chunks or recipe.default_chunks)
    return write(name, recipe, layout, microbatches, group)


def contradictions(schedule: Schedule) -> Iterator[str]:
    """Yield where the record of a schedule and its lists part, in words: plans are predicted by the record,
    and a search leaves plans out by it."""
    recipe = RECIPES[schedule.name]
    yield from islice(wrong_peaks(recipe, schedule), 1)
    split = any(action.op == "W" for actions in schedule.actions for action in actions)
    for name, holds in (("splits", split), ("pairs", any(schedule.fused))):
        if getattr(recipe, name) != holds:
            yield f"{name} is {not holds}, and should be {holds}"
    yield from islice(late_peaks(recipe, schedule), 1)


def wrong_peaks(recipe: Recipe, schedule: Schedule) -> Iterator[str]:
    for rank, (said, held) in enumerate(
        zip(by_rank(recipe.peak_in_flight, schedule), peak_activations(schedule))
    ):
        if said != held:
            yield f"peak_in_flight of rank {rank} is {said:g}, and it keeps {held:g}"


def late_peaks(recipe: Recipe, schedule: Schedule) -> Iterator[str]:
    said = by_rank(recipe.microbatches_ahead, schedule)
    for rank, (least, actions) in enumerate(zip(said, schedule.actions)):
        if least > (ahead := taken_forward_first(actions)):
            yield (
                f"peaks_before_backward is True, and should be False: rank {rank} takes {ahead:g} of its "
                f"{count(int(least), 'microbatch', 'es')} forward before its first backward"
            )


def by_rank(claim: Callable, schedule: Schedule) -> np.ndarray:
    """What a record claims of every rank of a schedule."""
    ranks = schedule.ranks
    return np.broadcast_to(claim(schedule.microbatches, np.arange(ranks), ranks, schedule.chunks), ranks)


def taken_forward_first(actions: list[Action]) -> int:
    """Return how many microbatches a rank takes forward through all its chunks before its first backward."""
    passes = Counter(action.stage for action in takewhile(lambda action: action.op == "F", actions))
    return min(passes[stage] for stage in {action.stage for action in actions})


def own_schedule(words: str, layout: Layout, microbatches: int) -> Schedule:
    """Write a reader's schedule: FILE.py:FUNCTION yields (op, stage, microbatch) for (rank, ranks,
    microbatches). Raises UserError, with the reason, for one that cannot run."""
    path = file_in(words)
    with in_time(words, path):
        order = own_function(words)
    check_parameters(words, order, ("rank", "ranks", "microbatches"))
    most = most_actions(layout.chunks, microbatches)
    lists: list[list[Action]] = []
    try:
        for rank in range(layout.ranks):
            with in_time(words, path, f" the actions of GPU {rank}"):
                lists.append(list(actions_of(words, order(rank, layout.ranks, microbatches), rank, most)))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{words} raised {in_words(error, path)}.") from None
    schedule = Schedule(words, layout, microbatches, lists, [[] for _ in lists])
    if fault := explain(schedule):
        raise UserError(f"{words}: {fault}")
    return schedule


def actions_of(words: str, found: object, rank: int, most: int) -> Iterator[Action]:
    """Read what a reader's schedule returns for a rank, whose list has `most` actions at most. Raises
    UserError for what is no list of actions, and for one that does not end."""
    if not isinstance(found, Iterable):
        raise UserError(f"{words} returned {brief(found)} for GPU {rank}: yield its actions, in order.")
    for number, each in enumerate(found):
        if number > SURPLUS * most:
            raise UserError(
                f"{words} has yielded {number:,} actions for GPU {rank}, and {most:,} are the most that a "
                "step can have: does a loop end?"
            )
        try:
            op, stage, microbatch = each
            action = Action(str(op), index(stage), index(microbatch))
        except (TypeError, ValueError):
            raise UserError(
                f"{words} yields {brief(each)} for GPU {rank}: yield Action(op, stage, microbatch), or a "
                "tuple of these: a letter and two whole numbers."
            ) from None
        yield action


def most_actions(chunks: int, microbatches: int) -> int:
    """Return how many actions a rank has where it splits all backwards: F, I and W."""
    return 3 * chunks * microbatches


def check_sizes(name: str, ranks: int, microbatches: int, chunks: int | None) -> None:
    """Raise UserError, with the nearest valid choice, for sizes that a schedule cannot have."""
    some = 1 if chunks is None else chunks
    for what, number in (("rank", ranks), ("microbatch", microbatches), ("chunk", some)):
        check_whole(f"the {what} count of a schedule", number)
    recipe = RECIPES.get(name)
    only = recipe.chunks if recipe else 1
    if only and chunks not in (None, only):
        raise UserError(
            f"{name} keeps {count(only, 'chunk')} per rank, not {chunks}: take {only}, or "
            f"{default_schedule(chunks or 1)} with {chunks}."
        )
    if recipe and recipe.group and microbatches < ranks:
        raise UserError(
            f"{name} sends microbatches round in groups of at least {ranks}, one per rank: take {ranks} or "
            f"more, not {microbatches}."
        )
