"""The quiet table that every command prints: one rule under its head, words left, numbers right.

Idea   A table is at most as wide as it may be, whatever the numbers: gaps shrink first, then heads, and at
       last the first column is folded, and the last where it holds words. Where the first has no room for its
       words, heads and numbers are folded too: a unit stands below its number, and nothing is cut off.
"""

import re
from collections.abc import Collection, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from ndparallel.base.quoting import visible
from ndparallel.base.words import WIDTH

FOLDED = 12  # the first column is folded to no less, where shorter heads help
WHOLE = 16  # letters: words of the first column that are not longer stay whole while others can be folded
PIECE = 3  # letters of a head's word that stay together then
MARKS = ("= ", "  ")  # before a row's name
SHORT = {  # where there is little room
    "efficiency": "eff.",
    "peak memory": "peak",
    "activations": "activ.",
    "gradients": "grads",
    "optimizer": "optim.",
}


def cell_style(column: str, cell: str) -> str:
    """Make stand out what is slower than one GPU, and what is not equal to it."""
    slower = column == "speedup" and cell != "-" and float(cell[:-1]) < 1
    wrong = column == "=0D" and cell not in ("=", "-")
    return "bold red" if wrong else "yellow" if slower else ""


def quiet_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH, words: Collection[str] = ()
) -> Table:
    """A rich table with one rule under its head: the first column and those of `words` to the left, the
    numbers to the right. The first column is folded where it must be, and the last if it holds words."""
    half = width // 2 if columns[-1] in words else width  # as wide as the last column is reckoned
    sized = [(*cells[:-1], cells[-1][:half]) for cells in rows]
    heads, gap = layout(columns, sized, width)
    widths, whole = column_widths(heads, gap, sized, width, words), longest(heads, sized)
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0), header_style="bold"
    )
    for number, head in enumerate(heads):
        is_last_of_words = head in words and number == len(heads) - 1
        table.add_column(
            head,
            justify="left" if number == 0 or head in words else "right",
            no_wrap=number > 0 and not is_last_of_words and widths[number] == whole[number],
            overflow="fold",
            max_width=None if is_last_of_words else widths[number],
        )
    last = width - sum(wide + gap for wide in longest(heads, rows)[:-1])
    for row in rows:
        cells = [*map(visible, row)]
        cells[0] = in_lines(cells[0], widths[0])
        cells[-1] = in_lines(cells[-1], last) if columns[-1] in words else cells[-1]
        table.add_row(*(Text(cell, style=cell_style(column, cell)) for column, cell in zip(columns, cells)))
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


def layout(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> tuple[Sequence[str], int]:
    """Heads and gaps: as roomy as lets the first column stand unfolded, else such that it is folded as little
    as need be."""
    short = [*map(shortened, columns)]
    name = longest(columns, rows)[0]
    for heads, gap, need in (
        (columns, 2, name),
        (columns, 1, name),
        (short, 1, name),
        (columns, 1, FOLDED),
    ):
        if room(heads, gap, rows, width) >= need:
            return heads, gap
    return short, 1


def shortened(column: str) -> str:
    return SHORT.get(column, column)


def longest(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """The length of every column's longest text."""
    return [max(map(len, texts)) for texts in zip(heads, *rows)]


def column_widths(
    heads: Sequence[str], gap: int, rows: Sequence[Sequence[str]], width: int, words: Collection[str]
) -> list[int]:
    """How wide every column may be. What the first lacks for its words the others give: heads are folded
    between their words first, then words of a column before the last, then numbers before their units, and at
    last heads within a word; of alike those that give most."""
    texts, widths = list(zip(heads, *rows)), longest(heads, rows)
    widths[0] = room(heads, gap, rows, width)
    need = min(WHOLE, longest_word(texts[0]))
    of_words = [n for n in range(1, len(heads) - 1) if heads[n] in words]
    numbers = [n for n in range(1, len(heads)) if heads[n] not in words]
    for least, given_by in (
        (with_head_folded, numbers),
        (longest_word, of_words),
        (longest_word, numbers),
        (with_head_broken, numbers),
    ):
        spare = {n: widths[n] - least(texts[n]) for n in given_by}
        for n in sorted(spare, key=lambda n: -spare[n]):
            given = max(min(need - widths[0], spare[n]), 0)
            widths[n], widths[0] = widths[n] - given, widths[0] + given
    return [max(widths[0], 1), *widths[1:]]


def longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)


def with_head_folded(texts: Sequence[str]) -> int:
    return max(longest_word(texts[:1]), *map(len, texts[1:]), 0)


def with_head_broken(texts: Sequence[str]) -> int:
    return max(longest_word(texts[1:]), min(longest_word(texts[:1]), PIECE))


def least_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width below which a table would cut its numbers, or fold its first column to less than FOLDED."""
    first, *others = longest([*map(shortened, columns)], rows)
    return min(FOLDED, first) + sum(wide + 1 for wide in others)


def room(heads: Sequence[str], gap: int, rows: Sequence[Sequence[str]], width: int) -> int:
    """What is left of the width for the first column."""
    return width - sum(wide + gap for wide in longest(heads, rows)[1:])
