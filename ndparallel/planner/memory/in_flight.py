"""Chunks of microbatches whose activations a pipeline rank keeps at the same time.

Idea   The recipe of a schedule says how many it keeps at the most; software that runs a forward pass beside
       a backward pass keeps one more.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from ndparallel.pipeline.recipe import RECIPES, Recipe
from ndparallel.planner.job import Plan, TrainingJob


def in_flight_by_rank(job: TrainingJob, plan: Plan) -> list[float]:
    """Chunks that each pipeline rank of a written schedule keeps at the most."""
    if plan.pp == 1:
        return [1.0]
    sizes = int(plan.microbatches(job)), int(plan.pp), int(plan.chunks)
    return in_flight_of_schedule(plan.schedule, *sizes, bool(plan.sends_rows_beside(job.stack)))


@lru_cache(maxsize=256)
def in_flight_of_schedule(
    schedule: str, microbatches: int, pp: int, chunks: int, in_pairs: bool
) -> list[float]:
    """Chunks that each rank of such a pipeline keeps at the most."""
    ranks = np.arange(pp)
    in_flight = chunks_in_flight(RECIPES[schedule], microbatches, ranks, pp, chunks, in_pairs)
    return np.broadcast_to(in_flight, pp).astype(float).tolist()


def chunks_in_flight(recipe: Recipe, microbatches: Any, rank: Any, pp: int, chunks: int, in_pairs: Any):
    """Chunks that a rank keeps; one more where forward and backward passes of an interleaved schedule run
    `in_pairs` (num_warmup_microbatches in megatron/core/pipeline_parallel/schedules.py)."""
    alone = recipe.peak_in_flight(microbatches, rank, pp, chunks)
    return np.minimum(alone + in_pairs, microbatches * chunks) if recipe.group else alone
