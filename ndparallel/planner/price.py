"""Seconds and bytes of thousands of plans at once: closed forms where `predict` times the schedule's own actions.

Idea   A bound from below that is near. No rank begins before a microbatch has come down to it, works less than all microbatches, and is
       done before the last one's gradient has gone back up; the step waits for the rank of which all this is longest. What hides behind
       compute at the step's ends follows from equal layers. Memory is the fullest rank's, exactly.
Cost   some hundred numpy operations, whatever the number of plans.
Limit  What ranks wait for one another on the way (uneven stages, slow messages) is left out but in 1F1B, where every second microbatch
       waits for two messages. docs/manual.md says how near the bound is.

Glossary
    columns   what does not depend on schedule and chunks (columns.py); here the first axis of an array is ranks, the last is plans
    ends      seconds behind a rank's last action: gradients, weights and optimizer that nothing hides
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ndparallel.errors import UserError
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.columns import DEGREES, Columns, columns_of, take
from ndparallel.planner.depth import HELD, Depth, depth_of
from ndparallel.planner.plan import Job, Plan
from ndparallel.planner.stack import Stack
from ndparallel.planner.step import AUTOMATIC

NUMBERS = (*DEGREES, "chunks")
SPLIT = ("zb-h1", "zb-h2", "zb-v", "dualpipev")  # schedules in which the last gradients go up before their weights' are done
HEAD_START = {"zb-h1": 1, "zb-h2": 2, "zb-1p": 1, "zb-2p": 2}  # F of the first rank before its first I, in pipelines


@dataclass(frozen=True)
class Price:
    """Of plans: the least seconds of a step, and bytes on the fullest GPU."""

    seconds: np.ndarray
    memory_bytes: np.ndarray


def price(job: Job, plans: Plan) -> Price:
    """Price an array of plans on the same number of GPUs. Raises UserError for the lessons' own software, which is timed alone."""
    if job.stack.executed:
        raise UserError(f"software {job.stack.name} is the lessons' own and is timed, not priced; choose a real framework's.")
    plans = spread(plans)
    columns = columns_of(job, plans)
    seconds, memory = np.empty(len(plans.tp)), np.empty(len(plans.tp))
    for pp, chunks in {*zip(plans.pp.tolist(), plans.chunks.tolist())}:
        rows = (plans.pp == pp) & (plans.chunks == chunks)
        depth, some = cut(job, plans.schedule, pp, chunks), take(columns, rows)
        seconds[rows], memory[rows] = least_seconds(some, depth, plans.schedule, job.stack), peak_bytes(some, depth, plans.schedule)
    return Price(seconds, memory)


def spread(plans: Plan) -> Plan:
    """The same plans with all their numbers as arrays of one length."""
    arrays = np.broadcast_arrays(*(np.atleast_1d(getattr(plans, name)) for name in NUMBERS))
    numbers: dict[str, Any] = dict(zip(NUMBERS, arrays))
    return replace(plans, **numbers)


def cut(job: Job, schedule: str, pp: int, chunks: int) -> Depth:
    return depth_of(job.shape, pp, chunks, RECIPES[schedule].layout if schedule in RECIPES else "loop")


def sums(depth_parts: np.ndarray, column: np.ndarray) -> np.ndarray:
    """What ranks (rank, part) have of a column (..., part, plan): (..., rank, plan)."""
    return np.matmul(depth_parts, column)


# -------------------------------------------------------------------------------------------------------------- seconds


def least_seconds(columns: Columns, depth: Depth, schedule: str, stack: Stack) -> np.ndarray:
    """A bound from below of each plan's step."""
    forward, inputs, weights = sums(depth.parts, columns["passes"])
    ends = endings(columns, depth, stack)
    if depth.pp == 1:
        return (columns["microbatches"] * (forward + inputs + weights + reduced_every_time(columns, depth)) + ends)[0]
    busy = columns["microbatches"] * (forward + inputs + weights)
    if schedule == "naive":
        return alone(columns, depth) + ends[0]
    if schedule in AUTOMATIC:
        return np.maximum(busy.max(axis=0), first_rank(columns, depth, schedule, busy)) + ends.max(axis=0)
    if schedule == "1f1b":
        busy = by_pairs(columns, depth, forward + inputs + weights)
    down, up, up_weights = sums(depth.before, columns["passes"])
    hops = depth.ranks[:, None] * columns["message"]
    last = down + up + 2 * hops + (busy + up_weights if schedule not in SPLIT else columns["microbatches"] * (forward + inputs))
    seconds = np.maximum((down + hops + busy + ends).max(axis=0), last.max(axis=0) + ends[0])
    return np.maximum(seconds, first_rank(columns, depth, schedule, busy) + ends[0]) if schedule in HEAD_START else seconds


def alone(columns: Columns, depth: Depth) -> np.ndarray:
    """One microbatch after another, down and up."""
    way = sums(depth.model, columns["passes"]).sum(axis=0) + 2 * (depth.pp - 1) * columns["message"]
    return columns["microbatches"] * way


def by_pairs(columns: Columns, depth: Depth, each: np.ndarray) -> np.ndarray:
    """1F1B: a rank and its neighbour hand two microbatches to and fro in the time of both their work and of two messages."""
    pair = (each + sums(depth.beside, columns["passes"]).sum(axis=0)) / 2 + columns["message"]
    again = 2 * ((columns["microbatches"] - 1) // 2)
    return again * np.maximum(each, pair) + (columns["microbatches"] - again) * each


def first_rank(columns: Columns, depth: Depth, schedule: str, busy: np.ndarray) -> np.ndarray:
    """The first rank's end: until its first I only its head start of F can be done."""
    forward, inputs, _ = sums(depth.model, columns["passes"])
    mine = sums(depth.parts[0], columns["passes"])
    first = forward + inputs - mine[1] + 2 * (depth.pp - 1) * columns["message"]
    ahead = HEAD_START[schedule] * depth.pp - (schedule == "zb-h2")
    return first + busy[0] - np.minimum(columns["microbatches"], ahead) * mine[0]


# ------------------------------------------------------------------------------------------------------ ends of a step


def endings(columns: Columns, depth: Depth, stack: Stack) -> np.ndarray:
    """Seconds behind each rank's last action."""
    (forward, inputs, weights), (reduce, gather) = columns["passes"], columns["travel"]
    once = np.where((columns["zero"] == 2) & (depth.pp == 1), 0.0, 1.0)  # else every microbatch reduces
    gradients = once * exposed(depth, reduce, inputs + weights, stack.dp_overlap)
    hidden = exposed(depth, gather, forward, stack.gathers_first)
    arriving = np.where(once, hidden, exposed(depth, gather, forward, False))
    return gradients + arriving + optimizer(columns, depth)


def optimizer(columns: Columns, depth: Depth) -> np.ndarray:
    none, shared, experts = columns["optimizer"]
    held = sums(depth.parts, columns["elements"])
    return none + shared * held[0] + experts * held[1]


def reduced_every_time(columns: Columns, depth: Depth) -> Any:
    """ZeRO-2 without a pipeline: what is left of a microbatch's gradients when its backward pass ends."""
    _, inputs, weights = columns["passes"]
    return np.where(columns["zero"] == 2, exposed(depth, columns["travel"][0], inputs + weights, True), 0.0)


def exposed(depth: Depth, lines: np.ndarray, compute: np.ndarray, overlap: bool) -> np.ndarray:
    """What a pass over all of a rank's layers does not hide of collectives, one for each: (rank, plan). Lines run side by side."""
    if not overlap:
        return sums(depth.parts[:, 1:], lines).sum(axis=0)
    return np.maximum(*(exposed_line(depth, line, mean_layer(depth, compute[1:3])) for line in lines))


def mean_layer(depth: Depth, of_kinds: np.ndarray) -> np.ndarray:
    return sums(depth.parts[:, 1:3], of_kinds) / np.maximum(depth.layers, 1)[:, None]


def exposed_line(depth: Depth, line: np.ndarray, compute: np.ndarray) -> np.ndarray:
    """Collectives follow one another; what shows began behind the last layer, the first one, or the head. The table's hides nowhere."""
    one, layers = mean_layer(depth, line[:2]), depth.layers[:, None]
    table, head = depth.parts[:, 3:4] * line[2], depth.parts[:, 4:] * line[3]
    return table + np.maximum(one, np.maximum(layers * one - (layers - 1) * compute, head + layers * (one - compute)))


# -------------------------------------------------------------------------------------------------------------- memory


def peak_bytes(columns: Columns, depth: Depth, schedule: str) -> np.ndarray:
    """Bytes on the fullest GPU; of a schedule that is searched for, at the least."""
    held = sums(depth.parts, columns["elements"])
    states = columns["per_element"][0] * held[0] + columns["per_element"][1] * held[1]
    chunks = HELD[schedule](columns["microbatches"], depth.ranks[:, None], depth.pp, depth.chunks) if depth.pp > 1 else 1
    activations = columns["kept"] * chunks * depth.layers[:, None] / depth.chunks
    return (states + activations + columns["logits"] * depth.parts[:, 4:]).max(axis=0) + columns["reserve"]
