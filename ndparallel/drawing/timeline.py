"""Timelines on the terminal: one row of cells for every stream of every GPU, several strategies on one scale
of time.

Idea   A cell shows what fills it, as a colour and as a letter: a row reads the same on a screen and on paper.
Limit  A cell is a hundredth of the picture or so. On the compute stream what is shorter than that is seen in
       proportion, not where each piece of it is; a communication stream shows what is there however short it
       is. The SVG and the trace have the exact times.

Glossary
    cell   a character's share of the time axis
    lane   the spans of one GPU on streams whose names begin alike
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gpu import COMPUTE, si
from ndparallel.base.quoting import visible
from ndparallel.base.words import WIDTH, ranges
from ndparallel.drawing.history import Lane, Timeline, ticks
from ndparallel.drawing.palette import ACTIVITIES, IDLE

BLANK = " "


@dataclass(frozen=True)
class Timelines:
    """Several runs on one scale of time, for the terminal and for a notebook."""

    timelines: Sequence[Timeline]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from gantt(self.timelines, min(options.max_width, WIDTH))

    def _repr_svg_(self) -> str:
        from ndparallel.drawing.svg import draw_timelines  # only where a notebook asks for it

        return draw_timelines(self.timelines)


def gantt(timelines: Sequence[Timeline], width: int = WIDTH) -> Iterator[Text]:
    """Draw timelines as lines of text, at most `width` characters each: title and rows of each, then the axis
    and the legend."""
    margin = max((len(lane_name(lane)) for timeline in timelines for lane in timeline.lanes), default=0) + 1
    end = max((timeline.seconds for timeline in timelines), default=0.0)
    columns = max(width - margin - 1, 10)
    cell_seconds = end / columns or 1.0
    for timeline in timelines:
        yield Text.assemble((visible(timeline.name), "bold"), f"  {si(timeline.seconds, 's')}")
        for lane in timeline.lanes:
            row = Text.assemble(
                f"{lane_name(lane):<{margin}}", painted(cells(lane, timeline.seconds, cell_seconds))
            )
            row.rstrip()
            yield row
        yield Text()
    yield from axis(end, margin, columns)
    yield legend(timelines)


def lane_name(lane: Lane) -> str:
    return f"GPU {ranges(lane.ranks)}" if lane.stream == COMPUTE else f"      {lane.stream}"


def cells(lane: Lane, seconds: float, cell_seconds: float) -> list[str]:
    """Return the content of each cell from 0 to `seconds`: an activity, or BLANK where a communication
    stream is silent."""
    filled = shares(lane, seconds, cell_seconds)
    if lane.stream != COMPUTE:  # it talks rarely and shortly, and none of it may be lost
        return [
            max((activity for activity in cell if cell[activity] > 0), key=cell.__getitem__, default=BLANK)
            for cell in filled
        ]
    return in_proportion(
        [cell | {IDLE: max(cell_seconds - sum(cell.values()), 0.0)} for cell in filled], cell_seconds
    )


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


def in_proportion(filled: Sequence[dict[str, float]], cell_seconds: float) -> list[str]:
    """Choose one activity for each cell. The time that other activities have in it is kept for the next
    cell that has them, so that short activities are seen in proportion to their time."""
    kept: dict[str, float] = defaultdict(float)
    seen = []
    for cell in filled:
        for activity, part in cell.items():
            kept[activity] += part
        seen.append(
            max((activity for activity in cell if cell[activity] > 0), key=kept.__getitem__, default=IDLE)
        )
        kept[seen[-1]] -= cell_seconds
    return seen


def painted(activities: Sequence[str]) -> Text:
    text = Text()
    for activity, run in groupby(activities):
        count = len(list(run))
        if activity == BLANK:
            text.append(BLANK * count)
        else:
            text.append(ACTIVITIES[activity].letter * count, style(activity))
    return text


@cache
def style(activity: str) -> str:
    """Return the style of a quiet letter on its colour; idle is no more than a faint dot."""
    ground = ACTIVITIES[activity].light
    return "dim" if activity == IDLE else f"{letter_colour(ground)} on {ground}"


def letter_colour(ground: str) -> str:
    """Return the background colour moved half way towards black where it is light and towards white where
    it is dark."""
    parts = [int(ground[place : place + 2], 16) for place in (1, 3, 5)]
    towards = 0 if sum(parts) > 3 * 128 else 255
    return "#" + "".join(f"{(part + towards) // 2:02x}" for part in parts)


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


def legend(timelines: Sequence[Timeline]) -> Text:
    """Return the letters that occur, with their meaning."""
    seen = {span.activity for timeline in timelines for lane in timeline.lanes for span in lane.spans} | {
        IDLE
    }
    text = Text()
    for activity, paint in ACTIVITIES.items():
        if activity in seen:
            text.append(f" {paint.letter} ", style(activity)).append(f" {activity}   ")
    text.rstrip()
    return text
