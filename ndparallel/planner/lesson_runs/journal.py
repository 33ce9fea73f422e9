"""The step of an executed run of the lessons as journals: its grid's loop on clocks that write down what they
are asked for (ndparallel.planner.step.journal)."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ndparallel.engines.journal import Journal
from ndparallel.pipeline.actions import Action, Schedule
from ndparallel.pipeline.checker import GIVES
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.lesson_runs.grid import GridRank, run_step
from ndparallel.planner.lesson_runs.workload import ExecutedWorkload
from ndparallel.planner.ports import Piece
from ndparallel.planner.step.journal import JournalClock, StageMessages
from ndparallel.planner.step.pipeline_journal import sharing_seconds, stage_journal


class JournalRank(StageMessages, GridRank):
    """One GPU for all of a pipeline rank."""

    @cached_property
    def streams(self) -> JournalClock:
        return JournalClock(self.machine, np.zeros(len(self.machine.members)), self.rank)

    def run_across(self, ranks: Sequence[Any], exchange: CollectiveOp) -> None:
        machine, per_rank = self.work.machine, len(self.machine.members)
        rounds, ring = machine.rounds(exchange), [*machine.groups(exchange.group)[0] // per_rank]
        for each in ranks:
            if each.rank in ring:
                each.streams.hand_round(rounds, ring)

    def send(self, action: Action) -> None:
        super().send(action)
        self.done[GIVES[action.op], action.stage, action.microbatch] = None

    def piece(self, source: int, target: int) -> Piece:
        members = self.machine.members
        senders, receivers = (members + (rank - self.rank) * len(members) for rank in (source, target))
        return self.machine.links(senders, receivers).piece(self.work.message_bytes)


def executed_sharing(work: ExecutedWorkload) -> float:
    """What an executed run's step takes longer on ports that are shared."""
    return sharing_seconds(work, executed_journals)


def executed_journals(work: ExecutedWorkload, schedule: Schedule) -> list[Journal]:
    """A journal for each pipeline rank."""
    if work.plan.pp == 1 and not work.on_grid:
        return [stage_journal(work, schedule)]
    done: dict[tuple, Any] = {}
    ranks = [JournalRank(work, schedule, rank, done) for rank in range(work.plan.pp)]
    run_step(work, ranks)
    return [rank.streams.journal for rank in ranks]
