"""What a search found, as tables for people, and as JSON and CSV for programs."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from gpu import si
from ndparallel.base.words import WIDTH, count
from ndparallel.planner.describe import bound, plan_words
from ndparallel.planner.prediction import DEGREES, Prediction
from ndparallel.results.printing import plain_console, prose
from ndparallel.results.tables import quiet_table
from ndparallel.search.promises import EFFORT
from ndparallel.search.search import Found

TIGHT = 0.05  # of a GPU's memory; predictions of memory are off by 4 % in the mean (docs/validation.md)
COLUMNS = ("step", "MFU", "memory", "bound by")
FIGURES = ("step_seconds", "tokens_per_second_per_gpu", "tflops_per_gpu", "mfu", "hfu", "microbatches")


def with_words_last(table: Table) -> Table:
    """The last column holds words: to the left, and folded."""
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    return table


def cells(found: Prediction) -> tuple[str, ...]:
    kind, share = bound(found)
    return (
        plan_words(found.plan),
        si(found.seconds, "s"),
        f"{found.mfu:.1%}",
        si(float(found.fullest.total), "B"),
        f"{kind} {share:.0%}",
    )


def ranking(answers: Sequence[Prediction], width: int, what: str = "plan") -> Table:
    """Plans, and what bounds each."""
    return quiet_table((what, *COLUMNS), [cells(found) for found in answers], width)


def rejected(found: Found, width: int) -> Table:
    """Why other plans are none, the most frequent reason first."""
    rows = [(reason, f"{number:,}") for reason, number in found.rejected.most_common()]
    return quiet_table(("rejected", "plans or layouts"), rows, width)


def certainty(found: Found) -> str:
    """How many plans there were, and how sure it is that the first is the fastest."""
    counted = (
        f"{found.legal:,} legal plans, of which {found.fit:,} fit; all of these priced, "
        f"{count(found.timed, 'plan')} timed."
    )
    if found.gap < 0.0005:
        return f"{counted} No other plan can be faster."
    return (
        f"{counted} By its price no plan that was not timed can be more than {found.gap:.1%} faster than the "
        "first."
    )


def room(found: Found) -> str:
    """A warning where the best plan fits by less than the planner knows."""
    left = 1 - max(memory.total for memory in found.best.memory) / found.job.hardware.memory_bytes
    if left >= TIGHT:
        return ""
    return (
        f" It leaves {left:.1%} of the memory, and memory is predicted to some per cent: leave more with "
        "--max-memory."
    )


def as_json(found: Found, tokens: float) -> dict[str, Any]:
    """In JSON's types, with the stable keys."""
    return {
        "plans": [
            answer.as_dict() | {"days": answer.days(tokens), "tokens": tokens} for answer in found.answers
        ],
        "rejected": dict(found.rejected),
        "legal": found.legal,
        "fit": found.fit,
        "timed": found.timed,
        "gap_ratio": found.gap,
    }


def as_csv(answers: Iterable[Prediction]) -> str:
    """One line a plan, under a line of names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*DEGREES, *FIGURES, "memory_bytes", "bound_by", "bound_ratio"])
    for answer in answers:
        values = answer.as_dict()
        writer.writerow(
            [
                *(values["plan"][name] for name in DEGREES),
                *(values[name] for name in FIGURES),
                answer.fullest.total,
                *bound(answer),
            ]
        )
    return text.getvalue()


# ---------------------------------------------------------------------------------------------------- printed


def effort_words(gpus: int) -> str:
    """What a search goes through at the most."""
    where = count(gpus, "GPU")
    return f"a search of all legal plans on {where}, of which {EFFORT:,} actions are timed at the most"


def show_search(found: Found, changed: dict[str, Prediction]) -> None:
    console, width = plain_console()
    job, title = found.job, found.job.shape.name
    billions = job.shape.parameters().total / 1e9
    words = (
        f"{billions:.4g} billion parameters on {count(found.gpus, 'GPU')} ({job.hardware.name}), "
        f"{job.dtype}, {job.stack.name}."
    )
    console.print(
        prose(f"{title}  {words} Batch {job.global_batch} x {job.sequence}.", width, bold=title), end="\n\n"
    )
    for table in (ranking(found.answers, width), rejected(found, width)):
        console.print(table)
        console.print()
    console.print(prose(certainty(found), width))
    console.print(
        prose(
            f"The first takes {si(found.best.seconds, 's')} {found.best.error_bar.sentence}{room(found)}",
            width,
        )
    )
    show_changes(console, found.best, changed)


def show_changes(console: Console, before: Prediction, changed: dict[str, Prediction]) -> None:
    if changed:
        console.print()
        rows = [("as it is", si(before.seconds, "s"), "-", plan_words(before.plan))]
        rows += [
            (change, si(now.seconds, "s"), f"{now.seconds / before.seconds - 1:+.1%}", plan_words(now.plan))
            for change, now in changed.items()
        ]
        console.print(
            with_words_last(
                quiet_table(("what if", "step", "change", "plan"), rows, min(console.width, WIDTH))
            )
        )


def what_if_json(changed: dict[str, Prediction]) -> list[dict[str, Any]]:
    return [{"change": change} | now.as_dict() for change, now in changed.items()]
