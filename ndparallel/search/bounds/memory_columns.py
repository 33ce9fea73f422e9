"""What a plan holds whatever its schedule and its chunks: columns of bytes, one row for every plan.

Idea   As `ndparallel.search.bounds.time_columns`, of memory.

Glossary
    reserve   bytes that a rank holds whatever its stages are; per_element: bytes for every parameter that it
              holds; waiting: of them those of gradients that are whole until a chunk's last microbatch
    kept      by kind of layer, bytes that one keeps; once: of what it computes again and gathers, meanwhile;
              prediction_once: of what a prediction layer does
    passed    bytes of one microbatch's message between stages, where they are kept
    step      lines of bytes while the optimizer steps; made: of gradients that it makes, at once most_made
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ndparallel.base.sums import sum_of
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.kept import layer_bytes, passed_bytes, prediction_bytes
from ndparallel.planner.memory.deepspeed import most_made
from ndparallel.planner.memory.head import logits_bytes
from ndparallel.planner.memory.outside import context_bytes
from ndparallel.planner.memory.states import (
    fsdp_states,
    is_fully_sharded,
    made_gradients,
    plain_states,
    step_states,
)
from ndparallel.planner.stages import held_of, keeps_weights, trained_of
from ndparallel.search.bounds.plan_table import LAYERS, PlanTable, line_through, units_of, whole

HELD = slice(0, 2)  # of the lines of elements
TRAINED = slice(-2, None)  # the same ones, where what is trained is what is held


def memory_table(job: TrainingJob, plans: Plan) -> PlanTable:
    """The columns that memory follows from, of plans that share recompute, zero and sequence parallelism.
    Their degrees are arrays of one length."""
    columns = memory_columns(job, plans) | {
        "elements": [line for count in counts_of(job) for line in elements_by_part(job, plans, count)],
        "microbatches": plans.microbatches(job),
    }
    return {name: whole(column, len(plans.tp)) for name, column in columns.items()}


def counts_of(job: TrainingJob) -> tuple[Callable, ...]:
    """What counts a rank's parameters: as they are held, and as they are trained where these differ in some
    plans."""
    differ = job.adapters or any(job.matrix_bytes(zero) != 2 for zero in (0, 1))
    return (held_of, trained_of) if differ else (held_of,)


def memory_columns(job: TrainingJob, plans: Plan) -> dict[str, Any]:
    """Bytes by what they grow with. Both ways of holding states are linear in the parameters that a rank
    holds; as gradients of all chunks wait in 1F1B, which has one."""
    plans = replace(plans, schedule="1f1b")
    layers = units_of(job, plans)[LAYERS]
    kept, once = zip(*(layer_bytes(job, plans, kind) for kind in layers))
    prediction = prediction_bytes(job, plans)
    ways = (plain_states, fsdp_states)
    size = 2 * len(counts_of(job))
    plain, fsdp = (
        line_through(
            lambda *each, states=states: sum_of(states(job, plans, each[HELD], each[TRAINED]).values()), size
        )
        for states in ways
    )
    sharded = is_fully_sharded(job, plans)
    reserve, *per_element = (np.where(sharded, there, here) for here, there in zip(plain, fsdp))
    return {
        "reserve": reserve + context_bytes(job, plans),
        "once": [*once],
        "in_pairs": plans.sends_rows_beside(job.stack),
        "per_element": per_element,
        "kept": [*kept],
        "away": job.activations_away,
        "waiting": job.stack.gradient_bytes * (sharded & keeps_weights(job, plans)),
        "passed": passed_bytes(job, plans),
        "logits": logits_bytes(job, plans) + prediction.kept,
        "prediction_once": prediction.once,
        **step_columns(job, plans, size),
    }


def step_columns(job: TrainingJob, plans: Plan, size: int) -> dict[str, Any]:
    """Bytes while an optimizer steps that makes gradients, these apart, and the most that it makes; nothing
    of one that makes none."""
    if not job.stack.casts_gradients:
        return {}
    none, *each = line_through(
        lambda *each: sum_of(step_states(job, plans, each[HELD], each[TRAINED]).values()), size
    )
    return {
        "step": [none + context_bytes(job, plans), *each],
        "made": [*line_through(lambda *each: made_gradients(job, plans, each[TRAINED]), size)],
        "most_made": most_made(job, plans),
    }


def elements_by_part(job: TrainingJob, plans: Plan, count: Callable) -> list[list[Any]]:
    """Parameters of every part: those that dp ranks share, and those of experts."""
    held = [count(job, plans, kind) for kind in units_of(job, plans)]
    return [[0.0, *column] for column in zip(*held)]
