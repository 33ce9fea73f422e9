"""A pipeline schedule with its memory: above every rank the microbatches whose activations it holds; at rest,
or filling up as time goes on.

Idea   The schedule's own clock says when each forward begins and each backward ends; between the two the
       microbatch's activations are held.
Limit  One chunk a rank. Where nothing may move, the filling picture is the whole schedule.

Glossary
    strip   the microbatches that a rank holds, over time
    cover   what hides the time that has not come yet
"""

from collections.abc import Iterator, Sequence

from ndparallel.drawing.palette import ACTIVITIES, BACKWARD, FORWARD, IDLE, MEMORY
from ndparallel.drawing.svg.parts import document, legend, number, text
from ndparallel.drawing.svg.schedules import DIGIT_WIDTH, boxes
from ndparallel.drawing.svg.shapes import NARROW, box
from ndparallel.drawing.ticks import ticks
from ndparallel.pipeline.timing import Timing

LEFT, RIGHT, ROW_HEIGHT, STRIP_HEIGHT, RANK_HEIGHT, TITLE_HEIGHT = 54, 8, 17, 20, 48, 26
ACTIVATIONS = "activations"
PAINTS = {name: ACTIVITIES[name] for name in (IDLE, FORWARD, BACKWARD)} | {ACTIVATIONS: MEMORY[ACTIVATIONS]}
SECONDS = 12  # that the filling takes
MOVES = (
    ".nd-cover{display:none}@media(prefers-reduced-motion:no-preference){.nd-cover{display:inline;"
    f"animation:nd-fill {SECONDS}s linear infinite}}}}@keyframes nd-fill{{0%{{transform:none}}85%,100%"
    f"{{transform:translateX({NARROW - LEFT}px)}}}}"
)


def draw_with_memory(timings: Sequence[Timing]) -> str:
    """Draw schedules below one another, on one scale of time and one of memory."""
    body, bottom = panels(timings)
    return document(label(timings), bottom + 24, PAINTS, [*body, *key(bottom)], NARROW)


def draw_filling(timing: Timing) -> str:
    """Draw one schedule under a cover that moves away as time goes on."""
    body, bottom = panels([timing])
    size = f'width="{NARROW - LEFT}" height="{number(bottom - TITLE_HEIGHT)}"'
    cover = (
        f'<g class="nd-cover"><rect class="ground" x="{LEFT}" y="{TITLE_HEIGHT}" {size}/>'
        f'<path class="mark" d="M{LEFT} {TITLE_HEIGHT}V{number(bottom)}"/></g>'
    )
    return document(label([timing]), bottom + 24, PAINTS, [*body, cover, *key(bottom)], NARROW, MOVES)


def key(top: float) -> Iterator[str]:
    return legend((FORWARD, BACKWARD, ACTIVATIONS), top, {ACTIVATIONS: "microbatches held"}, LEFT)


def label(timings: Sequence[Timing]) -> str:
    return " and ".join(timing.schedule.name for timing in timings) + " with the activations that are held"


def panels(timings: Sequence[Timing]) -> tuple[list[str], float]:
    """Return the drawn schedules with the axis under them, and where it ends."""
    per_second = (NARROW - LEFT - RIGHT) / max(timing.makespan for timing in timings)
    most = max(max(timing.peak_held) for timing in timings)
    body, top = [], 0.0
    for timing in timings:
        body += [
            text(LEFT, top + 16, timing.schedule.name, "name"),
            text(NARROW - RIGHT, top + 16, f"{timing.makespan:g} s, bubble {timing.bubble_ratio:.0%}", "end"),
        ]
        for rank in range(timing.schedule.ranks):
            body += row(
                timing, rank, top + TITLE_HEIGHT + rank * RANK_HEIGHT, per_second, STRIP_HEIGHT / most
            )
        top += TITLE_HEIGHT + timing.schedule.ranks * RANK_HEIGHT + 6
    longest = max(timing.makespan for timing in timings)
    body += [
        text(LEFT + tick * per_second, top + 8, f"{tick:g} s", "middle small") for tick in ticks(longest)
    ]
    return body, top + 14


def row(timing: Timing, rank: int, y: float, per_second: float, per_microbatch: float) -> Iterator[str]:
    """Draw one rank: its strip, and under it the actions with their microbatches."""
    base = y + STRIP_HEIGHT
    yield text(LEFT - 8, base + 13, f"GPU {rank}", "end")
    yield text(LEFT - 8, base - 4, f"holds {timing.peak_held[rank]}", "end small")
    yield strip(timing, rank, base, per_second, per_microbatch)
    yield (
        f'<rect class="nd-{IDLE}" x="{LEFT}" y="{number(base + 1)}" '
        f'width="{number(timing.makespan * per_second)}" height="{ROW_HEIGHT}"/>'
    )
    for start, end, action, paint in boxes(timing, rank):
        width, words = (end - start) * per_second, str(action.microbatch)
        shown = words if width >= DIGIT_WIDTH * len(words) else ""
        yield box(paint, LEFT + start * per_second, base + 1, width, ROW_HEIGHT, shown)


def strip(timing: Timing, rank: int, base: float, per_second: float, per_microbatch: float) -> str:
    """Draw how many microbatches are held, from the start of a forward to the end of its backward."""
    changes = [
        (start if action.op == "F" else end, 1 if action.op == "F" else -1)
        for start, end, action, _ in boxes(timing, rank)
    ]
    path, held = [f"M{LEFT} {number(base)}"], 0
    for seconds, change in sorted(changes):
        held += change
        path.append(f"H{number(LEFT + seconds * per_second)}V{number(base - held * per_microbatch)}")
    return f'<path class="nd-{ACTIVATIONS}" d="{"".join(path)}V{number(base)}z"/>'
