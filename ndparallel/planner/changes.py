"""One thing about a job and its plan that could be different, predicted: what would explain a measurement,
and what would make a plan fit.

Idea   A change is one record; `tried` predicts the same job and plan with each of them, one at a time.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gpu import Hardware
from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import Accelerator
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.prediction import Prediction, predict

Cluster = tuple[TrainingJob, Plan]


@dataclass(frozen=True)
class Change:
    """What would be different, in words and in fields; `option` makes `plan` predict it, `look` says how to
    see whether it is so."""

    words: str
    apply: Callable[[TrainingJob, Plan], Cluster]
    option: str = ""
    look: str = ""

    def __add__(self, other: "Change") -> "Change":
        return Change(
            f"{self.words}, {other.words}",
            lambda job, plan: other.apply(*self.apply(job, plan)),
            f"{self.option} {other.option}",
        )


@dataclass(frozen=True)
class Tried:
    """A change, and what is predicted then."""

    change: Change
    found: Prediction


def tried(
    job: TrainingJob,
    plan: Plan,
    changes: Iterable[Change],
    wanted: Callable[[TrainingJob, Plan], bool] = lambda job, plan: True,
) -> list[Tried]:
    """Predict the same with each change alone; those that change nothing, cannot be, or are not `wanted`,
    are left out."""
    results = []
    for change in changes:
        with suppress(UserError):
            other = change.apply(job, plan)
            if other != (job, plan) and wanted(*other):
                results.append(Tried(change, predict(*other)))
    return results


# ------------------------------------------------------------------------------ what a change is written with


def job_change(words: str, option: str = "", look: str = "", **fields: Any) -> Change:
    return Change(words, lambda job, plan: (replace(job, **fields), plan), option, look)


def plan_change(words: str, option: str = "", look: str = "", **fields: Any) -> Change:
    return Change(words, lambda job, plan: (job, replace(plan, **fields)), option, look)


def stack_change(words: str, option: str = "", look: str = "", **fields: Any) -> Change:
    return Change(
        words, lambda job, plan: (replace(job, stack=replace(job.stack, **fields)), plan), option, look
    )


def hardware_change(
    words: str, change: Callable[[Any], Hardware], option: str = "", look: str = ""
) -> Change:
    """A change of a real GPU; idealized hardware stays as it is."""

    def apply(job: TrainingJob, plan: Plan) -> Cluster:
        real = isinstance(job.hardware, Accelerator)
        return (replace(job, hardware=change(job.hardware)) if real else job), plan

    return Change(words, apply, option, look)
