"""The quiet table that every command prints: one rule under its head, words left, numbers right.

Idea   A table is at most as wide as it may be, whatever the numbers (table_columns.py).
"""

import re
from collections.abc import Collection, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from ndparallel.base.quoting import visible
from ndparallel.base.words import WIDTH
from ndparallel.results.table_columns import columns_in

MARKS = ("= ", "  ")  # before a row's name


def quiet_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH, words: Collection[str] = ()
) -> Table:
    """A rich table with one rule under its head: the first column and those of `words` to the left, the
    numbers to the right. The first column is folded where it must be, and the last if it holds words."""
    ends_in_words = columns[-1] in words
    reckoned = width // 2 if ends_in_words else width  # letters of the last column
    sized = [(*cells[:-1], cells[-1][:reckoned]) for cells in rows]
    (first, *others), gap = columns_in(columns, sized, width, words)
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0), header_style="bold"
    )
    table.add_column(first.head, overflow="fold", max_width=first.width)
    for column in others:
        takes_the_rest = ends_in_words and column is others[-1]
        table.add_column(
            column.head,
            justify="left" if column.has_words else "right",
            no_wrap=not (takes_the_rest or column.is_folded),
            overflow="fold",
            max_width=None if takes_the_rest else column.width,
        )
    rest = width - sum(column.longest + gap for column in (first, *others[:-1]))
    for row in rows:
        cells = [*map(visible, row)]
        cells[0] = in_lines(cells[0], first.width)
        if ends_in_words:
            cells[-1] = in_lines(cells[-1], rest)
        table.add_row(*(Text(cell, style=cell_style(head, cell)) for head, cell in zip(columns, cells)))
    return table


def in_lines(word: str, width: int) -> str:
    """A word that is longer than its column, as a plan's name, in lines that end with its commas; under one
    another behind a mark, "= " or blanks."""
    mark = word[:2] if word[:2] in MARKS else ""
    if " " in word[len(mark) :] or len(word) <= width:
        return word
    lines = [mark]
    for part in re.findall("[^,]*,|[^,]+", word[len(mark) :]):
        if len(lines[-1]) > len(mark) and len(lines[-1] + part) > width:
            lines.append(" " * len(mark))
        lines[-1] += part
    return "\n".join(lines)


def cell_style(column: str, cell: str) -> str:
    """Make stand out what is slower than one GPU, and what is not equal to it."""
    slower = column == "speedup" and cell != "-" and float(cell[:-1]) < 1
    wrong = column == "=0D" and cell not in ("=", "-")
    return "bold red" if wrong else "yellow" if slower else ""
