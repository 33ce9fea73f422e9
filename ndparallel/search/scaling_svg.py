"""Scaling as a picture: bars of efficiency and of MFU for every size, and frames where the usual table has
its ranges.

Idea   Two panels under one another, with the same columns; weak and strong scaling side by side in each.
Limit  What does not fit has no bar, and says so. More than five sizes make the picture wider.
"""

from collections.abc import Callable, Iterator

from ndparallel.drawing.palette import ACTIVITIES, BACKWARD, FORWARD
from ndparallel.drawing.svg.parts import (
    LEFT,
    PLOT_WIDTH,
    RIGHT,
    TITLE_HEIGHT,
    document,
    fitted,
    legend,
    legend_places,
    number,
    text,
)
from ndparallel.search.scaling import USUAL, Curves, base_of

PANEL, GAP, BAR = 150, 44, 38
COLUMN = PLOT_WIDTH / 5  # the room of one size, at least
PAINTS = {"weak": ACTIVITIES[BACKWARD], "strong": ACTIVITIES[FORWARD]}
WORDS = {"weak": "weak: the batch grows with the GPUs", "strong": "strong: the batch stays"}
RANGE = "usual range"


def scaling_svg(title: str, curves: Curves) -> str:
    """The whole picture."""
    height = TITLE_HEIGHT + 2 * (PANEL + GAP) + 44
    return document(title, height, PAINTS, body(title, curves), LEFT + plot_width(curves) + RIGHT)


def plot_width(curves: Curves) -> float:
    return max(PLOT_WIDTH, COLUMN * len(next(iter(curves.values()))))


def body(title: str, curves: Curves) -> Iterator[str]:
    yield text(LEFT, 17, fitted(title, plot_width(curves)), "name")
    top = TITLE_HEIGHT + 18
    yield from panel("efficiency", top, curves, efficiencies(curves), lambda row: row.efficiency)
    top += PANEL + GAP
    mfus = {
        way: [point.best.mfu if point.best else None for point in points] for way, points in curves.items()
    }
    yield from panel("MFU", top, curves, mfus, lambda row: row.mfu)
    yield from legend(PAINTS, top + PANEL + 34, WORDS)
    *_, (x, y) = legend_places([*WORDS.values(), RANGE], top + PANEL + 34)
    yield f'<path class="frame" d="M{number(x)} {number(y + 5)}h12v12h-12z"/>'
    yield text(x + 17, y + 15, RANGE)


def efficiencies(curves: Curves) -> dict[str, list[float | None]]:
    return {way: [point.efficiency(base_of(points)) for point in points] for way, points in curves.items()}


def panel(
    name: str, top: float, curves: Curves, values: dict[str, list[float | None]], usual: Callable
) -> Iterator[str]:
    """One quantity: grid, bars, ranges, and the sizes under them."""
    highest = max([1.0, *(value for column in values.values() for value in column if value)])

    def y(value: float) -> float:
        return top + PANEL * (1 - value / highest)

    width = plot_width(curves)
    yield text(LEFT - 52, top - 8, name, "name")
    for share in (0, 0.25, 0.5, 0.75, 1):
        yield f'<path class="grid" d="M{LEFT} {number(y(share))}h{number(width)}"/>'
        yield text(LEFT - 8, y(share) + 4, f"{share:.0%}", "small end")
    points = next(iter(curves.values()))
    for place, point in enumerate(points):
        middle = LEFT + width * (place + 0.5) / len(points)
        yield from bars(middle, y, {way: column[place] for way, column in values.items()})
        if point.gpus in USUAL:
            yield usual_range(middle, *map(y, usual(USUAL[point.gpus])))
        yield text(middle, top + PANEL + 16, f"{point.gpus} GPUs", "middle")


def bars(middle: float, y: Callable[[float], float], values: dict[str, float | None]) -> Iterator[str]:
    for place, (way, value) in enumerate(values.items()):
        left = middle + (place - 1) * (BAR + 4) + 2
        if value is None:
            yield text(left + BAR / 2, y(0) - 6, "none", "small middle")
            continue
        yield (
            f'<rect class="nd-{way}" x="{number(left)}" y="{number(y(value))}" width="{BAR}" '
            f'height="{number(y(0) - y(value))}"/>'
        )
        yield text(left + BAR / 2, y(0) - 6, f"{value:.0%}", f"digit nd-digit nd-on-{way}")


def usual_range(middle: float, low: float, high: float) -> str:
    """A frame as wide as both bars and a little wider."""
    half = BAR + 8
    return (
        f'<path class="frame" d="M{number(middle - half)} '
        f'{number(high)}h{2 * half}V{number(low)}h-{2 * half}z"/>'
    )
