"""The example of a script's own arguments that stands in one of its comments.

Idea   What only a caller knows ($4) is often written in the script itself: "# bash pretrain.sh 7B 8". A
       reader of the script would take it from there.
Limit  An example counts only where it names the script and has as many words as the script takes arguments: a
       copy of another script's, or one that a newer argument has outgrown, would put words in wrong places.
"""

import re
from dataclasses import dataclass, field

from ndparallel.launch_flags.shell.words import plain_words

EXAMPLE = re.compile(
    r"^[ \t]*#+[ \t]*(?:bash|sh)[ \t]+(?:\S*/)?(?P<script>[\w.-]+)[ \t]+(?P<words>.+)$", re.MULTILINE
)
ARGUMENT = re.compile(r"\$\{?(\d{1,2})")


@dataclass(frozen=True)
class Example:
    """Arguments that a script's comment shows, by their numbers, and its line; 0 where there is none."""

    arguments: dict[str, str] = field(default_factory=dict)
    line: int = 0


def example_of(text: str, name: str) -> Example:
    """The first example in the comments that calls the script by its `name` with all its arguments."""
    wanted = arguments_taken(text)
    for found in EXAMPLE.finditer(text) if wanted else ():
        words = plain_words(found["words"])
        if found["script"] == name and len(words) == wanted:
            return Example(by_number(words), text[: found.start()].count("\n") + 1)
    return Example()


def arguments_taken(text: str) -> int:
    """How many arguments of its own a script takes: the largest number of one that it names."""
    return max([int(number) for number in ARGUMENT.findall(text)], default=0)


def by_number(words: list[str]) -> dict[str, str]:
    """Arguments by their numbers, as the shell has them."""
    return {str(number): word for number, word in enumerate(words, 1)}
