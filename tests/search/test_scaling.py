"""`ndparallel scaling`: the table that circulates fills its GPUs; the words of its picture lie inside of
that, and can be read."""

import re
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from ndparallel.search.scaling import USUAL, Point
from ndparallel.search.scaling_svg import BAR, scaling_svg
from tests.support.svg_text import outside, words_of

SIZES = 8, 64, 512, 2048, 16384


def picture(sizes, name="llama-3-8b") -> str:
    best: Any = SimpleNamespace(mfu=0.5, tokens_per_second_per_gpu=1e3)
    points = [Point(size, 128, best, "", None) for size in sizes]
    return scaling_svg(name, {"weak": points, "strong": points})


@pytest.mark.parametrize("gpus", USUAL)
def test_the_degrees_of_the_table_that_circulates_fill_its_gpus(gpus):
    usual = USUAL[gpus]
    assert usual.tp * usual.pp * usual.dp == gpus
    assert all(0 < least < most < 1 for least, most in (usual.efficiency, usual.mfu))


@pytest.mark.parametrize("sizes", [SIZES[:1], SIZES, range(1, 33)], ids=len)
def test_no_word_lies_beyond_the_picture(sizes):
    drawn = picture(sizes)
    assert {"strong: the batch stays", "usual range"} <= {each.text for each in words_of(drawn)}
    assert outside(drawn) == outside(picture(sizes, "a model of a course" * 30)) == []


def test_a_bar_s_number_has_the_ink_that_is_read_on_its_colour():
    drawn = ElementTree.fromstring(picture(SIZES))
    rules = "".join(style.text or "" for style in drawn.findall(".//{*}style"))
    classes = {name for shape in drawn.iter() for name in (shape.get("class") or "").split()}
    assert {"nd-on-weak", "nd-on-strong"} <= classes
    assert not [name for name in classes if not re.search(rf"\.{name}\b", rules)]


def test_the_bars_of_many_sizes_stand_beside_one_another():
    drawn = ElementTree.fromstring(picture(range(1, 33))).findall(".//{*}rect[@height]")
    bars = sorted({float(bar.get("x", "")) for bar in drawn if bar.get("width") == str(BAR)})
    assert len(bars) == 64
    assert all(right - left > BAR for left, right in zip(bars, bars[1:]))
