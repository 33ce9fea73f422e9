"""What a framework cannot run: rules, for one plan with its reason, and for thousands of plans at once.

Idea   A rule says where it is broken, in numbers or in arrays of them, and why in a sentence. The same rules
       refuse a launch script and leave plans out of a search, so that the two cannot part.
Limit  What a whole job cannot have (its model, its numbers' type) is no rule of plans: `emit` says it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.base.words import listed
from ndparallel.launch_flags.frozen import release
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.software import find_stack
from ndparallel.planner.stack import Stack

Condition = Callable[[TrainingJob, Plan], Any]


@dataclass(frozen=True)
class LaunchRule:
    """One thing that a framework cannot run. `breaks` takes plans whose fields are arrays, all but the
    schedule: fields are joined by & and |; `and` may stand behind what is the job's alone."""

    breaks: Condition
    refusal: Callable[[TrainingJob, Plan], UserError]


def has_no(framework: str, what: str, instead: str) -> UserError:
    """The refusal of what a framework's release does not have, with what to do instead."""
    return UserError(f"{release(framework)} has no {what}{f'; {instead}' if instead else ''}.")


def rule_maker(lacks: Callable[[str, str], UserError]) -> Callable[[str, str, Condition], LaunchRule]:
    """What a framework's rules are written with: what it never has, what to do instead, and where a plan asks
    for it. In the words {plan.tp} and {job.dtype} are those of the plan that is refused."""

    def never(what: str, instead: str, breaks: Condition) -> LaunchRule:
        def refusal(job: TrainingJob, plan: Plan) -> UserError:
            return lacks(what.format(job=job, plan=plan), instead.format(job=job, plan=plan))

        return LaunchRule(breaks, refusal)

    return never


def refuse(rules: Sequence[LaunchRule], job: TrainingJob, plan: Plan) -> None:
    """Raise UserError with the first rule that the plan breaks."""
    for rule in rules:
        if rule.breaks(job, plan):
            raise rule.refusal(job, plan)


def obeyed(rules: Sequence[LaunchRule], job: TrainingJob, plans: Plan) -> np.ndarray:
    """Which of these plans break no rule."""
    broken = np.zeros(np.shape(plans.tp), dtype=bool)
    for rule in rules:
        broken = broken | np.asarray(rule.breaks(job, plans), dtype=bool)
    return ~broken


def refuse_other_software(job: TrainingJob, framework: str, stacks: Sequence[str]) -> None:
    """Raise UserError for software that is none of the framework's `stacks`. It comes before rules, which
    speak of the framework's own."""
    if job.stack.name not in stacks:
        raise UserError(
            f"the plan is for {job.stack.name}, which is other software than {release(framework)}: take "
            f"--software {' or '.join(stacks)}."
        )


def refuse_beyond_positions(job: TrainingJob) -> None:
    """Raise UserError for a sequence with tokens behind the model's last learned position."""
    shape = job.shape
    if shape.position == "learned" and shape.positions < job.sequence:
        raise UserError(
            f"{shape.name} has {shape.positions} learned positions, too few for a sequence of "
            f"{job.sequence}; shorten it."
        )


def refuse_other_switches(job: TrainingJob, framework: str, free: Sequence[str]) -> None:
    """Raise UserError for software that differs from the framework's in more than what is `free` to choose,
    for which it has no key."""
    if differs := switches_apart(job.stack, find_stack(job.stack.name), free):
        raise has_no(framework, f"key for the plan's {listed(differs)}", "leave them as they are")


def switches_apart(stack: Stack, other: Stack, free: Sequence[str]) -> list[str]:
    """Names of the switches in which two stacks differ, but for those that are `free` to choose."""
    return [
        each.name
        for each in fields(Stack)
        if each.name not in free and getattr(stack, each.name) != getattr(other, each.name)
    ]


SOME_LAYERS = "full recomputation of {plan.recompute_layers} layers of a stage"


def recomputes_some_layers(job: TrainingJob, plan: Plan) -> Any:
    """Whether a number of layers of each stage runs again, and not all."""
    return (plan.recompute == "full") & (plan.recompute_layers > 0)


def is_none_of(values: Iterable, word: Any) -> Any:
    """Whether a word, or each of an array of words, is none of these."""
    return np.all([word != value for value in values], axis=0)
