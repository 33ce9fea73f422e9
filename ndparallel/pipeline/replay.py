"""A schedule timed again and again: in which order steps can run is found out once, and then only seconds are
added up.

Idea   Which step comes after which does not depend on how long anything takes. So the steps of all ranks are
       put in one order that can run, with their messages, lines and kinds by number; to time them is one
       loop over that list.
Cost   See `ndparallel.pipeline.steps`: a tenth of `ndparallel.pipeline.timing`, whose times it gives (a test
       holds the two together).
Limit  It says when steps end, and no more.

Glossary
    step       what a rank does at once: an action, with at most one message before it and one after it; of a
               fused pair the first message to come, and the last to go, are steps of their own. Steps count
               from 1; 0 is the beginning.
    line       one of the four lines of a rank, as in `ndparallel.pipeline.clock`
    link       from which rank to which, as one number
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise
from math import inf
from typing import NamedTuple

from ndparallel.base.errors import UserError
from ndparallel.pipeline.actions import Action, Schedule
from ndparallel.pipeline.catalog import build
from ndparallel.pipeline.checker import GIVES, explain, run_ranks, waits_for
from ndparallel.pipeline.clock import ONWARD
from ndparallel.pipeline.steps import (
    KIND,
    OUT_LINE,
    SENDER,
    Durations,
    Reduced,
    ReplayClocks,
    Step,
    Waits,
    run,
)
from ndparallel.pipeline.timing import peak_activations
from ndparallel.pipeline.work import Work, checked_seconds

Kind = tuple[tuple[str, int], ...]  # of a step: the op and stage of each of its actions
Message = tuple[int, int]  # its line and its link
OPS = "FBIW"
LINES = {("send", "F"): 0, ("send", "I"): 1, ("receive", "F"): 2, ("receive", "I"): 3}
NOTHING_COMES, NOTHING_GOES = (-1, -1), (-2, -1)  # on lines, and a link, behind all others


class Ends(NamedTuple):
    """Seconds: when each rank starts its first and ends its last step, when each stage's weights have all
    their gradients, and when each rank has reduced them, if that is done after every microbatch."""

    start: list[float]
    end: list[float]
    complete: list[float]
    reduced: list[float]

    @property
    def longest_span(self) -> float:
        """The most seconds of a rank from its own first start to its own last end."""
        return max(end - start for start, end in zip(self.start, self.end))

    def later(self, seconds: float) -> "Ends":
        """The same, with so many seconds more behind each rank's first step, where nothing is reduced."""
        end, complete = ([moment + seconds for moment in moments] for moments in (self.end, self.complete))
        return Ends(self.start, end, complete, self.reduced)


@dataclass(frozen=True, eq=False)
class Replay:
    """One schedule. Raises UserError, with the reason, if its ranks get stuck."""

    schedule: Schedule

    def at_rest(self) -> ReplayClocks:
        """The clocks before the first step."""
        ranks = self.schedule.ranks
        lines, reduced = [0.0] * (4 * ranks + 2), [0.0] * self.schedule.layout.stages
        return ReplayClocks([0.0] * ranks, lines, [-inf], [0.0], [0.0] * ranks, reduced)

    def ends(self, work: Work) -> Ends:
        """Time the schedule on the seconds of `work`."""
        durations = self.durations(work)
        return self.ends_of(self.clocks(durations), durations)

    def clocks(self, durations: Durations) -> ReplayClocks:
        """The clocks behind the last step."""
        clocks = self.at_rest()
        run(self.steps, self.waits, durations, clocks)
        return clocks

    def ends_of(self, clocks: ReplayClocks, durations: Durations) -> Ends:
        """The ends that the clocks show behind the last step."""
        first, last, complete = ([clocks.ends[step] for step in steps] for steps in self.timed_steps)
        kinds = [self.steps[step - 1][KIND] for step in self.timed_steps[0]]
        start = [end - durations.by_kind[kind] for end, kind in zip(first, kinds)]
        return Ends(start, last, complete, clocks.reducing)

    @property
    def steps(self) -> list[Step]:
        """All steps, in an order that can run."""
        return self.ordered[0]

    @cached_property
    def waits(self) -> Waits:
        """What each step waits for."""
        kinds, senders = ([step[place] for step in self.steps] for place in (KIND, SENDER))
        before, last = [], [0] * self.schedule.ranks
        for number, (rank, _, sender, *_) in enumerate(self.steps, 1):
            before.append(last[rank] or sender)
            last[rank] = number
        return Waits(kinds, senders, before)

    @property
    def kinds(self) -> dict[Kind, int]:
        """Kinds of steps, and their numbers."""
        return self.ordered[1].kinds

    @cached_property
    def ordered(self) -> tuple[list[Step], "StageOps"]:
        """The steps in an order that can run, and what is known of each op on each stage."""
        order: list[Step] = []
        ops = StageOps(self.schedule)
        steps = map(self.schedule.steps, range(self.schedule.ranks))
        if any(run_ranks([program(rank, mine, order, ops) for rank, mine in enumerate(steps)], order)):
            raise UserError(f"{self.schedule.name} cannot run: {explain(self.schedule)}")
        return order, ops

    def busiest(self, work: Work) -> float:
        """Seconds that a microbatch takes on the rank that has most to do, beside its reductions."""
        layout, each = self.schedule.layout, self.work_by_rank(work)
        if not work.reductions:
            return max(each)
        return max(
            own + work.lost_to_reductions(layout.stages_of(rank), own) for rank, own in enumerate(each)
        )

    @lru_cache(maxsize=8)  # noqa: B019
    def work_by_rank(self, work: Work) -> list[float]:
        """Seconds that one microbatch takes on each rank, all that can be in pairs."""
        layout, seconds = self.schedule.layout, work.seconds_by_stage(self.schedule.layout.stages)
        each = [
            sum(seconds[op][stage] for op in "FB" for stage in layout.stages_of(rank))
            for rank in range(layout.ranks)
        ]
        for kind in self.pairs:
            alone = sum(seconds[op][stage] for op, stage in kind)
            each[layout.rank(kind[0][1])] -= alone - step_seconds(work, seconds, kind)
        return each

    @cached_property
    def pairs(self) -> list[Kind]:
        """Kinds of steps of two actions that run as one."""
        return [kind for kind in self.kinds if len(kind) == 2]

    def way_up(self, work: Work, op: str) -> list[float]:
        """Seconds from the end of a microbatch's `op`, B or I, on each stage until it has ended on the
        first."""
        ranks, (latency, wire) = self.schedule.ranks, self.messages(work)
        stages = self.schedule.layout.stages
        below = [self.schedule.layout.rank(stage) for stage in range(stages)]
        hops = [
            0.0 if here == there else latency[there * ranks + here] + wire[there * ranks + here]
            for here, there in pairwise(below)
        ]
        seconds = work.seconds_by_stage(stages)[op]
        return [0.0, *accumulate(each + hop for each, hop in zip(seconds, hops))]

    def longest_reducing(self, work: Work) -> float:
        """Seconds that a microbatch's reductions take on the rank that has most."""
        if not work.reductions:
            return 0.0
        layout = self.schedule.layout
        return max(
            sum(work.reductions[stage].line for stage in layout.stages_of(rank))
            for rank in range(layout.ranks)
        )

    @cached_property
    def peaks(self) -> list[float]:
        """The most activations that each rank keeps."""
        return peak_activations(self.schedule)

    @cached_property
    def places_by_kind(self) -> list[int]:
        """The place of each kind of step, of one action, among the seconds of all ops on all stages."""
        stages = self.schedule.layout.stages
        return [OPS.index(op) * stages + stage for ((op, stage),) in self.kinds]

    def durations(self, work: Work) -> Durations:
        seconds = work.seconds_by_stage(self.schedule.layout.stages)
        if self.pairs:
            by_kind = [step_seconds(work, seconds, kind) for kind in self.kinds]
        else:
            each = [*chain(*(seconds[op] for op in OPS))]
            by_kind = [each[place] for place in self.places_by_kind]
        reductions = [reduced_by(kind, work) for kind in self.kinds] if work.reductions else []
        latency, wire = self.messages(work)
        free = work.links_alike and self.lines_free(by_kind, wire[0])
        return Durations(by_kind, latency, wire, free, reductions)

    def lines_free(self, by_kind: list[float], wire: float) -> bool:
        """Whether no step ends later because a message finds its line taken, by `wire` seconds of another.
        Where all that send on a line take as long, none does; where all that receive do, they are busy until
        the next message is there, be it late."""
        if min(by_kind) >= wire:
            return True
        return all(
            any(wire <= min(by_kind[kind] for kind in kinds) for kinds in (line.senders, line.receivers))
            for line in self.incoming_lines
        )

    @cached_property
    def incoming_lines(self) -> list["IncomingLine"]:
        """All incoming lines on which messages come."""
        sent: dict[int, list[tuple[int, int]]] = defaultdict(list)
        received: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for receiver, (_, _, sender, line, *_) in enumerate(steps := self.steps, 1):
            if sender:
                sent[steps[sender - 1][OUT_LINE]].append((sender, receiver))
                received[line].append((sender, receiver))
        in_order, lines = [*map(sorted, sent.values())], []
        for messages in received.values():
            senders, receivers = (
                {steps[number - 1][KIND] for number in numbers} for numbers in zip(*messages)
            )
            if messages not in in_order:
                senders = receivers = senders | receivers
            lines.append(IncomingLine(senders, receivers))
        return lines

    @lru_cache(maxsize=8)  # noqa: B019
    def messages(self, work: Work) -> tuple[list[float], list[float]]:
        """Seconds of a message's first byte, and of the rest of it, by link."""
        ranks, what = self.schedule.ranks, "seconds of a message"
        if work.links_alike:
            (latency, wire) = checked_seconds([work.latency, work.wire], (2,), what)
            return [latency] * ranks**2 + [0.0], [wire] * ranks**2 + [0.0]
        latencies, wires = (
            checked_seconds(given, (ranks, ranks), what) for given in (work.latency, work.wire)
        )
        return [*chain(*latencies), 0.0], [*chain(*wires), 0.0]

    @cached_property
    def timed_steps(self) -> tuple[list[int], list[int], list[int]]:
        """The steps that `Ends` are of: every rank's first and last one, and that which completes each
        stage."""
        lists = self.schedule.actions
        complete = {action[1]: action for actions in lists for action in actions if action[0] in "BW"}
        first, last, completing = (
            [self.ordered[1].done[GIVES[op], stage][microbatch] for op, stage, microbatch in some]
            for some in (
                [actions[0] for actions in lists],
                [actions[-1] for actions in lists],
                [complete[stage] for stage in range(self.schedule.layout.stages)],
            )
        )
        return first, last, completing


class IncomingLine(NamedTuple):
    """Kinds of the steps that send on a line, and of those that receive. Both are of all these steps where
    its messages are not those of one outgoing line, in their order."""

    senders: set[int]
    receivers: set[int]


class StageOp(NamedTuple):
    """An op on a stage: of each microbatch the step that has done what it needs, and the one that has done
    it; line and link of the messages that come for it and go from it; and its kind's number."""

    needed: Mapping[int, int] | range
    done: dict[int, int]
    arrival: Message
    departure: Message
    kind: int

    def comes(self, microbatch: int) -> tuple[int, int, int]:
        """The message that it waits for: its sender, which is a step, its line and its link."""
        return (0 if self.arrival is NOTHING_COMES else self.needed[microbatch], *self.arrival)


class StageOps(dict[tuple[str, int], StageOp]):
    """Each op on each stage, made when it is first asked for; `kinds` of steps, and their numbers."""

    def __init__(self, schedule: Schedule) -> None:
        self.layout, self.microbatches = schedule.layout, range(schedule.microbatches)
        self.kinds: dict[Kind, int] = {}
        self.done: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)

    def __missing__(self, key: tuple[str, int]) -> StageOp:
        op, stage = key
        here, onward, given = self.layout.rank(stage), stage + ONWARD[op], GIVES[op]
        needed: Mapping[int, int] | range = self.microbatches
        arrival, departure = NOTHING_COMES, NOTHING_GOES
        for need in self.needs(op, stage):
            needed = self.done[need.op, need.stage]
            if (there := self.layout.rank(need.stage)) != here:
                arrival = 4 * here + LINES["receive", given], there * self.layout.ranks + here
        if 0 <= onward < self.layout.stages and (there := self.layout.rank(onward)) != here:
            departure = 4 * here + LINES["send", given], here * self.layout.ranks + there
        self[key] = StageOp(needed, self.done[given, stage], arrival, departure, self.number_of((key,)))
        return self[key]

    def needs(self, op: str, stage: int) -> list[Action]:
        """All that it needs of a microbatch; the last is done behind the others."""
        needs: list[Action] = []
        while need := waits_for(Action(op, stage, 0), needs, self.layout.stages - 1):
            needs.append(need)
        return needs

    def number_of(self, kind: Kind) -> int:
        return self.kinds.setdefault(kind, len(self.kinds))


def program(rank: int, steps: list[list[Action]], order: list[Step], ops: StageOps) -> Iterator[Action]:
    """Put a rank's steps in order; yield an action as long as it waits."""
    for actions in steps:
        if len(actions) == 2:
            yield from program_of_pair(rank, actions, order, ops)
            continue
        ((op, stage, microbatch),) = actions
        needed, done, (line, link), (out_line, out_link), kind = ops[op, stage]
        while microbatch not in needed:
            yield actions[0]
        sender = needed[microbatch] if line >= 0 else 0
        order.append((rank, kind, sender, line, link, out_line, out_link))
        done[microbatch] = len(order)


def program_of_pair(rank: int, actions: list[Action], order: list[Step], ops: StageOps) -> Iterator[Action]:
    """The same of two actions that run as one. What comes for the first, and what goes from the second, are
    steps of no seconds."""
    for action in actions:
        while action.microbatch not in ops[action[:2]].needed:
            yield action
    kind, nothing = ops.number_of((actions[0][:2], actions[1][:2])), ops.number_of(())
    (one, first), (other, second) = ((ops[action[:2]], action.microbatch) for action in actions)
    order.append((rank, nothing, *one.comes(first), *NOTHING_GOES))
    order.append((rank, kind, *other.comes(second), *one.departure))
    one.done[first] = len(order)
    order.append((rank, nothing, 0, *NOTHING_COMES, *other.departure))
    other.done[second] = len(order)


def reduced_by(kind: Kind, work: Work) -> Reduced | None:
    """None for forward passes."""
    backward = [(op, stage) for op, stage in kind if op != "F"]
    if not backward:
        return None
    op, stage = backward[0]
    return Reduced(stage, work.reductions[stage] if op in "BW" else None)


def step_seconds(work: Work, seconds: dict[str, list[float]], kind: Kind) -> float:
    """Seconds of an action, of a pair, or of nothing."""
    fused = work.fused_seconds(kind[0][1], kind[1][1]) if len(kind) == 2 else None
    return sum((seconds[op][stage] for op, stage in kind), 0.0) if fused is None else fused


@lru_cache(maxsize=32)
def replay_of(
    name: str, ranks: int, microbatches: int, chunks: int | None, group: int | None = None
) -> Replay:
    """Build a schedule, and put its steps in order, once in a process."""
    return Replay(build(name, ranks, microbatches, chunks, group=group))
