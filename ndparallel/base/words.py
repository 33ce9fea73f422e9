"""Numbers in sentences: plurals, lists, comparisons, and paragraphs that never part a number from its
unit."""

import re
import shlex
import textwrap
from collections.abc import Sequence
from typing import Any

WIDE = 140  # columns of a table with --wide
WIDTH = 100  # columns: the most that anything needs, and the width of what is not shown on a terminal
NO_BREAK = "\u00a0"
MOST_CHOICES = 8  # that a sentence names one by one
LABELLED_OR_PLAIN = re.compile(
    r"^(?:(?P<label>\w+ {2,})(?=\S)|(?=\S))(?P<words>.+(?:\n(?(label) {7}|(?!\w+ {2}))\S.*)*)", re.MULTILINE
)
SPACE_BEFORE_UNIT = re.compile(r"(?<=\d) (?=[numkMGTP]?(?:s|B|FLOP|GPUs?)\b)")


def count(number: int, noun: str, ending: str = "s") -> str:
    """Write "1 GPU" or "4 GPUs"; `ending` is the ending of the plural."""
    return f"{number} {noun}{ending if number != 1 else ''}"


def option_of(field: str) -> str:
    """Return the option of a field: --global-batch of global_batch. Errors name it, for a caller from Python
    too, who knows his field by it."""
    return f"--{field.replace('_', '-')}"


def option_words(field: str, value: Any) -> str:
    """Return the option of a field with its value, as it is typed: --tp 8, --no-sequence-parallel."""
    if isinstance(value, bool):
        return option_of(field if value else f"no_{field}")
    values = value if isinstance(value, list) else [value]
    return " ".join([option_of(field), *(shlex.quote(str(each)) for each in values)])


def three_digits(number: float) -> str:
    """Write a number with three digits, from 1,000 on whole: never with an exponent of ten above 0."""
    return f"{number:,.0f}" if abs(number) >= 999.5 else f"{number:.3g}"


def ended(sentence: str) -> str:
    """End a sentence with a full stop, unless it has an end."""
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def listed(names: Sequence[str], word: str = "and") -> str:
    """Write "a, b and c", or "a; b, c; and d" where a name has a comma of its own; or another `word`."""
    own = len(names) > 2 and any("," in name for name in names)
    comma, last = ("; ", f"; {word} ") if own else (", ", f" {word} ")
    return last.join(part for part in (comma.join(names[:-1]), *names[-1:]) if part)


def choices(numbers: Sequence[int], asked: int) -> str:
    """Write what may be chosen, smallest first, where `asked` may not: "1, 2, 4"; of more than MOST_CHOICES
    the nearest below and above: "16 or 20, for example"."""
    if len(numbers) <= MOST_CHOICES:
        return ", ".join(map(str, numbers))
    below, above = [n for n in numbers if n < asked], [n for n in numbers if n > asked]
    return f"{' or '.join(map(str, below[-1:] + above[:1]))}, for example"


def compare_durations(seconds: float, other_seconds: float) -> str:
    """Compare two durations in words: "takes 1.5% longer", "takes 3.2x as long", "takes 1.5% less time" or
    "takes as long"."""
    if seconds >= 2 * other_seconds:
        return f"takes {seconds / other_seconds:.1f}x as long"
    longer = f"{seconds / other_seconds - 1:+.1%}"
    if float(longer[:-1]) == 0:
        return "takes as long"
    return f"takes {longer[1:]} {'longer' if longer[0] == '+' else 'less time'}"


def change_in(seconds: float, other_seconds: float) -> str:
    """Write by how much a duration differs from another: "+1.5%", from ten times on "64x"."""
    times = seconds / other_seconds
    return f"{times:,.3g}x" if times >= 10 else f"{times - 1:+.1%}"


def paragraph(words: str, width: int) -> str:
    """Break a text into lines of at most `width` characters; a longer word, as of a path, stays whole."""
    glued = SPACE_BEFORE_UNIT.sub(NO_BREAK, words)
    lines = textwrap.wrap(glued, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(NO_BREAK, " ")


def folded(text: str, width: int) -> str:
    """Break a docstring's paragraphs anew into lines of at most `width` characters: plain ones, and those
    with a label ("Idea   ..."), whose lines stand below one another. Indented lines, as of examples, stay as
    they are."""
    return LABELLED_OR_PLAIN.sub(
        lambda found: hanging(found["label"] or "", " ".join(found["words"].split()), width), text
    )


def hanging(label: str, words: str, width: int) -> str:
    """Write a label and, beside it, a text in lines that end at `width` characters."""
    return label + paragraph(words, width - len(label)).replace("\n", "\n" + " " * len(label))


def ranges(ranks: Sequence[int]) -> str:
    """Write "0", "0-3" or "0-1 4-5"."""
    starts = [rank for rank in ranks if rank - 1 not in ranks]
    ends = [rank for rank in ranks if rank + 1 not in ranks]
    return " ".join(f"{start}-{end}" if start < end else f"{start}" for start, end in zip(starts, ends))
