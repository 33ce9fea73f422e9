"""Plans that recompute some layers of every stage, and keep the others: as few as fit.

Idea   One layer more that runs again makes no step shorter and takes no more memory. So of plans that are
       alike but for this number one is worth a try: that of the fewest layers that fit; and it only where a
       plan that recomputes nothing does not fit. What is the least for that plan's step is so for this one's,
       and says whether it can be near the fastest.
Cost   some milliseconds for every way to cut the model in depth.
Limit  No layers are chosen where activations go to the host: there a layer that runs again may make a step
       shorter. Nor is that a law of schedules that are searched for.

Glossary: see candidates.py.
"""

from dataclasses import replace

import numpy as np

from ndparallel.launch_flags.frameworks import one_has, with_own_jobs
from ndparallel.planner.job import Plan
from ndparallel.search.bounds.lower_bound import fewest_layers, lower_bound
from ndparallel.search.bounds.plan_table import DEGREES
from ndparallel.search.pruning import Part, RowGroup
from ndparallel.search.rows import taken
from ndparallel.search.space import SearchSpace

CHANGING = (*DEGREES, "chunks", "recompute_layers")  # from plan to plan of one family and schedule


def with_some_layers(space: SearchSpace, nothing: Plan, memory_bytes: float) -> tuple[Plan, Part]:
    """Plans that recompute the fewest layers with which they fit, in place of an array of plans of one
    schedule that recompute nothing; those that fit with fewer than all and can be launched, priced."""
    job, full = space.job, replace(nothing, recompute="full")
    plans = replace(full, recompute_layers=fewest_layers(job, full, memory_bytes))
    able = (plans.recompute_layers > 0) & one_has(with_own_jobs(space.frameworks, job), plans)
    plans = taken(plans, np.flatnonzero(able), CHANGING)
    return plans, priced(space, plans) if able.any() else Part()


def priced(space: SearchSpace, plans: Plan) -> Part:
    """The plans in groups, with their bounds and bytes."""
    bound, part = lower_bound(space.job, plans), Part()
    cuts = list(zip(*(getattr(plans, name).tolist() for name in ("chunks", "pp", "recompute_layers"))))
    for cut in sorted({*cuts}):
        rows = np.flatnonzero([other == cut for other in cuts])
        part.groups.append(RowGroup(plans.schedule, *cut))
        part.rows.append(rows)
        part.seconds.append(bound.seconds[rows])
        part.memory_bytes.append(bound.memory_bytes[rows])
    return part
