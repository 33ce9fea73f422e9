"""Timelines on the terminal: one row of cells for every stream of every GPU, several strategies on one scale
of time.

Idea   A letter on a colour says what a GPU mostly does in a cell's time, and the height of a block how much
       of the time it waits or communicates: a row reads the same on a screen and on paper. GPUs that did the
       same have one row.
Limit  A cell is a hundredth of the picture or so, and what never fills half of one has no letter. The SVG
       and the trace have the exact times.

Glossary
    cell   a character's share of the time axis
    lane   the spans of one GPU on streams whose names begin alike
"""

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gpu import COMPUTE, si
from ndparallel.base.quoting import visible
from ndparallel.base.words import WIDTH, ranges
from ndparallel.drawing.fewer_spans import alike
from ndparallel.drawing.palette import (
    ACTIVITIES,
    COMMUNICATION,
    IDLE,
    PER_MICROBATCH,
    TERMS,
    WAITING,
    ink_on,
    legend_words,
)
from ndparallel.drawing.spans import Lane, Timeline
from ndparallel.drawing.ticks import ticks

BLANK = " "
BLOCKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"  # eighths
WAITS = f"      {TERMS[WAITING]}"
LEAST_WAITING = 0.005  # of a run: a GPU that waits less has no row for it


@dataclass(frozen=True)
class Timelines:
    """Several runs on one scale of time, for the terminal and for a notebook."""

    timelines: Sequence[Timeline]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from gantt([alike(timeline) for timeline in self.timelines], min(options.max_width, WIDTH))

    def _repr_svg_(self) -> str:
        from ndparallel.drawing.svg.timelines import draw_timelines  # only where a notebook asks for it

        return draw_timelines([alike(timeline) for timeline in self.timelines])


def gantt(timelines: Sequence[Timeline], width: int = WIDTH) -> Iterator[Text]:
    """Draw timelines as lines of text, at most `width` characters each: title and rows of each, then the axis
    and the legend."""
    margin = max((len(lane_name(lane)) for timeline in timelines for lane in timeline.lanes), default=0)
    margin = max(margin, len(WAITS)) + 1
    end = max((timeline.seconds for timeline in timelines), default=0.0)
    columns = max(width - margin - 1, 10)
    cell_seconds = end / columns or 1.0
    for timeline in timelines:
        yield Text.assemble((visible(timeline.name), "bold"), f"  {si(timeline.seconds, 's')}")
        for lane in timeline.lanes:
            for name, cells in rows(lane, timeline.seconds, cell_seconds):
                row = Text.assemble(f"{name:<{margin}}", *cells)
                row.rstrip()
                yield row
        yield Text()
    yield from axis(end, margin, columns)
    yield from legend(timelines, width)


def ended(line: Text) -> Generator[Text, None, Text]:
    """Yield a line, and return the one that follows it."""
    line.rstrip()
    yield line
    return Text()


def lane_name(lane: Lane) -> str:
    return f"{lane.of} {ranges(lane.ranks)}" if lane.stream == COMPUTE else f"      {lane.stream}"


def rows(lane: Lane, seconds: float, cell_seconds: float) -> Iterator[tuple[str, Iterable[tuple[str, str]]]]:
    """Yield names and painted cells: of a compute lane what it does, and how much of the time it waits; of
    another lane how much of the time it communicates."""
    filled = shares(lane, seconds, cell_seconds)
    if lane.stream != COMPUTE:
        yield (
            lane_name(lane),
            [(levels(filled, COMMUNICATION, cell_seconds), ACTIVITIES[COMMUNICATION].light)],
        )
        return
    yield lane_name(lane), painted_letters(lane, filled, cell_seconds)
    if has_row_of_waits(lane, seconds):
        yield WAITS, [(levels(filled, WAITING, cell_seconds), ACTIVITIES[WAITING].light)]


def has_row_of_waits(lane: Lane, seconds: float) -> bool:
    waits = sum(span.seconds for span in lane.spans if span.activity == WAITING)
    return lane.stream == COMPUTE and waits >= LEAST_WAITING * seconds > 0


def shares(lane: Lane, seconds: float, cell_seconds: float) -> list[dict[str, float]]:
    """Return the seconds of each activity in each cell."""
    count = max(round(seconds / cell_seconds), 1)
    filled: list[dict[str, float]] = [defaultdict(float) for _ in range(count)]
    for start, end, activity, *_ in lane.spans:
        first, last = min(int(start / cell_seconds), count - 1), min(int(end / cell_seconds), count - 1)
        if first == last:
            filled[first][activity] += end - start
            continue
        for number in range(first, last + 1):
            overlap = min(end, (number + 1) * cell_seconds) - max(start, number * cell_seconds)
            filled[number][activity] += max(overlap, 0.0)
    return filled


def levels(filled: Sequence[Mapping[str, float]], activity: str, cell_seconds: float) -> str:
    """Return a block for each cell, as high as the activity's share of its time; what is there at all is
    seen, however short it is."""
    eighths = (math.ceil(8 * cell.get(activity, 0.0) / cell_seconds * (1 - 1e-9)) for cell in filled)
    return "".join(BLOCKS[min(part, 8)] for part in eighths)


def main_activities(filled: Sequence[Mapping[str, float]], cell_seconds: float) -> list[str]:
    """Return what fills most of each cell of a compute lane."""
    whole = (cell | {IDLE: max(cell_seconds - sum(cell.values()), 0.0)} for cell in map(dict, filled))
    return [max(cell, key=cell.__getitem__) for cell in whole]


def painted_letters(
    lane: Lane, filled: Sequence[Mapping[str, float]], cell_seconds: float
) -> Iterator[tuple[str, str]]:
    """Return a compute lane's cells: the letter of the activity, and behind the first of a run the number of
    its microbatch, where most runs have room for both."""
    activities = main_activities(filled, cell_seconds)
    numbers = microbatches(lane, len(activities), cell_seconds)
    runs = [(what, len(list(run))) for what, run in groupby(zip(activities, numbers))]
    words = [(*numbered_letter(*what), length) for what, length in runs]
    fit = sum(len(name) <= length for name, _, length in words if len(name) > 1)
    there_is_room = fit > sum(len(name) > 1 for name, _, _ in words) / 2
    for name, activity, length in words:
        shown = name if len(name) <= length and there_is_room else name[0]
        yield shown.ljust(length, name[0]), style(activity)


def numbered_letter(activity: str, microbatch: int | None) -> tuple[str, str]:
    """Return "F2" and the activity; the letter alone where it belongs to no microbatch."""
    number = "" if microbatch is None or activity not in PER_MICROBATCH else str(microbatch)
    return ACTIVITIES[activity].letter + number, activity


def microbatches(lane: Lane, count: int, cell_seconds: float) -> list[int | None]:
    """Return the microbatch that is computed in the middle of each cell, or the one before it."""
    spans = [span for span in lane.spans if span.microbatch is not None]
    starts = [span.start for span in spans]
    places = (bisect(starts, (cell + 0.5) * cell_seconds) - 1 for cell in range(count))
    return [spans[max(place, 0)].microbatch if spans else None for place in places]


@cache
def style(activity: str) -> str:
    """Return the style of a letter on its colour; idle is no more than a faint dot."""
    return "dim" if activity == IDLE else on(ACTIVITIES[activity].light)


def on(ground: str) -> str:
    """Return the style of what is written on a colour."""
    return f"{ink_on(ground)} on {ground}"


def axis(end: float, margin: int, columns: int) -> Iterator[Text]:
    """Return a line with a tick at every round time, and as many times under it as there is room for."""
    line, times = list("-" * columns), ""
    for tick in ticks(end, most=columns // 10):
        place, words = min(round(tick / end * columns) if end else 0, columns - 1), si(tick, "s")
        line[place] = "|"
        place = min(place, columns - len(words))
        if place >= len(times):
            times = times.ljust(place) + words + BLANK
    yield Text(BLANK * margin + "".join(line), "dim")
    yield Text(BLANK * margin + times.rstrip(), "dim")


def legend(timelines: Sequence[Timeline], width: int = WIDTH) -> Iterator[Text]:
    """Yield the letters that occur, with their meaning, and what a number, the height of a block and the rows
    below a GPU say."""
    lanes = [lane for timeline in timelines for lane in timeline.lanes]
    computed = {span.activity for lane in lanes if lane.stream == COMPUTE for span in lane.spans}
    yield from letters(computed | {IDLE}, width)
    spans = [span for lane in lanes for span in lane.spans]
    if any(span.activity in (COMMUNICATION, WAITING) for span in spans):
        number = "; number: its microbatch" * any(span.microbatch is not None for span in spans)
        block = "Block: how much of it, \u2581 little to \u2588 all."
        yield Text(f"Letter: what fills most of a cell{number}. {block}", "dim")
    if groups := dict.fromkeys(lane.stream for lane in lanes if lane.stream != COMPUTE):
        waits = any(has_row_of_waits(lane, each.seconds) for each in timelines for lane in each.lanes)
        exposed = "exposed time, and " * waits
        communicates = f"when each group communicates ({', '.join(groups)})"
        yield Text(f"Rows below a GPU: {exposed}{communicates}.", "dim")


def letters(activities: Collection[str], width: int) -> Iterator[Text]:
    """Yield the letters of activities with their meaning, in lines that end between two of them."""
    line = Text()
    for activity, words in legend_words(activities).items():
        if len(line) + len(f" x  {words}") > width:
            line = yield from ended(line)
        line.append(f" {ACTIVITIES[activity].letter} ", style(activity)).append(f" {words}   ")
    yield from ended(line)
