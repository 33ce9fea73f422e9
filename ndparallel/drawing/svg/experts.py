"""Tokens on their way to the experts and back: how many rows every GPU sends to every other, and who is
busiest.

Idea   A band is as thick as the rows that one GPU's router sends to another GPU's experts, counted in an
       executed run; it has the colour of the GPU whose tokens they are, and goes back as it came.
Limit  One layer and one microbatch.
"""

from collections.abc import Iterator, Sequence

from ndparallel.drawing.svg.parts import document, number, text
from ndparallel.drawing.svg.shapes import NARROW, PART_PAINTS, box, part_class, stroke, titled

COLUMNS, TOP, PITCH, WIDTH, HEIGHT = (14, 200, 386), 56, 92, 80, 70
THICKEST = 16.0


def draw_experts(rows: Sequence[Sequence[int]]) -> str:
    """Draw `rows[source][expert]`, experts shared out in order over as many GPUs as there are sources."""
    gpus, each = len(rows), len(rows[0]) // len(rows)
    sent = [[sum(row[each * target : each * (target + 1)]) for target in range(gpus)] for row in rows]
    arriving = [sum(row[target] for row in sent) for target in range(gpus)]
    per_row = THICKEST / max(map(max, sent))
    body = [
        *titles(),
        *(shape for source in range(gpus) for shape in bands(source, sent[source], per_row)),
        *(shape for gpu in range(gpus) for shape in boxes(gpu, rows, each, arriving)),
        *conclusion(arriving, TOP + gpus * PITCH),
    ]
    return document("Tokens go to their experts and back", TOP + gpus * PITCH + 30, PART_PAINTS, body, NARROW)


def titles() -> Iterator[str]:
    yield text(14, 17, "Each token goes to two of eight experts, and back", "name")
    for x, words in zip(COLUMNS, ("tokens", "experts", "tokens again")):
        yield text(x, 44, words, "small")


def bands(source: int, sent: Sequence[int], per_row: float) -> Iterator[str]:
    """Draw what a GPU sends to the experts of each GPU, and what comes back."""
    for target, count in enumerate(sent):
        if count:
            here, away = place(source, target), place(target, source)
            there = band(COLUMNS[0] + WIDTH, here, COLUMNS[1], away)
            back = band(COLUMNS[1] + WIDTH, away, COLUMNS[2], here)
            drawn = "".join(stroke(part_class(source), path, count * per_row) for path in (there, back))
            yield titled(drawn, f"GPU {source} to the experts of GPU {target} and back: {count} rows")


def place(gpu: int, other: int) -> float:
    """Return the height at which the band between a GPU and another one ends at the first."""
    return TOP + gpu * PITCH + 11 + other * 16


def band(x: float, y: float, to_x: float, to_y: float) -> str:
    middle = number((x + to_x) / 2)
    return (
        f"M{number(x)} {number(y)}C{middle} {number(y)} {middle} {number(to_y)} {number(to_x)} {number(to_y)}"
    )


def boxes(gpu: int, rows: Sequence[Sequence[int]], each: int, arriving: Sequence[int]) -> Iterator[str]:
    """Draw a GPU as it sends, its experts with their rows, and the GPU as the rows come back."""
    y = TOP + gpu * PITCH
    for x in (COLUMNS[0], COLUMNS[2]):
        yield box(part_class(gpu), x, y, WIDTH, HEIGHT, f"GPU {gpu}")
    height = HEIGHT / each
    for place in range(each):
        expert = gpu * each + place
        count = sum(row[expert] for row in rows)
        words = f"expert {expert}: {count}"
        yield box(part_class(gpu), COLUMNS[1], y + place * height, WIDTH, height - 2, words, hollow=True)
    yield text(COLUMNS[1], y + HEIGHT + 11, f"GPU {gpu}: {arriving[gpu]} rows", "small")


def conclusion(arriving: Sequence[int], top: float) -> Iterator[str]:
    """Say who is busiest: all others wait for that GPU before the rows go back."""
    busiest = max(range(len(arriving)), key=arriving.__getitem__)
    ratio = arriving[busiest] * len(arriving) / sum(arriving)
    yield text(
        14, top + 16, f"GPU {busiest} has {ratio:.2f}x the mean GPU's rows, and the others wait for it."
    )
