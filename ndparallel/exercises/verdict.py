"""What is said of an answer: its mark, its figures beside par's, and both timelines.

Glossary
    mark    one of MARKS
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from ndparallel.base.quantities import si_or_dash
from ndparallel.base.words import ended, listed
from ndparallel.drawing.spans import Timeline
from ndparallel.drawing.terminal.schedules import columns_per_second, draw, left_out, legend
from ndparallel.drawing.terminal.timelines import Timelines
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.lessons.registry import ROOT
from ndparallel.pipeline.timing import Timing
from ndparallel.results.printing import prose
from ndparallel.results.tables import quiet_table

NOT_BEGUN, WRONG, PASSED, PAR, BETTER = ("not begun", "wrong", "passed", "par", "better than par")
IN_WORDS = {PAR: "as good as ours", BETTER: "better than ours"}
UNITS = {"seconds": "s", "bytes": "B"}


@dataclass(frozen=True)
class Verdict:
    """The mark of one answer, and why. `yours` and `par` are figures; a picture may be missing."""

    exercise: str
    mark: str
    sentences: tuple[str, ...] = ()
    yours: Mapping[str, float] = field(default_factory=dict)
    par: Mapping[str, float] = field(default_factory=dict)
    pictures: tuple[Timeline | Timing | None, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict in JSON's types."""
        return {
            "exercise": self.exercise,
            "mark": self.mark,
            "sentences": list(self.sentences),
            "yours": dict(self.yours),
            "par": dict(self.par),
        }


def judge(exercise: Exercise, yours: Attempt, par: Attempt) -> Verdict:
    """Hold an attempt against the model solution's."""
    yours = yours.with_fault(too_little(exercise, yours.figures, par.figures))
    mark = WRONG if yours.wrong else mark_of(yours.figures, par.figures, exercise.as_much)
    sentences = tuple(filter(None, reasons(exercise, mark, yours, par)))
    pictures = (yours.picture, par.picture) if yours.picture else ()
    return Verdict(exercise.name, mark, sentences, yours.figures, par.figures, pictures)


def too_little(exercise: Exercise, yours: Mapping[str, float], par: Mapping[str, float]) -> str:
    """Say which figure is less than any right answer's; nothing where none is."""
    for name in exercise.least.keys() & yours.keys():
        least = exercise.least[name] * par[name]
        if yours[name] < least * (1 - exercise.as_much):
            return (
                f"The numbers are right, with {shown(name, yours[name])} of {words(name)}. But they take at "
                f"least {shown(name, least)}: GPUs share nothing but messages, so send what the others need."
            )
    return ""


def mark_of(yours: Mapping[str, float], par: Mapping[str, float], as_much: float) -> str:
    """Return PASSED where any figure is more than par's, BETTER where one is less and none is more."""
    more = [name for name in par if yours[name] > par[name] * (1 + as_much)]
    less = [name for name in par if yours[name] < par[name] * (1 - as_much)]
    return PASSED if more else BETTER if less else PAR


def reasons(exercise: Exercise, mark: str, yours: Attempt, par: Attempt) -> Iterator[str]:
    if mark == WRONG:
        yield ended(yours.wrong)
        return
    yield headline(mark, yours.figures, par.figures)
    if mark == BETTER:
        yield exercise.known_better or "Offer it to the project." * exercise.is_ours
    yield from yours.remarks
    if mark == PASSED:
        yield exercise.over_par(yours, par)
    else:
        more = f" More: {exercise.page}." if (ROOT / exercise.page).exists() else ""
        yield f"What you learned: {exercise.learned}{more}"


def headline(mark: str, yours: Mapping[str, float], par: Mapping[str, float]) -> str:
    """Say how an answer that is right compares with par."""
    if mark == PAR:
        return "Right, and as good as the model solution."
    times = {name: yours[name] / par[name] for name in par if par[name]}
    if mark == BETTER:
        better = [name for name, ratio in times.items() if ratio < 1]
        return f"Right, and better than the model solution in {listed([words(name) for name in better])}."
    missing = [name for name in par if not par[name] and yours[name]]
    if missing:
        return (
            f"Right, with {shown(missing[0], yours[missing[0]])} of {words(missing[0])}, where the model "
            "solution has none."
        )
    name = max(times, key=lambda name: times[name])
    return f"Right, with {times[name]:.3g} times the model solution's {words(name)}."


def words(figure: str) -> str:
    """Name a figure as people do: "step_seconds" is "step time", "peak_memory_bytes" is "peak memory"."""
    return figure.removesuffix("_bytes").replace("_seconds", "_time").replace("_", " ")


def shown(figure: str, value: float) -> str:
    unit = next((unit for word, unit in UNITS.items() if word in re.split("[_ ]", figure)), None)
    return si_or_dash(value, unit) if unit else f"{value:g}"


def printed(verdict: Verdict, title: str, width: int) -> Iterator[RenderableType]:
    """Yield what shows a verdict on the terminal, part by part."""
    headed = f"{title}: {IN_WORDS.get(verdict.mark, verdict.mark)}"
    yield prose(headed, width, bold=headed)
    yield from (prose(line, width) for sentence in verdict.sentences for line in sentence.splitlines())
    if verdict.yours:
        rows = [
            (words(name), shown(name, verdict.yours[name]), shown(name, par))
            for name, par in verdict.par.items()
            if name in verdict.yours  # an exercise of one's own may measure less where an answer is wrong
        ]
        yield quiet_table(("", "yours", "model solution"), rows, width)
    yield from drawn(verdict.pictures, width)


def drawn(pictures: Sequence[Timeline | Timing | None], width: int) -> Iterator[RenderableType]:
    """Draw the answer's run above par's, on one scale."""
    named = list(zip(("yours", "model solution"), pictures))
    timings = [(name, picture) for name, picture in named if isinstance(picture, Timing)]
    timelines = [picture._replace(name=name) for name, picture in named if isinstance(picture, Timeline)]
    scale = columns_per_second([timing for _, timing in timings], width) if timings else 0
    for name, timing in timings:
        missing = left_out(timing, scale, width)
        yield Text.assemble((name, "bold"), "\n", draw(timing, scale, True, width), f"\n{missing}".rstrip())
    if timings:
        yield legend([timing for _, timing in timings], plain=True, scale=scale)
    if timelines:
        yield Timelines(timelines)
