"""Timelines as small SVG files: exact, sharp at every size, at home on light and on dark pages.

Idea   A picture is a column of panels over one axis of time. What is wide enough to be pointed at tells its
       times; what a GPU sends and receives shows however short it is; lanes that are the same on several GPUs
       are drawn once and used again.
Cost   About 100 bytes a bar that tells its times, 20 one that does not. Where a picture would be larger than
       `limit` bytes, operations are joined into units, then into phases, then neighbours within two, then
       four pixels are put together, and only wider bars tell their times: the length of every colour stays
       what it was.
Limit  Never coarser than four pixels: a long run of many GPUs makes a file larger than `limit`, and not a
       picture that misleads.

Glossary
    panel   one strategy's lanes
    lane    the spans of one GPU on streams whose names begin alike; the ground of a compute lane is idle time
    seam    a thin line between two spans of one colour
"""

from collections.abc import Iterator, Sequence
from hashlib import sha1
from itertools import groupby, pairwise
from typing import NamedTuple

from gpu import COMPUTE, si
from ndparallel.base.quoting import markup
from ndparallel.base.words import ranges
from ndparallel.drawing.fewer_spans import joined, thinned
from ndparallel.drawing.palette import ACTIVITIES, IDLE, TERMS, legend_words
from ndparallel.drawing.spans import Lane, Span, Timeline
from ndparallel.drawing.svg.parts import (
    AXIS_HEIGHT,
    BOLD,
    LEFT,
    LEGEND_HEIGHT,
    PLOT_WIDTH,
    SMALL,
    TITLE_HEIGHT,
    document,
    fitted,
    legend,
    legend_places,
    number,
    text,
    time_axis,
    words_width,
)

COMPUTE_HEIGHT, LANE_HEIGHT, GPU_GAP, LANE_GAP, PANEL_GAP = 16, 8, 8, 5, 12
SEAM_PIXELS = 5
DIGIT_WIDTH, SECONDS_WIDTH = 6.2, 60
LIMIT_BYTES = 30_000


class Detail(NamedTuple):
    words: int  # of an operation's name, that keep it apart
    pixels: float  # within which neighbours are put together
    pointed_pixels: float  # from which width on a bar tells its times


DETAILS = (
    Detail(99, 1, 2),
    Detail(2, 1, 2),
    Detail(1, 1, 2),
    Detail(1, 2, 4),
    Detail(1, 4, 8),
    Detail(1, 4, 16),
    Detail(1, 4, 32),
)


# -------------------------------------------------------------------------------------------------- timelines


def draw_timelines(timelines: Sequence[Timeline], limit: int = LIMIT_BYTES) -> str:
    """Draw timelines below one another on one axis of time, in as much detail as `limit` bytes allow."""
    per_second = PLOT_WIDTH / (max((timeline.seconds for timeline in timelines), default=0.0) or 1.0)
    drawing = ""
    for words, pixels, pointed_pixels in DETAILS:
        simple = [simpler(timeline, words, pixels / per_second) for timeline in timelines]
        drawing = _draw(simple, per_second, pointed_pixels / per_second)
        if len(drawing) < limit:
            break
    return drawing


def simpler(timeline: Timeline, words: int, seconds: float) -> Timeline:
    lanes = (
        lane._replace(spans=tuple(thinned(joined(lane.spans, words), seconds))) for lane in timeline.lanes
    )
    return timeline._replace(lanes=tuple(lanes))


def _draw(timelines: Sequence[Timeline], per_second: float, pointed_seconds: float) -> str:
    shapes: dict[str, str] = {}
    parts: list[str] = []
    top = 0.0
    for timeline in timelines:
        parts += panel(timeline, top, per_second, pointed_seconds, shapes)
        top += panel_height(timeline) + PANEL_GAP
    seen = {span.activity for timeline in timelines for lane in timeline.lanes for span in lane.spans} | {
        IDLE
    }
    paints = {name: paint for name, paint in ACTIVITIES.items() if name in seen}
    axis = time_axis(max((timeline.seconds for timeline in timelines), default=0.0), top, per_second)
    names = ", ".join(f"{timeline.name} {si(timeline.seconds, 's')}" for timeline in timelines)
    words, legend_top = legend_words(seen), top + AXIS_HEIGHT
    *_, (_, last_row) = legend_places(words.values(), legend_top)
    body = ["<defs>", *shapes.values(), "</defs>", *axis, *parts, *legend(words, legend_top, words)]
    return document(f"Timeline of {names}", last_row + LEGEND_HEIGHT, paints, body)


def panel_height(timeline: Timeline) -> float:
    return TITLE_HEIGHT + sum(lane_gap(lane) + lane_height(lane) for lane in timeline.lanes)


def lane_height(lane: Lane) -> float:
    return COMPUTE_HEIGHT if lane.stream == COMPUTE else LANE_HEIGHT


def lane_gap(lane: Lane) -> float:
    return GPU_GAP if lane.stream == COMPUTE else LANE_GAP


def panel(
    timeline: Timeline, top: float, per_second: float, pointed_seconds: float, shapes: dict[str, str]
) -> Iterator[str]:
    """Yield the title, every lane with its name, and a mark at the end of the step. New lanes are added to
    `shapes`."""
    end, y = LEFT + timeline.seconds * per_second, top + TITLE_HEIGHT - GPU_GAP
    name = fitted(timeline.name, PLOT_WIDTH - SECONDS_WIDTH)
    yield text(LEFT, top + 17, name, "name")
    after_name = LEFT + BOLD * words_width(name) + SECONDS_WIDTH
    yield text(max(end, after_name), top + 17, si(timeline.seconds, "s"), "end")
    for lane in timeline.lanes:
        y += lane_gap(lane)
        yield text(LEFT - 8, y + lane_height(lane) / 2 + 4, *lane_name(lane))
        content = "".join(lane_content(lane, timeline.seconds, per_second, pointed_seconds))
        # named by content: pictures on one page cannot mix up their lanes
        name = "lane" + sha1(content.encode()).hexdigest()[:10]
        shapes[name] = f'<g id="{name}">{content}</g>'
        yield f'<use href="#{name}" x="{LEFT}" y="{number(y)}"/>'
        y += lane_height(lane)
    yield f'<path class="mark" d="M{number(end)} {number(top + TITLE_HEIGHT - 4)}V{number(y + 2)}"/>'


def lane_name(lane: Lane) -> tuple[str, str]:
    """Return the label of a lane and its text style; a long label is written small."""
    if lane.stream != COMPUTE:
        return lane.stream, "end small"
    name = f"{lane.of} {ranges(lane.ranks)}"
    return (name, "end") if len(name) <= 8 else (fitted(name, LEFT - 8, SMALL), "end small")


def lane_content(lane: Lane, seconds: float, per_second: float, pointed_seconds: float) -> Iterator[str]:
    """Draw a lane's spans by colour on a ground of idle time (compute lanes only). Spans of
    `pointed_seconds` and more show their times on hover."""
    height = lane_height(lane)
    if lane.stream == COMPUTE:
        yield f'<g class="nd-{IDLE}">{bar(Span(0, seconds, IDLE, TERMS[IDLE]), height, per_second)}</g>'
    for activity in dict.fromkeys(span.activity for span in lane.spans):
        spans = [span for span in lane.spans if span.activity == activity]
        if wide := [bar(span, height, per_second) for span in spans if span.seconds >= pointed_seconds]:
            yield f'<g class="nd-{activity}">{"".join(wide)}</g>'
        if thin := [thin_bar(span, height, per_second) for span in spans if span.seconds < pointed_seconds]:
            yield f'<path class="nd-{activity}{" nd-line" * (lane.stream != COMPUTE)}" d="{"".join(thin)}"/>'
    seams = [
        f"M{number(span.start * per_second)} 0v{number(height)}"
        for span in touching(lane.spans, SEAM_PIXELS / per_second)
    ]
    if seams:
        yield f'<path class="nd-seam" d="{"".join(seams)}"/>'
    yield from microbatch_numbers(lane.spans, per_second)


def microbatch_numbers(spans: Sequence[Span], per_second: float) -> Iterator[str]:
    """Draw the last digit of its microbatch in the middle of every pass that has room for it."""
    busy = [span for span in spans if span.microbatch is not None]
    places: dict[str, list[tuple[str, str]]] = {}
    for (activity, microbatch), run in groupby(busy, key=lambda span: (span.activity, span.microbatch)):
        first, *_, last = [*run] * 2
        if (last.end - first.start) * per_second >= DIGIT_WIDTH:
            middle = (first.start + last.end) / 2 * per_second
            places.setdefault(activity, []).append((f"{middle:.1f}", str(microbatch)[-1]))
    for activity, found in places.items():
        xs, digits = map(" ".join, zip(*found)), "".join(digit for _, digit in found)
        y = COMPUTE_HEIGHT / 2 + 3.5
        yield f'<text class="nd-digit nd-on-{activity}" y="{y}" x="{next(xs)}">{digits}</text>'


def bar(span: Span, height: float, per_second: float) -> str:
    place = (
        f'x="{number(span.start * per_second)}" width="{number(span.seconds * per_second)}" '
        f'height="{number(height)}"'
    )
    return f"<rect {place}><title>{markup(title(span))}</title></rect>"


def thin_bar(span: Span, height: float, per_second: float) -> str:
    """Return a bar as part of a path whose outline keeps it visible however thin it is."""
    return f"M{number(span.start * per_second)} 0v{number(height)}h{number(span.seconds * per_second)}V0z"


def title(span: Span) -> str:
    """Return what a span shows on hover: its length, its start and its end."""
    start, end = span.window or (span.start, span.end)
    many = f" ({span.events} events)" if span.events > 1 else ""
    within = "within " if span.window else ""
    return f"{span.label}{many}: {si(span.seconds, 's')}, {within}{start:.8g} to {end:.8g} s"


def touching(spans: Sequence[Span], seconds: float) -> Iterator[Span]:
    """Yield spans that follow another of the same colour without a gap, where both are long enough to show
    it."""
    for before, span in pairwise(spans):
        if (
            before.end == span.start
            and ACTIVITIES[before.activity].light == ACTIVITIES[span.activity].light
            and min(before.seconds, span.seconds) >= seconds
        ):
            yield span
