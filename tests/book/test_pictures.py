"""The pictures of README and docs: never stale, small, at home on light and dark pages, and true to the runs
they are drawn from."""

import itertools
import json
import re
from collections import Counter, defaultdict
from functools import cache, partial
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from gpu import COLLECTIVE, COMPUTE, MEMORY_KINDS
from ndparallel.book.check import documents
from ndparallel.book.pictures import (
    FOLDER,
    PICTURES,
    STAGES_OF_ZERO,
    TWO_D,
    Picture,
    is_stale,
    lesson_run,
    strays,
    time_one,
)
from ndparallel.commands import pictures as command
from ndparallel.commands.command_line import main
from ndparallel.drawing import notebook  # noqa: F401  registers what notebooks show
from ndparallel.drawing.block import block_run, place_of, talks
from ndparallel.drawing.fewer_spans import alike
from ndparallel.drawing.memory import MemoryHistory
from ndparallel.drawing.palette import ACTIVITIES, COMMUNICATION, FORWARD, PARTS
from ndparallel.drawing.spans import Lane, Span, Timeline
from ndparallel.drawing.svg.block import SCALE, draw_block
from ndparallel.drawing.svg.memory import HEADROOM, HIGHEST_SUM, draw_memory
from ndparallel.drawing.svg.parts import PLOT_WIDTH
from ndparallel.drawing.svg.schedules import HOLLOW_INSET, draw_schedules
from ndparallel.drawing.svg.timelines import draw_timelines
from ndparallel.drawing.svg.work import BARS_LEFT, BARS_WIDTH, draw_work
from ndparallel.lessons.registry import ROOT
from ndparallel.model.units import ModelConfig
from ndparallel.pipeline.catalog import build
from ndparallel.pipeline.timing import time_schedule
from ndparallel.pipeline.work import Work
from ndparallel.training.job import Job
from tests.drawing.test_timeline import SIGHT, distance
from tests.support.svg_text import outside

NAMESPACE = "{http://www.w3.org/2000/svg}"


def elements(svg, name):
    return list(ElementTree.fromstring(svg).iter(NAMESPACE + name))


def texts(svg):
    return [text.text for text in elements(svg, "text")]


# --------------------------------------------------------------------------------------- the files themselves


@pytest.mark.parametrize("name", PICTURES)
def test_no_picture_is_stale(name):
    assert not is_stale(name, picture(name), FOLDER), "look at it, after `ndparallel pictures --write`"


def test_nothing_else_lies_among_them():
    assert strays(FOLDER) == []


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_whole_in_itself_and_has_both_modes(name):
    svg = (FOLDER / f"{name}.svg").read_text("utf-8")
    assert len(svg.encode()) < 30_000
    assert svg.count("http") == 1 and not re.search(r"script|@import|url\((?!#)|font-face|href=\"[^#]", svg)
    assert svg.count("@media(prefers-color-scheme:dark)") == 1
    assert outside(svg) == []


def test_what_the_documents_show_is_there_and_has_words_for_those_who_cannot_see_it():
    for path in documents():
        for words, target in re.findall(r"!\[(.*?)\]\(([^)]*\.svg)\)", path.read_text("utf-8")):
            file = (path.parent / target).resolve()
            assert file.parent == FOLDER and file.stem in PICTURES, f"{path.name} shows {target}"
            assert len(words) > 20


def test_the_gallery_shows_every_picture_of_schedules():
    gallery = (ROOT / "docs" / "schedules.md").read_text("utf-8")
    assert all(f"(pictures/{name}.svg)" in gallery for name in PICTURES if name.startswith("schedules-"))


# ------------------------------------------------------------------------------------------------ the command


def drawn(name: str, engine: str) -> str:
    return f"<svg>{name}</svg>"


@pytest.fixture
def two(monkeypatch):
    """Two pictures that cost nothing."""
    few = {name: Picture(f"what {name} shows", partial(drawn, name)) for name in ("one", "other")}
    monkeypatch.setattr(command, "PICTURES", few)
    monkeypatch.setattr("ndparallel.book.pictures.PICTURES", few)


def pictures(capsys, *options):
    code = main(["pictures", *map(str, options)])
    return code, *capsys.readouterr()


def test_stale_pictures_are_told_written_and_then_up_to_date(two, capsys, tmp_path):
    folder = ("--folder", tmp_path)
    code, out, _ = pictures(capsys, *folder)
    assert code == 1 and out.count("stale") == 3 and not list(tmp_path.iterdir())
    code, out, _ = pictures(capsys, *folder, "--write")
    assert code == 0 and out.count("written") == 2 and (tmp_path / "one.svg").read_text() == "<svg>one</svg>"
    code, out, _ = pictures(capsys, *folder, "--write")
    assert code == 0 and out.count("up to date") == 2
    (tmp_path / "one.svg").write_text("<svg>older</svg>")
    assert pictures(capsys, *folder, "other")[0] == 0 and pictures(capsys, *folder, "one")[0] == 1


def test_a_file_that_no_picture_makes_is_told(two, capsys, tmp_path):
    (tmp_path / "old.svg").write_text("")
    code, out, _ = pictures(capsys, "--folder", tmp_path, "--write")
    assert code == 1 and "No picture is called old.svg" in out


def test_json_has_every_picture_and_nothing_else_is_printed(two, capsys, tmp_path):
    code, out, err = pictures(capsys, "--folder", tmp_path, "--json")
    record = json.loads(out)
    assert code == 1 and err == "" and record["strays"] == []
    assert record["pictures"][0] == {"name": "one", "state": "stale", "bytes": 14, "shows": "what one shows"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["1d-timelin"], "Did you mean '1d-timeline'?"),
        (["--folder", "nowhere"], "there is no directory 'nowhere' for pictures"),
    ],
)
def test_wrong_input_is_one_sentence(options, sentence, capsys):
    code, out, err = pictures(capsys, *options)
    assert code == 2 and out == "" and sentence in err and err.count("\n") == 1


# -------------------------------------------------------------------------------------- the transformer block


@cache
def runs():
    run = lesson_run("2d_tensor_parallel", TWO_D, "inline")
    return {name: block_run(name, run.results[name], "layers.4") for name in TWO_D}


def counts(run):
    return Counter(talk.operation for talk in run.talks)


def test_a_layer_talks_as_often_as_megatron_says():
    tp, sp, regather = (runs()[name] for name in TWO_D)
    assert counts(tp) == {"all-reduce": 4}
    assert counts(sp) == {"all-gather": 4, "reduce-scatter": 4}
    assert counts(regather) == {"all-gather": 6, "reduce-scatter": 4}
    config = ModelConfig()
    activation_bytes = config.sequence * 8 * config.hidden * 4
    sent = [sum(talk.bytes_sent for talk in run.talks) for run in (tp, sp, regather)]
    assert sent[0] == sent[1] == 4 * 2 * 3 / 4 * activation_bytes and sent[2] == sent[0] * 10 / 8


def test_f_and_g_are_conjugate():
    tp, sp, _ = (runs()[name] for name in TWO_D)
    for half in "12":
        f, g = f"f{half}", f"g{half}"
        assert [tp.operations(way, f) for way in ("forward", "backward")] == [[], ["all-reduce"]]
        assert [tp.operations(way, g) for way in ("forward", "backward")] == [["all-reduce"], []]
        assert [sp.operations(way, f) for way in ("forward", "backward")] == [
            ["all-gather"],
            ["reduce-scatter"],
        ]
        assert [sp.operations(way, g) for way in ("forward", "backward")] == [
            ["reduce-scatter"],
            ["all-gather"],
        ]


def test_regathering_gathers_once_more_where_the_backward_pass_meets_a_cut_by_columns():
    sp, regather = runs()["TP + SP"], runs()["TP + SP regather"]
    for way, place in itertools.product(("forward", "backward"), ("f1", "g1", "f2", "g2")):
        again = ["all-gather"] if way == "backward" and place[0] == "f" else []
        assert regather.operations(way, place) == sp.operations(way, place) + again


def test_a_collective_of_another_unit_is_not_the_blocks():
    assert place_of("forward layers.4 out", "forward layers.4 add1", "layers.4") == ("forward", "g1")
    assert place_of("forward layers.3 down", "forward layers.3 add2", "layers.4") is None
    assert place_of("backward layers.5 add1", "backward layers.4 down", "layers.4") == ("backward", "g2")
    assert place_of("backward layers.4 add1", "backward layers.3 down", "layers.4") is None


def test_a_collective_at_a_place_that_no_block_has_is_not_left_out_in_silence():
    events = ("forward layers.4 q", ("tp", 0, "all_reduce", "ring"), "forward layers.4 scores")
    run = SimpleNamespace(events=[event_of(what) for what in events])
    with pytest.raises(
        ValueError, match="all_reduce between 'forward layers.4 q' and 'forward layers.4 scores'"
    ):
        list(talks(run, "layers.4"))


def event_of(what):
    return (
        0,
        COMPUTE if isinstance(what, str) else "tp",
        COMPUTE if isinstance(what, str) else COLLECTIVE,
        what,
        0.0,
        1.0,
        0,
        0,
        None,
    )


HEADINGS = ("Attention", "MLP", "TP")


def y_of(text):
    return float(text.get("y", ""))


def drawn_slices(svg):
    """(colour, left, top, right, bottom) of every slice of the weights, which are drawn in each half above
    its first band."""
    tops = {word: [y_of(text) for text in elements(svg, "text") if text.text == word] for word in HEADINGS}
    halves = list(zip(tops["Attention"] + tops["MLP"], tops["TP"]))
    for rect in elements(svg, "rect"):
        x, y, width, height = (float(rect.get(name) or 0) for name in ("x", "y", "width", "height"))
        if (rect.get("class") or "").startswith("nd-rank") and any(low < y < high for low, high in halves):
            yield rect.get("class").split()[0], x, y, x + width, y + height


def areas(svg):
    """The area of every colour among the weights."""
    total: dict[str, float] = defaultdict(float)
    for colour, left, top, right, bottom in drawn_slices(svg):
        total[colour] += (right - left) * (bottom - top)
    return dict(total)


def drawn_block() -> str:
    config = ModelConfig()
    return draw_block(list(runs().values()), config.sequence, config.head_dim)


def test_no_two_slices_lie_on_one_another():
    slices = list(drawn_slices(drawn_block()))
    for (_, left, top, right, bottom), (_, x, y, end, base) in itertools.combinations(slices, 2):
        assert min(right, end) - max(left, x) < 0.02 or min(bottom, base) - max(top, y) < 0.02


def test_every_gpu_holds_as_much_of_the_weights_as_is_drawn_in_its_colour():
    svg, config = drawn_block(), ModelConfig()
    kv = 2 * config.kv_heads * config.head_dim * config.hidden
    numbers = config.hidden * config.hidden * 2 + 3 * config.hidden * config.ffn + kv
    assert areas(svg) == {
        f"nd-rank{rank}": pytest.approx(numbers / 4 * SCALE**2, rel=1e-3) for rank in range(4)
    }


def test_what_enters_is_cut_by_columns_and_what_leaves_by_rows():
    shapes: Counter[tuple] = Counter()
    for rect in elements(drawn_block(), "rect"):
        if (rect.get("class") or "").startswith("nd-rank2"):
            shapes[float(rect.get("width")) / SCALE, float(rect.get("height")) / SCALE] += 1
    assert shapes[8, 32] == 1 and shapes[32, 8] == 1  # a quarter of the columns of q, of the rows of out
    assert shapes[22, 32] == 2 and shapes[32, 22] == 1  # of the columns of gate and up, of the rows of down
    assert shapes[4, 16] == 2  # k and v: half of the columns, and GPU 3 has the same


def test_the_block_says_what_ran():
    words = Counter(texts(drawn_block()))
    assert words["2 all-reduces; a GPU sends 197 kB in 8.40 ms"] == 2  # a half of the layer
    assert words["all-reduce"] == 4 and words["all-gather"] == 4 + 4 and words["reduce-scatter"] == 4 + 2
    assert words["reduce-scatter, all-gather"] == 2 and words["nothing"] == 4
    # 2 KV heads on 4 GPUs: each is held twice
    assert words["heads 2-3, kv 0"] == 2 and words["heads 4-5, kv 1"] == 2
    assert words["tokens 16-31"] == 2 and words["all tokens"] == 2 * 4


@pytest.mark.parametrize("sight", SIGHT)
def test_gpus_have_colours_that_can_be_told_apart_however_one_sees(sight):
    for mode in (1, 2):
        colours = [paint[mode] for paint in (*PARTS, ACTIVITIES[COMMUNICATION])]
        assert (
            min(distance(one, other, SIGHT[sight]) for one, other in itertools.combinations(colours, 2)) > 12
        )


# ---------------------------------------------------------------------- drawings without an axis of time


@cache
def picture(name):
    return PICTURES[name].draw("inline")


def classes(name, kind="rect"):
    """How many shapes of every class a picture has."""
    return Counter((shape.get("class") or "").split()[0] for shape in elements(picture(name), kind))


def test_in_a_ring_every_gpu_gets_one_piece_a_hop_and_all_sums_after_six():
    words = Counter(texts(picture("ring")))
    arrows = [path for path in elements(picture("ring"), "path") if path.get("marker-end")]
    arrived = [rect for rect in elements(picture("ring"), "rect") if "arrived" in rect.get("class")]
    assert len(arrows) == len(arrived) == 6 * 4
    # complete sums: of hops 3 to 6 one GPU's more with each, as every piece has gone round
    assert words["abcd"] == 4 * (1 + 2 + 3 + 4)
    assert sum(words[letter] for letter in "abcd") == 4 * (4 + 3 + 2 + 1)


def test_a_stage_of_zero_shares_out_one_kind_more():
    svg = ElementTree.fromstring(picture("holders"))
    names = ["w", "g", "o"]
    per_stage = [Counter[str]() for _ in range(4)]
    tops = [float(t.get("y", "")) for t in svg.iter(NAMESPACE + "text") if t.text in STAGES_OF_ZERO]
    for shape in svg.iter(NAMESPACE + "text"):
        if shape.text in names and float(shape.get("y", "")) < tops[-1] + 70:
            per_stage[sum(float(shape.get("y", "")) > top for top in tops) - 1][shape.text] += 1
    assert [[stage[name] for name in names] for stage in per_stage] == [
        [16, 16, 16],
        [16, 16, 4],
        [16, 4, 4],
        [4, 4, 4],
    ]


def test_lines_between_gpus_are_as_thick_as_their_bytes_and_tp_outermost_crosses_nodes():
    lines = elements(picture("grid"), "path")
    widths = {path.get("stroke-dasharray"): float(path.get("stroke-width")) for path in lines}
    tp, dp, pp = (widths[dashes] for dashes in (None, "9 4", "3 4"))
    assert tp == 16 and dp == pytest.approx(16 * 106 / 559, rel=0.01) and pp == 1
    bows = Counter(path.get("stroke-dasharray") for path in lines if is_bow(path.get("d")))
    assert bows == {"3 4": 4, None: 4}  # between nodes: pp in the one layout, tp in the other


def is_bow(d):
    ys = [float(pair.split()[1]) for pair in re.split("[MQ]", d)[1:] if "Q" in d]
    return bool(ys) and len(set(re.findall(r"-?[\d.]+ (-?[\d.]+)", d))) == 2


def test_zigzag_is_equal_work_and_every_gpu_meets_every_block_once():
    words = texts(picture("zigzag"))
    assert [word for word in words if word.endswith("squares")] == [
        *(f"GPU {gpu}: {2 + 4 * gpu} squares" for gpu in range(4)),
        *(f"GPU {gpu}: 8 squares" for gpu in range(4)),
    ]
    met = [int(word[-1]) for word in words if word.startswith("block of GPU")]
    rows = [met[4 * gpu : 4 * gpu + 4] for gpu in range(4)]
    assert rows == [[(gpu - hop) % 4 for hop in range(4)] for gpu in range(4)]


def test_all_choices_of_all_tokens_arrive_at_an_expert():
    words = texts(picture("experts"))
    rows = [int(word.split()[-1]) for word in words if word.startswith("expert ")]
    assert len(rows) == 8 and sum(rows) == Job().batch * ModelConfig().sequence * 2
    by_gpu = [int(word.split()[2]) for word in words if word.endswith(" rows")]
    assert by_gpu == [a + b for a, b in zip(rows[::2], rows[1::2])]


def test_strips_are_as_high_as_what_is_held_and_on_one_scale():
    strips = [path.get("d") for path in elements(picture("1f1b-memory"), "path")]
    heights = []
    for d in (d for d, path in zip(strips, elements(picture("1f1b-memory"), "path")) if is_strip(path)):
        base = float(d[1:].split("H")[0].split()[1])
        heights.append(base - min(map(float, re.findall(r"V([\d.]+)", d))))
    assert heights == pytest.approx([8 * 2.5] * 4 + [4 * 2.5, 3 * 2.5, 2 * 2.5, 1 * 2.5], abs=0.01)


def is_strip(path):
    return path.get("class") == "nd-activations"


@pytest.mark.parametrize("name", ["ring-moving", "1f1b-filling"])
def test_what_moves_is_whole_where_nothing_may_move_and_has_no_script(name):
    svg = picture(name)
    assert "<script" not in svg and "<animate" not in svg
    still, _, moving = svg.partition("@media(prefers-reduced-motion:no-preference)")
    assert "animation:" not in still.partition("<style>")[2] and "animation:" in moving


# ----------------------------------------------------------------------------------- schedules, memory, lanes


def lengths(svg):
    """Pixels of every colour in a picture of schedules."""
    total: dict[str, float] = defaultdict(float)
    for path in elements(svg, "path"):
        if match := re.match(r"nd-(forward|backward|input|weight)(-hollow)?", path.get("class")):
            inset = 2 * HOLLOW_INSET if match[2] else 0
            total[match[1]] += sum(float(width) + inset for width in re.findall(r"h([\d.]+)v", path.get("d")))
    return total


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipev"])
def test_schedules_are_drawn_to_scale_and_number_every_action(name):
    timing = time_one(name)
    svg = draw_schedules([timing], end=40)
    assert sum(lengths(svg).values()) == pytest.approx(sum(timing.busy) * PLOT_WIDTH / 40, abs=1)
    assert len(elements(svg, "tspan")) == sum(len(actions) for actions in timing.schedule.actions)
    frames = [path.get("d") for path in elements(svg, "path") if path.get("class") == "frame"]
    assert sum(frame.count("M") for frame in frames) == sum(map(len, timing.schedule.fused))


@pytest.mark.parametrize(
    ("microbatches", "forward", "numbered"), [(8, 0.2, True), (24, 1.0, True), (64, 1.0, False)]
)
def test_a_narrow_actions_number_is_small_and_a_missing_one_is_told(microbatches, forward, numbered):
    timing = time_schedule(build("1f1b", 4, microbatches), Work.of_whole_stages(1, forward))
    svg, pixels = draw_schedules([timing]), PLOT_WIDTH / timing.makespan
    assert (len(elements(svg, "tspan")) == 2 * 4 * microbatches) == numbered
    assert ("no number: no room for it" in svg) != numbered
    room = {"nd-on-forward": forward * pixels, "nd-on-backward": 2 * pixels}
    for words in elements(svg, "text"):
        ink = (words.get("class") or "").rpartition(" ")[2]
        height = float((words.get("style") or "font-size:10px")[len("font-size:") : -len("px")])
        assert all(0.62 * height * len(span.text) <= room[ink] for span in words if ink in room)
        assert height >= 3


def test_a_notebook_shows_a_timed_schedule():
    timing: Any = time_one("zb-h1")
    assert timing._repr_svg_() == draw_schedules([timing])


def test_the_schedule_command_draws_what_it_prints(capsys, tmp_path):
    path = tmp_path / "schedules.svg"
    assert (
        main(["schedule", "gpipe", "1f1b", "--stages", "4", "--microbatches", "8", "--svg", str(path)]) == 0
    )
    assert path.read_text() == draw_schedules([time_one("gpipe"), time_one("1f1b")])
    assert f"{path} shows gpipe and 1f1b." in capsys.readouterr().out


def held(name, size):
    nothing = dict.fromkeys(MEMORY_KINDS, 0.0)
    return MemoryHistory(
        name, 0, 1.0, 1e12, (0.0, 0.5), (nothing | {"weights": 1e6}, nothing | {"weights": size})
    )


def heights(svg):
    """Pixels of every panel's weights."""
    for d in (
        path.get("d") for path in elements(svg, "path") if (path.get("class") or "").startswith("nd-weights")
    ):
        yield float(d.split()[1].split("H")[0]) - min(map(float, re.findall(r"V([\d.]+)", d)))


def test_panels_of_memory_are_as_high_as_their_peaks():
    low, high = heights(draw_memory([held("half", 5e6), held("whole", 1e7)]))
    assert high == pytest.approx(2 * low, abs=0.03)


def test_a_low_panel_is_drawn_again_a_whole_number_of_times_as_high():
    svg = draw_memory([held("low", 1e6), held("high", 1e7)])
    low, high, again = heights(svg)
    assert high == pytest.approx(10 * low, abs=0.1) and again == pytest.approx(10 * low, abs=0.1)
    assert "low, 10 times as high" in texts(svg)


def test_many_panels_of_memory_share_what_room_there_is():
    assert sum(heights(draw_memory([held("run", 1e7)] * 6))) == pytest.approx(HIGHEST_SUM / HEADROOM, abs=0.1)


ROWS = [
    {
        "gpus": 1,
        "step_seconds": 4.0,
        "compute_seconds": 4.0,
        "exposed_communication_seconds": 0.0,
        "bubble_seconds": 0.0,
    },
    {
        "gpus": 4,
        "step_seconds": 2.0,
        "compute_seconds": 1.0,
        "exposed_communication_seconds": 0.75,
        "bubble_seconds": 0.25,
    },
]


def test_a_bar_of_work_is_as_long_as_its_gpus_times_its_step():
    rows = [row | {"speedup": 4 / row["step_seconds"], "peak_memory_bytes": {"total": 1e6}} for row in ROWS]
    bars = [rect for rect in elements(draw_work(rows, ["alone", "four"]), "rect") if len(rect)]
    widths = [float(rect.get("width")) * 8 / BARS_WIDTH for rect in bars]
    assert widths == pytest.approx([4, 0, 0, 4, 3, 1], abs=1e-3)
    assert [rect[0].text for rect in bars[3:]] == [
        "compute: 4.00 s",
        "exposed: 3.00 s",
        "bubble: 1.00 s",
    ]
    assert float(bars[5].get("x")) == pytest.approx(BARS_LEFT + 7 / 8 * BARS_WIDTH, abs=0.01)


def test_only_gpus_that_did_the_very_same_are_drawn_as_one():
    def lanes(rank, end):
        return Lane(rank, COMPUTE, (Span(0.0, end, FORWARD, "forward"),)), Lane(rank, "dp", ())

    run = Timeline(
        "run",
        2.0,
        tuple(
            itertools.chain(*(lanes(rank, 2.0 if rank in (0, 1, 4, 5) else 2.0 - 1e-12) for rank in range(7)))
        ),
    )
    assert [lane.ranks for lane in alike(run).lanes[::2]] == [(0, 1, 4, 5), (2, 3, 6)]
    assert {"GPU 0-1 4-5", "GPU 2-3 6"} <= set(texts(draw_timelines([alike(run)])))
