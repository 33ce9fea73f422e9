"""Bytes on every pipeline stage's GPUs, by kind.

Idea   Weights, gradients and optimizer follow from the parameters that a rank holds; activations from the
       tensors that a layer keeps until its backward pass, times the microbatches that the schedule keeps in
       flight.
Cost   See states.py and layers/kept.py.
Limit  As there.

Glossary
    in flight   chunks of one microbatch that a rank keeps at the same time
"""

from dataclasses import dataclass
from typing import Any

from ndparallel.pipeline.timing import peak_activations
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.kept import held_activations, once_bytes, prediction_bytes
from ndparallel.planner.memory.states import Elements, fsdp_states, plain_states
from ndparallel.planner.stages import elements_of, kinds_by_stage, trained_of
from ndparallel.planner.step.framework import FrameworkWorkload
from ndparallel.planner.step.pipeline import schedule_of

STAGE_MEMORY_KINDS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")


@dataclass(frozen=True)
class StageMemory:
    """Bytes by kind on one GPU of one pipeline rank."""

    weights: Any
    gradients: Any
    optimizer: Any
    activations: Any
    logits: Any
    buffers: Any

    @property
    def total(self):
        return sum(getattr(self, kind) for kind in STAGE_MEMORY_KINDS)


def memory_by_rank(work: FrameworkWorkload) -> list[StageMemory]:
    """The memory of every pipeline rank at its peak."""
    return [_rank_memory(work.job, work.plan, rank, chunks) for rank, chunks in enumerate(in_flight(work))]


def in_flight(work: FrameworkWorkload) -> list[float]:
    """Chunks that each pipeline rank keeps at the most."""
    job, plan = work.job, work.plan
    if plan.pp == 1:
        return [1.0]
    if plan.recipe.is_searched:
        return peak_activations(schedule_of(work))
    return [
        float(plan.recipe.peak_in_flight(plan.microbatches(job), rank, plan.pp, plan.chunks))
        for rank in range(plan.pp)
    ]


def _rank_memory(job: TrainingJob, plan: Plan, rank: int, chunks: float) -> StageMemory:
    stages = kinds_by_stage(job.shape, plan.stages, plan.recompute_layers)
    kinds = [kind for stage in plan.layout.stages_of(rank) for kind in stages[stage]]
    held, trained = (summed([of(job, plan, kind) for kind in kinds]) for of in (elements_of, trained_of))
    states = fsdp_states if plan.zero == 3 and plan.dp * plan.cp > 1 else plain_states
    return StageMemory(
        **states(job, plan, held, trained),
        activations=held_activations(job, plan, kinds, chunks)
        + once_bytes(job, plan)
        + (prediction_bytes(job, plan) if "head" in kinds else 0.0),
        logits=logits_bytes(job, plan) if "head" in kinds else 0.0,
    )


def summed(elements: list[Elements]) -> Elements:
    return sum(each for each, _ in elements), sum(each for _, each in elements)


def logits_bytes(job: TrainingJob, plan: Plan):
    cut, heads = plan.tp if job.stack.parallel_loss else 1, 1 + job.shape.prediction_layers
    return plan.share(job).rows * job.shape.vocab / cut * job.stack.logits_kept * heads
