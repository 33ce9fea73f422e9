"""Who holds what: the weights, gradients and optimizer's state of every GPU, strategy by strategy.

Idea   A row of boxes is one kind of memory, cut into as many parts as there are GPUs: filled are those that
       the GPU holds, as many as its own memory counter says.
Limit  Which of the parts a GPU holds is not in the counter: it is drawn as its own rank's.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpu import si
from ndparallel.base.words import listed
from ndparallel.drawing.palette import MEMORY
from ndparallel.drawing.svg.parts import LEGEND_HEIGHT, TITLE_HEIGHT, document, legend, text
from ndparallel.drawing.svg.shapes import NARROW, box

MODEL_STATES = ("weights", "gradients", "optimizer")
ROW_HEIGHT, ROW_GAP, GPU_GAP, LEFT = 13, 2, 14, 14


class KeptByGPU(NamedTuple):
    """A strategy, and what each of its GPUs keeps: bytes by kind."""

    name: str
    bytes_by_gpu: Sequence[Mapping[str, float]]


def draw_holders(holdings: Sequence[KeptByGPU]) -> str:
    """Draw the strategies below one another; the first holds everything, and is the measure for all."""
    whole = holdings[0].bytes_by_gpu[0]
    panel = TITLE_HEIGHT + len(MODEL_STATES) * (ROW_HEIGHT + ROW_GAP) + 10
    top = 16.0
    gpus = len(holdings[0].bytes_by_gpu)
    body = [text(LEFT + rank * step(gpus), 14, f"GPU {rank}", "small") for rank in range(gpus)]
    for holding in holdings:
        body += strategy(holding, whole, top)
        top += panel
    paints = {kind: MEMORY[kind] for kind in MODEL_STATES}
    letters = {kind: paint.letter for kind, paint in paints.items()}
    label = f"Who holds what with {listed([holding.name for holding in holdings])}"
    body += legend(paints, top, left=LEFT, letters=letters)
    return document(label, top + LEGEND_HEIGHT, paints, body, NARROW)


def strategy(holding: KeptByGPU, whole: Mapping[str, float], top: float) -> Iterator[str]:
    """Draw a strategy's name, the bytes that a GPU keeps, and the GPUs side by side."""
    kept = sum(holding.bytes_by_gpu[0][kind] for kind in MODEL_STATES)
    yield text(LEFT, top + 17, holding.name, "name")
    yield text(NARROW - LEFT, top + 17, f"{si(kept, 'B')} a GPU", "end")
    for rank, held in enumerate(holding.bytes_by_gpu):
        for row, kind in enumerate(MODEL_STATES):
            y = top + TITLE_HEIGHT + row * (ROW_HEIGHT + ROW_GAP)
            yield from parts(kind, rank, len(holding.bytes_by_gpu), held[kind] / whole[kind], y)


def parts(kind: str, rank: int, gpus: int, share: float, y: float) -> Iterator[str]:
    """Draw one kind of one GPU, in as many parts as there are GPUs."""
    width, own = (step(gpus) - GPU_GAP) / gpus, round(share * gpus)
    for place in range(gpus):
        held = own == gpus or place == rank
        letter = MEMORY[kind].letter if held else ""
        x = LEFT + rank * step(gpus) + place * width
        yield box(kind, x, y, width - 1.5, ROW_HEIGHT, letter, hollow=not held)


def step(gpus: int) -> float:
    """Return the distance from one GPU to the next, in pixels."""
    return (NARROW - 2 * LEFT + GPU_GAP) / gpus
