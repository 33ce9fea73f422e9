"""Which cut wins where: the fastest strategy for every batch and every speed of the links.

Idea   A square is one cluster and one batch, on which every strategy was run; it has the name of the fastest,
       and how much longer the next one takes.
Limit  The border between two regions lies somewhere between two squares.
"""

from collections.abc import Iterator, Mapping, Sequence

from ndparallel.drawing.svg.parts import document, text
from ndparallel.drawing.svg.shapes import NARROW, PART_PAINTS, box, part_class

LEFT, TOP, HEIGHT, RIGHT = 62, 58, 40, 10
Point = tuple[int, str]  # batch, links


def draw_crossover(
    steps: Mapping[Point, Mapping[str, float]],
    batches: Sequence[int],
    links: Sequence[str],
    names: Sequence[str],
) -> str:
    """Draw the map of `steps`: seconds by (batch, links) and strategy. Batches grow upwards."""
    width = (NARROW - LEFT - RIGHT) / len(links)
    body = [*axes(batches, links, width)]
    for row, batch in enumerate(reversed(batches)):
        for column, link in enumerate(links):
            body.append(square(steps[batch, link], names, LEFT + column * width, TOP + row * HEIGHT, width))
    bottom = TOP + HEIGHT * len(batches)
    notes = (
        "Under each name: how much longer the second best takes.",
        "A batch of 1 or 2 sequences cannot be cut in four: there is no DP.",
    )
    body += [text(LEFT, bottom + 34 + 14 * place, words, "small") for place, words in enumerate(notes)]
    return document("Which cut wins, by batch and links", bottom + 58, PART_PAINTS, body, NARROW)


def square(steps: Mapping[str, float], names: Sequence[str], x: float, y: float, width: float) -> str:
    """Draw the fastest strategy of one point, in its colour."""
    fastest, *others = sorted(steps, key=steps.__getitem__)
    paint = part_class(names.index(fastest))
    drawn = box(paint, x, y, width - 2, HEIGHT - 2)
    ink, middle = f"middle digit nd-on-{paint}", x + width / 2 - 1
    lead = f"+{steps[others[0]] / steps[fastest] - 1:.0%}" if others else "alone"
    return drawn + text(middle, y + 17, fastest, ink) + text(middle, y + 30, lead, ink)


def axes(batches: Sequence[int], links: Sequence[str], width: float) -> Iterator[str]:
    yield text(14, 17, "The fastest cut of the model over 4 GPUs", "name")
    yield text(LEFT - 8, TOP - 8, "batch", "end small")
    for row, batch in enumerate(reversed(batches)):
        yield text(LEFT - 8, TOP + row * HEIGHT + 23, str(batch), "end")
    yield text(LEFT, 38, "bandwidth of all links (1: that inside a pocket node) \u2192", "small")
    bottom = TOP + HEIGHT * len(batches)
    for column, link in enumerate(links):
        yield text(LEFT + (column + 0.5) * width, bottom + 14, link, "middle small")
