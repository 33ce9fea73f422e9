"""A collective on a ring, hop by hop: what every GPU holds after each hop, and what has just come from whom;
as frames beside one another, or as one that moves.

Idea   Drawn from an executed collective (ndparallel/collective/hops.py): the letters in a box are the GPUs
       whose parts have been added up in it.
Limit  Four GPUs, which stand at the corners of a square. Where nothing may move, the moving picture shows its
       last frame.

Glossary
    frame   the state after one hop
    board   the pieces that one GPU holds
"""

from collections.abc import Iterator, Sequence

from gpu import si
from ndparallel.collective.hops import Frame, Show, cells_of, name
from ndparallel.drawing.palette import ACTIVITIES, COMMUNICATION
from ndparallel.drawing.svg.parts import document, number, text
from ndparallel.drawing.svg.shapes import NARROW, PART_PAINTS, box, line, part_class, tip

CELL, BOARD_HEIGHT, FRAME_HEIGHT, MARGIN = 25, 22, 132, 10
CORNERS = ((0, 0), (1, 0), (1, 1), (0, 1))  # of GPU 0 to 3, clockwise: columns and rows
SECONDS_PER_FRAME = 1.6
PAINTS = PART_PAINTS | {COMMUNICATION: ACTIVITIES[COMMUNICATION]}
ARRIVED = ".ndparallel .arrived{stroke-width:2.5}.ndparallel .digit{font-size:9px}"


def draw_ring(show: Show) -> str:
    """Draw all frames, two in a row, and what they mean in the last place."""
    frames = frames_of(show)
    body = [tip(COMMUNICATION)]
    for place, frame in enumerate(frames):
        body.append(moved(frame, place % 2 * NARROW / 2, place // 2 * FRAME_HEIGHT))
    body.append(moved(explained(show), len(frames) % 2 * NARROW / 2, len(frames) // 2 * FRAME_HEIGHT))
    height = -(-(len(frames) + 1) // 2) * FRAME_HEIGHT
    return document(label(show), height, PAINTS, body, NARROW, ARRIVED)


def draw_moving_ring(show: Show) -> str:
    """Draw the frames over one another, each shown in its turn; the last one where nothing may move."""
    frames = frames_of(show)
    body = [tip(COMMUNICATION)]
    for place, frame in enumerate(frames):
        delay = f"animation-delay:{number((place - len(frames)) * SECONDS_PER_FRAME)}s"
        body.append(f'<g class="nd-frame" style="{delay}">{"".join(frame)}</g>')
    body.append(moved(explained(show), NARROW / 2, 0))
    return document(label(show), FRAME_HEIGHT, PAINTS, body, NARROW, ARRIVED + turns(len(frames)))


def turns(frames: int) -> str:
    """Return rules that show one frame after another, and the last one to those who want no motion."""
    share = f"{100 / frames:.2f}%"
    return (
        ".nd-frame{visibility:hidden}.nd-frame:nth-last-of-type(2){visibility:visible}"
        "@media(prefers-reduced-motion:no-preference){.nd-frame.nd-frame{animation:nd-turn "
        f"{number(frames * SECONDS_PER_FRAME)}s step-end infinite}}}}"
        f"@keyframes nd-turn{{0%{{visibility:visible}}{share}{{visibility:hidden}}100%{{visibility:hidden}}}}"
    )


def label(show: Show) -> str:
    return f"{show.algorithm} {show.collective.replace('_', '-')} of {show.p} GPUs, hop by hop"


def moved(shapes: Sequence[str], x: float, y: float) -> str:
    return f'<g transform="translate({number(x)} {number(y)})">{"".join(shapes)}</g>'


def frames_of(show: Show) -> list[list[str]]:
    """Return the shapes of every frame."""
    cells = cells_of(show)
    boards = [
        [[name(show, value) for value in board[cells]] for board in frame.boards] for frame in show.frames
    ]
    before = [boards[0], *boards]
    return [list(drawn(hop, frame, boards[hop], before[hop], show)) for hop, frame in enumerate(show.frames)]


def drawn(
    hop: int, frame: Frame, boards: Sequence[Sequence[str]], before: Sequence[Sequence[str]], show: Show
) -> Iterator[str]:
    """Draw one frame: its title, an arrow for every message, and the boards."""
    words = f"hop {hop} of {len(show.frames) - 1}" if hop else "start"
    yield text(MARGIN, 16, words, "name")
    if hop:
        yield text(NARROW / 2 - MARGIN, 16, f"after {si(frame.seconds, 's')}", "end")
    for rank, (source, _) in frame.arrivals.items():
        yield line(COMMUNICATION, arrow(source, rank), 2.5, end="arrow")
    for rank, pieces in enumerate(boards):
        yield from board(rank, pieces, before[rank], show.p)


def board(rank: int, pieces: Sequence[str], before: Sequence[str], complete: int) -> Iterator[str]:
    """Draw a GPU's pieces: filled where all GPUs' parts are in, framed where they came with this hop."""
    x, y = corner(rank)
    yield text(x, y - 4, f"GPU {rank}", "small")
    for place, (piece, old) in enumerate(zip(pieces, before)):
        left = x + place * CELL
        yield box(part_class(place), left, y, CELL - 1, BOARD_HEIGHT, piece, hollow=len(piece) < complete)
        if piece != old:
            yield (
                f'<rect class="nd-{COMMUNICATION}-stroke arrived" x="{number(left - 1)}" y="{number(y - 1)}" '
                f'width="{CELL + 1}" height="{BOARD_HEIGHT + 2}" rx="3"/>'
            )


def corner(rank: int) -> tuple[float, float]:
    """Return the left upper corner of a GPU's board."""
    column, row = CORNERS[rank]
    return MARGIN + column * (NARROW / 2 - 2 * MARGIN - 4 * CELL), 38 + row * 56


def arrow(source: int, target: int) -> list[tuple[float, float]]:
    """Return the ends of the arrow from one corner to its neighbour."""
    (x, y), (to_x, to_y) = corner(source), corner(target)
    middle, half = 2 * CELL, BOARD_HEIGHT / 2
    if y == to_y:
        out, into = (4 * CELL + 2, -4) if x < to_x else (-3, 4 * CELL + 4)
        return [(x + out, y + half), (to_x + into, to_y + half)]
    out, into = (BOARD_HEIGHT + 3, -17) if y < to_y else (-16, BOARD_HEIGHT + 5)
    return [(x + middle, y + out), (to_x + middle, to_y + into)]


def explained(show: Show) -> list[str]:
    """Say what the signs mean."""
    lines = (
        "a, b, c, d: the parts of GPU 0 to 3;",
        "abc: the sum of three of them",
        "filled: the sum of all",
        "framed in ochre: has just come",
        f"Each array is {si(show.nbytes, 'B')},",
        f"and a GPU sends {si(show.bytes_sent, 'B')}.",
    )
    return [text(MARGIN, 36 + 17 * place, words) for place, words in enumerate(lines)]
