"""Draw a collective hop by hop: what every rank holds, what has just arrived there, and from whom.

Idea   The collective is executed, on bytes that say where they come from. Where arrays are summed, rank r
       brings the bit 2^r: a sum's bits are the ranks whose part is in it, and a part counted twice would show
       as a wrong one. Boards are noted at every receive.
Limit  Eight ranks, one for each bit. The board has 840 bytes, which every number of pieces divides, on links
       as much slower as it is smaller than the array: the seconds are those of the array, if its pieces are
       equal.

Glossary
    board     what a rank holds: bytes
    frame     one instant at which messages arrive: who got what from whom, and all boards after it
    cells     a board cut where any board ever changes from one byte to the next
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from rich.text import Text

from collectives import ALGORITHMS, Group, Member
from gpu import GPU, RECEIVE, SEND, Event, Hardware, Message, si
from ndparallel.base.errors import UserError
from ndparallel.base.events import of_kinds
from ndparallel.base.words import count
from ndparallel.collective.runs import play
from ndparallel.collective.signatures import SIGNATURES
from ndparallel.engines.launch import RankResult, launch

MEANING = {  # of the words in an algorithm's docstring
    "p": "ranks",
    "n": "bytes of the array",
    "g": "ranks of a node",
    "rail": "the ranks that have the same place in every node",
}

RANKS_ON_BOARD, BOARD_BYTES = 8, 840  # 840 is the least number that 1 to 8 divide
SAME_INSTANT = 1e-9  # relative


class Watched:
    """A transport that notes the board whenever a rank looks for a message, and what the message holds."""

    def __init__(self, transport: Any, board: np.ndarray) -> None:
        self.transport, self.post, self.board = transport, transport.post, board
        self.boards: list[np.ndarray] = []
        self.contents: list[np.ndarray] = []

    def wait(self, source: int, what: Any) -> tuple:
        message = self.transport.wait(source, what)
        self.boards.append(self.board.copy())
        self.contents.append(Message(*message).array.copy())
        return message


class BoardRecorder(NamedTuple):
    """Boards before the first and after every receive, and what was received."""

    boards: list[np.ndarray]
    contents: list[np.ndarray]


def watched(gpu: GPU, collective: str, algorithm: str, group: Group) -> BoardRecorder:
    """The rank program."""
    me = Member(gpu, group, 0)
    board, whole = first_board(collective, me.size, me.index)
    gpu.transport = watch = Watched(gpu.transport, board)
    play(me, collective, algorithm, whole, np.array_split(board, me.size))
    return BoardRecorder([*watch.boards, board], watch.contents)


def first_board(collective: str, p: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what a rank holds at first, and what it brings: one and the same array, but in an all-to-all."""
    brought, signature = np.zeros(BOARD_BYTES, np.uint8), SIGNATURES[collective]
    pieces = np.array_split(brought, p)
    brings = rank == 0 or signature.root != "from"
    if signature.addressed and brings:
        for target, piece in enumerate(pieces):
            piece[:] = address(rank, target)
    elif brings:
        (brought if signature.given == "whole" or signature.combines else pieces[rank])[:] = 1 << rank
    if signature.given != "parts":
        return brought, brought
    held = np.zeros_like(brought)
    np.array_split(held, p)[rank][:] = address(rank, rank)
    return held, brought


def address(source: int, target: int) -> int:
    return 1 + source * RANKS_ON_BOARD + target


# ----------------------------------------------------------------------------------------------------- frames


class Frame(NamedTuple):
    """The state of all boards at `seconds`. `arrivals` has, by rank, (source, content) of what came at this
    instant."""

    seconds: float
    arrivals: dict[int, tuple[int, np.ndarray]]
    boards: list[np.ndarray]


@dataclass(frozen=True)
class Show:
    """A collective of `nbytes` in all that was executed to be drawn. `bytes_sent` is the most that a rank
    sent."""

    collective: str
    algorithm: str
    frames: list[Frame]
    nbytes: float
    bytes_sent: float

    @property
    def p(self) -> int:
        return len(self.frames[0].boards)


def watch(
    collective: str, algorithm: str, group: Group, hardware: Hardware, nbytes: float, engine: str = "inline"
) -> Show:
    """Execute a collective of `nbytes` in all to draw it. Raises UserError for what cannot be drawn."""
    if group.size > RANKS_ON_BOARD:
        raise UserError(
            f"--show draws up to {RANKS_ON_BOARD} ranks, and {group.size} would be too many to read: choose "
            f"--ranks {RANKS_ON_BOARD}."
        )
    if collective == "barrier":
        raise UserError(
            "a barrier moves no data, so there is nothing to draw: show another collective, or leave --show "
            "out."
        )
    scale = nbytes / BOARD_BYTES
    results = launch(
        watched, group.size, slowed(hardware, scale), collective, algorithm, group, engine=engine
    )
    sent = (sum(event.bytes for event in of_kinds(result.events, SEND)) for result in results)
    return Show(collective, algorithm, list(frames_of(results)), nbytes, max(sent) * scale)


def slowed(hardware: Hardware, factor: float) -> Hardware:
    """Links on which a byte takes `factor` times as long."""
    inside, across = (
        replace(
            link, bandwidth_bytes_per_second=link.bandwidth_bytes_per_second / factor if factor else np.inf
        )
        for link in (hardware.inside, hardware.across)
    )
    return replace(hardware, inside=inside, across=across)


def frames_of(results: Sequence[RankResult]) -> Iterator[Frame]:
    """The start, and then one frame for every instant at which something arrives."""
    received = [0] * len(results)
    arrivals: dict[int, tuple[int, np.ndarray]] = {}
    yield Frame(0.0, {}, [result.value.boards[0] for result in results])
    receives = sorted(
        (event for result in results for event in of_kinds(result.events, RECEIVE)), key=arrival
    )
    for event, following in zip(receives, [*receives[1:], None]):
        arrivals[event.rank] = (event.peer, results[event.rank].value.contents[received[event.rank]])
        received[event.rank] += 1
        if following is None or following.end > event.end * (1 + SAME_INSTANT):
            yield Frame(
                event.end,
                arrivals,
                [result.value.boards[number] for result, number in zip(results, received)],
            )
            arrivals = {}


def arrival(event: Event) -> float:
    return event.end


# ---------------------------------------------------------------------------------------------------- drawing


def draw(show: Show) -> Iterator[Text]:
    """The frames as lines, one a rank: what it holds, in brackets what has just arrived, and from whom."""
    cells = cells_of(show)
    boards = [
        [[name(show, value) for value in board[cells]] for board in frame.boards] for frame in show.frames
    ]
    width = max(len(cell) for frame in boards for row in frame for cell in row) + 2
    if len(cells) > 1:
        numbers = "".join(str(number).center(width) + " " for number in range(len(cells)))
        yield Text(f"{' ' * len(margin(0))}{numbers}  piece", style="dim")
    for number, (frame, rows) in enumerate(zip(show.frames, boards)):
        yield Text(
            f"hop {number} of {len(show.frames) - 1}, at {si(frame.seconds, 's')}" if number else "start",
            style="bold",
        )
        before = boards[number - 1] if number else rows
        for rank, row in enumerate(rows):
            yield rank_line(show, frame, rank, row, before[rank], width)
        yield Text()


def rank_line(show: Show, frame: Frame, rank: int, row: list[str], before: list[str], width: int) -> Text:
    """What one rank holds; what has arrived and cannot be seen in its cells is named."""
    line = Text(margin(rank))
    for cell, old in zip(row, before):
        line.append(*styled(cell, cell != old, width, show))
    if rank in frame.arrivals:
        source, content = frame.arrivals[rank]
        unseen = "" if row != before else f"{' '.join(name(show, value) for value in runs(content))} "
        line.append(f"  {unseen}from rank {source}", style="dim")
    line.rstrip()
    return line


def margin(rank: int) -> str:
    return f"  rank {rank}  "


def cells_of(show: Show) -> np.ndarray:
    """Return the bytes at which the boards' cells begin."""
    changes = [np.flatnonzero(np.diff(board)) + 1 for frame in show.frames for board in frame.boards]
    return np.unique(np.concatenate([[0], *changes])).astype(int)


def runs(content: np.ndarray) -> np.ndarray:
    return content[np.concatenate([[True], np.diff(content) != 0])] if content.size else content


def styled(cell: str, arrived: bool, width: int, show: Show) -> tuple[str, str]:
    complete = SIGNATURES[show.collective].combines and cell == name(show, (1 << show.p) - 1)
    style = "green" if complete else "dim" if cell == "." else ""
    return (f"[{cell}]" if arrived else f" {cell} ").center(
        width
    ) + " ", f"bold {style or 'yellow'}" if arrived else style


def name(show: Show, value: int) -> str:
    """A byte in letters: the ranks that are in a sum, or whose piece it is and for whom; "." where there is
    nothing yet."""
    if not value:
        return "."
    if SIGNATURES[show.collective].addressed:
        source, target = divmod(int(value) - 1, RANKS_ON_BOARD)
        return f"{letter(source)}{target}"
    ranks = [rank for rank in range(RANKS_ON_BOARD) if value >> rank & 1]
    return "".join(map(letter, ranks)) if show.p <= 5 else shortened(ranks)


def letter(rank: int) -> str:
    return "abcdefgh"[rank]


def shortened(ranks: list[int]) -> str:
    """Letters, with runs of three and more as "a-c"."""
    groups = [
        [rank for _, rank in group] for _, group in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])
    ]
    return "".join(
        f"{letter(run[0])}-{letter(run[-1])}" if len(run) > 2 else "".join(map(letter, run)) for run in groups
    )


def idea(show: Show) -> str:
    """The algorithm in a sentence, and what the letters in it stand for."""
    said = " ".join((ALGORITHMS[show.collective][show.algorithm].run.__doc__ or "").split())
    meant = [f"{word}: {what}" for word, what in MEANING.items() if re.search(rf"\b{word}\b", said)]
    return f"{said} ({'; '.join(meant)}.)" if meant else said


def legend(show: Show) -> str:
    """Say what the letters mean."""
    last = show.p - 1
    if SIGNATURES[show.collective].addressed:
        return (
            f"Letters say whose piece it is, numbers for whom: {letter(0)}{last} goes from rank 0 to rank "
            f"{last}. [ ] has just arrived."
        )
    if SIGNATURES[show.collective].combines:
        whole = name(show, (1 << show.p) - 1)
        return (
            f"a is what rank 0 brought, {letter(last)} what rank {last} brought, and {whole} the sum of all. "
            "[ ] has just arrived."
        )
    return "Letters say which rank brought it: a is rank 0's. [ ] has just arrived."


def conclusion(show: Show) -> str:
    hops, seconds = len(show.frames) - 1, si(show.frames[-1].seconds, "s")
    return f"{count(hops, 'hop')} in {seconds}; no rank sent more than {si(show.bytes_sent, 'B')}."
