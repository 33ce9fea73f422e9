"""The microbatch and the recomputation of a run that does not state them.

Idea   Who publishes a run has tuned it: of a few usual sizes the quickest that fits, and no more computed
       again than must be.
Limit  It is the quickest by the prediction itself; such runs are marked.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.prediction import legal_and_fits, time_step
from ndparallel.validation.hardware import number_in
from ndparallel.validation.words.frameworks import year_in

USUAL = (1, 2, 4, 8)  # sequences
# torchtitan, pull request 1073; before, torchtitan/parallelisms/pipelining_utils.py made as many microbatches
# as there are pipeline ranks
FIRST_OF_ONE = 2025
STATING = ("micro", "microbatches", "gradient_accumulation")


def states_microbatch(batch: Mapping[str, Any]) -> bool:
    """Return whether a run says how large its microbatches are, or how many."""
    return any(number_in(batch.get(key)) for key in STATING)


def usual_microbatch(job: TrainingJob, plan: Plan, framework: str) -> Plan:
    """Return the plan with the microbatch that torchtitan takes in a pipeline, and else the quickest."""
    if plan.pp == 1 or "titan" not in framework:
        return quickest_microbatch(job, plan)
    whole = (year_in(framework) or FIRST_OF_ONE) < FIRST_OF_ONE
    return replace(plan, micro_batch=max(1, job.global_batch // (plan.dp * plan.pp)) if whole else 1)


def quickest_microbatch(job: TrainingJob, plan: Plan) -> Plan:
    """Return the plan with the quickest of the usual microbatches that divide its batch and fit; as it is
    where none does."""
    plans = [replace(plan, micro_batch=size) for size in USUAL]
    fitting = [one for one in plans if legal_and_fits(job, one)]
    return min(fitting, key=lambda one: time_step(job, one).seconds, default=plan)


def least_recomputation(job: TrainingJob, plan: Plan) -> Plan:
    """Return the plan with the least recomputation that fits: none, or so many layers of each stage; as it is
    where nothing fits."""
    layers = -(-job.shape.layers // plan.stages)
    some = [replace(plan, recompute="full", recompute_layers=number) for number in range(1, layers)]
    ways = [plan, *some, replace(plan, recompute="full")]
    return next((way for way in ways if legal_and_fits(job, way)), plan)
