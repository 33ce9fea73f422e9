"""Rows of experts beside another microbatch's compute: the step that a plan would take with them.

Idea   Megatron-Core leaves it to the user (--overlap-moe-expert-parallel-comm), so that it is no part of a
       plan. It is worth a word where predictions can tell the steps apart.
"""

from dataclasses import replace

from gpu import si
from ndparallel.launch_flags.frameworks import FRAMEWORKS, whose
from ndparallel.planner.error_bar import PLANS_OF_ONE_JOB
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.options import overlapped
from ndparallel.planner.prediction import Prediction, predict


def with_rows_beside(job: TrainingJob, plan: Plan, seconds: float) -> Prediction | None:
    """The prediction with rows beside compute, of a plan that takes so many seconds without; None where
    Megatron-Core cannot do that with it, or predictions cannot tell the difference."""
    hiding = replace(job, stack=replace(job.stack, hides_dispatch=True))
    if "megatron" not in whose(job) or not FRAMEWORKS["megatron"].has(hiding, plan):
        return None
    found = predict(hiding, plan)
    return found if found.seconds * (1 + PLANS_OF_ONE_JOB) < seconds else None


def rows_beside_hint(found: Prediction) -> list[str]:
    """Say how long the step of a mixture would be with the option, where that is notably less."""
    if not found.plan.ep > 1 or found.job.stack.hides_dispatch:
        return []
    if not (hiding := with_rows_beside(found.job, found.plan, found.seconds)):
        return []
    less = 1 - hiding.seconds / found.seconds
    lacks = found.missing_bytes <= 0 < hiding.missing_bytes
    short = f" It then lacks {si(hiding.missing_bytes, 'B')} of memory." if lacks else ""
    return [
        f"With --overlap {overlapped(hiding.job.stack)} rows travel to experts beside another microbatch's "
        f"compute, and the step takes {si(hiding.seconds, 's')}, {less:.0%} less.{short}"
    ]
