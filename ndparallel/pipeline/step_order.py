"""All steps of a schedule's ranks in one order that can run, with their messages, lines and kinds by number.

Idea   Which step comes after which does not depend on how long anything takes: every rank goes on until it
       waits for another, and a step is numbered when it runs.
Cost   Half a microsecond a step, once for a schedule.

Glossary: see `ndparallel.pipeline.replay`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.pipeline.actions import ONWARD, Action, Schedule
from ndparallel.pipeline.checker import GIVES, explain, run_ranks, waits_for
from ndparallel.pipeline.steps import KIND, LINE, OUT_LINE, SENDER, Step, Waits

Kind = tuple[tuple[str, int], ...]  # of a step: the op and stage of each of its actions
Message = tuple[int, int]  # its line and its link
LINES = {("send", "F"): 0, ("send", "I"): 1, ("receive", "F"): 2, ("receive", "I"): 3}
NOTHING_COMES, NOTHING_GOES = (-1, -1), (-2, -1)  # on lines, and a link, behind all others


@dataclass(frozen=True, eq=False)
class StepOrder:
    """The steps of one schedule, in an order that can run; the numbers of their kinds; and of each op on each
    stage the step that has done it, by microbatch."""

    schedule: Schedule
    steps: list[Step]
    kinds: dict[Kind, int]
    done: Mapping[tuple[str, int], dict[int, int]]

    @cached_property
    def waits(self) -> Waits:
        """What each step waits for."""
        kinds, senders = ([step[place] for step in self.steps] for place in (KIND, SENDER))
        before, last = [], [0] * self.schedule.ranks
        for number, (rank, _, sender, *_) in enumerate(self.steps, 1):
            before.append(last[rank] or sender)
            last[rank] = number
        return Waits(kinds, senders, before)

    @cached_property
    def pairs(self) -> list[Kind]:
        """Kinds of steps of two actions that run as one."""
        return [kind for kind in self.kinds if len(kind) == 2]

    def step_of(self, action: Action) -> int:
        """The step that has done an action."""
        op, stage, microbatch = action
        return self.done[GIVES[op], stage][microbatch]

    @cached_property
    def timed_steps(self) -> tuple[list[int], list[int], list[int]]:
        """The steps that `Ends` are of: every rank's first and last one, and that which completes each
        stage."""
        lists, complete = self.schedule.actions, self.schedule.completing
        first, last, completing = (
            [*map(self.step_of, some)]
            for some in (
                [actions[0] for actions in lists],
                [actions[-1] for actions in lists],
                [complete[stage] for stage in range(self.schedule.layout.stages)],
            )
        )
        return first, last, completing

    @cached_property
    def incoming_lines(self) -> list["IncomingLine"]:
        """All incoming lines on which messages come."""
        kind, sender, line, out_line = (
            np.fromiter(map(itemgetter(place), self.steps), int, len(self.steps))
            for place in (KIND, SENDER, LINE, OUT_LINE)
        )
        receiver = np.flatnonzero(sender)
        sender, line = sender[receiver] - 1, line[receiver]
        out_line, found = out_line[sender], []
        for mine in (line == each for each in sorted({*line.tolist()})):
            senders, receivers = ({*kind[steps[mine]].tolist()} for steps in (sender, receiver))
            from_one = np.array_equal(mine, out_line == out_line[mine][0])
            if not (from_one and (np.diff(sender[mine]) > 0).all()):
                senders = receivers = senders | receivers
            found.append(IncomingLine(senders, receivers))
        return found


class IncomingLine(NamedTuple):
    """Kinds of the steps that send on a line, and of those that receive. Both are of all these steps where
    its messages are not those of one outgoing line, in their order."""

    senders: set[int]
    receivers: set[int]


def step_order(schedule: Schedule) -> StepOrder:
    """Put a schedule's steps in order. Raises UserError, with the reason, if its ranks get stuck."""
    order: list[Step] = []
    ops = StageOps(schedule)
    steps = map(schedule.steps, range(schedule.ranks))
    if any(run_ranks([program(rank, mine, order, ops) for rank, mine in enumerate(steps)], order)):
        raise UserError(f"{schedule.name} cannot run: {explain(schedule)}")
    return StepOrder(schedule, order, ops.kinds, ops.done)


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
    """Put two actions that run as one in order; yield one as long as it waits. What comes for the first, and
    what goes from the second, are steps of no seconds."""
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
