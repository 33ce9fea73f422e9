"""Draw timed schedules: one row per rank, time to the right, the number of the microbatch in every action.

Idea   A column shows what the rank does at the middle of that column's time, so that actions of the same
       length look the same.
Cost   One pass over the actions.
Limit  A long step is drawn small: an action narrower than its number shows the last digits. Where not even a
       column is left for an action, the picture shows the step's beginning. `left_out` says what is missing.

Glossary
    colour  that of the palette: I has B's, because it is its half; of several chunks later ones are lighter.
            Underlined: a fused pair, half each
    plain   no colours: a letter says the op, in lower case for every second chunk of the rank, and & joins a
            fused pair
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.style import Style
from rich.text import Text

from ndparallel.base.words import listed
from ndparallel.drawing.actions import ACTIVITY, NAMES, shade_of
from ndparallel.drawing.palette import ACTIVITIES, IDLE, TERMS, ink_on
from ndparallel.drawing.ticks import ticks
from ndparallel.pipeline.actions import Action
from ndparallel.pipeline.timing import Timing

PALEST = 0.45  # how far the last of a rank's chunks is from its colour to white
WHITE = ColorTriplet(255, 255, 255)
IDLE_DOT = "·"
WIDEST = 4  # columns for the shortest action: a short step need not fill the screen
# of the longest action: no picture is stretched for one that is shorter still, so it may have no column
SHORTEST = 1 / 4

Label = Callable[["Cell"], tuple[str, Style | str]]


class Cell(NamedTuple):
    """The `columns` of a rank's row, from `first_column` on, that show one action; `fused` tells whether
    it is part of a pair, and which part."""

    first_column: int
    columns: int
    action: Action
    shade: float  # 0 for the first chunk of the rank, 1 for the last
    chunk: int
    fused: str = ""


def columns_per_second(timings: Sequence[Timing], width: int) -> float:
    """Return the scale at which all of `timings` fit into `width` columns, and the shortest action takes
    whole columns: at least one, even if a step then does not fit."""
    scale = (width - max(len(margin(timing)) for timing in timings)) / max(
        timing.makespan for timing in timings
    )
    lengths = frozenset().union(*(timing.lengths for timing in timings))
    shortest = max(min(lengths), SHORTEST * max(lengths))
    return min(max(math.floor(shortest * scale * (1 + 1e-9)), 1), WIDEST) / shortest


def left_out(timing: Timing, scale: float, width: int) -> str:
    """Say in a sentence what a picture of `width` columns has no room for; "" where it has all."""
    shown = (width - len(margin(timing))) / scale
    missing = []
    if shown < timing.makespan * (1 - 1e-9):
        missing.append(f"ends at {shown:.4g} of {timing.makespan:g}")
    if min(timing.lengths) * scale < 1 - 1e-9:
        missing.append(f"leaves out actions shorter than {1 / scale:.3g}")
    name = f" of {timing.schedule.name}" if timing.schedule.name else ""  # an exercise's answer has none
    return f"The picture{name} {listed(missing)}." if missing else ""


def digits(timing: Timing) -> int:
    """Return how many the number of the last microbatch has."""
    return len(str(timing.schedule.microbatches - 1))


def margin(timing: Timing, rank: int | None = None) -> str:
    room = len(str(timing.schedule.ranks - 1))
    return " " * (room + 6) if rank is None else f"rank {rank:>{room}} "


def draw(timing: Timing, scale: float, plain: bool = False, width: float = math.inf) -> Text:
    """The rows of all ranks, at `scale` columns for a second, and an axis of time below, as far as they go in
    `width` columns.

    Without colours a letter says the op; where it leaves no room for the number, that stands in a row of its
    own below.
    """
    seconds = min(timing.makespan, (width - len(margin(timing))) / scale)
    labels, lines = plain_labels(timing, scale) if plain else [coloured], []
    for rank in range(timing.schedule.ranks):
        for label in labels:
            start = margin(timing, rank if label is labels[0] else None)
            lines.append(Text.assemble((start, "bold"), row(timing, rank, seconds, scale, label)))
    return Text("\n").join([*lines, Text(margin(timing) + axis(seconds, scale), "dim")])


def plain_labels(timing: Timing, scale: float) -> list[Label]:
    """What the rows of a rank say of an action: letter and number, in two rows where one is too narrow."""
    narrow = min(timing.lengths) * scale < 1 + digits(timing)
    return [letter, number] if narrow else [letter_and_number]


def row(timing: Timing, rank: int, seconds: float, scale: float, label: Label) -> Text:
    text, idle, room = Text(), " " if label is number else IDLE_DOT, column(seconds, scale)
    for cell in takewhile(lambda cell: cell.first_column < room, cells(timing, rank, scale)):
        cell = cell._replace(columns=min(cell.columns, room - cell.first_column))
        text.append(idle * (cell.first_column - len(text)), "dim")
        words, style = label(cell)
        text.append(words[: cell.columns].ljust(cell.columns), style)
    return text.append(idle * (room - len(text)), "dim")


def cells(timing: Timing, rank: int, scale: float) -> Iterator[Cell]:
    layout, position = timing.schedule.layout, 0
    for step in timing.schedule.steps(rank):
        first, end = (column(times[rank][position], scale) for times in (timing.start, timing.end))
        # of three columns the first two: there is room for the sign of a pair
        middle = (first + end + 1) // 2 if len(step) == 2 else end
        for action, left, right, fused in zip(step, (first, middle), (middle, end), ("first", "second")):
            chunk = layout.chunk(action.stage)
            yield Cell(
                left, right - left, action, shade_of(layout, chunk), chunk, fused if len(step) == 2 else ""
            )
        position += len(step)


def column(seconds: float, scale: float) -> int:
    """Return the first column whose middle is not before `seconds`, but for rounding."""
    return math.ceil(seconds * scale - 0.5 - 1e-6)


def shade(op: str, lightness: float) -> str:
    """Return the colour of an op, from its own (0) to its palest (1)."""
    own = Color.parse(ACTIVITIES[ACTIVITY[op]].light).get_truecolor()
    return blend_rgb(own, WHITE, PALEST * lightness).hex


def coloured(cell: Cell) -> tuple[str, Style]:
    ground = shade(cell.action.op, cell.shade)
    return number(cell)[0].center(cell.columns), Style(
        color=ink_on(ground), bgcolor=ground, underline=bool(cell.fused), bold=bool(cell.fused)
    )


def number(cell: Cell) -> tuple[str, str]:
    """Return the microbatch, or as many of its last digits as there is room for."""
    return str(cell.action.microbatch)[-max(cell.columns, 1) :], ""


def letter(cell: Cell) -> tuple[str, str]:
    name = cell.action.op.lower() if cell.chunk % 2 else cell.action.op
    return name + "&" * (cell.fused == "first"), ""


def letter_and_number(cell: Cell) -> tuple[str, str]:
    words, joint = letter(cell)[0][0], "&" * (cell.fused == "first")
    room = max(cell.columns - len(words + joint), 1)
    return (words + str(cell.action.microbatch)[-room:]).ljust(cell.columns - len(joint)) + joint, ""


def axis(seconds: float, scale: float) -> str:
    """Return an axis with as many round times as there is room for."""
    line, room = "", len(f"{seconds:g}") + 4
    for tick in ticks(seconds, most=max(int(seconds * scale / room), 1)):
        line = line.ljust(column(tick, scale)) + f"{tick:g}"
    return line


def legend(timings: Sequence[Timing], plain: bool = False, drawn: str = "&", scale: float = math.inf) -> Text:
    """Explain the signs that occur in the pictures of `timings` at `scale`. In plain pictures, `drawn`, the
    sign of a pair may have found no room."""
    ops = {action.op for timing in timings for action in timing.schedule.actions[0]}
    text = Text()
    for op in (op for op in NAMES if op in ops):
        text.append(f" {op} ", "bold" if plain else Style(color=ink_on(shade(op, 0)), bgcolor=shade(op, 0)))
        text.append(f" {NAMES[op]}   ")
    if any(timing.bubble_ratio > 0 for timing in timings):
        text.append(f" {IDLE_DOT} ", "dim").append(f" {TERMS[IDLE]}   ")
    notes = notes_on(timings, plain, drawn, scale)
    return text.append(f"\n {notes}", "dim") if notes else text


def notes_on(timings: Sequence[Timing], plain: bool, drawn: str, scale: float) -> str:
    """Say what shades, small letters, joined pairs and shortened numbers mean, where there are any."""
    notes = []
    if any(timing.schedule.chunks > 1 for timing in timings):
        notes.append("small letters: a later chunk" if plain else "lighter: a later chunk")
    if any(any(timing.schedule.fused) for timing in timings) and ("&" in drawn or not plain):
        notes.append("&: two run as one" if plain else "underlined: two run as one")
    if any(min(timing.lengths) * scale < digits(timing) for timing in timings):
        notes.append("a number without room: its last digits")
    return ", ".join(notes)
