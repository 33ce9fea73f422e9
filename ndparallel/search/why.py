"""Why not another plan: what it takes more of than the recommended one, and what it takes less of.

Idea   Both steps are parted in the same kinds of seconds (compute, bubble, exposed communication), so their
       difference is a sum of differences. What cannot be, does not fit or cannot be launched is said.
Cost   one prediction; a small search where only degrees are named.
Limit  In a pipeline a step is parted as on the rank that is done last, which may be another in each plan.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.words import compare_durations, listed
from ndparallel.launch_flags.frameworks import FRAMEWORKS
from ndparallel.planner.describe import WORDS
from ndparallel.planner.job import Plan
from ndparallel.planner.plan_name import AXES, degrees_of, name_of, parsed_name
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.search.search import Found, best_of
from ndparallel.search.space import SearchSpace, outside

SHOWN = 0.005  # of the step: what differs by less is left out


@dataclass(frozen=True)
class WhyNot:
    """A plan that was asked about beside the recommended one; `other` is None where there is no such plan,
    and `why_not` says why."""

    asked: str
    recommended: Prediction
    other: Prediction | None
    why_not: tuple[str, ...]
    searched: SearchSpace | None = None  # of which it is the best

    @property
    def differences(self) -> dict[str, float]:
        """Seconds that the other plan takes more, by kind, the most first."""
        if not self.other:
            return {}
        kinds = {**self.recommended.step.breakdown, **self.other.step.breakdown}
        more = {kind: part_of(self.other, kind) - part_of(self.recommended, kind) for kind in kinds}
        return dict(sorted(more.items(), key=lambda part: -part[1]))

    def as_dict(self) -> dict[str, Any]:
        plan = self.other.as_dict() if self.other else None
        return {
            "asked": self.asked,
            "plan": plan,
            "difference_seconds": self.differences,
            "why_not": list(self.why_not),
        }


def compare_with_recommended(found: Found, asked: str) -> WhyNot:
    """The plan of this name, or the best of these degrees where the name has no more. Raises UserError for
    what is no name."""
    given = parsed_name(asked)
    space = with_degrees(found, given) if given.keys() <= {*AXES} else None
    try:
        other = best_of(space) if space else named(found, given)
    except UserError as reason:
        return WhyNot(asked, found.recommended, None, (str(reason),))
    return WhyNot(asked, found.recommended, other, tuple(obstacles(found, other)), space)


def with_degrees(found: Found, given: dict[str, Any]) -> SearchSpace:
    """The search's plans of these degrees."""
    return replace(found.space, fixed={axis: 1 for axis in AXES if axis != "dp"} | given)


def named(found: Found, given: dict[str, Any]) -> Prediction:
    others = Plan(**given | {"dp": 1}).gpus
    plan = Plan(**{"dp": max(1, found.gpus // others)} | given)
    if plan.gpus != found.gpus:
        raise UserError(f"{name_of(plan)} is for {plan.gpus} GPUs, not for {found.gpus}.")
    return predict(found.job, plan)


def obstacles(found: Found, other: Prediction) -> Iterator[str]:
    """Why the search does not have it."""
    held = float(other.fullest.total)
    if other.missing_bytes > 0:
        yield f"It does not fit: the fullest GPU lacks {si(other.missing_bytes, 'B')}."
    elif held > found.space.memory_bytes:
        yield (
            f"It holds {held / found.job.hardware.memory_bytes:.0%} of a GPU's memory, and a plan may hold "
            f"{found.space.memory_bytes / found.job.hardware.memory_bytes:.0%}: --headroom changes that."
        )
    reasons = [FRAMEWORKS[name].refusal(found.job, other.plan) for name in found.space.frameworks]
    if reasons and all(reasons):
        yield reasons[0]


def sentences(why: WhyNot) -> list[str]:
    """What the table of differences does not say."""
    if not why.other:
        return [f"Why not {why.asked}: {why.why_not[0]}"]
    mine, other = why.recommended, why.other
    takes = compare_durations(other.seconds, mine.seconds)
    space, degrees = why.searched, degrees_of(other.plan)
    best = [f"It is the best of {degrees} in the search. {outside(space)}"] if space else []
    return [
        f"Why not {name_of(other.plan)}: it {takes} {'as' if takes.endswith('as long') else 'than'} "
        f"{name_of(mine.plan)}. {balance(why)}",
        f"It holds {si(float(other.fullest.total), 'B')} on the fullest GPU, against "
        f"{si(float(mine.fullest.total), 'B')}. {' '.join(why.why_not)}",
        *best,
    ]


def balance(why: WhyNot) -> str:
    """What it loses and what it gains, in a sentence."""
    least = SHOWN * why.recommended.seconds
    loses = [f"{si(more, 's')} of {WORDS[kind]}" for kind, more in why.differences.items() if more > least]
    gains = [f"{si(-more, 's')} of {WORDS[kind]}" for kind, more in why.differences.items() if more < -least]
    parts = [f"takes {listed(loses)} more"] if loses else []
    parts += [f"saves {listed(gains)}"] if gains else []
    return f"It {', and '.join(parts)}." if parts else "No part of the step differs by much."


def difference_rows(why: WhyNot) -> list[tuple[str, ...]]:
    """The rows of a table: the parts of both steps, and how they differ."""
    assert why.other
    mine, other = why.recommended, why.other
    both = [("step", mine.seconds, other.seconds)] + [
        (WORDS[kind], part_of(mine, kind), part_of(other, kind)) for kind in why.differences
    ]
    return [
        (name, si(here, "s"), si(there, "s"), signed(there - here))
        for name, here, there in both
        if max(here, there) > SHOWN * mine.seconds
    ]


def part_of(found: Prediction, kind: str) -> float:
    return float(found.step.breakdown.get(kind, 0.0))


def signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{si(abs(seconds), 's')}"
