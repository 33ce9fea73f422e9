"""Lanes and the terminal's timeline: what filled each cell, readable without colours, one scale for all."""

import io
from collections import defaultdict
from itertools import combinations, groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gpu import COLLECTIVE, COMPUTE, si
from ndparallel.drawing.activities import label, phase_and_unit
from ndparallel.drawing.fewer_spans import alike, joined, thinned
from ndparallel.drawing.lanes import timeline
from ndparallel.drawing.memory import memory_history
from ndparallel.drawing.palette import (
    ACTIVITIES,
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    GROUND,
    IDLE,
    INPUT,
    LOGITS,
    MEMORY,
    OPTIMIZER,
    PARTS,
    RECOMPUTE,
    WAITING,
    WEIGHT,
    ink_on,
    legend_words,
)
from ndparallel.drawing.spans import Lane, Span, Timeline
from ndparallel.drawing.svg.timelines import draw_timelines
from ndparallel.drawing.terminal.timelines import (
    BLANK,
    BLOCKS,
    Timelines,
    axis,
    gantt,
    levels,
    main_activities,
    shares,
)
from ndparallel.drawing.ticks import ticks
from ndparallel.engines.launch import launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.model.stages import layers_per_stage
from ndparallel.parallel.mesh import Mesh
from ndparallel.pipeline.catalog import build
from ndparallel.results.columns import heads
from ndparallel.training.job import Job
from tests.support.common import SMALL
from tests.support.synthetic import HARDWARE, UNITS, Run, data_parallel, pipeline

RUNS = data_parallel()
BLOCKING = timeline("blocking", data_parallel(overlapped=False))
OVERLAPPED = timeline("overlapped", RUNS)
ONE_GPU = OVERLAPPED.lanes[:2]


def seconds_by_activity(spans):
    return {
        name: sum(span.seconds for span in spans if span.activity == name)
        for name in {span.activity for span in spans}
    }


def drawn(*timelines, width=100):
    return [line.plain for line in gantt(timelines, width)]


# ------------------------------------------------------------------------------------------------------ lanes


def test_there_is_a_lane_for_every_stream_of_every_gpu_compute_first():
    assert [(lane.rank, lane.stream) for lane in OVERLAPPED.lanes] == [
        (rank, name) for rank in range(4) for name in (COMPUTE, "dp")
    ]
    streams = [(lane.rank, lane.stream) for lane in timeline("pipeline", pipeline()).lanes]
    assert streams == [(0, COMPUTE), (0, "pp"), (1, COMPUTE)]


def test_streams_whose_names_begin_alike_share_a_lane_and_what_overlaps_is_drawn_from_where_it_shows():
    def message(stream, start, end):
        return (0, stream, "send", ("F", 1, 0), start, end, 0, 0, 1)

    events = [
        message("pp send forward", 0.0, 2.0),
        message("pp receive backward", 1.0, 3.0),
        message("dp", 0.0, 1.0),
    ]
    lanes = timeline("x", [Run(0, (*events, message("pp send forward", 2.0, 2.5)), 4.0, {})]).lanes
    assert [lane.stream for lane in lanes] == [COMPUTE, "pp", "dp"]
    assert [(span.start, span.end, span.window) for span in lanes[1].spans] == [
        (0.0, 2.0, None),
        (2.0, 3.0, (1.0, 3.0)),
    ]


@pytest.mark.parametrize("run", [BLOCKING, OVERLAPPED, timeline("pipeline", pipeline())])
def test_spans_of_a_lane_are_in_order_and_never_overlap(run):
    for lane in run.lanes:
        assert all(before.end <= after.start for before, after in pairwise(lane.spans))
        assert all(0 <= span.start < span.end <= run.seconds for span in lane.spans)


def test_a_collective_is_one_span_and_its_messages_none():
    lane = OVERLAPPED.lanes[1]
    assert len(lane.spans) == len(UNITS) == sum(event[2] == COLLECTIVE for event in RUNS[0].events)
    assert {span.activity for span in lane.spans} == {COMMUNICATION}
    assert lane.spans[1].label == "ring all-reduce 1 of group 'dp'"


def test_every_phase_and_every_wait_has_its_activity():
    assert set(seconds_by_activity(OVERLAPPED.lanes[0].spans)) == {FORWARD, BACKWARD, OPTIMIZER, WAITING}
    last = timeline("pipeline", pipeline()).lanes[-1]
    assert last.spans[0].activity == WAITING
    assert last.spans[0].label == "activations of microbatch 0 for stage 1"


def test_a_message_of_a_gathering_collective_is_named_in_words():
    assert label((("dp", 3), ("gather", 1))) == "gather hop 1 of collective 3 of group 'dp'"
    assert label((("dp", 3), 2)) == "hop 2 of collective 3 of group 'dp'"


# ------------------------------------------------------------------------------------------------ fewer spans


@st.composite
def rows_of_spans(draw):
    now = 0.0
    spans: list = []
    for gap, long, name in draw(
        st.lists(
            st.tuples(st.integers(0, 5), st.integers(1, 50), st.sampled_from([FORWARD, BACKWARD, WAITING]))
        )
    ):
        start = now + gap
        spans.append(Span(start, start + long, name, f"{name} layers.{len(spans) // 3} qkv"))
        now = start + long
    return spans


@given(rows_of_spans(), st.integers(1, 60))
def test_thinning_loses_no_time_and_moves_nothing_further_than_its_width(spans, width):
    thin = thinned(spans, width)
    assert seconds_by_activity(thin) == pytest.approx(seconds_by_activity(spans))
    assert sum(span.events for span in thin) == len(spans)
    assert all(before.end <= after.start for before, after in pairwise(thin))
    assert all(span.window is None or span.window[1] - span.window[0] <= width for span in thin)
    assert {span for span in spans if span.seconds > width} <= set(thin)


@given(rows_of_spans(), st.integers(1, 3))
def test_joining_keeps_time_exactly_and_never_bridges_a_gap(spans, words):
    row = joined(spans, words)
    covered = {instant for span in spans for instant in range(int(span.start), int(span.end))}
    assert {instant for span in row for instant in range(int(span.start), int(span.end))} == covered
    assert seconds_by_activity(row) == seconds_by_activity(spans)


def test_joined_by_two_words_a_training_step_is_one_span_per_unit_and_phase():
    row = joined(OVERLAPPED.lanes[0].spans, 2)
    phases = [span.label for span in row if span.activity != WAITING]
    assert phases == [
        *(f"forward {unit}" for unit in UNITS),
        *(f"backward {unit}" for unit in reversed(UNITS)),
        "optimizer adamw",
    ]


# ------------------------------------------------------------------------------------------------------ cells


def letters(lane, end):
    """The row of a compute lane in cells of one second, without numbers."""
    return main_activities(shares(lane, end, 1.0), 1.0)


def test_a_cell_shows_what_fills_most_of_it():
    lane = Lane(
        0, COMPUTE, (Span(0, 2.6, FORWARD, "f"), Span(2.6, 4, BACKWARD, "b"), Span(4.6, 5, WAITING, "w"))
    )
    assert letters(lane, 6) == [FORWARD, FORWARD, FORWARD, BACKWARD, IDLE, IDLE]


@given(rows_of_spans())
def test_spans_of_whole_cells_are_shown_exactly(spans):
    end = max((span.end for span in spans), default=1)
    exact = [
        next((span.activity for span in spans if span.start <= cell < span.end), IDLE)
        for cell in range(int(end))
    ]
    assert letters(Lane(0, COMPUTE, tuple(spans)), end) == exact


@given(rows_of_spans(), st.integers(2, 40))
def test_a_block_is_as_high_as_the_share_of_its_cells_time(spans, cell):
    end = -(-max((span.end for span in spans), default=1) // cell) * cell
    drawn_blocks = levels(shares(Lane(0, "dp", tuple(spans)), end, cell), FORWARD, cell)
    for number, block in enumerate(drawn_blocks):
        exact = sum(
            max(min(span.end, (number + 1) * cell) - max(span.start, number * cell), 0)
            for span in spans
            if span.activity == FORWARD
        )
        assert 0 <= BLOCKS.index(block) - 8 * exact / cell < 1


def test_five_percent_of_a_step_do_not_fill_a_row_and_a_message_however_short_is_seen():
    often = tuple(Span(cell + 0.5, cell + 0.55, COMMUNICATION, "m") for cell in range(10))
    assert levels(shares(Lane(0, "tp", often), 10, 1.0), COMMUNICATION, 1.0) == 10 * BLOCKS[1]
    three_eighths = (Span(0.0, 0.1, COMMUNICATION, "m"), Span(0.2, 0.4, COMMUNICATION, "m"))
    assert levels(shares(Lane(0, "tp", three_eighths), 0.8, 0.8), COMMUNICATION, 0.8) == BLOCKS[3]
    once = shares(Lane(0, "dp", (Span(1.5, 1.500001, COMMUNICATION, "m"),)), 3, 1.0)
    assert levels(once, COMMUNICATION, 1.0) == f" {BLOCKS[1]} "


def test_a_gpu_that_waits_has_a_row_that_says_how_much():
    spans = (Span(0, 2, FORWARD, "f"), Span(2, 3.3, WAITING, "w"), Span(3.3, 6, BACKWARD, "b"))
    lines = drawn(Timeline("x", 6.0, (Lane(0, COMPUTE, spans),)), width=27)
    assert lines[1:3] == ["GPU 0         FFFFxxxBBBBB", f"      exposed     {2 * BLOCKS[8]}{BLOCKS[5]}"]
    hardly = Lane(0, COMPUTE, (Span(0, 5.98, FORWARD, "f"), Span(5.98, 6, WAITING, "w")))
    assert not any(line.startswith("      exposed") for line in drawn(Timeline("x", 6.0, (hardly,))))


def compute(*operations):
    """A run of these operations, of three seconds each."""
    return Run(
        0,
        tuple(
            (0, COMPUTE, COMPUTE, name, 3.0 * place, 3.0 * place + 3, 0, 0, None)
            for place, name in enumerate(operations)
        ),
        3.0 * len(operations),
        {},
    )


def test_microbatches_are_numbered_where_there_is_room():
    pass_of_two = ["forward layers.0 qkv", "forward layers.0 out", "forward layers.0 out"]
    run = timeline("x", [compute(*pass_of_two, *pass_of_two, "backward layers.0 out", "optimizer adamw")])
    assert [span.microbatch for span in run.lanes[0].spans] == [0, 0, 0, 1, 1, 1, 0, None]
    assert drawn(run, width=39)[1] == "GPU 0         F0FFFFFFFF1FFFFFFFB0BOOO"
    many = timeline("x", [compute(*12 * ["forward layers.0 qkv"])])
    assert drawn(many, width=27)[1] == "GPU 0         " + 12 * "F"
    one = timeline("x", [compute(*pass_of_two, "backward layers.0 out", "optimizer adamw")])
    assert {span.microbatch for span in one.lanes[0].spans} == {None}


PHASE = {"F": FORWARD, "I": INPUT, "B": BACKWARD, "W": WEIGHT}


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "dualpipev"])
def test_every_pass_has_the_letter_and_the_microbatch_that_its_schedule_says(name):
    """DualPipeV runs some backward passes whole, and puts off the W of others."""
    schedule, program = build(name, 3, 7), load("3d_pipeline_parallel").strategy("ZB-V").program
    job = Job(SMALL.replace(layers=6), Mesh(pp=3), 7, microbatches=7, schedule=name, sizes_only=True)
    layers = layers_per_stage(job.model, schedule.layout.stages)
    units = [f"layers.{layer}" for layer in range(6)]
    stage_of = dict(zip(units, np.repeat(np.arange(len(layers)), layers)))
    run = timeline(name, launch(program, 3, POCKET, job, engine="inline"))
    for lane in (lane for lane in run.lanes if lane.stream == COMPUTE):
        planned: dict = defaultdict(list)
        shown: dict = defaultdict(list)
        for action in schedule.actions[lane.rank]:
            planned[PHASE[action.op], action.stage].append(action.microbatch)
        for span in lane.spans:
            activity, (_, unit) = span.activity, phase_and_unit(str(span.what))
            if unit in units and span.microbatch not in shown[activity, unit][-1:]:
                shown[activity, unit].append(span.microbatch)
        assert shown == {(activity, unit): planned[activity, stage_of[unit]] for activity, unit in shown}


@pytest.mark.parametrize(
    ("lesson", "strategy"),
    [("cp_context_parallel", "attention, ring in order"), ("ep_expert_parallel", "experts, divided")],
)
def test_parts_of_one_microbatch_are_not_numbered(lesson, strategy):
    """Attention takes block after block of keys, and a GPU's experts one after another."""
    _, results = Runner(POCKET, "inline").measured(entry_of(load(lesson).strategy(strategy), Job(), 4))
    spans = [span for lane in timeline(strategy, results).lanes for span in lane.spans]
    assert {span.microbatch for span in spans} == {None}


def test_without_numbers_the_backward_passes_of_a_unit_are_halves_alike():
    """A GPU's experts, one after another, put off their weights' gradients; its router does not."""
    job = entry_of(load("ep_expert_parallel").strategy("experts, divided"), Job(), 4)
    _, results = Runner(POCKET, "inline").measured(job)
    spans = timeline("experts", results).lanes[0].spans
    named = {(str(span.what).split()[1], span.activity) for span in spans if "backward" in str(span.what)}
    assert ("expert", INPUT) in named and ("expert", BACKWARD) not in named
    assert ("router", BACKWARD) in named and ("router", INPUT) not in named


def test_the_picture_has_at_most_100_columns_folds_equal_gpus_and_reads_without_colours():
    out = io.StringIO()
    alike_ones = OVERLAPPED._replace(
        lanes=tuple(lane._replace(rank=rank) for rank in range(4) for lane in ONE_GPU)
    )
    Console(file=out, width=120, color_system=None).print(Timelines([BLOCKING, alike_ones]))
    lines = out.getvalue().split("\n")
    assert max(map(len, lines)) <= 100
    assert [line.split()[1] for line in lines if line.startswith("GPU")] == [*"0123", "0-3"]
    assert alike(alike(alike_ones)) == alike(alike_ones)
    one_lane_each = alike_ones._replace(lanes=alike_ones.lanes[::2])
    assert [lane.ranks for lane in alike(one_lane_each).lanes] == [(0, 1, 2, 3)]
    first = lines[1].split()[-1]
    assert first.startswith("FFFF") and first.endswith("O") and "xB" in first


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_narrow_terminal_gets_a_narrow_picture(width):
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(Timelines([BLOCKING, OVERLAPPED]))
    rows = [line for line in out.getvalue().split("\n") if line.startswith("GPU")]
    assert len(rows) == 8 and max(map(len, rows)) <= width


def test_all_timelines_share_one_scale():
    blocking, overlapped = (
        sum(map(line.count, "FBxO.")) for line in drawn(BLOCKING, OVERLAPPED) if line.startswith("GPU 0")
    )
    assert overlapped / blocking == pytest.approx(OVERLAPPED.seconds / BLOCKING.seconds, abs=0.01)


def test_the_title_says_the_step_and_the_legend_only_what_occurs():
    lines = drawn(OVERLAPPED)
    assert lines[0] == f"overlapped  {si(OVERLAPPED.seconds, 's')}"
    assert lines[-3].split() == [
        "F",
        "forward",
        "B",
        "backward",
        "O",
        "optimizer",
        "x",
        "exposed",
        ".",
        "bubble",
    ]
    assert lines[-2].startswith("Letter: what fills most of a cell. Block: how much of it")
    assert lines[-1] == "Rows below a GPU: exposed time, and when each group communicates (dp)."


def test_legends_use_the_words_of_the_tables():
    assert set(legend_words((WAITING, IDLE)).values()) == {"exposed", "bubble"} < set(heads())


def test_the_legend_parts_its_letters_where_the_line_is_full():
    lines = [line.plain for line in gantt([timeline("pipeline", pipeline())], 28)]
    at = next(number for number, line in enumerate(lines) if line.startswith(" F  forward"))
    assert lines[at + 1].startswith(" ") and lines[at + 1].endswith(".  bubble")
    assert max(map(len, lines[at : at + 2])) <= 28 and not lines[at].endswith((" .", " x"))


def test_the_halves_of_a_backward_pass_have_letters_of_their_own_and_their_legend_says_which():
    spans = Span(0, 1, INPUT, "i"), Span(1, 2, WEIGHT, "w"), Span(2, 3, BACKWARD, "b")
    run = Timeline("split", 3.0, (Lane(0, COMPUTE, spans),))
    (legend,) = (line for line in drawn(run) if "B  backward" in line)
    assert legend == " B  backward    I  input gradient    W  weight gradient    .  bubble"
    (row,) = (line for line in drawn(run) if line.startswith("GPU 0"))
    assert [letter for letter, _ in groupby(row.split()[2])] == ["I", "W", "B"]


def test_a_backward_pass_and_its_halves_have_colours_of_their_own():
    spans = Span(0, 1, INPUT, "i"), Span(1, 2, WEIGHT, "w"), Span(2, 3, BACKWARD, "b")
    both = draw_timelines([Timeline("both", 3.0, (Lane(0, COMPUTE, spans),))])
    assert all(f">{word}<" in both for word in ("input gradient", "weight gradient", "backward"))
    assert len({ACTIVITIES[span.activity].light for span in spans}) == 3


def test_an_empty_run_is_drawn_without_complaint():
    assert drawn(Timeline("nothing", 0.0, (Lane(0, COMPUTE, ()),)))[0] == "nothing  0 s"
    assert timeline("none", []).seconds == 0


@given(st.floats(1e-9, 1e9))
def test_ticks_are_round_times_from_zero_to_the_end(seconds):
    times = ticks(seconds)
    assert times[0] == 0 and 3 <= len(times) <= 7 and times[-1] <= seconds * (1 + 1e-9)
    assert f"{times[1]:e}"[0] in "125" and float(f"{times[1]:.0e}") == times[1]


@given(st.floats(1e-9, 1e9), st.integers(30, 90))
def test_times_stand_under_their_ticks_and_never_run_together(end, columns):
    line, times = (text.plain for text in axis(end, 10, columns))
    assert len(line) == 10 + columns and len(times) <= 10 + columns
    assert times.split()[:2] == ["0", "s"]
    assert times[10] == "0" and line[10] == "|"


# ---------------------------------------------------------------------------------------------------- colours


def linear(colour):
    values = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]


def lab(red, green, blue):
    """CIELAB of linear sRGB, white D65."""
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (
        max(value, 0) ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in (x, y, z)
    )
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


# Machado, Oliveira, Fernandes: A physiologically-based model for simulation of color vision deficiency
# (2009), severity 1.0
SIGHT = {
    "everybody": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def distance(one, other, matrix):
    seen = [
        lab(*(min(max(sum(m * c for m, c in zip(row, linear(colour))), 0), 1) for row in matrix))
        for colour in (one, other)
    ]
    return sum((a - b) ** 2 for a, b in zip(*seen)) ** 0.5


SETS: dict[str, dict] = {
    "activities": ACTIVITIES,
    "memory": MEMORY | {"logits": LOGITS},
    "parts": {paint.letter: paint for paint in PARTS},
}


def colours(paints, mode):
    """The colours of a set, without idle time, which is the ground."""
    return [paint[mode] for paint in paints.values() if paint.letter != "."]


def seen_contrast(one, other):
    """WCAG 2.2, from the colours' luminance."""
    low, high = sorted(
        sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour)))
        for colour in (one, other)
    )
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("mode", [1, 2], ids=["light", "dark"])
@pytest.mark.parametrize("paints", SETS.values(), ids=SETS)
def test_any_two_colours_can_be_told_apart_however_one_sees(paints, mode, sight):
    shown = [*colours(paints, mode), GROUND[mode - 1]]
    assert min(distance(one, other, SIGHT[sight]) for one, other in combinations(shown, 2)) > 12


@pytest.mark.parametrize("mode", [1, 2], ids=["light", "dark"])
def test_every_colour_has_a_contrast_of_3_to_the_ground_that_lies_between_it_and_its_neighbours(mode):
    for colour in (colour for paints in SETS.values() for colour in colours(paints, mode)):
        assert seen_contrast(colour, GROUND[mode - 1]) >= 3
        assert seen_contrast(colour, ink_on(colour)) >= 4.5


@pytest.mark.parametrize("mode", [1, 2], ids=["light", "dark"])
def test_what_usually_touches_has_a_contrast_of_3_without_a_line_between(mode):
    kinds, parts = colours(MEMORY, mode), [paint[mode] for paint in PARTS]
    touching = [*pairwise(kinds), *pairwise(parts)]
    halves = [(half, other) for half in (BACKWARD, INPUT) for other in (FORWARD, WEIGHT, RECOMPUTE)]
    passes = [(FORWARD, WAITING), *halves]
    touching += [(ACTIVITIES[one][mode], ACTIVITIES[other][mode]) for one, other in passes]
    assert all(seen_contrast(one, other) >= 3 for one, other in touching)


def test_a_colour_has_one_meaning():
    for mode in (1, 2):
        every = [colour for paints in SETS.values() for colour in colours(paints, mode)]
        assert min(distance(one, other, SIGHT["everybody"]) for one, other in combinations(every, 2)) > 8


def test_every_activity_has_a_letter_of_its_own():
    letters = [paint.letter for paints in SETS.values() for paint in paints.values()]
    assert len(set(letters)) == len(letters) and BLANK not in letters


# ----------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"gpu{run.rank}")
def test_the_highest_point_of_memory_over_time_is_the_counted_peak(run):
    history = memory_history("ddp", run, HARDWARE.memory_bytes)
    assert history.peak_bytes == sum(run.peak_bytes.values())
    assert list(history.seconds) == sorted(history.seconds)


def test_memory_is_counted_in_the_programs_order_at_the_time_of_the_compute_stream():
    early, late = (
        (0, COMPUTE, COMPUTE, "forward", 0.0, 1.0, 0, 0, None),
        (0, COMPUTE, COMPUTE, "forward", 1.0, 2.0, 0, 0, None),
    )
    on_another_stream = (0, "dp", "memory", "buffers", 9.0, 9.0, 50, 0, None)
    freed = (0, COMPUTE, "memory", "buffers", 2.0, 2.0, 0, 0, None)
    history = memory_history("x", Run(0, (early, on_another_stream, late, freed), 9.0, {}), 100)
    assert history.seconds == (1.0, 2.0)
    assert [held["buffers"] for held in history.held] == [50, 0]


def test_what_a_compute_stream_communicates_has_its_letter_in_the_legend():
    collective = (0, COMPUTE, COLLECTIVE, ("all", 0, "all_reduce", "ring"), 0.0, 2.0, 0, 0, (0, 1))
    lines = drawn(timeline("x", [Run(0, (collective,), 4.0, {})]))
    assert any(line.startswith("GPU 0") and "==" in line for line in lines)
    assert " =  communication    .  bubble" in lines
