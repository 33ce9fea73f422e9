"""The microbatch of a run that does not state one.

Idea   Who publishes a run has tuned it: of a few usual sizes the quickest that fits.
Limit  It is the quickest by the prediction itself; such runs are marked.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.prediction import legal_and_fits, time_step
from ndparallel.validation.hardware import number_in

USUAL = (1, 2, 4, 8)  # sequences
STATING = ("micro", "microbatches", "gradient_accumulation")


def states_microbatch(batch: Mapping[str, Any]) -> bool:
    """Return whether a run says how large its microbatches are, or how many."""
    return any(number_in(batch.get(key)) for key in STATING)


def quickest_microbatch(job: TrainingJob, plan: Plan) -> Plan:
    """Return the plan with the quickest of the usual microbatches that divide its batch and fit; as it is
    where none does."""
    sizes = [size for size in USUAL if job.global_batch % (plan.dp * size) == 0]
    plans = [replace(plan, micro_batch=size) for size in sizes]
    fitting = [one for one in plans if legal_and_fits(job, one)]
    return min(fitting, key=lambda one: time_step(job, one).seconds, default=plan)
