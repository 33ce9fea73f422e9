"""What GPUs held over time, by kind, as a small SVG: one panel a run, all on one scale of bytes and one of
time.

Idea   A panel is as high as its run's peak, so that the heights of panels compare what the runs need. Panels
       that are too low to be read on that scale are drawn a second time, several times as high.
Cost   About 25 bytes for every pixel with a change and every kind that is held.
Limit  A pixel shows its fullest moment, so that no peak is lost, and its last; what lies between them is not
       seen.

Glossary
    column   what was held at one pixel of time
    level    a dotted line at the peak, a red one at the GPU's limit where that is near
"""

from collections.abc import Iterable, Iterator, Sequence

from gpu import MEMORY_KINDS, si
from ndparallel.drawing.memory import MemoryHistory
from ndparallel.drawing.palette import MEMORY
from ndparallel.drawing.svg.parts import (
    AXIS_HEIGHT,
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

HIGHEST, HIGHEST_SUM, HEADROOM, PANEL_GAP = 180, 330, 1.08, 6  # pixels, of one panel and of all
LETTER_HEIGHT = 9  # pixels that a letter needs
LEGIBLE = 60  # pixels: a lower panel is enlarged
NEAR = 2  # times the peak: a limit further away is told in the title, and not drawn

Column = tuple[float, dict[str, float]]


def draw_memory(histories: Sequence[MemoryHistory]) -> str:
    """Draw the memory of GPUs over time, a panel for each, with its peak and its limit."""
    per_second = PLOT_WIDTH / (max(history.end_seconds for history in histories) or 1.0)
    per_byte = highest_scale(histories, HIGHEST_SUM)
    kinds = [
        kind for kind in MEMORY_KINDS if any(held[kind] for history in histories for held in history.held)
    ]
    parts: list[str] = []
    top = 0.0
    for history, scale in [*((history, per_byte) for history in histories), *enlarged(histories, per_byte)]:
        height = TITLE_HEIGHT + HEADROOM * top_of(history) * scale
        parts += panel(history, kinds, top + height, per_second, scale)
        top += height + PANEL_GAP
    axis = time_axis(max(history.end_seconds for history in histories), top - PANEL_GAP, per_second)
    paints = {kind: MEMORY[kind] for kind in kinds}
    letters = {kind: paint.letter for kind, paint in paints.items()}
    names = ", ".join(f"{history.name} {si(history.peak_bytes, 'B')}" for history in histories)
    body = [*axis, *parts, *legend(paints, top + AXIS_HEIGHT, letters=letters)]
    return document(f"Memory over time of {names}", top + AXIS_HEIGHT + LEGEND_HEIGHT, paints, body)


def highest_scale(histories: Sequence[MemoryHistory], most: float) -> float:
    """Return the most pixels a byte at which no panel is over `HIGHEST` and all together not over `most`."""
    tops = [HEADROOM * top_of(history) for history in histories]
    return min(HIGHEST / max(tops), most / sum(tops))


def enlarged(histories: Sequence[MemoryHistory], per_byte: float) -> Iterator[tuple[MemoryHistory, float]]:
    """Yield the panels that are too low on this scale, and a scale on which they can be read."""
    low = [history for history in histories if HEADROOM * top_of(history) * per_byte < LEGIBLE]
    factor = int(highest_scale(low, HIGHEST_SUM) / per_byte) if low else 1
    if factor > 1:
        for history in low:
            yield history._replace(name=f"{history.name}, {factor} times as high"), factor * per_byte


def top_of(history: MemoryHistory) -> float:
    """Return the bytes at the top of a panel."""
    near = history.limit_bytes < NEAR * history.peak_bytes
    return max(history.peak_bytes, history.limit_bytes if near else 0, 1)


def panel(
    history: MemoryHistory, kinds: Sequence[str], base: float, per_second: float, per_byte: float
) -> Iterator[str]:
    peak, limit, end = history.peak_bytes, history.limit_bytes, LEFT + history.end_seconds * per_second
    title = base - HEADROOM * top_of(history) * per_byte - 9
    figures = f"peak {si(peak, 'B')} of {si(limit, 'B')}"
    yield text(LEFT, title, fitted(history.name, PLOT_WIDTH - words_width(figures) - TITLE_GAP), "name")
    yield text(LEFT - 8, title, f"GPU {history.rank}", "end")
    yield text(WIDTH - RIGHT, title, figures, "end")
    columns = list(fullest_by_pixel(history, per_second))
    yield from reversed(
        [area(kind, kinds[: place + 1], columns, base, end, per_byte) for place, kind in enumerate(kinds)]
    )
    for place, kind in enumerate(kinds):
        yield letter(kind, kinds[: place + 1], columns, base, per_byte)
    for name, size in {"peak": peak, "limit": limit}.items():
        if size <= top_of(history):
            yield level(name, size, base, end, per_byte)


def fullest_by_pixel(history: MemoryHistory, per_second: float) -> Iterator[Column]:
    """Yield (x, bytes held by kind) for every pixel with a change: its fullest moment, then its last, so
    that no peak is lost."""
    columns: dict[int, list[dict[str, float]]] = {}
    for seconds, held in zip(history.seconds, history.held):
        columns.setdefault(min(int(seconds * per_second), PLOT_WIDTH - 1), []).append(held)
    for x, moments in columns.items():
        yield x, max(moments, key=lambda held: sum(held.values()))
        yield x + 1, moments[-1]


def area(
    kind: str, below: Sequence[str], columns: Iterable[Column], base: float, end: float, per_byte: float
) -> str:
    """Return a step curve over time of all kinds up to this one; lower kinds are drawn over it."""
    path, height, most = [f"M{LEFT} {number(base)}"], 0.0, 0.0
    for x, held in columns:
        level, most = sum(held[name] for name in below) * per_byte, max(most, held[kind])
        if level != height:
            path.append(f"H{number(min(LEFT + x, end))}V{number(base - level)}")
            height = level
    path.append(f"H{number(end)}V{number(base)}z")
    told = f"{kind}: at most {si(most, 'B')}"
    return f'<path class="nd-{kind} nd-box" d="{"".join(path)}"><title>{told}</title></path>'


def letter(kind: str, below: Sequence[str], columns: Sequence[Column], base: float, per_byte: float) -> str:
    """Return the kind's letter, where it is held most, if it is high enough there."""
    most = max(held[kind] for _, held in columns)
    fullest = [column for column in columns if column[1][kind] >= 0.99 * most]
    x, held = fullest[len(fullest) // 2]
    if most * per_byte < LETTER_HEIGHT:
        return ""
    middle = base - (sum(held[name] for name in below) - held[kind] / 2) * per_byte
    x = min(max(x, 8), PLOT_WIDTH - 8)
    return text(LEFT + x, middle + 3.5, MEMORY[kind].letter, f"middle digit nd-on-{kind}")


def level(name: str, size: float, base: float, end: float, per_byte: float) -> str:
    """Draw a line at a number of bytes with its name in the margin: the peak's name below its line, the
    limit's above, so that they never overlap."""
    y = base - size * per_byte
    line = (
        f'<path class="{name}" d="M{LEFT} {number(y)}H{number(end)}"><title>{name} '
        f"{si(size, 'B')}</title></path>"
    )
    return line + text(LEFT - 8, y + (8 if name == "peak" else -1), name, "end small")
