"""Context parallelism: which GPU has which part of the causal mask, and which block of keys and values it
meets at every hop of the ring.

Idea   A square of the mask is a group of queries (row) against a group of keys (column), in the colour of the
       GPU that has the queries. The filled squares of a GPU are its work: unequal in order, equal in zigzag.
       The blocks that go round are read from the messages of an executed run.
Limit  Squares on the diagonal are half masked, and count as half.

Glossary
    owner   the GPU that has a group of tokens
    block   keys and values of one GPU's tokens
"""

from collections.abc import Iterator, Sequence

from ndparallel.drawing.svg.parts import document, text
from ndparallel.drawing.svg.shapes import NARROW, PART_PAINTS, box, part_class

SQUARE, TOP, LEFT, GAP, ROW = 20, 44, 34, 252, 22


def draw_zigzag(in_order: Sequence[int], zigzag: Sequence[int], blocks: Sequence[Sequence[int]]) -> str:
    """Draw both masks, from the owner of each group of tokens, and the blocks by GPU and hop."""
    bottom = TOP + len(zigzag) * SQUARE + 96
    body = [
        *mask("in order", in_order, LEFT),
        *mask("in zigzag", zigzag, LEFT + GAP),
        text(
            LEFT,
            bottom - 26,
            "Rows: queries, by the GPU that has them. \u00bd: half of it is masked.",
            "small",
        ),
        *round_the_ring(blocks, bottom),
    ]
    height = bottom + 30 + ROW * len(blocks)
    return document("The causal mask cut in order and in zigzag", height, PART_PAINTS, body, NARROW)


def mask(name: str, owners: Sequence[int], left: float) -> Iterator[str]:
    """Draw the mask, queries downwards and keys to the right, and the work of every GPU under it."""
    yield text(left, 16, f"Tokens {name}", "name")
    yield text(left, TOP - 6, "keys \u2192", "small")
    for query, owner in enumerate(owners):
        y = TOP + query * SQUARE
        yield text(left - 6, y + 14, f"{owner}", "end")
        for key in range(query + 1):
            words = "\u00bd" if key == query else ""
            yield box(part_class(owner), left + key * SQUARE, y, SQUARE - 1, SQUARE - 1, words)
    y = TOP + len(owners) * SQUARE + 18
    for gpu in range(max(owners) + 1):
        yield text(
            left + gpu % 2 * 98, y + gpu // 2 * 20, f"GPU {gpu}: {work(owners, gpu):g} squares", "small"
        )


def work(owners: Sequence[int], gpu: int) -> float:
    """Return the squares that a GPU computes; its queries meet all keys up to their own."""
    return sum(place + 0.5 for place, owner in enumerate(owners) if owner == gpu)


def round_the_ring(blocks: Sequence[Sequence[int]], top: float) -> Iterator[str]:
    """Draw whose keys and values every GPU's queries meet, hop by hop."""
    yield text(LEFT, top, "The blocks of keys and values go round", "name")
    for gpu, met in enumerate(blocks):
        y = top + 28 + gpu * ROW
        yield text(LEFT + 66, y + 14, f"GPU {gpu} meets", "end")
        for hop, source in enumerate(met):
            if not gpu:
                yield text(LEFT + 76 + hop * 90, y - 6, f"after hop {hop}" if hop else "its own", "small")
            yield box(part_class(source), LEFT + 76 + hop * 90, y, 84, ROW - 4, f"block of GPU {source}")
