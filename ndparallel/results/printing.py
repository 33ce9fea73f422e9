"""What all commands print with: one console, one form of JSON, and paragraphs.

Idea   What is no terminal gets `WIDTH` columns and no colours, so that a pipe's bytes are the same
       everywhere. mpirun gives rank 0 a terminal of its own, wherever its output goes: that one counts as
       a pipe.
"""

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from rich.console import Console
from rich.text import Text

from ndparallel.base.json_text import json_text
from ndparallel.base.quoting import visible
from ndparallel.base.words import WIDTH, paragraph
from ndparallel.engines.world import launched_size


class WithoutTrailingBlanks:
    """Standard output or errors, for a console that fills its lines up with blanks."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return getattr(sys, self.stream).write(re.sub(r" +(?=\n)", "", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(sys, self.stream), name)


def plain_console(most: int = WIDTH, stream: str = "stdout") -> tuple[Console, int]:
    """Where to print, and how wide a table or a paragraph may be, at `most`. Words are printed as they are:
    no markup, no emoji codes."""
    of_launcher = launched_size() > 1
    width = None if getattr(sys, stream).isatty() and not of_launcher else most
    terminal = False if of_launcher else None  # None lets rich find out
    file = cast(TextIO, WithoutTrailingBlanks(stream))
    console = Console(
        file=file, width=width, force_terminal=terminal, highlight=False, emoji=False, markup=False
    )
    return console, min(console.width, most)


def print_json(value: Any) -> None:
    print(json_text(value))


def print_paragraphs(console: Console, paragraphs: Iterable[str], width: int) -> None:
    for words in paragraphs:
        console.print(prose(words, width))


def prose(words: str, width: int, bold: str = "") -> Text:
    """A paragraph that begins with what is `bold`."""
    text = Text(paragraph(visible(words), width))
    text.stylize("bold", 0, len(visible(bold)))
    return text
