"""Journals of a real framework's step, and what ports that are shared add to it.

Idea   Each pipeline rank goes through its schedule's actions on a clock that writes a journal
       (ndparallel.planner.step.journal), item by item of its layers' lists. Of many microbatches two short
       steps are written, and the rounds between them and the real step are added.
Cost   10 to 50 microseconds for each message: a second for a pipeline of 16 ranks whose layers exchange
       nothing across nodes, up to ten where they do.
Limit  Pairs of microbatches run one after the other, with what of their all-to-alls would show.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from ndparallel.base.sums import sum_of
from ndparallel.engines.forking import map_in_forks
from ndparallel.engines.garbage import rare_garbage_collection
from ndparallel.engines.journal import Journal
from ndparallel.pipeline.actions import Action, Schedule
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.operations import CollectiveOp, Layer
from ndparallel.planner.ports import Piece, seconds_added
from ndparallel.planner.stages import keeps_weights
from ndparallel.planner.step.action_seconds import overlaps_messages
from ndparallel.planner.step.framework import FrameworkWorkload
from ndparallel.planner.step.journal import COMPUTE, JournalClock, StageMessages
from ndparallel.planner.step.overlap import (
    BucketCost,
    UnitCost,
    begin_gathers,
    begin_reduce,
    finish,
    finish_reduces,
    gather_in_turn,
    gathered_backward,
    gathered_forward,
)
from ndparallel.planner.step.pipeline import PipelineTimer
from ndparallel.planner.step.step import one_stage
from ndparallel.planner.step.streams import Item
from ndparallel.planner.step.workload import Workload, buckets_by_stage

AnyWork = TypeVar("AnyWork", bound=Workload)
LISTS_OF_OP = {
    "F": ("forward",),
    "B": ("backward",),
    "I": ("recompute", "backward_input"),
    "W": ("backward_weight",),
}


def sharing_seconds(work: AnyWork, journals: Callable[[AnyWork, Schedule], list[Journal]]) -> float:
    """What a step takes longer on ports that are shared; `journals` are those of its pipeline ranks."""
    timer = PipelineTimer(work)
    with rare_garbage_collection():
        if work.plan.recipe.is_searched:
            return seconds_added(journals(work, timer.whole.schedule))
        few, more, rounds = timer.short_steps
        schedules = [few.schedule, more.schedule] if rounds else [few.schedule]
        added, *longer = map_in_forks(lambda each: seconds_added(journals(work, each)), schedules)
        return added + sum_of(rounds * (each - added) for each in longer)


def framework_sharing(work: FrameworkWorkload) -> float:
    """What a framework's step takes longer on ports that are shared; 0 where no groups share one."""
    return sharing_seconds(work, framework_journals) if work.pricing.groups.on_shared_ports else 0.0


def framework_journals(work: FrameworkWorkload, schedule: Schedule) -> list[Journal]:
    """A journal for each pipeline rank."""
    ordered = OrderedWorkload(work.pricing, work.layers)
    if work.plan.pp == 1:
        return [stage_journal(ordered, schedule)]
    return [PipelineJournal(ordered, schedule, rank).written() for rank in range(work.plan.pp)]


def stage_journal(work: Workload, schedule: Schedule) -> Journal:
    """The journal of ranks that have the whole depth of the model."""
    streams = JournalClock(work.machine)
    one_stage(work, microbatches=schedule.microbatches, clock=streams)
    return streams.journal


# ---------------------------------------------------------------------------------- items in program order


@dataclass(frozen=True, eq=False)
class OrderedWorkload(FrameworkWorkload):
    """A framework's workload whose passes are lists in the program's order: collectives of groups that share
    a port, and the seconds of all else."""

    def unit_cost(self, kind: str) -> UnitCost:
        return UnitCost(*(in_order(self, kind, name) for name in ("forward", "backward", "backward_weight")))


@lru_cache(maxsize=64)
def in_order(work: FrameworkWorkload, kind: str, name: str) -> list[Item]:
    """A pass of a unit, of which no more is shown than it takes: the rest of its all-to-alls hides behind
    another microbatch."""
    whole, items = getattr(work.unit(kind), name), items_in_order(work.pricing.listed(kind), name)
    priced = [(item, spent_on(item), float(work.pricing.price_of(item)[1])) for item in items]
    listed = TimeBreakdown()
    for _, spent, seconds in priced:
        listed[spent] += seconds
    shown = {spent: float(whole[spent]) / seconds for spent, seconds in listed.items() if seconds}
    not_listed = sum_of(float(seconds) for spent, seconds in whole.items() if spent not in shown)
    shared = work.pricing.groups.on_shared_ports
    ordered = [
        item._replace(bytes=item.bytes * shown[spent]) if spent in shared else seconds * shown[spent]
        for item, spent, seconds in priced
        if spent in shown
    ]
    return [*computed_at_once([*ordered, not_listed])]


def items_in_order(lists: Layer, name: str) -> Sequence[Any]:
    """What is listed of a pass; a whole backward pass is several lists."""
    if name != "backward":
        return getattr(lists, name)
    return [*lists.recompute, *woven(lists.backward_input, lists.backward_weight)]


def computed_at_once(ordered: Sequence[CollectiveOp | float]) -> Iterator[Item]:
    """Let seconds that follow one another be one item."""
    seconds = 0.0
    for item in ordered:
        if isinstance(item, float):
            seconds += item
        else:
            yield from (TimeBreakdown(compute=seconds), item)
            seconds = 0.0
    yield TimeBreakdown(compute=seconds)


def spent_on(item: Any) -> str:
    return item.group if isinstance(item, CollectiveOp) else COMPUTE


def woven(inputs: Sequence[Any], weights: Sequence[Any]) -> Iterator[Any]:
    """A backward pass in order: a matrix's gradient comes behind that of its input, and the sum of it."""
    left = {item.name.replace("wgrad", "dgrad"): item for item in weights}
    ready: list[Any] = []
    for item in inputs:
        if not isinstance(item, CollectiveOp):
            yield from ready
            ready = []
        yield item
        ready += [left.pop(item.name)] if item.name in left else []
    yield from [*ready, *left.values()]


# ----------------------------------------------------------------------------------------- a pipeline rank


@dataclass
class PipelineJournal(StageMessages):
    """What a pipeline rank does in a step."""

    work: FrameworkWorkload
    schedule: Schedule
    rank: int

    def __post_init__(self) -> None:
        self.plan, self.stack = self.work.plan, self.work.job.stack
        self.waits = not overlaps_messages(self.work)
        self.fresh = {*self.buckets}  # stages that no microbatch has passed

    @cached_property
    def streams(self) -> JournalClock:
        return JournalClock(self.work.machine, rank=self.rank)

    @cached_property
    def buckets(self) -> dict[int, list[BucketCost]]:
        return buckets_by_stage(self.work, self.rank)

    @cached_property
    def all_buckets(self) -> list[BucketCost]:
        return [bucket for buckets in self.buckets.values() for bucket in buckets]

    @property
    def keeps_weights(self) -> bool:
        return bool(keeps_weights(self.work.job, self.plan))

    @property
    def gathers_first(self) -> bool:
        """Whether weights that others have stepped come beside the first forward pass."""
        return self.plan.zero in (1, 2) and self.stack.gathers_first

    def written(self) -> Journal:
        self.begin()
        for action in self.schedule.actions[self.rank]:
            self.receive(action)
            self.run(action)
            self.send(action)
        self.end()
        return self.streams.journal

    def begin(self) -> None:
        if self.gathers_first:
            begin_gathers(self.streams, self.all_buckets)

    def run(self, action: Action) -> None:
        op, stage, _ = action
        first = stage in self.fresh
        self.fresh.discard(stage)
        if self.plan.zero == 3 and (first or not self.keeps_weights):
            self.run_gathered(op, self.buckets[stage])
            return
        units = list(zip(reversed(self.work.kinds[stage]), self.buckets[stage]))
        for kind, bucket in reversed(units) if op == "F" else units:
            finish(self.streams, bucket.gather if first and self.gathers_first else ())
            for name in LISTS_OF_OP[op]:
                self.streams.run(in_order(self.work, kind, name))
            self.reduce(action, bucket)

    def run_gathered(self, op: str, buckets: Sequence[BucketCost]) -> None:
        """FSDP's pass through a stage; all of a backward one is in I."""
        if op == "F":
            gathered_forward(self.streams, buckets, self.stack.prefetch, not self.keeps_weights)
        elif op in "BI":
            gathered_backward(self.streams, buckets, self.stack.prefetch, self.stack.dp_overlap)

    def reduce(self, action: Action, bucket: BucketCost) -> None:
        """ZeRO-2 reduces gradients after every microbatch, DDP and ZeRO-1 once they are complete."""
        every = self.plan.zero == 2 and action.op in "BW"
        if every or (self.plan.zero < 2 and self.schedule.completes(action)):
            begin_reduce(self.streams, bucket, self.stack.dp_overlap)
        if every and not self.stack.dp_overlap:
            self.streams.run(bucket.reduce)

    def end(self) -> None:
        reduced = self.plan.zero == 2 or (self.plan.zero == 3 and not self.keeps_weights)
        overlap = self.stack.dp_overlap and self.plan.zero < 3
        finish_reduces(self.streams, [] if reduced else self.all_buckets, overlap)
        for each in self.work.stage_collectives:
            if self.rank in each.ranks:
                self.streams.hand_round(self.work.machine.rounds(each.exchange), each.ranks)
        self.streams.run(self.work.optimizer(self.rank), "optimizer")
        if self.plan.zero in (1, 2) and not self.stack.gathers_first:
            gather_in_turn(self.streams, self.all_buckets)

    # ---- messages between stages

    def piece(self, source: int, target: int) -> Piece:
        latency, wire = map(float, self.work.messages())
        port = "across" if self.work.pricing.groups.port_use("pp").across else "inside"
        return Piece(port, wire, latency_seconds=latency)
