"""Options of `ndparallel plan` that change nothing in the plan that they describe.

Idea   An option has an effect where the plan is refused without it, or takes another step or other memory. A
       default that is typed says what is so, and is named only where no other word would change anything.
Limit  Degrees always cut something, and the software also says who launches the plan: they are left out.
"""

import argparse
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.words import listed, option_words
from ndparallel.launch_flags.options import described
from ndparallel.launch_flags.reading import Reading
from ndparallel.parallel.context import CP_COMM_TYPES, VARIANTS
from ndparallel.planner.options import JOB_DEFAULTS, PLAN_DEFAULTS
from ndparallel.planner.prediction import Prediction, memory_of, step_of, workload_of

# what an option can be, whose default may be typed where it is of nothing
WORDS = {"context_parallel": VARIANTS, "cp_comm_type": (*CP_COMM_TYPES,), "etp": ("1", "tp")}
LEFT_OUT = ("software", "tp", "pp", "dp", "ep", "cp", "micro_batch")
DEFAULTS = {name: value for name, value in (JOB_DEFAULTS | PLAN_DEFAULTS).items() if name not in LEFT_OUT}


def idle_options(arguments: argparse.Namespace, asked: Reading, found: Prediction) -> list[str]:
    """A sentence about the options that change nothing, if there are any."""
    by_name = PLAN_DEFAULTS if getattr(arguments, "plan", None) else {}
    typed = [name for name in DEFAULTS if name in arguments.typed and name not in by_name]
    idle = [name for name in typed if is_idle(name, arguments, asked, found)]
    if not idle:
        return []
    change, them = ("change", "any one of them") if len(idle) > 1 else ("changes", "it")
    options = listed([option_words(name, getattr(arguments, name)) for name in idle])
    return [f"{options} {change} nothing in this plan: without {them} the prediction is the same."]


def is_idle(name: str, arguments: argparse.Namespace, asked: Reading, found: Prediction) -> bool:
    """Whether the same is predicted without the option; of a default that was typed, whatever its word."""
    typed, without = getattr(arguments, name), described_with(name, DEFAULTS[name], arguments)
    if without is None:
        return False
    if (without.job, without.plan) != (asked.job, asked.plan):
        return predicts(without, found)
    if is_dropped(typed, getattr(asked.plan, name, typed)):
        return True
    others = [described_with(name, word, arguments) for word in WORDS.get(name, ()) if word != typed]
    return bool(others) and all(predicts(other, found) for other in others if other)


def described_with(name: str, value: Any, arguments: argparse.Namespace) -> Reading | None:
    """What the options describe with another value of one of them; None where that is refused."""
    changed = {name: value, "typed": arguments.typed - {name}}
    try:
        return described(argparse.Namespace(**vars(arguments) | changed))
    except UserError:
        return None


def is_dropped(typed: Any, taken: Any) -> bool:
    """Whether the plan has another value than was typed, however that is spelled."""
    return f"{typed}".lower() != f"{taken}".lower()


def predicts(asked: Reading, found: Prediction) -> bool:
    """Whether another job and plan take the same step and memory."""
    work = workload_of(asked.job, asked.plan)
    return memory_of(work) == found.memory and step_of(work).seconds == found.step.seconds
