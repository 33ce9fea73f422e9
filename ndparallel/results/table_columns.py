"""How wide the columns of a table are, where there is little room.

Idea   Gaps shrink first, then heads become short, and at last the first column is folded, and the last where
       it holds words. Where the first has no room for its words, heads and numbers are folded too: a unit
       stands below its number, and nothing is cut off.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

FOLDED = 12  # the first column is folded to no less, where shorter heads help
WHOLE = 16  # letters: words of the first column that are not longer stay whole while others can be folded
PIECE = 3  # letters of a head's word that stay together then
SHORT = {  # where there is little room
    "efficiency": "eff.",
    "peak memory": "peak",
    "activations": "activ.",
    "gradients": "grads",
    "optimizer": "optim.",
}


@dataclass
class TableColumn:
    """A column, which is as wide as its longest text until it gives some of its `width`."""

    head: str
    cells: Sequence[str]
    has_words: bool
    width: int = field(init=False)

    def __post_init__(self) -> None:
        self.width = self.longest

    @property
    def longest(self) -> int:
        return max(map(len, (self.head, *self.cells)))

    @property
    def is_folded(self) -> bool:
        return self.width < self.longest

    # ------------------------------------------------------------------ the least width, if ... may be folded

    def with_words_apart(self) -> int:
        return longest_word((self.head, *self.cells))

    def with_head_folded(self) -> int:
        return max(longest_word([self.head]), *map(len, self.cells), 0)

    def with_head_broken(self) -> int:
        return max(longest_word(self.cells), min(longest_word([self.head]), PIECE))


def longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)


def columns_in(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, words: Collection[str]
) -> tuple[list[TableColumn], int]:
    """The columns of a table in so much room, and the gap behind each."""
    columns, gap = layout(heads, rows, width, words)
    columns[0].width = room(columns, gap, width)
    widen_first(columns)
    return columns, gap


def columns_of(
    heads: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[str] = (), short: bool = False
) -> list[TableColumn]:
    """The columns with all that they hold in one line."""
    return [
        TableColumn(SHORT.get(head, head) if short else head, cells, head in words)
        for head, *cells in zip(heads, *rows)
    ]


def layout(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, words: Collection[str]
) -> tuple[list[TableColumn], int]:
    """Heads and gaps: as roomy as lets the first column stand unfolded, else such that it is folded as little
    as need be."""
    long, short = (columns_of(heads, rows, words, short) for short in (False, True))
    name = long[0].longest
    for columns, gap, need in ((long, 2, name), (long, 1, name), (short, 1, name), (long, 1, FOLDED)):
        if room(columns, gap, width) >= need:
            return columns, gap
    return short, 1


def room(columns: Sequence[TableColumn], gap: int, width: int) -> int:
    """What is left of the width for the first column."""
    return width - sum(column.longest + gap for column in columns[1:])


def widen_first(columns: Sequence[TableColumn]) -> None:
    """Give the first column what it lacks for its words. Heads are folded between their words first, then
    words of a column before the last, then numbers before their units, and at last heads within a word; of
    alike those that give most."""
    first, *others = columns
    need = min(WHOLE, first.with_words_apart())
    numbers = [column for column in others if not column.has_words]
    words = [column for column in others[:-1] if column.has_words]
    for least, givers in (
        (TableColumn.with_head_folded, numbers),
        (TableColumn.with_words_apart, words),
        (TableColumn.with_words_apart, numbers),
        (TableColumn.with_head_broken, numbers),
    ):
        for giver in sorted(givers, key=lambda column: least(column) - column.width):
            given = max(min(need - first.width, giver.width - least(giver)), 0)
            giver.width -= given
            first.width += given
    first.width = max(first.width, 1)


def least_width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width below which a table would cut its numbers, or fold its first column to less than FOLDED."""
    first, *others = columns_of(heads, rows, short=True)
    return min(FOLDED, first.longest) + sum(column.longest + 1 for column in others)
