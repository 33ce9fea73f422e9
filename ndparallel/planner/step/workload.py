"""What each pipeline rank has to do in a step: units in buckets, the seconds of its stages, its messages, its
optimizer.

Idea   A step is put together in ndparallel.planner.step.step, the same way for every job. This is what a real
       model on a real framework gives it; ndparallel.planner.lesson_runs.workload gives the same of the
       lessons' own runs.
Limit  All microbatches are alike, and so are the ranks of a stage.

Glossary
    kind       of a unit: embedding, dense, experts, head; "dense kept" where other layers are recomputed and
               this one is not
    bucket     one unit's gradients, or weights
    elements   parameters: (those that all of a dp group's ranks hold, those of experts)
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from gpu import Operation
from ndparallel.pipeline.work import spread_layers
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.collective_time import START_SECONDS, collective_seconds
from ndparallel.planner.layers.numbers import either
from ndparallel.planner.layers.operations import HALF, CollectiveOp
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.step.overlap import BucketCost, UnitCost, gathered_backward, gathered_forward
from ndparallel.planner.step.streams import Item, StreamClock, TimeBreakdown, total

KEPT = " kept"  # of a layer that is not recomputed while others are


def layers_by_stage(layers: int, stages: int) -> list[int]:
    """Megatron's even split; where it is not even, embedding and head count as a layer each (Llama 3,
    2407.21783, section 3.3.2)."""
    return [layers // stages] * stages if layers % stages == 0 else spread_layers(layers, stages, 1, 1)


@lru_cache(maxsize=1024)
def kinds_by_stage(
    shape: ModelShape, stages: int, recomputed: int = 0, layers: tuple[int, ...] = ()
) -> tuple[tuple[str, ...], ...]:
    """The kinds of the units on every stage, in the order of the model; with `recomputed` layers of a stage
    behind those are kept. `layers` says how many each stage has; without it they are split evenly."""
    places = np.cumsum([0, *(layers or layers_by_stage(shape.layers, stages))])
    kinds = [
        ["experts" if shape.has_experts(layer) else "dense" for layer in range(a, b)]
        for a, b in zip(places, places[1:])
    ]
    if recomputed:
        kinds = [[kind + KEPT * (place >= recomputed) for place, kind in enumerate(stage)] for stage in kinds]
    kinds[0].insert(0, "embedding")
    kinds[-1].append("head")
    return tuple(map(tuple, kinds))


def elements_of(job: TrainingJob, plan: Plan, kind: str) -> tuple[Any, Any]:
    """Parameters of one unit on a GPU: (all but experts, experts). A tied head on a stage of its own holds a
    copy of the table."""
    counted, tp = job.shape.parameters(), plan.tp
    kind = kind.removesuffix(KEPT)
    if kind == "embedding":
        return counted.token_embedding / tp + counted.position_embedding, 0.0
    if kind == "head":
        copied = (plan.pp > 1) | (not job.shape.tied_embeddings)
        return copied * counted.token_embedding / tp + counted.final_norm, 0.0
    cut = counted.attention + (counted.shared_experts if kind == "experts" else counted.dense_mlp)
    whole = counted.layer_norms + (counted.router if kind == "experts" else 0)
    return cut / tp + whole, counted.experts * counted.expert / plan.ep if kind == "experts" else 0.0


@dataclass(frozen=True, eq=False)
class Workload:
    """Of one plan of a real framework's job."""

    pricing: Pricing
    layers: tuple[int, ...] = ()  # of every stage; none: split evenly
    kinds_seen: dict[str, BucketCost] = field(default_factory=dict)

    @property
    def machine(self) -> Pricing:
        return self.pricing

    @property
    def job(self) -> TrainingJob:
        return self.pricing.job

    @property
    def plan(self) -> Plan:
        return self.pricing.plan

    @cached_property
    def kinds(self) -> tuple[tuple[str, ...], ...]:
        return kinds_by_stage(self.job.shape, self.plan.stages, self.plan.recompute_layers, self.layers)

    # ---- units and buckets

    def buckets(self, stage: int) -> list[BucketCost]:
        """Of one stage, the last unit's first."""
        return [self.bucket(kind) for kind in reversed(self.kinds[stage])]

    def bucket(self, kind: str) -> BucketCost:
        """One unit's; all of a kind are the same."""
        if kind not in self.kinds_seen:
            self.kinds_seen[kind] = self.make_bucket(kind)
        return self.kinds_seen[kind]

    def make_bucket(self, kind: str) -> BucketCost:
        seconds, elements = self.pricing.unit(kind), elements_of(self.job, self.plan, kind)
        unit = UnitCost([seconds.forward.plain], [seconds.backward.plain], elements)
        sharded = self.plan.zero > 0
        reduce = self.exchanges(
            "gradients", "reduce_scatter" if sharded else "all_reduce", elements, self.gradient_bytes
        )
        return BucketCost(
            [unit], reduce, self.exchanges("weights", "all_gather", elements, HALF) if sharded else []
        )

    def exchanges(
        self, name: str, collective: str, elements: tuple[Any, Any], size: int
    ) -> list[CollectiveOp]:
        """Over dp what its ranks share; over fewer ranks the experts. A layer of weights may take several."""
        shared, experts = elements
        group, parts = ("shards", self.job.stack.collectives_per_layer) if self.plan.zero == 3 else ("dp", 1)
        named = [
            CollectiveOp(f"{name} part {part}", collective, group, shared * size / parts)
            for part in range(parts)
        ]
        if self.plan.zero == 3 and self.plan.shards and collective == "reduce_scatter":
            shard = shared * size / self.plan.shards
            named.append(CollectiveOp(f"{name} of replicas", "all_reduce", "replicas", shard))
        if isinstance(experts, np.ndarray) or experts:
            named.append(CollectiveOp(f"{name} of experts", collective, "experts_dp", experts * size))
        return named

    @property
    def gradient_bytes(self) -> int:
        return HALF if self.job.half else self.job.stack.gradient_bytes

    # ---- the pipeline

    @cached_property
    def columns(self) -> tuple[list[TimeBreakdown], list[TimeBreakdown], list[TimeBreakdown]]:
        """TimeBreakdown of F, I and W of every stage; what is recomputed counts as I."""
        if self.plan.zero == 3:
            return self.sharded_columns()
        known = {kinds: self.stage_seconds(kinds) for kinds in {*self.kinds}}
        forward, inputs, weights = zip(*(known[kinds] for kinds in self.kinds))
        return list(forward), list(inputs), list(weights)

    def stage_seconds(self, kinds: Sequence[str]) -> list[TimeBreakdown]:
        """F, I and W of a stage with these units."""
        units = [(self.pricing.unit(kind), count) for kind, count in Counter(kinds).items()]
        passes = [
            (unit.forward, unit.recompute + unit.backward_input, unit.backward_weight) for unit, _ in units
        ]
        return [
            total(part.times(count) for part, (_, count) in zip(column, units)) for column in zip(*passes)
        ]

    def sharded_columns(self) -> tuple[list[TimeBreakdown], list[TimeBreakdown], list[TimeBreakdown]]:
        """FSDP within stages: F and B take what they wait for weights."""
        forward, backward, stack = [], [], self.job.stack
        for stage in range(self.plan.stages):
            buckets, streams = self.buckets(stage), (StreamClock(self.pricing), StreamClock(self.pricing))
            gathered_forward(streams[0], buckets, stack.prefetch, True)
            gathered_backward(streams[1], buckets, stack.prefetch, stack.dp_overlap)
            forward.append(streams[0].spent)
            backward.append(streams[1].spent)
        return forward, backward, [TimeBreakdown() for _ in backward]

    def messages(self) -> tuple[Any, Any]:
        """Latency and wire time of a microbatch's activations between stages; tp ranks send a part each and
        gather it (2104.04473, 4.1)."""
        return message_seconds(self.pricing)

    # ---- the end of a step, and memory that a step begins with

    def states(self, rank: int) -> Sequence[Item]:
        return ()

    def shared(self, rank: int) -> Sequence[Item]:
        """A table that is embedding and head: where they are on two ranks, the sum of its gradients."""
        kinds = {kind for stage in self.plan.layout.stages_of(rank) for kind in self.kinds[stage]}
        return (
            [tied_sum(self.pricing)]
            if self.job.shape.tied_embeddings and ("embedding" in kinds) != ("head" in kinds)
            else []
        )

    def optimizer(self, rank: int) -> list[Item]:
        """Of what the rank owns of all its stages."""
        counts = Counter(kind for stage in self.plan.layout.stages_of(rank) for kind in self.kinds[stage])
        elements = [elements_of(self.job, self.plan, kind) for kind in counts]
        shared, experts = (
            sum(count * each for count, each in zip(counts.values(), column)) for column in zip(*elements)
        )
        return [optimizer_step(self.pricing, shared, experts)]


def optimizer_step(pricing: Pricing, shared, experts) -> Operation:
    """Price the step of these parameters, or of the rank's share of them."""
    groups, sharded = pricing.groups, pricing.plan.zero > 0
    owners = groups.shards.ranks if pricing.plan.zero == 3 else groups.dp.ranks
    mine = shared / (owners if sharded else 1) + experts / (groups.experts_dp.ranks if sharded else 1)
    return Operation("adamw", "elementwise", (mine,), "float32", 0, mine * pricing.job.stack.optimizer_bytes)


def tied_sum(pricing: Pricing) -> CollectiveOp:
    """Over the first and the last stage, when dp's sums are done
    (megatron/core/distributed/finalize_model_grads.py)."""
    job, owners = pricing.job, pricing.groups.shards.ranks if pricing.plan.zero == 3 else 1
    mine = job.shape.parameters().token_embedding / pricing.plan.tp / owners
    return CollectiveOp(
        "gradients of both ends",
        "all_reduce",
        "ends",
        mine * (HALF if job.half else job.stack.gradient_bytes),
    )


def message_seconds(pricing: Pricing) -> tuple[Any, Any]:
    job, plan, hardware = pricing.job, pricing.plan, pricing.job.hardware
    stride = pricing.groups.stage_stride
    inside = stride * plan.pp <= hardware.gpus_per_node
    latency = either(inside, hardware.inside.latency_seconds, hardware.across.latency_seconds)
    bandwidth = either(
        inside, hardware.inside.bandwidth_bytes_per_second, hardware.across.bandwidth_bytes_per_second
    )
    part = plan.share(job).rows / plan.tp * job.shape.hidden * HALF
    gathered = (
        0.0 if plan.sequence_parallel else collective_seconds("all_gather", part * plan.tp, pricing.groups.tp)
    )
    return START_SECONDS + latency + gathered, part / bandwidth
