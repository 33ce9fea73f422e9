"""What FSDP changes of a plan's columns: its passes are whole, and units wait in them.

Idea   Weights come before each unit and gradients leave behind it, so that what travels is waited for in the
       passes (sharded.py), and not at the end of the step; but of what stays whole.

Glossary: see time_columns.py.
"""

from typing import Any

import numpy as np

from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.numbers import either
from ndparallel.planner.stages import gathers_again, keeps_gradients, keeps_weights, kinds_by_stage
from ndparallel.planner.step.paired import share_in_pairs
from ndparallel.search.bounds.plan_table import OF_UNITS, Lines, Passes, Travel, some_kept, units_of
from ndparallel.search.bounds.sharded import (
    ByUnit,
    Place,
    UnitTimes,
    busier_line,
    places_of,
    wait_of_backward,
    wait_of_forward,
)


def fully_sharded(passes: Passes, whole: Any) -> Passes:
    """FSDP's backward pass is one, whatever the schedule parts, but where a pipeline keeps its weights
    whole."""
    forward, inputs, weights = passes
    joined = [either(whole, a, a + b) for a, b in zip(inputs, weights)]
    return [forward, joined, [either(whole, each, 0.0) for each in weights]]


def in_part_paired(pricing: Pricing, passes: Passes, hidden: Passes) -> Passes:
    """Passes of which a share runs in pairs, of which one may wait for the other's launches. In a pipeline
    the share depends on the chunks: there they are those alone or those in pairs, whichever are longer, as
    behind them more is gathered."""
    plan = pricing.plan
    share = share_in_pairs(plan.recipe, plan.microbatches(pricing.job), 1, 1)
    return [
        [one - either(plan.pp == 1, share * other, np.minimum(0.0, other)) for one, other in zip(*lines)]
        for lines in zip(passes, hidden)
    ]


def travel_at_end(travel: Travel, kept: Any) -> Travel:
    """What is left for the end of a step of what FSDP's units send: gradients of weights that stay whole."""
    reduce, gather = travel
    return [times_each(reduce, either(kept, 1.0, 0.0)), times_each(gather, 0.0)]


def times_each(lines: Lines, times: Any) -> Lines:
    return [[seconds * times for seconds in line] for line in lines]


def waits_of(
    pricing: Pricing, passes: Passes, alone: Lines, travel: Travel
) -> tuple[list[list[Any]], list[Any]]:
    """What units wait in each of their places, forward and backward, for every microbatch, and in the first
    forward pass alone: weights that stay are gathered there."""
    every = either(keeps_weights(pricing.job, pricing.plan), 0.0, 1.0)
    forward = forward_waits(pricing, passes, alone, travel)
    backward = backward_waits(pricing, passes, alone, travel)
    return [[every * wait for wait in forward], backward], [(1 - every) * wait for wait in forward]


def forward_waits(pricing: Pricing, passes: Passes, alone: Lines, travel: Travel) -> list[Any]:
    """What a unit waits in each of its places where a forward pass gathers its weights."""
    job, (_, gathering) = pricing.job, travel
    compute = unit_times(pricing, passes[0], alone[0])
    gather = by_unit(pricing, [np.maximum(*lines) for lines in zip(*gathering)])
    return [wait_of_forward(place, job.stack, compute, gather) for place in places_in_plans(pricing)]


def backward_waits(pricing: Pricing, passes: Passes, alone: Lines, travel: Travel) -> list[Any]:
    """What a unit waits in each of its places in a backward pass. Gradients that stay travel in none, and
    weights that do are not gathered again."""
    job, plan, (reducing, gathering) = pricing.job, pricing.plan, travel
    compute = unit_times(pricing, passes[1], alone[1])
    reducing = times_each(reducing, either(keeps_gradients(job, plan), 0.0, 1.0))
    again = times_each(gathering, either(keeps_weights(job, plan), 0.0, 1.0) * gathers_again(job, plan))
    (kinds,) = kinds_by_stage(job.shape, 1)
    counts = [kinds.count(kind) for kind in units_of(job, plan)]
    reduce, gather = (by_unit(pricing, each) for each in busier_line(counts, reducing, again))
    return [wait_of_backward(place, job.stack, compute, gather, reduce) for place in places_in_plans(pricing)]


def places_in_plans(pricing: Pricing) -> tuple[Place, ...]:
    """Every place that a unit of these plans can have."""
    return places_of(pricing.job.shape, some_kept(pricing.plan))


def unit_times(pricing: Pricing, seconds: list[Any], alone: list[Any]) -> UnitTimes:
    """A pass of each unit, of a pass of all parts."""
    return UnitTimes(by_unit(pricing, seconds[OF_UNITS]), by_unit(pricing, alone), pricing.slowdown)


def by_unit(pricing: Pricing, seconds: list[Any]) -> ByUnit:
    return {None: 0.0, **dict(zip(units_of(pricing.job, pricing.plan), seconds))}
