"""Timed pipeline schedules as small SVG files: a panel for each, a row for each rank, the number of its
microbatch in every action.

Idea   What `ndparallel.drawing.terminal.schedules` draws on the terminal, in the same colours, with exact
       lengths, all on one axis of time.
Cost   About 50 bytes for every action.
Limit  The number of a narrow action is small, and below LEAST_HEIGHT pixels it is left out.

Glossary
    box     an action where it stands in time, or its half of a fused pair, which is framed
    paint   the name of a colour: the activity, and "hollow" for later chunks of a rank
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ndparallel.drawing.actions import ACTIVITY, NAMES, peaks, shade_of
from ndparallel.drawing.palette import ACTIVITIES, IDLE, Paint
from ndparallel.drawing.svg.parts import (
    AXIS_HEIGHT,
    HOLLOW,
    LEFT,
    LEGEND_HEIGHT,
    PLOT_WIDTH,
    RIGHT,
    TITLE_GAP,
    TITLE_HEIGHT,
    WIDTH,
    document,
    fitted,
    legend,
    number,
    text,
    time_axis,
    words_width,
)
from ndparallel.pipeline.actions import Action
from ndparallel.pipeline.timing import Timing

ROW_HEIGHT, ROW_GAP, PANEL_GAP, DIGIT_WIDTH, HOLLOW_INSET = 17, 3, 10, 6.2, 0.9
DIGIT_HEIGHT, LEAST_HEIGHT = 10, 3  # pixels: a digit's usual height, and the smallest that zooming shows
SEAM_WIDTH = 0.8  # pixels between boxes


class Box(NamedTuple):
    start: float
    end: float
    action: Action
    paint: str


def draw_schedules(timings: Sequence[Timing], end: float | None = None) -> str:
    """Draw schedules below one another on one axis of time, which ends with the longest of them or at
    `end`."""
    end = end or max(timing.makespan for timing in timings)
    parts: list[str] = []
    per_second, top = PLOT_WIDTH / end, 0.0
    for timing in timings:
        parts += panel(timing, top, per_second)
        top += TITLE_HEIGHT + timing.schedule.ranks * (ROW_HEIGHT + ROW_GAP) + PANEL_GAP
    body = [
        *time_axis(end, top - PANEL_GAP, per_second),
        *parts,
        *operations(timings, top - PANEL_GAP + AXIS_HEIGHT, per_second),
    ]
    names = ", ".join(f"{timing.schedule.name} {timing.makespan:g} s" for timing in timings)
    height = top - PANEL_GAP + AXIS_HEIGHT + LEGEND_HEIGHT + 14 * bool(notes_on(timings, per_second))
    return document(f"Schedules: {names}", height, paints_of(timings), body)


def paints_of(timings: Sequence[Timing]) -> dict[str, Paint]:
    """Return the colour of every activity that occurs, and that of idle time."""
    activities = {ACTIVITY[op] for op in chunks_by_op(timings)} | {IDLE}
    return {name: paint for name, paint in ACTIVITIES.items() if name in activities}


def chunks_by_op(timings: Sequence[Timing]) -> dict[str, dict[int, float]]:
    """Return, for every operation that occurs, the shade of each of its chunks."""
    layouts = {
        (action.op, timing.schedule.layout)
        for timing in timings
        for row in timing.schedule.actions
        for action in row
    }
    chunks = {
        op: {c: shade_of(layout, c) for o, layout in layouts if o == op for c in range(layout.chunks)}
        for op in NAMES
    }
    return {op: dict(sorted(chunks[op].items())) for op in NAMES if chunks[op]}


def operations(timings: Sequence[Timing], top: float, per_second: float) -> Iterator[str]:
    """Draw the legend: a patch for every colour, with the names of its operations, and the notes."""
    alike: dict[str, list[str]] = {}
    for op in chunks_by_op(timings):
        alike.setdefault(ACTIVITIES[ACTIVITY[op]].light, []).append(op)
    words = {ACTIVITY[ops[0]]: " or ".join(f"{NAMES[op]} ({op})" for op in ops) for ops in alike.values()}
    yield from legend(words, top, words)
    if notes := notes_on(timings, per_second):
        yield text(LEFT, top + 32, notes, "small")


def notes_on(timings: Sequence[Timing], per_second: float) -> str:
    """Say what frames and missing numbers mean, where there are any."""
    notes = ["hollow: a later chunk"] * any(timing.schedule.chunks > 1 for timing in timings)
    notes += ["framed: two run as one"] * any(any(timing.schedule.fused) for timing in timings)
    notes += ["no number: no room for it"] * any(lacks_numbers(timing, per_second) for timing in timings)
    return ", ".join(notes)


def lacks_numbers(timing: Timing, per_second: float) -> bool:
    every = (box for rank in range(timing.schedule.ranks) for box in boxes(timing, rank))
    return not all(digit_height((b.end - b.start) * per_second, str(b.action.microbatch)) for b in every)


def panel(timing: Timing, top: float, per_second: float) -> Iterator[str]:
    """Draw the name, the figures and the rows of one schedule."""
    figures = (
        f"makespan {timing.makespan:g} s, bubble {timing.bubble_ratio:.0%}, most held {held_words(timing)}"
    )
    room = PLOT_WIDTH - words_width(figures) - TITLE_GAP
    yield text(LEFT, top + 17, fitted(timing.schedule.name, room), "name")
    yield text(WIDTH - RIGHT, top + 17, figures, "end")
    for rank in range(timing.schedule.ranks):
        y = top + TITLE_HEIGHT + rank * (ROW_HEIGHT + ROW_GAP)
        yield text(LEFT - 8, y + ROW_HEIGHT / 2 + 4, f"rank {rank}", "end")
        yield f'<g transform="translate({LEFT} {number(y)})">{"".join(row(timing, rank, per_second))}</g>'


def held_words(timing: Timing) -> str:
    """Write the most that every rank holds, in microbatches: a chunk's activations are part of one's."""
    chunks = timing.schedule.chunks
    words = peaks(timing.peak_held, most=8)
    return words if chunks == 1 else f"{words} (1/{chunks} microbatch)"


def row(timing: Timing, rank: int, per_second: float) -> Iterator[str]:
    """Draw one rank: idle time as the ground, boxes by colour, frames round fused pairs, numbers by ink."""
    yield f'<path class="nd-{IDLE}" d="M0 0h{number(timing.makespan * per_second)}v{ROW_HEIGHT}H0z"/>'
    shapes, numbers = defaultdict(list), defaultdict(list)
    for start, end, action, paint in boxes(timing, rank):
        x, width, words = start * per_second, (end - start) * per_second, str(action.microbatch)
        shapes[paint].append(outline(x, width, HOLLOW_INSET if paint.endswith(HOLLOW) else 0))
        if height := digit_height(width, words):
            numbers[paint, height].append(f'<tspan x="{number(x + width / 2)}">{words}</tspan>')
    for paint, outlines in shapes.items():
        kind = "" if paint.endswith(HOLLOW) else " nd-box"
        yield f'<path class="nd-{paint}{kind}" d="{"".join(outlines)}"/>'
    pairs = [
        outline(start * per_second, (end - start) * per_second) for start, end in fused_pairs(timing, rank)
    ]
    if pairs:
        yield f'<path class="frame" d="{"".join(pairs)}"/>'
    for (paint, height), spans in numbers.items():
        ink = "" if paint.endswith(HOLLOW) else f" nd-on-{paint}"
        size = f' style="font-size:{number(height)}px"' * (height < DIGIT_HEIGHT)
        y = round(ROW_HEIGHT / 2 + 0.35 * height, 2)
        yield f'<text class="middle digit{ink}"{size} y="{y}">{"".join(spans)}</text>'


def digit_height(width: float, words: str) -> float:
    """Return how high a number's digits are in a box of this width; 0 where they would be too small."""
    if width >= DIGIT_WIDTH * len(words):
        return DIGIT_HEIGHT
    height = round(DIGIT_HEIGHT * (width - SEAM_WIDTH) / (DIGIT_WIDTH * len(words)), 1)
    return height if height >= LEAST_HEIGHT else 0


def outline(x: float, width: float, inset: float = 0) -> str:
    """Return the path of a box, drawn so far inside that its own line does not reach its neighbours."""
    width, height = max(width - 2 * inset, 0), ROW_HEIGHT - 2 * inset
    return f"M{number(x + inset)} {number(inset)}h{number(width)}v{number(height)}h-{number(width)}z"


def boxes(timing: Timing, rank: int) -> Iterator[Box]:
    """Return the box of every action of a rank; the two of a fused pair have half of its time each."""
    schedule, position = timing.schedule, 0
    for step in schedule.steps(rank):
        start, end = timing.start[rank][position], timing.end[rank][position]
        each = (end - start) / len(step)
        for place, action in enumerate(step):
            later = bool(schedule.layout.chunk(action.stage))
            paint = f"{ACTIVITY[action.op]}{HOLLOW * later}"
            yield Box(start + place * each, start + (place + 1) * each, action, paint)
        position += len(step)


def fused_pairs(timing: Timing, rank: int) -> Iterator[tuple[float, float]]:
    """Yield start and end of each fused pair of a rank."""
    for position in timing.schedule.fused[rank]:
        yield timing.start[rank][position], timing.end[rank][position]
