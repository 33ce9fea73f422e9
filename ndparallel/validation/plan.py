"""The plan of a published run: its degrees, schedule and microbatch, by the rules of cases.py.

Idea   What a run states counts; the rest follows from the number of GPUs, the batch and the schedule.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.pipeline.catalog import RECIPES, default_schedule
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.model_cuts import rules_for_heads
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.models.sizes import checked_size
from ndparallel.planner.stack import Stack
from ndparallel.validation.hardware import number_in, numbers_in
from ndparallel.validation.software import framework_of, recomputed
from ndparallel.validation.words.parallel import context_parallel_named, schedule_named, shards_of, zero_stage
from ndparallel.validation.words.recomputation import recompute_of

AXES = ("tp", "pp", "dp", "ep", "cp")
TWO_CHUNKS = "titan"  # frameworks that cut a pipeline rank in two where nobody says otherwise


def degrees_of(run: Mapping[str, Any]) -> dict[str, int]:
    """Return all degrees of parallelism; dp follows from the number of GPUs. Raises UserError where it is
    no whole number."""
    parallel, gpus = run["parallel"], run.get("gpus")
    degrees = {axis: int(number_in(parallel.get(axis))) or 1 for axis in AXES}
    degrees["cp"] *= ulysses_ranks(parallel)
    others = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if gpus and gpus % others:
        raise UserError(
            f"tp*pp*cp = {others} does not divide the run's {gpus} GPUs: dp would be no whole number."
        )
    return degrees | ({"dp": gpus // others} if gpus else {})


def ulysses_ranks(parallel: Mapping[str, Any]) -> int:
    """Return how many ranks share a sequence by heads: a number in place of true or false, without tp."""
    ranks = parallel.get("sp")
    return 1 if isinstance(ranks, bool) or number_in(parallel.get("tp")) > 1 else int(number_in(ranks)) or 1


def sharing_sequences(
    stack: Stack, parallel: Mapping[str, Any], shape: ModelShape, degrees: dict[str, int]
) -> Stack:
    """Return the stack with the run's way of sharing sequences: as stated, or its own; a ring where the ranks
    cannot share the heads."""
    ulysses, stated = ulysses_ranks(parallel) > 1, context_parallel_named(parallel.get("cp_comm_type"))
    way = stated or ("all-to-all" if ulysses else stack.context_parallel)
    copies, ranks = stack.shares_kv_heads or ulysses, degrees["tp"] * degrees["cp"]
    rules = rules_for_heads("tp*cp", shape, copies)
    shared = not shape.latent and all(rule.holds(ranks) for rule in rules)
    way = way if shared or way != "all-to-all" else "ring"
    return replace(stack, context_parallel=way, shares_kv_heads=copies)


def plan_of(
    run: Mapping[str, Any], degrees: dict[str, int], shape: ModelShape, stack: Stack, gpus_per_node: int
) -> Plan:
    parallel, framework = run["parallel"], framework_of(run)
    zero = zero_stage(parallel.get("zero"), framework)
    if zero == 2 and degrees["pp"] > 1 and not re.search(r"megatron[- _]?fsdp", framework):
        zero = 1
    schedule, chunks = schedule_of(run, degrees["pp"], shape.layers)
    stated = parallel.get("sp")
    recompute, layers = recompute_of(recomputed(run), -(-shape.layers // (degrees["pp"] * chunks)))
    shards = shards_of(parallel, gpus_per_node)
    spread: dict[str, Any] = {"ep": spread_of_experts(parallel, degrees, shape)}
    return Plan(
        **degrees | spread,
        chunks=chunks,
        micro_batch=micro_batch(run["batch"], degrees["dp"]),
        zero=zero,
        shards=shards if zero == 3 and 1 < shards < degrees["dp"] * degrees["cp"] else 0,
        sequence_parallel=bool(stack.sequence_parallel if stated is None else stated) and degrees["tp"] > 1,
        recompute=recompute,
        recompute_layers=layers,
        schedule=schedule,
        stage_layers=numbers_in(parallel.get("stage_layers")),
    )


def spread_of_experts(parallel: Mapping[str, Any], degrees: Mapping[str, int], shape: ModelShape) -> int:
    """Return how many ranks the experts are spread over. Experts cut by tp take as many bytes on each rank
    as experts spread over tp."""
    if not shape.experts:
        return 1
    cut = int(number_in(parallel.get("etp"))) or (degrees["tp"] if degrees["ep"] == 1 else 1)
    spread = degrees["ep"] * cut
    return spread if shape.experts.experts % spread == 0 else degrees["ep"]


def schedule_of(run: Mapping[str, Any], pp: int, layers: int) -> tuple[str, int]:
    """Return our name of the schedule, and the chunks of a pipeline rank."""
    stated = schedule_named(run["parallel"].get("schedule"))
    chunks = int(number_in(run["parallel"].get("vp")))
    if pp == 1:
        return default_schedule(1), 1
    name = default_schedule(chunks) if stated in (None, default_schedule(1)) else stated
    if only := RECIPES[name].chunks:
        return name, only
    if chunks <= 1 and re.search(TWO_CHUNKS, framework_of(run)):
        return name, 2
    return (name, chunks) if chunks > 1 else several_chunks(name, pp, layers)


def several_chunks(name: str, pp: int, layers: int) -> tuple[str, int]:
    """Return one layer a chunk, embedding and head counted; if that makes one chunk, there is nothing to
    interleave."""
    chunks = (layers + 2) // pp
    return (name, chunks) if chunks > 1 else (default_schedule(1), 1)


def in_groups(job: TrainingJob, plan: Plan) -> Plan:
    """Return the interleaved schedule from pp microbatches on, else the breadth-first one, which is
    nearest."""
    too_few = plan.recipe.group and plan.microbatches(job) < plan.pp
    return replace(plan, schedule="looped-bfs") if too_few else plan


def micro_batch(batch: Mapping[str, Any], dp: int) -> int:
    """Return the stated microbatch size, or the one that follows from the number of microbatches, or 1."""
    number = microbatches_of(batch)
    left = number_in(batch.get("global")) / (dp * number) if number else 0
    return int(number_in(batch.get("micro")) or (left if left == int(left) else 0)) or 1


def microbatches_of(batch: Mapping[str, Any]) -> int:
    numbers = (number_in(batch.get(key)) for key in ("microbatches", "gradient_accumulation"))
    return int(next(filter(None, numbers), 0))


def global_batch(batch: Mapping[str, Any], plan: Plan) -> int:
    stated = checked_size(int(number_in(batch.get("global"))), "global batch", least=0)
    return stated or plan.dp * plan.micro_batch * (microbatches_of(batch) or 1)
