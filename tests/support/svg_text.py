"""Where the words of an SVG lie, in DejaVu Sans: the widest font that a system's own is likely to be.

Limit  No kerning, and no font but this one: its widths were measured once, in a browser.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple
from xml.etree.ElementTree import Element, fromstring

NAMESPACE = "{http://www.w3.org/2000/svg}"
PER_CENT_OF_HEIGHT = {  # letters by their width
    28: "'ijlIJ",
    33: " .,-/:;|·",
    40: "()[]frt!",
    52: 'cszvxyk?L_–*"^`',
    64: "abdeghnopqu0123456789FESZY$CPT{}",
    70: "ABKRVX",
    79: "DGHNOQU&Ψ",
    84: "+<>=~×→#",
    100: "mwMW%@…",  # and whatever is not listed
}
WIDTH_OF = {letter: width / 100 for width, letters in PER_CENT_OF_HEIGHT.items() for letter in letters}
BOLD = 1.13
PIXELS = {"small": 10, "digit": 10, "nd-digit": 10}
PLAIN = 12


class Words(NamedTuple):
    text: str
    left: float
    right: float
    base: float


def words_of(svg: str) -> Iterator[Words]:
    """Yield every text of a picture, and every letter that has a place of its own."""
    root = fromstring(svg)
    named = {each.get("id"): each for each in root.iter() if each.get("id")}
    yield from _words(root, 0.0, 0.0, named)


def outside(svg: str) -> list[str]:
    """The texts that do not lie inside the picture."""
    root = fromstring(svg)
    width, height = (float(root.get(side, "")) for side in ("width", "height"))
    return [
        f"{each.text!r}, {each.left:.0f} to {each.right:.0f} of {width:g}, {each.base:.0f} of {height:g}"
        for each in words_of(svg)
        if not (each.left >= 0 and each.right <= width and 0 < each.base <= height)
    ]


def _words(part: Element, x: float, y: float, named: dict) -> Iterator[Words]:
    for each in part:
        tag = each.tag.removeprefix(NAMESPACE)
        if tag == "use":
            at_x, at_y = (x + float(each.get("x", 0)), y + float(each.get("y", 0)))
            yield from _words(named[each.get("href", "")[1:]], at_x, at_y, named)
        elif tag == "g":
            moved = re.match(r"translate\(([-\d.]+)[ ,]([-\d.]+)\)", each.get("transform", "translate(0 0)"))
            assert moved, each.get("transform")
            yield from _words(each, x + float(moved[1]), y + float(moved[2]), named)
        elif tag == "text":
            yield from _placed(each, x, y)


def _placed(text: Element, x: float, y: float) -> Iterator[Words]:
    base = y + float(text.get("y", 0))
    for each in [text, *text.iter(f"{NAMESPACE}tspan")]:
        places = [float(place) for place in (each.get("x") or "").split()]
        if len(places) > 1:
            for place, letter in zip(places, each.text or "", strict=True):
                yield _anchored(letter, x + place, base, text)
        elif each.text:
            yield _anchored(each.text, x + sum(places), base, text)


def _anchored(words: str, x: float, base: float, text: Element) -> Words:
    kinds = (text.get("class") or "").split()
    style = re.search(r"font-size:([\d.]+)px", text.get("style", ""))
    pixels = float(style[1]) if style else min([PIXELS[kind] for kind in kinds if kind in PIXELS] or [PLAIN])
    width = pixels * sum(WIDTH_OF.get(letter, 1.0) for letter in words) * (BOLD if "name" in kinds else 1)
    middle = {"middle", "nd-digit"} & {*kinds, text.get("text-anchor")}
    left = x - (width if "end" in kinds else width / 2 if middle else 0)
    return Words(words, left, left + width, base)
