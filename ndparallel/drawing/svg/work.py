"""What several GPUs spend on one step, as a small SVG: a bar for every strategy, as long as GPUs x step,
parted by what the time went into.

Idea   The work is the same for all, so that all that lies beyond the single GPU's step is what the strategy
       costs: compute that is repeated, communication that is waited for, bubble.
Cost   About 500 bytes a bar.
Limit  A bar that is short in GPU-seconds is not quick in seconds: that is told beside it, as speedup.

Glossary
    GPU-seconds   seconds, added up over the GPUs
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu import si
from ndparallel.drawing.palette import ACTIVITIES, IDLE, OTHER, TERMS, WAITING
from ndparallel.drawing.svg.parts import (
    AXIS_HEIGHT,
    LEGEND_HEIGHT,
    RIGHT,
    TITLE_HEIGHT,
    WIDTH,
    document,
    legend,
    number,
    text,
    time_axis,
)

BARS_LEFT, BARS_WIDTH, BAR_HEIGHT, BAR_GAP = 140, 340, 14, 6
SPEEDUP_RIGHT = WIDTH - RIGHT - 68
PARTS = {OTHER: "compute_seconds", WAITING: "exposed_communication_seconds", IDLE: "bubble_seconds"}


def draw_work(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Draw the rows of a report as bars under these names; the first is the single GPU, whose step is
    marked for all."""
    per_second = BARS_WIDTH / max(gpu_seconds(row) for row in rows)
    bottom = TITLE_HEIGHT + len(rows) * (BAR_HEIGHT + BAR_GAP)
    paints = {paint: ACTIVITIES[paint] for paint in PARTS}
    alone = number(BARS_LEFT + gpu_seconds(rows[0]) * per_second)
    body = [
        text(BARS_LEFT, 17, "GPU-seconds of one step", "name"),
        text(SPEEDUP_RIGHT, 17, "speedup", "end small"),
        text(WIDTH - RIGHT, 17, "memory", "end small"),
        *time_axis(gpu_seconds(max(rows, key=gpu_seconds)), bottom, per_second, BARS_LEFT),
        *(part for place, row in enumerate(rows) for part in bar(row, names[place], place, per_second)),
        f'<path class="mark" d="M{alone} {TITLE_HEIGHT - 4}V{bottom}"/>',
        *legend(paints, bottom + AXIS_HEIGHT, TERMS, BARS_LEFT),
    ]
    height = bottom + AXIS_HEIGHT + LEGEND_HEIGHT
    return document("What several GPUs spend on one step", height, paints, body)


def gpu_seconds(row: Mapping[str, Any]) -> float:
    return row["gpus"] * row["step_seconds"]


def bar(row: Mapping[str, Any], name: str, place: int, per_second: float) -> Iterator[str]:
    """Draw a strategy's name, its bar, its speedup and the memory of its fullest GPU."""
    x, y = float(BARS_LEFT), TITLE_HEIGHT + place * (BAR_HEIGHT + BAR_GAP)
    yield text(BARS_LEFT - 8, y + 11, name, "end")
    for paint, key in PARTS.items():
        seconds = row["gpus"] * row[key]
        size = f'x="{number(x)}" y="{y}" width="{number(seconds * per_second)}" height="{BAR_HEIGHT}"'
        yield (
            f'<rect class="nd-{paint}" {size}><title>{TERMS.get(paint, paint)}: '
            f"{si(seconds, 's')}</title></rect>"
        )
        x += seconds * per_second
    # idle time is hardly seen without
    yield f'<path class="grid" d="M{BARS_LEFT} {y}H{number(x)}v{BAR_HEIGHT}H{BARS_LEFT}"/>'
    yield text(SPEEDUP_RIGHT, y + 11, f"{row['speedup']:.2f}x on {row['gpus']}", "end")
    yield text(WIDTH - RIGHT, y + 11, si(row["peak_memory_bytes"]["total"], "B"), "end")
