"""All schedules by name: where each comes from, what it can do, and `build`, which writes its lists.

Idea   What a schedule cannot do is said here, once, in one sentence with the nearest choice that it can.
Cost   About a microsecond for every action; `searched` tries many orders (see `ndparallel.pipeline.search`).
Limit  `searched` alone looks at times and memory; the others are the same for every work.

Glossary: see `ndparallel.pipeline.actions`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ndparallel.base.errors import UserError, unknown
from ndparallel.base.words import count
from ndparallel.pipeline import schedules
from ndparallel.pipeline.actions import Action, Layout, Schedule
from ndparallel.pipeline.schedules import Program, RankSide
from ndparallel.pipeline.work import Work


@dataclass(frozen=True)
class Recipe:
    """How one schedule is written.

    program: one rank's actions; source: where the schedule was published; chunks: how many it keeps per rank,
    None for any number; groups: whether microbatches go round in groups of P.
    """

    program: Callable[[RankSide], Program]
    source: str
    chunks: int | None = 1
    layout: str = "loop"
    groups: bool = False

    @property
    def default_chunks(self) -> int:
        return self.chunks or 2

    @property
    def summary(self) -> str:
        return " ".join((self.program.__doc__ or "").split())


RECIPES: dict[str, Recipe] = {
    "naive": Recipe(schedules.naive, "arXiv 1811.06965, figure 2b"),
    "gpipe": Recipe(schedules.gpipe, "arXiv 1811.06965, drawn as in arXiv 2104.04473, figure 3"),
    "1f1b": Recipe(
        schedules.one_f_one_b, "PipeDream-Flush, arXiv 2006.09503; drawn as in arXiv 2104.04473, figure 4"
    ),
    "eager-1f1b": Recipe(schedules.eager_1f1b, "arXiv 2211.05322"),
    "interleaved": Recipe(
        schedules.interleaved, "Megatron-LM, arXiv 2104.04473, figure 4", chunks=None, groups=True
    ),
    "looped-bfs": Recipe(schedules.looped_bfs, "arXiv 2211.05953", chunks=None),
    "zb-h1": Recipe(schedules.zb_h1, "arXiv 2401.10241, figure 3"),
    "zb-h2": Recipe(schedules.zb_h2, "arXiv 2401.10241, figure 3"),
    "zb-v": Recipe(schedules.zb_v, "arXiv 2401.10241, section on ZB-V", chunks=2, layout="v"),
    "dualpipev": Recipe(schedules.dualpipev, "github.com/deepseek-ai/DualPipe", chunks=2, layout="v"),
}
SCHEDULES = (*RECIPES, "searched")


def build(
    name: str,
    ranks: int,
    microbatches: int,
    chunks: int | None = None,
    work: Work | None = None,
    memory_limit: float | None = None,
    released_by_input: float = 0.0,
) -> Schedule:
    """Write the schedule `name`. The last three serve `searched` alone: the seconds it is searched for, the
    most activations that a rank may hold (default: `ranks`), and the share of them that I frees.

    Raise UserError, with the nearest valid choice, for what the schedule cannot do.
    """
    if name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    check_sizes(name, ranks, microbatches, chunks)
    if name == "searched":
        # only where it is asked for, with the clocks that it needs
        from ndparallel.pipeline.search import search

        return search(ranks, microbatches, work or Work(), memory_limit, released_by_input)
    recipe = RECIPES[name]
    return write(name, recipe, Layout(recipe.layout, ranks, chunks or recipe.default_chunks), microbatches)


def check_sizes(name: str, ranks: int, microbatches: int, chunks: int | None) -> None:
    for what, number in (
        ("rank", ranks),
        ("microbatch", microbatches),
        ("chunk", 1 if chunks is None else chunks),
    ):
        if number < 1:
            raise UserError(f"a schedule needs at least 1 {what}, not {number}.")
    only = RECIPES[name].chunks if name in RECIPES else 1
    if only and chunks not in (None, only):
        raise UserError(
            f"{name} keeps {count(only, 'chunk')} per rank, not {chunks}: take {only}, or interleaved with "
            f"{chunks}."
        )
    if name in RECIPES and RECIPES[name].groups and microbatches % ranks:
        below = microbatches // ranks * ranks
        near = f"{below} or {below + ranks}" if below else f"{ranks}"
        raise UserError(
            f"{name} sends microbatches round in groups of {ranks}, one per rank: take {near}, not "
            f"{microbatches}."
        )


def write(name: str, recipe: Recipe, layout: Layout, microbatches: int) -> Schedule:
    """Where a batch is too short to fill the pipeline, a program runs past the last microbatch; what is past
    it is left out here."""
    actions, fused = [], []
    for rank in range(layout.ranks):
        side = RankSide(layout, rank, microbatches)
        actions.append([action for action in recipe.program(side) if action.microbatch < microbatches])
        fused.append(pair_positions(actions[-1], side.pairs))
    return Schedule(name, layout, microbatches, actions, fused)


def pair_positions(actions: list[Action], pairs: list[tuple[Action, Action]]) -> list[int]:
    """Where in `actions` the first of each pair stands; a pair that has lost one of its two is no pair."""
    position = {action: place for place, action in enumerate(actions)} if pairs else {}
    return [position[first] for first, second in pairs if first in position and second in position]
