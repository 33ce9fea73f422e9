"""The workload of a real model on a real framework: units in buckets, the seconds of its stages, its
messages, its optimizer.

Idea   Every layer's list is priced on the slowest of the GPUs, and layers make stages.
Limit  All microbatches are alike, and so are the ranks of a stage.

Glossary
    bucket     one unit's gradients, or weights
    elements   parameters: (those that all of a dp group's ranks hold, those of experts)
    kind       of a unit: see ndparallel.planner.stages
    spread     standard deviation of the GPUs' speeds, as a share
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any

from gpu import Hardware
from ndparallel.base.sums import sum_of
from ndparallel.hardware.accelerator import Accelerator
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.breakdown import TimeBreakdown, total
from ndparallel.planner.layers.operations import SINGLE, CollectiveOp
from ndparallel.planner.layers.pricing import Pricing, UnitSeconds
from ndparallel.planner.number_types import NUMBER_TYPES
from ndparallel.planner.stages import keeps_weights, kinds_of_rank, stage_kinds, trained_of
from ndparallel.planner.step.data_collectives import gathered_weights, reduced_gradients
from ndparallel.planner.step.overlap import BucketCost, UnitCost, gathered_backward, gathered_forward
from ndparallel.planner.step.paired import in_pairs, share_in_pairs
from ndparallel.planner.step.parameter_kernels import (
    copies_of_shards,
    optimizer_seconds,
    seconds_of_adding,
)
from ndparallel.planner.step.stage_messages import message_seconds, tied, tied_sum
from ndparallel.planner.step.streams import Item, StreamClock
from ndparallel.planner.step.workload import StageCollective

# Sinha et al., "Not All GPUs Are Created Equal" (2208.11035): GPUs of one model differ by 8 % on average,
# which is read as the range that has 95 % of them: four standard deviations
SPREAD = 0.02


@lru_cache(maxsize=64)
def slowest_of(hardware: Hardware, gpus: int) -> Hardware:
    """The slowest of so many GPUs: the median of the minimum of normally distributed speeds. Idealized
    hardware has no spread."""
    if not isinstance(hardware, Accelerator):
        return hardware
    behind = -SPREAD * NormalDist().inv_cdf(1 - 0.5 ** (1 / gpus)) if gpus > 1 else 0.0
    return replace(hardware, matmul_fraction=hardware.matmul_fraction / (1 + behind))


def framework_workload(job: TrainingJob, plan: Plan) -> "FrameworkWorkload":
    """The workload of one plan; a synchronous step is as long as on the slowest of its GPUs."""
    slowest = slowest_of(job.hardware, plan.gpus)
    stack = job.stack.running(plan.zero, plan.pp, plan.sharding_ranks)
    return FrameworkWorkload(Pricing(replace(job, hardware=slowest, stack=stack), plan))


@dataclass(frozen=True, eq=False)
class FrameworkWorkload:
    """What the ranks do in a step of one plan."""

    pricing: Pricing
    layers: tuple[int, ...] = ()  # of every stage; none: split evenly
    buckets_seen: dict[str, BucketCost] = field(default_factory=dict)
    tails_seen: dict[tuple[str, ...], float] = field(default_factory=dict)
    passes_seen: dict[str, tuple[TimeBreakdown, TimeBreakdown, TimeBreakdown]] = field(default_factory=dict)

    @property
    def machine(self) -> Pricing:
        return self.pricing

    @cached_property
    def job(self) -> TrainingJob:
        return self.pricing.job

    @cached_property
    def plan(self) -> Plan:
        return self.pricing.plan

    @cached_property
    def kinds(self) -> tuple[tuple[str, ...], ...]:
        return stage_kinds(self.job, self.plan, self.layers)

    # ---- units and buckets

    def unit(self, kind: str) -> UnitSeconds:
        """A unit's passes, beside those of other microbatches where the software runs them so."""
        unit, plan = self.pricing.unit(kind), self.plan
        if not (self.job.stack.hides_dispatch and "ep" in unit.forward):
            return unit
        share = share_in_pairs(plan.recipe, plan.microbatches(self.job), plan.pp, plan.chunks) * (plan.ep > 1)
        return in_pairs(unit, share, self.pricing.slowdown)

    def passes(self, kind: str) -> tuple[TimeBreakdown, TimeBreakdown, TimeBreakdown]:
        """F, I and W of a unit."""
        if kind not in self.passes_seen:
            self.passes_seen[kind] = self.unit(kind).passes
        return self.passes_seen[kind]

    def unit_cost(self, kind: str) -> UnitCost:
        """A unit's passes as sums; pipeline_journal.py has them item by item, in the program's order."""
        forward, inputs, weights = self.passes(kind)
        return UnitCost([forward.plain], [(inputs + weights).plain], [weights.plain])

    def buckets(self, stage: int) -> list[BucketCost]:
        """Buckets of one stage, the last unit's first."""
        return [self.bucket(kind) for kind in reversed(self.kinds[stage])]

    def bucket(self, kind: str) -> BucketCost:
        """The bucket of a unit; all units of a kind have the same one."""
        if kind not in self.buckets_seen:
            self.buckets_seen[kind] = self.make_bucket(kind)
        return self.buckets_seen[kind]

    def make_bucket(self, kind: str) -> BucketCost:
        gathered, again, made = copies_of_shards(self.pricing, kind)
        own = self.unit_cost(kind)
        unit = UnitCost([*gathered, *own.forward], [*again, *made, *own.backward], own.weights)
        return BucketCost(
            [unit],
            reduced_gradients(self.pricing, kind),
            gathered_weights(self.pricing, kind),
            added=[TimeBreakdown(host=seconds_of_adding(self.pricing, kind))] * self.job.states_away,
        )

    # ---- the pipeline

    @cached_property
    def columns(self) -> tuple[list[TimeBreakdown], list[TimeBreakdown], list[TimeBreakdown]]:
        """Seconds of F, I and W of every stage; what is recomputed counts as I."""
        if self.plan.zero == 3 and not keeps_weights(self.job, self.plan):
            return self.sharded_columns()
        known = {kinds: self.stage_seconds(kinds) for kinds in {*self.kinds}}
        forward, inputs, weights = zip(*(known[kinds] for kinds in self.kinds))
        return list(forward), list(inputs), list(weights)

    @property
    def whole_backward(self) -> None:
        return None

    def stage_seconds(self, kinds: Sequence[str]) -> list[TimeBreakdown]:
        """F, I and W of a stage with these units."""
        counts = Counter(kinds)
        passes = list(map(self.passes, counts))
        forward, inputs, weights = (
            total([each[place] for each in passes], counts.values()) for place in range(3)
        )
        weights = weights + self.gradient_copies(kinds) if self.plan.zero >= 2 else weights
        return [forward + self.shared_amax, inputs + self.shared_amax, weights]

    def gradient_copies(self, kinds: Sequence[str]) -> TimeBreakdown:
        """Seconds in which a pipeline of FSDP adds each microbatch's gradients to those that stay whole, or
        ZeRO-2 copies them to be reduced."""
        made = {kind: copies_of_shards(self.pricing, kind)[-1] for kind in {*kinds}}
        seconds = {kind: sum_of(map(self.pricing.seconds, items)) for kind, items in made.items()}
        return TimeBreakdown(compute=sum_of(seconds[kind] for kind in kinds))

    @cached_property
    def shared_amax(self) -> TimeBreakdown:
        """After each pass of a stage: the maxima that the next scales are made of, of all its ranks
        (reduce_and_update_fp8_tensors in transformer_engine/pytorch/quantization.py, with Megatron's
        get_amax_reduction_group). How many there are does not count beside latencies; nor do a step's passes
        without a pipeline."""
        if not NUMBER_TYPES[self.job.dtype].shares_amax:
            return TimeBreakdown()
        return TimeBreakdown(
            dp=self.pricing.seconds_alone(CollectiveOp("amax", "few bytes", "stage", SINGLE))
        )

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
        return message_seconds(self.pricing)

    # ---- the end of a step, and memory that a step begins with

    def states(self, rank: int) -> Sequence[Item]:
        return ()

    @cached_property
    def stage_collectives(self) -> Sequence[StageCollective]:
        """A table that is embedding and head: where they are on two ranks, the sum of its gradients."""
        first, last = (self.plan.layout.rank(stage) for stage in (0, self.plan.stages - 1))
        if not tied(self.job) or first == last:
            return []
        exchange = tied_sum(self.pricing)
        seconds = self.pricing.seconds_alone(exchange)

        def taken(starts: Sequence[Any]) -> list[Any]:
            return [max(starts) - start + seconds for start in starts]

        return [StageCollective((first, last), exchange, taken, late="bubble")]

    def optimizer(self, rank: int) -> list[TimeBreakdown]:
        """The optimizer's step of what the rank owns of all its stages."""
        return [TimeBreakdown(optimizer=optimizer_seconds(self.pricing, *self.trained(rank)))]

    def longest_tail(self, rank: int) -> float:
        """Everything one after another: a collective slows what hides it by less than it takes."""
        held = kinds_of_rank(self.plan, self.kinds, rank)
        if held not in self.tails_seen:
            travels = sum_of(
                times * self.pricing.seconds_alone(each)
                for kind, times in Counter(held).items()
                for each in (*self.bucket(kind).reduce, *self.bucket(kind).gather)
            )
            self.tails_seen[held] = travels + total(self.optimizer(rank)).total
        return self.tails_seen[held]

    def trained(self, rank: int) -> tuple[Any, Any]:
        """Parameters of the rank that have gradients."""
        counts = Counter(kinds_of_rank(self.plan, self.kinds, rank))
        elements = [(count, trained_of(self.job, self.plan, kind)) for kind, count in counts.items()]
        shared, experts = (sum(count * each[place] for count, each in elements) for place in range(2))
        return shared, experts
