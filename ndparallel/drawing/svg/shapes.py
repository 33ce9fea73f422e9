"""The few shapes of the book's drawings that have no axis of time: boxes with words in them, lines, arrows.

Idea   A drawing is `NARROW` wide, so that its words can be read on a phone's page; a shape has the name of a
       colour, and words on it have the ink that reads best there.

Glossary
    part    PARTS by name: "part0" to "part3"
"""

from collections.abc import Iterable

from ndparallel.base.quoting import markup
from ndparallel.drawing.palette import PARTS, Paint
from ndparallel.drawing.svg.parts import HOLLOW, STROKE, number, text

NARROW = 480  # pixels
PART_PAINTS: dict[str, Paint] = {f"part{place}": paint for place, paint in enumerate(PARTS)}


def part_class(place: int) -> str:
    return f"part{place % len(PARTS)}"


def box(
    paint: str, x: float, y: float, width: float, height: float, words: str = "", hollow: bool = False
) -> str:
    """Draw a box of a colour, filled or as a frame, with words in its middle."""
    kind, inset = (f"nd-{paint}{HOLLOW}", 0.9) if hollow else (f"nd-{paint} nd-box", 0)
    place = f'x="{number(x + inset)}" y="{number(y + inset)}"'
    size = f'width="{number(width - 2 * inset)}" height="{number(height - 2 * inset)}"'
    drawn = f'<rect class="{kind}" {place} {size} rx="2"/>'
    ink = "middle digit" if hollow else f"middle digit nd-on-{paint}"
    return drawn + (text(x + width / 2, y + height / 2 + 3.5, words, ink) if words else "")


def line(paint: str, points: Iterable[tuple[float, float]], width: float, end: str = "") -> str:
    """Draw straight lines from point to point; `end` is "arrow" for a tip at the last."""
    path = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    return stroke(paint, f"M{path}", width, end=end)


def stroke(paint: str, path: str, width: float, dashes: str = "", end: str = "") -> str:
    """Draw a path as a line of a colour."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    tip = ' marker-end="url(#nd-tip)"' if end else ""
    return f'<path class="nd-{paint}{STROKE}" d="{path}" stroke-width="{number(width)}"{dashed}{tip}/>'


def tip(paint: str) -> str:
    """Define the tip of arrows."""
    return (
        '<defs><marker id="nd-tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="nd-{paint}" d="M0 0L8 4L0 8z"/></marker>'
        "</defs>"
    )


def titled(shape: str, words: str) -> str:
    """Let a shape tell more when it is pointed at."""
    return f"<g><title>{markup(words)}</title>{shape}</g>"
