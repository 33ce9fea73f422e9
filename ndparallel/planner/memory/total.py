"""Bytes on every pipeline stage's GPUs, by kind.

Idea   Weights, gradients and optimizer follow from the parameters that a rank holds; activations from the
       tensors that a layer keeps until its backward pass, times the microbatches that the schedule keeps in
       flight. What the loss needs and what a layer's backward pass needs is not there at the same time, but
       PyTorch's allocator keeps blocks of both: it splits the large blocks of freed logits for small tensors,
       and then has none whole for the next step's (c10/cuda/CUDACachingAllocator.cpp). So a GPU holds their
       sum, of which tensors at no time take more than the larger: a replay of the tensors through that
       allocator reserves as much, to 1% (tests/planner/test_reserved.py).
Cost   See states.py, fsdp.py, deepspeed.py, head.py, outside.py and layers/kept.py.
Limit  Blocks are rounded up to 512 bytes, segments to 2 MiB and those below 10 MB to 20 (kMinBlockSize,
       kRoundLarge, kLargeBuffer there), which is not counted: a large model's tensors are whole MiB. Whether
       the logits that a pipeline of PyTorch joins find a hole depends on all that came before: they are taken
       to find none. Newer torchtitan does not join them (October 2025, pull request 1922).

Glossary
    in flight   chunks of one microbatch that a rank keeps at the same time
    allocated   bytes of tensors at their peak (torch.cuda.max_memory_allocated)
    reserved    with the allocator's free blocks (torch.cuda.max_memory_reserved)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

from ndparallel.base.sums import sum_of
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.kept import (
    LayerBytes,
    layer_bytes,
    on_gpu,
    passed_bytes,
    passed_messages,
    prediction_bytes,
)
from ndparallel.planner.memory.deepspeed import most_made
from ndparallel.planner.memory.fsdp import gather_block
from ndparallel.planner.memory.head import logits_bytes
from ndparallel.planner.memory.outside import WORKSPACE_BYTES, context_bytes
from ndparallel.planner.memory.states import (
    bytes_on_host,
    fsdp_states,
    is_fully_sharded,
    made_gradients,
    passing_bytes,
    plain_states,
    step_states,
)
from ndparallel.planner.numbers import either, most, smaller
from ndparallel.planner.stages import ENDS, Elements, held_of, kinds_of_rank, stage_kinds, trained_of

STAGE_MEMORY_KINDS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")


class StageMemory(NamedTuple):
    """Bytes by kind on one GPU of one pipeline rank; of their sum, those outside PyTorch's allocator, and
    those of its blocks that no tensor has at the peak."""

    weights: Any
    gradients: Any
    optimizer: Any
    activations: Any
    logits: Any
    buffers: Any
    outside: Any = 0.0
    free_blocks: Any = 0.0

    @property
    def total(self):
        return sum_of(getattr(self, kind) for kind in STAGE_MEMORY_KINDS)

    @property
    def reserved(self):
        return self.total - self.outside

    @property
    def allocated(self):
        return self.reserved - self.free_blocks


def memory_by_rank(job: TrainingJob, plan: Plan, in_flight: Sequence[float]) -> list[StageMemory]:
    """The memory of every pipeline rank at its peak, with so many chunks that each keeps in flight."""
    stages, found = stage_kinds(job, plan), []
    layers = cache(partial(layer_bytes, job, plan))
    parameters = [cache(partial(of, job, plan)) for of in (held_of, trained_of)]
    counted = cache(lambda kinds: UnitsMemory(job, plan, kinds, layers, parameters))
    for rank, chunks in enumerate(in_flight):
        found.append(counted(kinds_of_rank(plan, stages, rank)).of_rank(rank, chunks))
    return found


def most_on_host(job: TrainingJob, plan: Plan) -> float:
    """Bytes of states that a host keeps for the GPU that leaves most to it."""
    stages = stage_kinds(job, plan)
    by_rank = (kinds_of_rank(plan, stages, rank) for rank in range(plan.pp))
    elements = ([summed(partial(of, job, plan), kinds) for of in (held_of, trained_of)] for kinds in by_rank)
    return max(float(bytes_on_host(job, plan, *both)) for both in elements)


@dataclass(frozen=True)
class UnitsMemory:
    """Counts the bytes of units of these `kinds`, once for all pipeline ranks that have them."""

    job: TrainingJob
    plan: Plan
    kinds: tuple[str, ...]
    layer_bytes: Callable[[str], LayerBytes]  # of a layer, by its kind
    parameters: Sequence[Callable[[str], Elements]]  # held and trained of a unit, by its kind

    def of_rank(self, rank: int, chunks: float) -> StageMemory:
        """The memory of a rank that keeps so many chunks in flight."""
        job, plan, (kept, largest) = self.job, self.plan, self.kept
        held = on_gpu(kept * chunks / plan.chunks, largest, job.activations_away) + self.once
        if self.message:
            place = plan.recipe.layout, plan.pp, plan.chunks, rank, plan.microbatches(job), chunks
            held = held + self.message * passed_messages(*place)
        return self.at_peak(self.at_rest._replace(activations=held + self.at_rest.activations))

    def at_peak(self, backward: StageMemory) -> StageMemory:
        """The memory of the backward pass, or of the optimizer's step where that needs more."""
        if not self.job.stack.casts_gradients:
            return backward
        step = self.in_step
        return StageMemory(*(either(step.total > backward.total, *pair) for pair in zip(step, backward)))

    @cached_property
    def in_step(self) -> StageMemory:
        """Memory while DeepSpeed's optimizer steps: activations, logits and what passed are freed."""
        job, plan = self.job, self.plan
        held, trained = map(self.summed, self.parameters)
        states = step_states(job, plan, held, trained)
        made = smaller(made_gradients(job, plan, trained), most_made(job, plan))
        return StageMemory(
            weights=states["weights"],
            gradients=states["gradients"] + made,
            optimizer=states["optimizer"],
            activations=0.0,
            logits=0.0,
            buffers=states["buffers"] + context_bytes(job, plan),
            outside=self.at_rest.outside,
        )

    @cached_property
    def layers(self) -> list[LayerBytes]:
        return [self.layer_bytes(kind) for kind in self.kinds if kind not in ENDS]

    @cached_property
    def kept(self) -> tuple[Any, Any]:
        """The bytes that all layers keep of one microbatch, and the most of one."""
        each = [layer.kept for layer in self.layers]
        return sum(each), most(each)

    @cached_property
    def prediction(self) -> LayerBytes:
        """The bytes of prediction layers, which are where the head is."""
        return prediction_bytes(self.job, self.plan) if "head" in self.kinds else LayerBytes(0.0, 0.0)

    @cached_property
    def once(self) -> Any:
        """The most that one layer holds while it is turned round."""
        return most(layer.once for layer in (*self.layers, self.prediction))

    @cached_property
    def message(self) -> Any:
        return passed_bytes(self.job, self.plan)

    @cached_property
    def at_rest(self) -> StageMemory:
        """Memory with no microbatch in flight, but the one whose loss is being computed."""
        job, plan = self.job, self.plan
        held, trained = map(self.summed, self.parameters)
        sharded = is_fully_sharded(job, plan)
        states = (fsdp_states if sharded else plain_states)(job, plan, held, trained)
        passing = passing_bytes(job, plan, trained) if sharded else 0.0
        gathered = gather_block(job, plan) if sharded else 0.0
        logits = logits_bytes(job, plan) if "head" in self.kinds else 0.0
        context = context_bytes(job, plan)
        return StageMemory(
            weights=states["weights"],
            gradients=states["gradients"],
            optimizer=states["optimizer"],
            activations=self.prediction.kept,
            logits=logits,
            buffers=states["buffers"] + context,
            outside=context - WORKSPACE_BYTES,
            free_blocks=smaller(logits, self.once + passing) + gathered,
        )

    def summed(self, of: Callable[[str], Elements]) -> Elements:
        """Parameters of all units."""
        return summed(of, self.kinds)


def summed(of: Callable[[str], Elements], kinds: Sequence[str]) -> Elements:
    """Parameters of units of these kinds."""
    elements = list(map(of, kinds))
    return sum(shared for shared, _ in elements), sum(experts for _, experts in elements)
