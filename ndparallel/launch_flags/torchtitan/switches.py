"""Switches of torchtitan's software that no key of its configuration names.

Idea   A switch is refused where the plan runs what it switches: pp_overlap in a pipeline, a dispatcher
       between ep ranks. So some plans of a job can be launched, and a search has to find them.
"""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.base.words import listed
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.rules import LaunchRule, switches_apart
from ndparallel.launch_flags.torchtitan.models import torchtitan_lacks
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.software import find_stack

OVERLAPS = ("tp_overlap", "dp_overlap", "prefetch", "pp_overlap", "cp_overlap")
OPTIONS = {  # that change a stack's field
    "attention": "no-flash-attention",
    "dispatcher": "dispatcher",
    **dict.fromkeys(OVERLAPS, "overlap"),
}
# of its software: what keys choose, or other rules refuse; it has no ZeRO-1 that gathers first
CHOSEN = (
    *("name", "reshards", "sequence_parallel", "context_parallel", "selective", "graphs", "hides_dispatch"),
    *("expert_tp", "gathers_first", *fields.OF_MIXTURES),
)
DISPATCHERS = ("deepep", "hybridep")  # beside its own


def names_dispatcher(job: TrainingJob, plan: Plan) -> Any:
    """Whether moe_comm_backend is named: with ep alone (make_token_dispatcher_config in
    torchtitan/models/common/config_utils.py)."""
    return job.stack.dispatcher in DISPATCHERS and bool(job.shape.experts) and plan.ep > 1


def busy_switches(job: TrainingJob, plan: Plan) -> Mapping[str, Any]:
    """Switches that do nothing in some plans, or that a key names in some, and whether they do here what no
    key names."""
    stack, sharded = job.stack, plan.dp * plan.cp > 1
    return {
        "dispatcher": (plan.ep > 1) & np.logical_not(names_dispatcher(job, plan)),
        "tp_overlap": (plan.tp > 1) & (stack.tp_overlap != "products"),
        "dp_overlap": sharded,
        "prefetch": sharded & np.greater_equal(plan.zero, 2) & np.asarray(stack.dp_overlap),
        "pp_overlap": plan.pp > 1,
        "cp_overlap": plan.cp > 1,
    }


def without_key(job: TrainingJob, plan: Plan) -> list[str]:
    """Switches that are not as in torchtitan, and matter to this plan."""
    busy = busy_switches(job, plan)
    return [name for name in differing(job) if busy.get(name, True)]


def differing(job: TrainingJob) -> list[str]:
    return switches_apart(job.stack, find_stack(job.stack.name), CHOSEN)


def no_key(job: TrainingJob, plan: Plan) -> UserError:
    differs = without_key(job, plan)
    options = [f"--{OPTIONS[name]}" for name in differs if name in OPTIONS]
    known = len(options) == len(differs)
    return torchtitan_lacks(
        f"key for {listed([f'{name} {getattr(job.stack, name)}' for name in differs])}",
        f"leave {listed([*dict.fromkeys(options)])} out" if known else "leave that as it is",
    )


def refuse_other_switches(job: TrainingJob, plan: Plan) -> None:
    """Raise UserError for switches that are not as in torchtitan, which has no key for them."""
    if without_key(job, plan):
        raise no_key(job, plan)


def lacks_key(job: TrainingJob, plan: Plan) -> Any:
    """Which plans run what a switch without a key switches; where it matters to all, no rule of plans."""
    busy = busy_switches(job, plan)
    return reduce(or_, (np.asarray(busy[name]) for name in differing(job) if name in busy), False)


SWITCHED = LaunchRule(lacks_key, no_key)
