"""What a plan takes whatever its schedule and its chunks: columns of seconds, one row for every plan.

Idea   Seconds, bytes and parameters of any run of stages are sums over what the stages consist of. So a plan
       is its prices of one layer, one embedding, one head and one bare stage, computed for thousands of plans
       at once by the functions that `predict` uses.
Cost   some hundred numpy operations for every choice of the three words, whatever the number of plans.
Limit  All plans are on the same number of GPUs. Layers with and without experts are mixed evenly.

Glossary
    part      see `ndparallel.search.bounds.plan_table`
    waits     what FSDP adds to a unit in each of the places that it can have (sharded.py); first_waits: the
              same for the forward pass that gathers weights which then stay
    pass      F, I (recomputation included) or W
    line      communication of one group: dp's, and that of the ranks with the same experts or, where there
              are none, of FSDP's replicas; lines run beside one another
    reduce    seconds of the collective that sums a part's gradients; gather: that makes its weights whole
    message   seconds of one microbatch's way from a stage to the next
    to_hide   of a pass's seconds those that a pair of microbatches may hide; hidden: those that it does where
              software runs all in pairs; alone: those of compute, by unit
    slowdown  of compute, while a collective is under way
    tied      seconds to sum the gradients of a table that is embedding and head, on two pipeline ranks
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.pricing import Pricing, UnitSeconds
from ndparallel.planner.stages import gathers_every_microbatch, keeps_weights
from ndparallel.planner.step.data_collectives import gathered_weights, reduced_gradients
from ndparallel.planner.step.framework import slowest_of
from ndparallel.planner.step.paired import in_pairs
from ndparallel.planner.step.parameter_kernels import optimizer_seconds
from ndparallel.planner.step.stage_messages import message_seconds, tied, tied_sum
from ndparallel.search.bounds.fsdp_columns import (
    fully_sharded,
    in_part_paired,
    places_in_plans,
    travel_at_end,
    waits_of,
)
from ndparallel.search.bounds.plan_table import (
    DEGREES,
    Lines,
    Passes,
    PlanTable,
    Travel,
    line_through,
    units_of,
    whole,
)

CUTS = ("tp", "cp", "ep", "micro_batch")  # what a layer's operations and its collectives depend on
DATA_LINES = ("dp", "shards")  # one or the other


def time_tables(job: TrainingJob, families: Sequence[Plan]) -> list[PlanTable]:
    """The columns that the step follows from, of several families of such plans on as many GPUs."""
    return [time_table(one) for one in pricings_of(job, families)]


def pricings_of(job: TrainingJob, families: Sequence[Plan]) -> list[Pricing]:
    """The families' units, priced."""
    job = replace(job, hardware=slowest_of(job.hardware, int(np.max(families[0].gpus))))
    pricings = [Pricing(job, plans) for plans in families]
    for one in pricings:
        if not one.units:
            price_units([other for other in pricings if price_key(other.plan) == price_key(one.plan)])
    return pricings


def price_key(plan: Plan) -> tuple[str, tuple[str, ...], bool]:
    """What the price of a unit depends on, beside the degrees that cut it."""
    return plan.recompute, plan.recompute_modules, plan.sequence_parallel


def time_table(pricing: Pricing) -> PlanTable:
    job, plans = pricing.job, pricing.plan
    passes, travel = with_messages(pricing, passes_of(pricing)), travel_of(pricing)
    hides, hidden, alone = to_hide(pricing), hidden_beside(pricing), alone_of(pricing)
    first_waits = [0.0] * len(places_in_plans(pricing))
    waits = [first_waits] * 2
    if gathers_every_microbatch(job, plans):
        kept = keeps_weights(job, plans)
        passes, hides, hidden = (fully_sharded(each, kept) for each in (passes, hides, hidden))
        waits, first_waits = waits_of(pricing, in_part_paired(pricing, passes, hidden), alone, travel)
        travel = travel_at_end(travel, kept)
    columns = {
        "passes": passes,
        "waits": waits,
        "first_waits": first_waits,
        "to_hide": hides,
        "hidden": hidden,
        "alone": alone,
        "travel": travel,
        "optimizer": line_through(lambda *trained: optimizer_seconds(pricing, *trained)),
        "message": sum(message_seconds(pricing)) * (np.asarray(plans.pp) > 1) * job.stack.pp_overlap,
        "tied": pricing.seconds_alone(tied_sum(pricing)) * tied(job),
        "zero": plans.zero,
        "slowdown": pricing.slowdown,
    }
    return {name: whole(column, len(plans.tp)) for name, column in columns.items()}


def price_units(pricings: Sequence[Pricing]) -> None:
    """Price every unit once for the plans that cut a layer alike, whatever their pp, dp and zero."""
    job, plan, ends = pricings[0].job, pricings[0].plan, np.cumsum([len(one.plan.tp) for one in pricings])
    every = {name: np.concatenate([getattr(one.plan, name) for one in pricings]) for name in DEGREES}
    first, alike = first_of_alike([every[name] for name in CUTS])
    numbers: dict[str, Any] = {name: column[first] for name, column in every.items()}
    few = Pricing(job, replace(plan, **numbers))
    for kind in units_of(job, plan):
        for one, places in zip(pricings, np.split(alike, ends[:-1])):
            one.units[kind] = UnitSeconds(*(seconds.at(places) for seconds in few.unit(kind)))


def first_of_alike(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of which no two have the same numbers, and which of them each row is like."""
    codes = [np.unique(column, return_inverse=True)[1] for column in columns]
    code = np.ravel_multi_index(codes, [code.max() + 1 for code in codes])
    return np.unique(code, return_index=True, return_inverse=True)[1:]


def priced_units(pricing: Pricing) -> list[UnitSeconds]:
    """The seconds of the model's units."""
    return [pricing.unit(kind) for kind in units_of(pricing.job, pricing.plan)]


def passes_of(pricing: Pricing) -> Passes:
    """Seconds of F, I and W by part."""
    return passes_of_units(priced_units(pricing))


def passes_of_units(units: Sequence[UnitSeconds]) -> Passes:
    return [[0.0, *(one.total for one in each)] for each in zip(*(unit.passes for unit in units))]


def none_of_parts(pricing: Pricing) -> Passes:
    """No seconds in F, I and W of any part."""
    return [[0.0] * (1 + len(units_of(pricing.job, pricing.plan)))] * 3


def alone_of(pricing: Pricing) -> Lines:
    """Seconds of the units' forward and backward passes that compute takes, without what tp, cp and ep ranks
    say: what a collective beside it makes longer."""
    units = priced_units(pricing)
    return [
        [unit.forward["compute"] for unit in units],
        [unit.backward["compute"] for unit in units],
    ]


def to_hide(pricing: Pricing) -> Passes:
    """Seconds of F, I and W that pairs of microbatches can hide: of all-to-alls, and what the GPU waits for
    launches. Without experts there are no pairs."""
    if pricing.job.shape.experts is None:
        return none_of_parts(pricing)
    passes = zip(*(unit.passes for unit in priced_units(pricing)))
    return [[0.0, *(one["ep"] + one["launch"] for one in each)] for each in passes]


def hidden_beside(pricing: Pricing) -> Passes:
    """Seconds of F, I and W that hide in Megatron-Core's pairs of microbatches."""
    if not pricing.job.stack.hides_dispatch:
        return none_of_parts(pricing)
    units = priced_units(pricing)
    paired = [
        in_pairs(unit, 1.0 * (pricing.plan.ep > 1), pricing.slowdown) if "ep" in unit.forward else unit
        for unit in units
    ]
    alone, beside = (passes_of_units(some) for some in (units, paired))
    return [[one - other for one, other in zip(*lines)] for lines in zip(alone, beside)]


def with_messages(pricing: Pricing, passes: Passes) -> Passes:
    """Software that overlaps no messages stands still for one in F and one in I."""
    plan, standing = pricing.plan, 0.0 if pricing.job.stack.pp_overlap else sum(message_seconds(pricing))
    forward, inputs, weights = passes
    forward[0] = inputs[0] = standing * (np.asarray(plan.pp) > 1)
    return [forward, inputs, weights]


def travel_of(pricing: Pricing) -> Travel:
    """Seconds that a unit's gradients, and its weights, are on their way: [reduce, gather][line][unit]."""
    lines = (DATA_LINES, ["experts_dp" if pricing.job.shape.experts else "replicas"])
    ways = [
        [collectives(pricing, kind) for kind in units_of(pricing.job, pricing.plan)]
        for collectives in (reduced_gradients, gathered_weights)
    ]
    return [[[sum_over(pricing, unit, groups) for unit in units] for groups in lines] for units in ways]


def sum_over(pricing: Pricing, unit: Sequence, groups: Sequence[str]) -> Any:
    """Seconds of a unit's collectives over these groups, one after another, for every microbatch."""
    several = pricing.plan.microbatches(pricing.job) > 1
    once = {"replicas": 1.0 - several} if pricing.job.stack.replicas_last else {}
    found = (pricing.seconds_alone(one) * once.get(one.group, 1.0) for one in unit if one.group in groups)
    return sum(found, 0.0)
