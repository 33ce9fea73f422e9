"""Names from outside (of files, folders, models, hardware) written into what a program will read.

Idea   A name is shown, never interpreted. In a terminal and in a script's comment only control characters do
       harm: they are shown as Python writes them, as \\n or \\x1b. A language with quotation marks has a
       function of its own on top of that.
Limit  Names without control characters, quotation marks and backslashes stay as they are.

Glossary
    control character   what a terminal obeys and does not show: line breaks, escape, marks that turn the
                        direction of writing; and halves of a character, which no file can hold
"""

import re
import reprlib
import unicodedata
from typing import Any

MOST_SHOWN = 100  # characters of one value that a message repeats
MOST_READ = 2000  # characters of one message
LONG = re.compile(rf"\S{{{MOST_SHOWN + 1},}}")
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = MOST_SHOWN


def visible(text: str) -> str:
    """Return `text` with its control characters shown, as one line."""
    if text.isprintable():
        return text
    return "".join(character if is_shown(character) else escaped(character) for character in text)


def brief(value: Any) -> str:
    """Return a value as Python writes it, the middle left out where it is long."""
    return _BRIEF.repr(value)


def without_long_words(text: str) -> str:
    """Return `text`, the middle left out of every word that is longer than any name should be."""
    half = MOST_SHOWN // 2
    return LONG.sub(lambda word: f"{word[0][:half]}...{word[0][-half:]}", text)


def shortened(text: str) -> str:
    """Return `text`, the middle left out of its long words, and of the whole where nobody would read it."""
    half = MOST_READ // 2
    short = text if len(text) <= MOST_READ else f"{text[:half]} ... {text[-half:]}"
    return without_long_words(short)


def is_shown(character: str) -> bool:
    """Whether it is a character that is printed as itself; all kinds of spaces are."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


def escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def shell_comment(text: str) -> str:
    """Return one line that every shell passes over."""
    return f"# {visible(text)}"


def in_docstring(text: str) -> str:
    """Return what stands between triple quotes for `text`, so that Python reads the visible text again."""
    return visible(text).replace("\\", "\\\\").replace('"', '\\"')


def markup(text: str) -> str:
    """Return `text` for HTML and XML (SVG), as an element's text or in a quoted attribute."""
    from html import escape  # only where something is drawn: it brings a dictionary of 2,000 names along

    return escape(visible(text))
