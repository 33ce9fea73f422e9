"""The loop of 4d_combined.py on the planner's streams: what every GPU of a grid does in a step, action by
action.

Idea   A schedule's actions run on the GPUs of every pipeline rank, whose clocks are arrays. Before an action
       FSDP gathers its stage's weights; behind it the gradients of what is complete begin their way. The
       verbs and their order are the lesson's.
Cost   As many vector operations as one GPU of every pipeline rank does operations.
Limit  Executed runs only: thousands of GPUs are timed by their schedule's actions alone
       (ndparallel.planner.step.step).

Glossary
    bucket     a run of units whose gradients travel together
    message    what an action hands to the next stage: when it left, when it begins to arrive, how long it
               takes
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ndparallel.base.sums import sum_of
from ndparallel.pipeline.actions import ONWARD, Action, Schedule
from ndparallel.pipeline.checker import GIVES, run_ranks, waits_for
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.lesson_runs.cluster import LockstepMachine
from ndparallel.planner.lesson_runs.optimizer import global_norm, norm_over_pp, stepped
from ndparallel.planner.lesson_runs.record import PASSES
from ndparallel.planner.lesson_runs.workload import ExecutedWorkload
from ndparallel.planner.step.overlap import BucketCost, begin, finish, gather_in_turn
from ndparallel.planner.step.streams import Item, MemoryCounters, StreamClock
from ndparallel.planner.step.workload import buckets_by_stage

IN_PICTURES = PASSES | {"I": "input"}
WORK = ("compute", "tp", "cp", "ep")  # what a GPU does for its microbatches


def run_grid(work: ExecutedWorkload, schedule: Schedule, traces: bool = False) -> list[StreamClock]:
    """Every pipeline rank's streams at the end of the step; with `traces` they know what happened when."""
    done: dict[tuple, StageMessage | None] = {}
    ranks = [GridRank(work, schedule, rank, done) for rank in range(work.plan.pp)]
    for rank in ranks:
        rank.streams.trace = [] if traces else None
    run_step(work, ranks)
    return [rank.streams for rank in ranks]


def run_step(work: ExecutedWorkload, ranks: "Sequence[GridRank]") -> None:
    """Run all pipeline ranks through their step."""
    run_ranks([rank.step() for rank in ranks], ranks[0].done)
    run_across = ranks[0].run_across
    for exchange in work.tied_sums:
        run_across(ranks, exchange)
    for rank in ranks:
        rank.streams.run(global_norm(work, rank.rank, rank.machine), "optimizer")
    for exchange in norm_over_pp(work):
        run_across(ranks, exchange)
    for rank in ranks:
        rank.end()


def slowest_gpu(grid: list[StreamClock]) -> tuple[TimeBreakdown, int, int]:
    """What the GPU that is done last spent its step on; its pipeline rank, and the one that works longest of
    those it works with."""
    last = max(range(len(grid)), key=lambda rank: float(np.max(grid[rank].now)))
    place = int(np.argmax(grid[last].now))
    spent = [spent_at(streams, place) for streams in grid]
    works = [sum_of(each[kind] for kind in WORK) for each in spent]
    busiest, idle = works.index(max(works)), spent[last].pop("bubble", 0.0)
    imbalance = min(idle, works[busiest] - works[last])
    return spent[last] + TimeBreakdown(bubble=idle - imbalance, imbalance=imbalance), last, busiest


def spent_at(streams: StreamClock, place: int) -> TimeBreakdown:
    """Return what one GPU of a pipeline rank spent its time on."""
    return TimeBreakdown(
        {
            kind: float(np.broadcast_to(seconds, np.shape(streams.now))[place])
            for kind, seconds in streams.spent.items()
        }
    )


@dataclass(frozen=True)
class StageMessage:
    departed: Any
    first_byte: Any
    wire: Any


@dataclass
class GridRank:
    """The GPUs of one pipeline rank. `done` holds the messages of what all have done; buckets are held by
    their id: those whose gradients are `on_their_way`, or `allocated` whole, and whose weights are
    `gathered`. `lines` says when each line of messages between stages is free."""

    work: ExecutedWorkload
    schedule: Schedule
    rank: int
    done: dict[tuple, Any]
    on_their_way: dict[int, BucketCost] = field(default_factory=dict)
    allocated: set[int] = field(default_factory=set)
    gathered: set[int] = field(default_factory=set)
    lines: dict[tuple[str, str], Any] = field(default_factory=dict)

    @cached_property
    def machine(self) -> LockstepMachine:
        return self.work.stage_machine(self.rank)

    @cached_property
    def streams(self) -> StreamClock:
        streams = StreamClock(self.machine, np.zeros(len(self.machine.members)))
        streams.memory = MemoryCounters() if self.work.job.token_counts else streams.memory
        streams.run(self.work.states(self.rank))
        return streams

    @cached_property
    def buckets(self) -> dict[int, list[BucketCost]]:
        return buckets_by_stage(self.work, self.rank)

    def step(self) -> Iterator[Action]:
        """The lesson's loop, until this rank's gradients are reduced; while it waits for another rank, yield
        what for."""
        for actions in self.schedule.steps(self.rank):
            for action in actions:
                self.prepare(action)
            for action in actions:
                while need := waits_for(action, self.done, self.schedule.layout.stages - 1):
                    yield need
                self.receive(action)
            for action in actions:
                self.run(action)
            for action in actions:
                self.send(action)
        for bucket in list(self.on_their_way.values()):
            self.wait_for_gradients(bucket)

    def run_across(self, ranks: "Sequence[GridRank]", exchange: CollectiveOp) -> None:
        """A collective between pipeline ranks, which all of them wait for."""
        starts = [each.streams.ready(exchange) for each in ranks]
        ends = np.split(self.work.machine.arrival(exchange, np.concatenate(starts)), len(ranks))
        for each, start, end in zip(ranks, starts, ends):
            each.streams.begin(exchange, start, end)
            each.streams.wait(exchange)

    def prepare(self, action: Action) -> None:
        """Prepare what a stage computes with: FSDP gathers its weights, ZeRO-2 and FSDP make room for its
        gradients."""
        zero = self.work.plan.zero
        for bucket in self.buckets[action.stage]:
            if zero == 3 and action.op != "W":
                self.gather(bucket)
            if zero >= 2 and action.op != "F":
                self.wait_for_gradients(bucket)
                self.allocate_gradients(bucket)

    def gather(self, bucket: BucketCost) -> None:
        if id(bucket) not in self.gathered:
            self.gathered.add(id(bucket))
            self.streams.memory.hold("buffers", bucket.whole_bytes[0])
            begin(self.streams, bucket.gather)
            finish(self.streams, bucket.gather)

    def allocate_gradients(self, bucket: BucketCost) -> None:
        if id(bucket) not in self.allocated:
            self.allocated.add(id(bucket))
            self.streams.memory.hold("buffers", bucket.whole_bytes[1])

    def run(self, action: Action) -> None:
        """Run all units of a stage, and what follows a bucket whose units are done."""
        op, stage, _ = action
        layers = iter(self.work.layers(stage) if op == "F" else reversed(self.work.layers(stage)))
        self.streams.phase = IN_PICTURES[op]
        for number, kinds in self.in_order(action):
            for kind in kinds if op == "F" else reversed(kinds):
                self.streams.run(self.items(action, kind, layers))
            self.synchronise(action, self.buckets[stage][number])

    def in_order(self, action: Action) -> list[tuple[int, list[str]]]:
        """The buckets of a stage by number, with the kinds of their units, as an action passes through
        them."""
        runs = list(enumerate(self.work.runs(action.stage)))
        return runs[::-1] if action.op == "F" else runs

    def items(self, action: Action, kind: str, layers: Iterator[int]) -> list[Item]:
        """A unit's list; a block's is that of its layer and microbatch where a run's token counts are
        known."""
        op, known = action.op, self.work.known_items
        if self.work.job.token_counts and kind == "block":
            return self.work.routed_block(op, next(layers), action.microbatch, self.machine)
        if (op, kind) not in known:
            known[op, kind] = self.work.vocabulary.items(kind, op)
        return known[op, kind]

    def synchronise(self, action: Action, bucket: BucketCost) -> None:
        """FSDP frees its gathered weights. DDP and ZeRO-1 sum gradients that are complete, ZeRO-2 and FSDP
        those of every microbatch."""
        zero = self.work.plan.zero
        if zero == 3 and action.op != "W":
            self.gathered.discard(id(bucket))
            self.streams.memory.hold("buffers", -bucket.whole_bytes[0])
        if action.op in "BW" and (zero >= 2 or self.schedule.completes(action)):
            self.streams.run(bucket.shared)
            self.allocated.discard(id(bucket))
            begin(self.streams, bucket.reduce)
            self.on_their_way[id(bucket)] = bucket

    def wait_for_gradients(self, bucket: BucketCost) -> None:
        if self.on_their_way.pop(id(bucket), None):
            finish(self.streams, bucket.reduce)
            if self.work.plan.zero >= 2:
                self.streams.memory.hold("buffers", -bucket.whole_bytes[1])

    def end(self) -> None:
        """Step the optimizer once all gradients are summed, and gather the weights that it has stepped."""
        self.streams.run(stepped(self.work, self.rank, self.machine), "optimizer")
        if self.work.plan.zero in (1, 2):
            gather_in_turn(self.streams, [bucket for buckets in self.buckets.values() for bucket in buckets])

    # ---- messages between stages

    def send(self, action: Action) -> None:
        """Hand on what an action gives, to the stage that needs it."""
        op, stage, microbatch = action
        self.done[GIVES[op], stage, microbatch] = self.message(op, stage + ONWARD[op]) if op != "W" else None

    def message(self, op: str, target: int) -> StageMessage | None:
        rank = self.rank_of(target)
        if rank is None:
            return None
        members = self.machine.members
        links = self.machine.links(members, members + (rank - self.rank) * len(members))
        wire = self.work.message_bytes / links.bandwidth
        start = np.maximum(self.lines.get(("send", GIVES[op]), 0.0), self.streams.now)
        self.lines["send", GIVES[op]] = start + wire
        return StageMessage(start, start + links.latency, wire)

    def rank_of(self, stage: int) -> int | None:
        """The other rank that holds a stage; None where this one does, or none."""
        return self.schedule.layout.other_rank(self.rank, stage)

    def receive(self, action: Action) -> None:
        """Wait for an action's message: for its way as communication, before that idly."""
        op, stage, microbatch = action
        message = self.done.get((GIVES[op], stage - ONWARD[op], microbatch)) if op != "W" else None
        if message is None or self.rank_of(stage - ONWARD[op]) is None:
            return
        start = np.maximum(self.lines.get(("receive", GIVES[op]), 0.0), message.first_byte)
        there = self.lines["receive", GIVES[op]] = start + message.wire
        self.streams.spend("bubble", np.maximum(np.minimum(message.departed, there) - self.streams.now, 0.0))
        self.streams.spend("pp", np.maximum(there - self.streams.now, 0.0))
