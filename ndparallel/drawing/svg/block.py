"""The transformer block under tensor parallelism, as a small SVG: who holds which slice of each weight, and
where the GPUs talk.

Idea   Attention above, the MLP below. Time runs to the right as in a forward pass. Over each half stand its
       weights, as the mathematics writes them, y = x W: columns are outputs. Under them, for each variant, a
       lane for every GPU: its colour where it works on its slice, grey where all GPUs do the same work.
Cost   About 10 kB.
Limit  All names, slices and collectives are those of an executed run (ndparallel/drawing/block.py); the order
       of the columns is drawn.

Glossary
    stop    a column of the picture: an operation, or f or g, where the GPUs talk
    band    one variant's lanes and collectives
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from gpu import si
from ndparallel.base.words import count, listed
from ndparallel.drawing.block import BlockRun
from ndparallel.drawing.palette import ACTIVITIES, COMMUNICATION, OTHER, PARTS
from ndparallel.drawing.svg.parts import (
    HOLLOW,
    LEFT,
    LEGEND_HEIGHT,
    RIGHT,
    WIDTH,
    document,
    legend,
    number,
    text,
)
from ndparallel.parallel.slices import Parameter, part

SAME = f"{OTHER}{HOLLOW}"
SCALE, LABEL_HEIGHT, HEADER_HEIGHT, GAP = 1.25, 18, 40, 5
LANE_HEIGHT, LANE_GAP, TITLE_HEIGHT, ROW_HEIGHT, BAND_GAP = 17, 2, 24, 16, 8


class Stop(NamedTuple):
    """A column of the picture: its name, its width in pixels, the weights that it multiplies with; rows of
    weights are drawn below one another."""

    name: str
    width: int
    weights: tuple[tuple[str, ...], ...] = ()
    place: str = ""

    @property
    def residual(self) -> bool:
        return self.name in ("norm", "+")


Placed = tuple[Stop, float]  # a stop and its left edge

HALVES = {
    "Attention": (
        Stop("norm", 96),
        Stop("f", 28, place="f1"),
        Stop("q, k, v", 124, (("q", "k", "v"),)),
        Stop("attention", 126),
        Stop("output", 104, (("out",),)),
        Stop("g", 28, place="g1"),
        Stop("+", 54),
    ),
    "MLP": (
        Stop("norm", 96),
        Stop("f", 28, place="f2"),
        Stop("gate, up", 140, (("gate",), ("up",))),
        Stop("SwiGLU", 96),
        Stop("down", 118, (("down",),)),
        Stop("g", 28, place="g2"),
        Stop("+", 54),
    ),
}


def draw_block(runs: Sequence[BlockRun], sequence: int, head_dim: int) -> str:
    """Draw both halves of one block, each with a band for every run of it on sequences of so many tokens."""
    top, parts = float(TITLE_HEIGHT), list[str]()
    for name, stops in HALVES.items():
        drawn, height = half(name, stops, runs, sequence, head_dim, top)
        parts += drawn
        top += height
    shared = {name: ACTIVITIES[name] for name in (COMMUNICATION, OTHER)}
    ranks = {f"rank{rank}": paint for rank, paint in enumerate(PARTS[: runs[0].ranks])}
    words = {f"rank{rank}": f"GPU {rank}" for rank in range(len(ranks))} | {
        COMMUNICATION: "they talk",
        SAME: "all do the same",
    }
    body = [
        text(LEFT, 17, f"A transformer block on {count(runs[0].ranks, 'GPU')}", "name"),
        text(WIDTH - RIGHT, 17, "weights as in y = x W: rows are inputs, columns are outputs", "end small"),
        *parts,
        *legend([*ranks, COMMUNICATION, SAME], top, words),
    ]
    label = "A transformer block under " + listed([run.name for run in runs])
    return document(label, top + LEGEND_HEIGHT, ranks | shared, body)


def half(
    name: str, stops: Sequence[Stop], runs: Sequence[BlockRun], sequence: int, head_dim: int, top: float
) -> tuple[list[str], float]:
    """Draw a half with a band for every run, and return its height; a band without lanes has those of the
    band above."""
    lefts = accumulate((stop.width for stop in stops[:-1]), initial=LEFT)
    placed = list(zip(stops, lefts))
    height, above = weights_height(stops, runs[0]), list[list[str]]()
    parts = [
        text(LEFT, top + 17, name, "name"),
        *weights(runs[0], placed, top + height),
        *header(placed, top + height),
    ]
    height += HEADER_HEIGHT
    for run in runs:
        lanes = [
            [lane_words(stop, run, sequence, head_dim, rank) for stop in stops] for rank in range(run.ranks)
        ]
        shown = lanes if lanes != above else []
        parts += band(run, shown, placed, top + height)
        height += TITLE_HEIGHT + 2 * ROW_HEIGHT + BAND_GAP + (LANE_HEIGHT + LANE_GAP) * len(shown)
        above = lanes
    return parts, height


# ------------------------------------------------------------------------------------------------ the weights


def weights_height(stops: Sequence[Stop], run: BlockRun) -> float:
    """Return the pixels that the highest pile of weights needs, with labels."""
    return TITLE_HEIGHT + max(
        sum(drawn_size(run.slices[names[0]][0])[1] + LABEL_HEIGHT for names in stop.weights) for stop in stops
    )


def weights(run: BlockRun, placed: Sequence[Placed], bottom: float) -> Iterator[str]:
    """Draw every weight above the stop that multiplies with it, centred, its slices in the colours of the
    ranks that hold them."""
    for stop, left in placed:
        base = bottom - 4
        for names in reversed(stop.weights):
            width = sum(drawn_size(run.slices[name][0])[0] for name in names) + GAP * (len(names) - 1)
            x, height = left + (stop.width - width) / 2, drawn_size(run.slices[names[0]][0])[1]
            yield text(left + stop.width / 2, base, label(names, run), "middle small")
            for name in names:
                yield from slices(run.slices[name], x, base - LABEL_HEIGHT + 6 - height)
                x += drawn_size(run.slices[name][0])[0] + GAP
            base -= height + LABEL_HEIGHT


def drawn_size(parameter: Parameter) -> tuple[float, float]:
    """Return width and height: a parameter is stored as (outputs, inputs), and drawn with its outputs as
    columns."""
    outputs, inputs = parameter.whole
    return outputs * SCALE, inputs * SCALE


def label(names: Sequence[str], run: BlockRun) -> str:
    """Write "q 32 x 32, k v 32 x 8"."""
    by_size: dict[str, list[str]] = {}
    for name in names:
        outputs, inputs = run.slices[name][0].whole
        by_size.setdefault(f"{inputs} x {outputs}", []).append(name)
    return ", ".join(f"{listed(named)} {size}" for size, named in by_size.items())


def slices(held: Sequence[Parameter], x: float, y: float) -> Iterator[str]:
    """Draw one weight; a slice that several ranks hold shows all their colours."""
    holders: dict[tuple, list[int]] = {}
    for rank, parameter in enumerate(held):
        holders.setdefault(tuple((piece.start, piece.stop) for piece in parameter.index), []).append(rank)
    for (outputs, inputs), ranks in holders.items():
        each = (inputs[1] - inputs[0]) / len(ranks)
        for place, rank in enumerate(ranks):
            corner = x + outputs[0] * SCALE, y + (inputs[0] + place * each) * SCALE
            yield rectangle(f"rank{rank}", *corner, (outputs[1] - outputs[0]) * SCALE, each * SCALE)


def rectangle(paint: str, x: float, y: float, width: float, height: float, more: str = "") -> str:
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    return f'<rect class="nd-{paint} nd-box" {place}{more}/>'


# -------------------------------------------------------------------------------------------------- the bands


def header(placed: Sequence[Placed], top: float) -> Iterator[str]:
    """Draw the names of the stops, and the residual connection from the norm to the sum."""
    y = top + HEADER_HEIGHT - 6
    for stop, left in placed:
        if not stop.place:
            yield text(left + stop.width / 2, y - 4, stop.name, "middle")
    (_, start), (plus, end) = placed[0], placed[-1]
    turn = f"H{number(end + plus.width / 2)}V{number(y - 16)}m-3 -4l3 4l3 -4"
    yield f'<path class="mark" d="M{number(start + 4)} {number(y - 6)}V{number(y - 22)}{turn}"/>'


def band(
    run: BlockRun, lanes: Sequence[Sequence[str]], placed: Sequence[Placed], top: float
) -> Iterator[str]:
    """Draw one run: a title with what this half costs, the collectives of both directions, and between
    them the lanes."""
    yield text(LEFT, top + 17, run.name, "name")
    yield text(WIDTH - RIGHT, top + 17, cost(run, placed), "end")
    y = top + TITLE_HEIGHT
    yield from directions(run, "forward", placed, y)
    y += ROW_HEIGHT
    for rank, lane in enumerate(lanes):
        yield from lane_of(rank, lane, placed, y + rank * (LANE_HEIGHT + LANE_GAP))
    height = len(lanes) * (LANE_HEIGHT + LANE_GAP)
    if lanes:
        yield from across_lanes(placed, y, height - LANE_GAP)
    yield from directions(run, "backward", placed, y + height)


def lane_of(rank: int, lane: Sequence[str], placed: Sequence[Placed], y: float) -> Iterator[str]:
    """Draw what a GPU holds at each stop that is no collective."""
    yield text(LEFT - 8, y + LANE_HEIGHT / 2 + 4, f"GPU {rank}", "end")
    for (stop, left), words in zip(placed, lane):
        if not stop.place:
            yield from cell(stop, words, rank, left, y)


def across_lanes(placed: Sequence[Placed], y: float, height: float) -> Iterator[str]:
    """Draw the collectives, each over all lanes."""
    for stop, left in placed:
        if stop.place:
            yield rectangle(COMMUNICATION, left + 5, y, stop.width - 10, height, ' rx="6"')
            ink = f"middle name nd-on-{COMMUNICATION}"
            yield text(left + stop.width / 2, y + height / 2 + LANE_GAP + 2, stop.name, ink)


def cost(run: BlockRun, placed: Sequence[Placed]) -> str:
    """Write "2 all-reduces; a GPU sends 197 kB in 8.40 ms" for the collectives at these stops."""
    places = {stop.place for stop, _ in placed}
    talks = [talk for talk in run.talks if talk.place in places]
    operations = Counter(talk.operation for talk in talks)
    sent, seconds = sum(talk.bytes_sent for talk in talks), sum(talk.seconds for talk in talks)
    told = listed([count(number, operation) for operation, number in operations.items()])
    return f"{told}; a GPU sends {si(sent, 'B')} in {si(seconds, 's')}"


def gathers(run: BlockRun) -> bool:
    """Whether the run is sequence parallel: tokens are gathered before matmuls cut by columns."""
    return "all-gather" in run.operations("forward", "f1")


def directions(run: BlockRun, direction: str, placed: Sequence[Placed], top: float) -> Iterator[str]:
    """Return the collectives at every place, in one direction."""
    arrow = "forward \u2192" if direction == "forward" else "\u2190 backward"
    yield text(LEFT - 8, top + 11, arrow, "end small")
    for stop, left in placed:
        if stop.place:
            words = ", ".join(run.operations(direction, stop.place)) or "nothing"
            yield text(
                left + stop.width / 2,
                top + 11,
                words,
                "middle small" if words == "nothing" else "middle digit",
            )


def cell(stop: Stop, words: str, rank: int, left: float, y: float) -> Iterator[str]:
    same = words.startswith("all")
    paint = SAME if same else f"rank{rank}"
    yield rectangle(paint, left + 1, y, stop.width - 2, LANE_HEIGHT)
    if stop.name != "+":
        yield text(left + stop.width / 2, y + LANE_HEIGHT / 2 + 3.5, words, f"middle digit nd-on-{paint}")


def lane_words(stop: Stop, run: BlockRun, sequence: int, head_dim: int, rank: int) -> str:
    """Say what one GPU has at a stop: tokens on the residual, elsewhere columns, heads or rows of its
    slices."""
    if stop.residual:
        return tokens(run, sequence, rank)
    of = {name: held[rank].index for name, held in run.slices.items()}
    match stop.name:
        case "q, k, v":
            return f"q {span(of['q'][0])}, kv {span(of['k'][0])}"
        case "attention":
            return f"heads {span(of['q'][0], head_dim)}, kv {span(of['k'][0], head_dim)}"
        case "output":
            return f"rows {span(of['out'][1])}"
        case "gate, up":
            return f"columns {span(of['gate'][0])}"
        case "SwiGLU":
            return span(of["up"][0])
        case "down":
            return f"rows {span(of['down'][1])}"
    return ""


def tokens(run: BlockRun, sequence: int, rank: int) -> str:
    """Return the rank's tokens: all of them, or its part of the sequence where they are gathered at f."""
    return f"tokens {span(part(sequence, run.ranks, rank))}" if gathers(run) else "all tokens"


def span(piece: slice, each: int = 1) -> str:
    first, last = piece.start // each, (piece.stop - 1) // each
    return f"{first}-{last}" if first < last else f"{first}"
