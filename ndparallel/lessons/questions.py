"""The questions of the book, to be guessed before the run says it: each names the command that answers it.

Idea   A question is a table of questions.toml. Its number is never written down: the chapters and `ndparallel
       explore` run the command, and find it in its JSON. A test holds every answer inside its scale, and the
       questions that a chapter ends with to those of the same `number` here.
Limit  A guess is one number on a scale; what is asked for a reason has no scale, and is only unfolded.

Glossary
    value    an expression of the command's JSON, as ndparallel.results.record has it, in units without prefix
    number   its place among those that the chapter ends with; 0 where only the page asks it
    guess    which number is to be guessed, where the words leave it open
    scale    of the slider, in the question's unit: its ends, and its steps
    why      a sentence on what decides the answer
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ndparallel.base.files import parse_toml
from ndparallel.base.words import three_digits
from ndparallel.results.record import record_in, value_of

UNITS = {"%": 0.01, "x": 1.0, "ms": 1e-3, "s": 1.0, "MB": 1e6, "GB": 1e9, "TB": 1e12}
BOOK = {"How GPUs talk": "1d", "From the lesson to the cluster": "cluster"}  # else the lesson's


@dataclass(frozen=True)
class Question:
    """A question whose answer is one number in `unit`, on a scale from `low` to `high`. Without a command it
    asks for a reason."""

    name: str
    chapter: str
    words: str
    why: str
    unit: str = ""
    low: float = 0.0
    high: float = 0.0
    step: float = 1.0
    command: str = ""
    value: str = ""
    guess: str = ""
    number: int = 0

    @property
    def book(self) -> str:
        """The file of its chapter."""
        return f"docs/book/{BOOK.get(self.chapter, self.chapter.partition(':')[0].lower())}.md"

    def answer(self, printed: str) -> float:
        """Return the answer in the question's unit, from what its command prints with --json."""
        return value_of(self.value, record_in(printed)) / UNITS.get(self.unit, 1.0)

    def said(self, number: float) -> str:
        """Write a number in the question's unit, with three digits."""
        return f"{three_digits(number)}{'' if self.unit in ('%', 'x') else ' '}{self.unit}"


@cache
def questions() -> tuple[Question, ...]:
    """Return all questions, in the order of the book."""
    text = Path(__file__).with_name("questions.toml").read_text("utf-8")
    return tuple(question_of(name, table) for name, table in parse_toml(text).items())


def question_of(name: str, table: dict[str, Any]) -> Question:
    scale = dict(zip(("low", "high", "step"), table.pop("scale", ())))
    return Question(name, **scale, **table)
