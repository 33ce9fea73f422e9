"""An exercise as data: what the reader writes, how an answer is run, and what is said of it.

Idea   An exercise is one file: its docstring is the task, its functions are the model solution, and the
       reader's file is made from it by leaving their bodies out. Nothing about par is written down: it is
       what the model solution does when it is run beside the answer.

Glossary
    answer    the functions that a reader, or the model solution, has written
    attempt   what an answer did when it was run
    par       the figures of the model solution's attempt
    figure    a number of an attempt, with its unit in its name; less is better
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ndparallel.drawing.spans import Timeline
from ndparallel.pipeline.timing import Timing

TASKS = Path(__file__).parent / "tasks"  # our own exercises


@dataclass(frozen=True)
class Attempt:
    """What an answer did. `wrong` says what is not right with its numbers, and what that usually means;
    `remarks` say what is worth knowing of an answer that is right, and `advice` what could make it better;
    each GPU sends so many `sent_bytes`, and a step spends its seconds on what is in `spent`, on average over
    the GPUs."""

    figures: Mapping[str, float] = field(default_factory=dict)
    picture: Timeline | Timing | None = None
    wrong: str = ""
    remarks: tuple[str, ...] = ()
    advice: str = ""
    sent_bytes: tuple[float, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def sends_evenly(self) -> bool:
        """Whether no GPU sends much more than another."""
        return max(self.sent_bytes) <= 1.5 * min(self.sent_bytes)

    def with_fault(self, wrong: str) -> "Attempt":
        """Return the attempt with one more thing that may be wrong."""
        return replace(self, wrong=self.wrong or wrong)


def nothing_to_say(yours: Attempt, par: Attempt) -> str:
    return ""


@dataclass(frozen=True)
class Exercise:
    """One exercise, in the file that makes it.

    asks: the functions that the reader writes, each with its model solution. attempt: runs an answer.
    hints: at most three, from a nudge to nearly the answer. over_par: says of a right answer why it takes
    more than par. known_better: which better way is known; without it, a better answer to one of ours is
    worth offering. given: what the reader's file has besides. page: the chapter that teaches it. as_much:
    the share of a figure by which more is still par, and less not yet better. least: the share of a figure of
    par's that every right answer takes, because GPUs share nothing but messages.
    """

    file: str
    chapter: str
    minutes: int
    asks: Mapping[str, Callable[..., Any]]
    attempt: Callable[[Any], Attempt]
    hints: tuple[str, ...]
    learned: str
    page: str
    over_par: Callable[[Attempt, Attempt], str] = nothing_to_say
    known_better: str = ""
    given: tuple[str, ...] = ()
    as_much: float = 0.005
    least: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the reader's file is named for."""
        return Path(self.file).stem

    @property
    def is_ours(self) -> bool:
        return Path(self.file).parent == TASKS

    @property
    def word(self) -> str:
        """The word that the command takes: the name of one of ours, and the file of a reader's own."""
        path, here = Path(self.file), Path.cwd()
        if self.is_ours:
            return self.name
        return (path.relative_to(here) if path.is_relative_to(here) else path).as_posix()

    @cached_property
    def source(self) -> str:
        return Path(self.file).read_text("utf-8")

    @cached_property
    def task(self) -> str:
        """The task, as it opens the reader's file."""
        return ast.get_docstring(ast.parse(self.source)) or ""

    @property
    def title(self) -> str:
        return self.task.partition("\n")[0].removesuffix(".")
