"""The SVGs: valid, small, self-contained, exact to the hundredth of a pixel, and without a second lost at any
level of detail."""

import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from gpu import COMPUTE
from ndparallel.drawing import notebook  # noqa: F401  registers what notebooks show
from ndparallel.drawing.lanes import timeline
from ndparallel.drawing.memory import memory_history
from ndparallel.drawing.palette import (
    ACTIVITIES,
    COMMUNICATION,
    FORWARD,
    GROUND,
    IDLE,
    INK,
    MEMORY,
    TERMS,
    WAITING,
)
from ndparallel.drawing.spans import Lane, Span, Timeline
from ndparallel.drawing.svg.memory import HEADROOM, HIGHEST, draw_memory
from ndparallel.drawing.svg.parts import LEFT, PLOT_WIDTH, RIGHT, TITLE_HEIGHT, WIDTH
from ndparallel.drawing.svg.schedules import draw_schedules
from ndparallel.drawing.svg.timelines import DETAILS, LIMIT_BYTES, draw_timelines
from ndparallel.drawing.terminal.timelines import Timelines
from ndparallel.pipeline.catalog import build
from ndparallel.pipeline.timing import time_schedule
from ndparallel.pipeline.work import Work
from tests.support.svg_text import outside
from tests.support.synthetic import HARDWARE, OPERATIONS, data_parallel, pipeline

NAMESPACE = "{http://www.w3.org/2000/svg}"
RUNS = {
    "overlapped": data_parallel(operations=OPERATIONS),
    "blocking": data_parallel(overlapped=False),
    "pipeline": pipeline(9),
}
TIMELINES = {name: timeline(name, runs) for name, runs in RUNS.items()}
CONTRAST = [TIMELINES["blocking"], TIMELINES["overlapped"]]
MEMORY_OF_ONE = memory_history("ddp", RUNS["overlapped"][0], 5e5)
SMALL = Timeline(
    "small", 4.0, (Lane(0, COMPUTE, (Span(0.0, 1.25, FORWARD, "forward layers.0 qkv"),)), Lane(0, "dp", ()))
)


def elements(svg, name):
    return list(ElementTree.fromstring(svg).iter(NAMESPACE + name))


def lanes(svg):
    """For every lane as it is shown: the widths of its bars, in pixels, by activity; those that tell their
    times and the thin ones."""
    groups = {group.get("id"): group for group in elements(svg, "g") if group.get("id")}
    for use in elements(svg, "use"):
        widths: dict[Any, list[float]] = defaultdict(list)
        for group in groups[use.get("href")[1:]]:
            telling = [rect.get("width") for rect in group.iter(NAMESPACE + "rect")]
            if bars := telling + re.findall(r"h([\d.]+)V0z", group.get("d", "")):
                widths[group.get("class").removesuffix(" nd-line")] += map(float, bars)
        yield widths


@pytest.mark.parametrize("limit", [10**9, LIMIT_BYTES, 20_000, 0], ids=["all", "default", "less", "least"])
@pytest.mark.parametrize("name", TIMELINES)
def test_no_time_is_lost_at_any_level_of_detail(name, limit):
    run = TIMELINES[name]
    for lane, widths in zip(run.lanes, lanes(draw_timelines([run], limit)), strict=True):
        seconds: dict[Any, float] = defaultdict(float)
        for span in lane.spans:
            seconds[f"nd-{span.activity}"] += span.seconds
        assert set(widths) - {f"nd-{IDLE}"} == set(seconds)
        for activity, total in seconds.items():
            drawn = sum(widths[activity]) * run.seconds / PLOT_WIDTH
            assert drawn == pytest.approx(
                total, abs=0.005 * len(widths[activity]) * run.seconds / PLOT_WIDTH + 1e-15
            )


def test_four_gpus_and_three_hundred_events_each_stay_under_30_kb():
    assert all(len(run.events) > 250 for run in RUNS["overlapped"])
    for chosen in ([TIMELINES["overlapped"]], CONTRAST, [TIMELINES["pipeline"]]):
        assert len(draw_timelines(chosen).encode()) < 30_000


def test_detail_is_given_up_only_where_it_is_too_much():
    whole, small = draw_timelines([TIMELINES["overlapped"]], 10**9), draw_timelines([TIMELINES["overlapped"]])
    assert "forward layers.0 qkv:" in whole and len(whole) > LIMIT_BYTES
    assert "forward layers.0 qkv:" not in small and "forward layers.0 (10 events):" in small


def test_what_is_too_thin_to_be_pointed_at_has_no_times_and_on_a_communication_lane_a_line():
    spans = (Span(0.0, 1.0, FORWARD, "wide"), Span(1.0, 1.0001, FORWARD, "thin"))
    svg = draw_timelines(
        [
            Timeline(
                "x",
                4.0,
                (Lane(0, COMPUTE, spans), Lane(0, "pp", (Span(2.0, 2.0001, COMMUNICATION, "short"),))),
            )
        ]
    )
    assert "<title>wide" in svg and "<title>thin" not in svg and "<title>short" not in svg
    paths = {path.get("class"): path.get("d") for path in elements(svg, "path")}
    assert paths[f"nd-{FORWARD}"] == f"M{PLOT_WIDTH / 4:g} 0v16h0.01V0z"
    assert paths[f"nd-{COMMUNICATION} nd-line"] == f"M{PLOT_WIDTH / 2:g} 0v8h0.01V0z"
    for paint in ACTIVITIES[COMMUNICATION][1:3]:
        assert f".nd-line{{stroke:{paint}}}" in svg


def test_no_picture_is_coarser_than_four_pixels():
    assert max(detail.pixels for detail in DETAILS) == 4
    run = TIMELINES["overlapped"]
    windows = re.findall(r"within (\S+) to (\S+) s", draw_timelines([run], 0))
    assert all(float(end) - float(start) <= 4 * run.seconds / PLOT_WIDTH for start, end in windows)


def test_a_bar_stands_where_its_time_is_and_tells_it():
    bar = next(
        group for group in elements(draw_timelines([SMALL]), "g") if group.get("class") == f"nd-{FORWARD}"
    )[0]
    assert (float(bar.get("x")), float(bar.get("width"))) == (0, 1.25 / 4 * PLOT_WIDTH)
    assert bar[0].text == "forward layers.0 qkv: 1.25 s, 0 to 1.25 s"


def test_the_hover_titles_have_the_exact_times_of_every_collective():
    titles = {title.text for title in elements(draw_timelines([TIMELINES["overlapped"]]), "title")}
    for lane in TIMELINES["overlapped"].lanes:
        for span in lane.spans if lane.stream == "dp" else ():
            assert any(
                t.startswith(span.label) and t.endswith(f"{span.start:.8g} to {span.end:.8g} s")
                for t in titles
            )


def test_lanes_that_are_the_same_are_drawn_once():
    same = SMALL._replace(
        lanes=tuple(lane._replace(rank=rank) for rank in range(8) for lane in SMALL.lanes[:1])
    )
    svg = draw_timelines([same])
    assert len(elements(svg, "use")) == 8
    assert len([group for group in elements(svg, "g") if group.get("id")]) == 1


def test_all_timelines_share_one_scale():
    ends = [
        float(mark.get("d")[1:].split()[0])
        for mark in elements(draw_timelines(CONTRAST), "path")
        if mark.get("class") == "mark"
    ]
    expected = [LEFT + PLOT_WIDTH * run.seconds / CONTRAST[0].seconds for run in CONTRAST]
    assert ends == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    "svg", [draw_timelines(CONTRAST), draw_memory([MEMORY_OF_ONE])], ids=["time", "memory"]
)
def test_a_picture_is_whole_in_itself_and_has_both_modes(svg):
    ElementTree.fromstring(svg)
    assert not re.search(r"script|@import|url\((?!#)|font-face|href=\"[^#]", svg)
    assert svg.count("http") == 1  # the namespace
    light, dark = svg.split("@media(prefers-color-scheme:dark)")
    assert f".ground{{fill:{GROUND[0]}}}" in light and f".ground{{fill:{GROUND[1]}}}" in dark
    assert f"text{{fill:{INK[0]}}}" in light and f"text{{fill:{INK[1]}}}" in dark


def test_every_activity_drawn_has_its_colour_in_both_modes_and_a_name_in_the_legend():
    svg = draw_timelines(CONTRAST)
    words = {text.text for text in elements(svg, "text")}
    for name in {span.activity for run in CONTRAST for lane in run.lanes for span in lane.spans} | {IDLE}:
        paint, rule = ACTIVITIES[name], "hatch" if name == WAITING else name
        assert all(re.search(f".nd-{rule}{{fill:{colour}[;}}]", svg) for colour in (paint.light, paint.dark))
        assert TERMS.get(name, name) in words


def test_rules_for_text_hold_inside_our_pictures_only():
    css = elements(draw_timelines([SMALL]), "style")[0].text
    selectors = [
        selector
        for rule in re.findall(r"([^{}]+)\{[^{}]*\}", css)
        for selector in rule.split("){")[-1].split(",")
    ]
    assert all(selector.startswith((".ndparallel ", ".nd-")) for selector in selectors)


def test_everything_drawn_lies_inside_the_picture():
    for svg in (draw_timelines(CONTRAST), draw_memory([MEMORY_OF_ONE])):
        root = ElementTree.fromstring(svg)
        height = float(root.get("height", ""))
        assert all(
            0 <= float(text.get("x", "")) <= WIDTH and 0 < float(text.get("y", "")) < height
            for text in root.iter(NAMESPACE + "text")
        )


def test_names_of_lanes_below_one_another_do_not_touch():
    """A p that goes below its line, over a d: letters of 10 pixels need a line of 12."""
    streams = (COMPUTE, "tp", "pp", "dp")
    grid = SMALL._replace(lanes=tuple(Lane(rank, stream, ()) for rank in range(2) for stream in streams))
    names = [text for text in elements(draw_timelines([grid]), "text") if float(text.get("x", "")) < LEFT]
    heights = [float(text.get("y", "")) for text in names]
    assert [text.text for text in names] == ["GPU 0", *streams[1:], "GPU 1", *streams[1:]]
    assert min(below - above for above, below in pairwise(heights)) >= 12


LONG = "ddp_with_every_second_bucket_started_early_and_the_others_one_by_one_" * 2
SCATTERED = SMALL._replace(lanes=(SMALL.lanes[0]._replace(others=tuple(range(2, 32, 2))),))
OWN = replace(build("dualpipev", 2, 40), name=f"{LONG}.py:{LONG}")
WITH_LONG_NAMES = {
    "timeline": draw_timelines([SCATTERED._replace(name=LONG)]),
    "schedule": draw_schedules([time_schedule(OWN, Work())]),
    "memory": draw_memory([MEMORY_OF_ONE._replace(name=LONG)]),
}


@pytest.mark.parametrize("picture", WITH_LONG_NAMES)
def test_no_word_is_cut_at_an_edge_however_long_a_name_is(picture):
    svg = WITH_LONG_NAMES[picture]
    assert "\u2026" in svg and outside(svg) == []


def test_a_word_that_would_be_cut_is_seen():
    wide = draw_timelines([SMALL._replace(name="m" * 30)])
    assert outside(wide) == []
    assert outside(wide.replace(">" + "m" * 30, ">" + "m" * 60))[0].startswith(repr("m" * 60))
    assert outside(wide.replace(">GPU 0<", ">GPU 0-7 16-23<"))[0].startswith("'GPU 0-7 16-23'")


def test_a_name_cannot_break_the_picture():
    svg = draw_timelines([SMALL._replace(name='<b> & "quotes"')])
    assert '<b> & "quotes"' in {text.text for text in elements(svg, "text")}


def test_the_same_run_gives_the_same_bytes():
    assert draw_timelines([timeline("overlapped", data_parallel())]) == draw_timelines(
        [TIMELINES["overlapped"]]
    )


def test_an_empty_run_is_still_a_picture():
    ElementTree.fromstring(draw_timelines([]))
    ElementTree.fromstring(draw_timelines([Timeline("nothing", 0.0, (Lane(0, COMPUTE, ()),))]))


def test_a_notebook_shows_timelines_and_memory():
    assert Timelines(CONTRAST)._repr_svg_() == draw_timelines(CONTRAST)
    one: Any = CONTRAST[0]
    memory: Any = MEMORY_OF_ONE
    assert one._repr_svg_() == draw_timelines([one])
    assert memory._repr_svg_() == draw_memory([memory])


# ----------------------------------------------------------------------------------------------------- memory


def highest(svg):
    """The highest point of every area, in pixels above the base."""
    base = TITLE_HEIGHT + HIGHEST
    for path in elements(svg, "path"):
        if (path.get("class") or "").startswith("nd-"):
            yield base - min(float(y) for y in re.findall(r"V([\d.]+)", path.get("d")))


@pytest.mark.parametrize("run", RUNS["overlapped"], ids=lambda run: f"gpu{run.rank}")
def test_the_top_of_the_picture_is_the_peak_even_where_it_lasts_no_time(run):
    moment = (
        *run.events,
        (run.rank, COMPUTE, "memory", "buffers", run.end_seconds, run.end_seconds, 3e5, 0, None),
    )
    moment += ((run.rank, COMPUTE, "memory", "buffers", run.end_seconds, run.end_seconds, 0, 0, None),)
    history = memory_history("ddp", replace(run, events=moment), 1e12)
    assert history.peak_bytes == 4 * 40_000 * 2 + 3e5
    assert max(highest(draw_memory([history]))) == pytest.approx(HIGHEST / HEADROOM, abs=0.01)


def test_the_limit_is_drawn_where_it_belongs_or_named():
    run = RUNS["overlapped"][0]
    near, far = (draw_memory([memory_history("ddp", run, limit)]) for limit in (4e5, 1e9))
    line = next(path for path in elements(near, "path") if path.get("class") == "limit")
    start = re.search(r"M\S+ ([\d.]+)", line.get("d"))
    assert start and float(start[1]) == pytest.approx(TITLE_HEIGHT + HIGHEST * (1 - 1 / HEADROOM), abs=0.01)
    assert not any(path.get("class") == "limit" for path in elements(far, "path"))
    assert "peak 320 kB of 1.00 GB" in {text.text for text in elements(far, "text")}


def test_kinds_are_stacked_in_their_order_and_only_those_held():
    svg = draw_memory([MEMORY_OF_ONE])
    kinds = [
        path.get("class")[3:].split()[0]
        for path in elements(svg, "path")
        if (path.get("class") or "").startswith("nd-")
    ]
    assert kinds == ["activations", "gradients", "weights"]  # the lowest is drawn last, over the others
    assert list(highest(svg)) == sorted(highest(svg), reverse=True)
    assert set(MEMORY) > set(kinds) and COMMUNICATION not in kinds


def test_memory_over_a_long_run_stays_small():
    run = data_parallel(operations=OPERATIONS * 20, hardware=replace(HARDWARE, memory_bytes=1e8))[0]
    assert len(run.events) > 3000
    assert len(draw_memory([memory_history("long", run, 1e7)])) < 30_000
    assert WIDTH - RIGHT - LEFT == PLOT_WIDTH
