"""What every SVG of ours is made of: the document with its colours for light and dark, bars, texts, the axis
of time, the legend.

Idea   A handful of functions that return strings; the ground is painted, so that a picture can be read
       wherever it is shown.
Limit  A page decides on light or dark by the browser's setting (prefers-color-scheme). No fonts, scripts or
       files from elsewhere.

Glossary
    plot   the part of a picture that shows time: `PLOT_WIDTH` pixels from `LEFT`
    mode   0 is light, 1 is dark
"""

from collections.abc import Iterable, Iterator, Mapping

from gpu import si
from ndparallel.base.quoting import markup
from ndparallel.drawing.palette import (
    ACTIVITIES,
    COMMUNICATION,
    FAINT_INK,
    GRID,
    GROUND,
    IDLE,
    INK,
    WAITING,
    Paint,
    ink_on,
)
from ndparallel.drawing.ticks import ticks

WIDTH, LEFT, RIGHT = 660, 76, 24  # narrow enough for a phone, wide enough for the numbers of microbatches
PLOT_WIDTH = WIDTH - LEFT - RIGHT
TITLE_GAP = 12  # between a name and its figures
BOLD, SMALL = 1.2, 0.9  # width of such letters beside plain ones, in a wide font
TITLE_HEIGHT, AXIS_HEIGHT, LEGEND_HEIGHT, LEGEND_ROW = 26, 24, 26, 18

HOLLOW = "-hollow"  # what the name of a colour ends with where it is a frame
STROKE = "-stroke"  # where it is a line
HATCH = (
    '<defs><pattern id="nd-hatch" width="4" height="4" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="nd-hatch" width="4" height="4"/>'
    '<path class="nd-stripe" d="M0 0v4" stroke-width="1.2"/></pattern></defs>'
)
FRAME = (
    "text{font:12px system-ui,sans-serif}.name{font-weight:600}.small,.digit{font-size:10px}"
    # grid lines keep their distance
    ".end{text-anchor:end}.middle{text-anchor:middle}.name,.end{stroke-width:3px;paint-order:stroke}"
    ".mark,.grid,.limit,.peak,.frame{fill:none}.peak{stroke-dasharray:2 3}.limit,.frame{stroke-width:1.5}"
)
SEAM = (
    ".nd-seam{fill:none;stroke-opacity:.5;pointer-events:none}"
    ".nd-line{stroke-width:.8}.nd-box{stroke-width:.8}"
    ".nd-digit{font:10px system-ui,sans-serif;text-anchor:middle;pointer-events:none}"
)


def document(
    label: str,
    height: float,
    paints: Mapping[str, Paint],
    body: Iterable[str],
    width: float = WIDTH,
    more: str = "",
) -> str:
    """Return a whole SVG: its size, its colours in light and dark mode, its background, its body; `more` are
    rules of its own."""
    drawn = "\n".join(body)
    size = f'viewBox="0 0 {number(width)} {number(height)}" width="{number(width)}" height="{number(height)}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ndparallel" role="img" aria-label="{markup(label)}" '
        f"{size}>"
    )
    return "\n".join(
        [
            head,
            style(paints, drawn, more),
            f'<rect class="ground" width="{number(width)}" height="{number(height)}"/>',
            *([HATCH] if WAITING in paints else []),
            drawn,
            "</svg>\n",
        ]
    )


def style(paints: Mapping[str, Paint], drawn: str, more: str = "") -> str:
    light, dark = (scoped(frame_colours(mode)) + shape_colours(mode, paints, drawn) for mode in (0, 1))
    return f"<style>{scoped(FRAME)}{SEAM}{light}@media(prefers-color-scheme:dark){{{dark}}}{more}</style>"


def frame_colours(mode: int) -> str:
    ground, ink, faint, grid = (pair[mode] for pair in (GROUND, INK, FAINT_INK, GRID))
    limit = ACTIVITIES[WAITING][1 + mode]
    lines = (
        f".grid{{stroke:{grid}}}.frame{{stroke:{ink}}}.mark,.peak{{stroke:{faint}}}.limit{{stroke:{limit}}}"
    )
    return (
        f".ground{{fill:{ground}}}.name,.end{{stroke:{ground}}}text{{fill:{ink}}}.small{{fill:{faint}}}"
        + lines
    )


def shape_colours(mode: int, paints: Mapping[str, Paint], drawn: str) -> str:
    """Return colour rules for the shapes that are drawn; <use> repeats some. Rules for their surroundings
    would not reach those, so they have names of their own."""
    lines = (
        f".nd-seam,.nd-box{{stroke:{GROUND[mode]}}}.nd-line{{stroke:{ACTIVITIES[COMMUNICATION][1 + mode]}}}"
    )
    rules = (rule for name, paint in paints.items() for rule in paint_rules(mode, name, paint))
    return lines + "".join(rule for kind, rule in rules if kind in drawn)


def paint_rules(mode: int, name: str, paint: Paint) -> Iterator[tuple[str, str]]:
    """Yield class and rule of one colour: filled, hollow, as a line, and written on. Idle time is the ground
    with an outline, and waiting is hatched."""
    colour, kind = (paint.light, paint.dark)[mode], f"nd-{name}"
    if name == IDLE:
        yield kind, f".{kind}{{fill:{colour};stroke:{GRID[mode]}}}"
        return
    if name == WAITING:
        yield kind, f".nd-hatch{{fill:{colour}}}.nd-stripe{{stroke:{GROUND[mode]}}}"
    yield kind, f".{kind}{{fill:{'url(#nd-hatch)' if name == WAITING else colour}}}"
    hollow, line, ink = f"{kind}{HOLLOW}", f"{kind}{STROKE}", f"nd-on-{name}"
    yield hollow, f".{hollow}{{fill:{GROUND[mode]};stroke:{colour};stroke-width:1.8}}"
    yield line, f".{line}{{fill:none;stroke:{colour}}}"
    # once for texts, once for those that <use> repeats
    yield ink, f".ndparallel .{ink},.{ink}{{fill:{ink_on(colour)};stroke-width:0}}"
    yield f"nd-digit {ink}", f".nd-digit.{ink}{{stroke:{colour};stroke-width:3px;paint-order:stroke}}"


def scoped(rules: str) -> str:
    """Restrict rules to our own pictures, because a notebook's page has styles of its own."""
    result = []
    for rule in rules.split("}")[:-1]:
        selectors, declarations = rule.split("{")
        result.append(
            ",".join(f".ndparallel {selector}" for selector in selectors.split(","))
            + "{"
            + declarations
            + "}"
        )
    return "".join(result)


def time_axis(end: float, bottom: float, per_second: float, left: float = LEFT) -> Iterator[str]:
    """Draw grid lines at round times behind everything, with the times under them."""
    for tick in ticks(end):
        x = number(left + tick * per_second)
        yield f'<path class="grid" d="M{x} {TITLE_HEIGHT - 4}V{number(bottom + 4)}"/>'
        yield (
            f'<text class="small" x="{x}" y="{number(bottom + 16)}" '
            f'text-anchor="middle">{si(tick, "s")}</text>'
        )


def legend(
    paints: Iterable[str],
    top: float,
    words: Mapping[str, str] | None = None,
    left: int = LEFT,
    letters: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Draw a patch of every paint with its name, or with its word in `words`, and its letter in `letters`."""
    names = {paint: (words or {}).get(paint, paint) for paint in paints}
    for (paint, name), (x, y) in zip(names.items(), legend_places(names.values(), top, left)):
        letter = (letters or {}).get(paint)
        place = f'x="{number(x)}" y="{number(y + 5)}"'
        yield f'<rect class="nd-{paint}" {place} width="12" height="12" rx="2"/>'
        if letter:
            yield text(x + 6, y + 14.5, letter, f"middle digit nd-on-{paint}")
        yield text(x + 17, y + 15, name)


def legend_places(names: Iterable[str], top: float, left: int = LEFT) -> Iterator[tuple[float, float]]:
    """Yield the corner of every name's patch: in a row, and in the next one where that is full."""
    x = float(left)
    for name in names:
        if x > left and x + 17 + words_width(name) > WIDTH:
            x, top = float(left), top + LEGEND_ROW
        yield x, top
        x += 30 + words_width(name)


def words_width(words: str) -> float:
    """Estimate the width of words in pixels, at 12 a letter's height: the reader's font is not known."""
    return sum(4 if letter in "fijlrtI .,()" else 10.5 if letter in "mwMW\u2026" else 7.2 for letter in words)


def fitted(words: str, pixels: float, letters: float = BOLD) -> str:
    """Return `words`, their middle left out where they need more than `pixels` in bold or SMALL letters."""
    kept, short = len(words), words
    while kept > 2 and letters * words_width(short) > pixels:
        kept -= 1
        short = f"{words[: kept // 2]}\u2026{words[kept // 2 - kept :]}"
    return short


def text(x: float, y: float, words: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{number(x)}" y="{number(y)}">{markup(words)}</text>'


def number(value: float) -> str:
    """Write a coordinate, to a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
