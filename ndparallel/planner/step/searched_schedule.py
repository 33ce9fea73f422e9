"""The schedule of a plan: by its name, or searched for the seconds of its actions.

Idea   A search is made once for the seconds of a step: for its time, its memory and its picture.
Cost   See `ndparallel.pipeline.search`.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from ndparallel.pipeline.replay import Replay, replay_of
from ndparallel.pipeline.search import check_size, search
from ndparallel.pipeline.work import Work
from ndparallel.planner.job import Plan


def replay_of_step(plan: Plan, microbatches: int, durations: Work | None) -> Replay:
    """The plan's schedule by name; one that is searched for is made for these very seconds (2401.10241,
    section 3.1)."""
    if not plan.recipe.memory_limit:
        return replay_of(plan.schedule, plan.pp, microbatches, plan.chunks)
    assert durations
    check_size(plan.pp, microbatches, plan.schedule)
    passes = (durations.forward, durations.backward_input, durations.backward_weight)
    seconds = map(hashable, (*passes, durations.latency, durations.wire))
    return searched(plan.pp, microbatches, plan.recipe.memory_limit(plan.pp), *seconds)


@lru_cache(maxsize=16)
def searched(ranks: int, microbatches: int, memory_limit: int, *parts: Any) -> Replay:
    """A schedule, searched once for the seconds of a step, its memory and its picture."""
    forward, inputs, weights, latency, wire = parts
    actions = Work(forward, inputs, weights, latency=latency, wire=wire)
    return Replay(search(ranks, microbatches, actions, memory_limit=memory_limit))


def hashable(seconds: Any) -> Any:
    """Numbers of one or two dimensions as tuples."""
    each = np.asarray(seconds).tolist()
    return tuple(map(hashable, each)) if isinstance(each, list) else each
