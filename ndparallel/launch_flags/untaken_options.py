"""Options that software leaves to the user, so that they are no part of a plan: the step that a plan would
take with them.

Idea   Rows of experts beside another microbatch's compute (Megatron-Core's
       --overlap-moe-expert-parallel-comm); CUDA graphs, or compiled kernels, where a GPU waits for launches.
       They are worth a word where predictions can tell the steps apart.
Limit  What a CUDA graph itself keeps in memory is not counted.
"""

from dataclasses import replace

from gpu import si
from ndparallel.launch_flags.frameworks import FRAMEWORKS, whose
from ndparallel.planner.error_bar import PLANS_OF_ONE_JOB
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.launches import GRAPHS
from ndparallel.planner.options import overlapped
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.planner.software import STACKS
from ndparallel.planner.stack import Stack


def untaken_hints(found: Prediction) -> list[str]:
    """Say how long the step would be with such options, where that is notably less."""
    return [*rows_beside_hint(found), *launches_hint(found)]


def quicker_with(stack: Stack, job: TrainingJob, plan: Plan, seconds: float) -> Prediction | None:
    """The prediction on software with other switches, of a plan that takes so many seconds without them; None
    where the framework cannot do that with it, or predictions cannot tell the difference."""
    switched = replace(job, stack=stack)
    if all(FRAMEWORKS[name].refusal(switched, plan) for name in whose(job)):
        return None
    found = predict(switched, plan)
    return found if found.seconds * (1 + PLANS_OF_ONE_JOB) < seconds else None


def with_rows_beside(job: TrainingJob, plan: Plan, seconds: float) -> Prediction | None:
    """The prediction with rows beside compute, where only Megatron-Core can do that."""
    stack = replace(job.stack, hides_dispatch=True)
    return quicker_with(stack, job, plan, seconds) if "megatron" in whose(job) else None


def rows_beside_hint(found: Prediction) -> list[str]:
    """Say it of rows of experts beside compute."""
    if not found.plan.ep > 1 or found.job.stack.hides_dispatch:
        return []
    if not (hiding := with_rows_beside(found.job, found.plan, found.seconds)):
        return []
    option = f"--overlap {overlapped(hiding.job.stack)} rows travel to experts beside another microbatch's"
    return [told(f"{option} compute", hiding, found)]


def launches_hint(found: Prediction) -> list[str]:
    """Say it of what makes launches fewer, where the GPU waits for them."""
    if found.step.launch_seconds < PLANS_OF_ONE_JOB * found.seconds:
        return []
    for option, stack in fewer_launches(found.job):
        if fewer := quicker_with(stack, found.job, found.plan, found.seconds):
            return [told(f"{option} the CPU launches less", fewer, found)]
    return []


def fewer_launches(job: TrainingJob) -> list[tuple[str, Stack]]:
    """Options that hold more of a step in CUDA graphs, or compile its kernels, those that help most first."""
    stack = job.stack
    compiled = STACKS.get(f"{stack.name}-compiled")
    if compiled:
        return [(f"--software {compiled.name}", compiled)]
    more = GRAPHS[GRAPHS.index(stack.graphs) + 1 :] if "megatron" in whose(job) else ()
    return [(f"--cuda-graphs {graphs}", replace(stack, graphs=graphs)) for graphs in reversed(more)]


def told(option: str, then: Prediction, found: Prediction) -> str:
    """A sentence on an option and what it does, with the step and the memory that follow."""
    less = 1 - then.seconds / found.seconds
    lacks = found.missing_bytes <= 0 < then.missing_bytes
    short = f" It then lacks {si(then.missing_bytes, 'B')} of memory." if lacks else ""
    return f"With {option}, and the step takes {si(then.seconds, 's')}, {less:.0%} less.{short}"
