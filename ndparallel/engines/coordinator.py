"""The table that rank 0 keeps of one run under mpirun: who waits for whom, who has ended or failed, and what
follows from that.

Idea   Ranks tell rank 0 when they wait, end or fail. The table ends the run with a verdict: all results; the
       failure of the lowest rank, once all others have failed, ended or wait; a deadlock; or messages that
       nobody has read.
Cost   A walk over the ranks for each of rank 0's own looks in vain.

Fact   Rank 0 suspects a deadlock, a circle or a rank that waits for one that has ended, from what ranks have
       told; that may be out of date. So it asks each whether it still waits as it told. Where all say yes,
       each has waited from its telling to its answer, and the asking lies between: at that instant all of
       them waited, with no message on its way between them.

Glossary
    told       a rank's wait, as it told rank 0: its number, whom it waits for, how many messages it has had
               from there and sent to each
    idle       of a rank: nothing that it waits for is on its way
    suspect    a rank that would never move again if what was told still holds
"""

import time
from typing import NamedTuple

from ndparallel.engines.failures import PATIENCE_SECONDS, DeadlockError, Failure
from ndparallel.engines.task import RankResult, unpickled_result
from ndparallel.engines.waiting import Unread, Waiting, deadlocked, nobody_read, report
from ndparallel.engines.world import RETURNED, World


class WaitReport(NamedTuple):
    number: int
    source: int
    received: int
    sent: list[int]


class RunCoordinator:
    """The table of one run: who waits for whom, who has ended or failed."""

    def __init__(self, here: World, run: int, size: int) -> None:
        self.world, self.run, self.ranks = here, run, range(size)
        self.told: dict[int, WaitReport] = {}
        self.sent: dict[int, list[int]] = {}  # by each rank, when it was last heard of
        self.ended: dict[int, bytes] = {}
        self.taken: dict[int, list[int]] = {}  # by each rank that has ended: messages it has asked for
        self.unread: dict[int, Unread | None] = {}  # by each rank that was asked to name them
        self.failed: dict[int, Failure] = {}
        self.asked: dict[int, int] = {}
        self.answers: dict[int, Waiting] = {}
        self.patience_ends = float("inf")
        self.verdict: str | None = None

    def hear(self, rank: int, frame: tuple) -> None:
        match frame[0], *frame[2:]:
            case "waits", told:
                self.told[rank], self.sent[rank] = told, told.sent
            case "ended", sent, taken, result:
                self.ended[rank], self.sent[rank], self.taken[rank] = result, sent, taken
            case "unread", unread:
                self.unread[rank] = unread
            case "failed", sent, failure:
                self.failed[rank], self.sent[rank] = failure, sent
                self.patience_ends = min(self.patience_ends, time.monotonic() + PATIENCE_SECONDS)
            case "still", number, waiting:
                if self.asked.get(rank) == number:
                    self.answers[rank] = waiting
        if frame[0] in RETURNED:
            self.world.absent.discard(rank)
            self.told.pop(rank, None)

    def decide(self) -> None:
        """Reach a verdict if the table allows one; ask those whom a verdict would hang on."""
        if self.verdict:
            return
        others = set(self.ranks) - self.ended.keys() - self.failed.keys()
        suspects = {rank: self.told[rank].number for rank in self._suspects(others)}
        if suspects != self.asked:
            self.asked, self.answers = suspects, {}
            self._ask()
        if self.failed and (not others or time.monotonic() > self.patience_ends):
            self._reach("failure")
        elif not others:
            self._compare_counts()
        elif suspects and self.answers.keys() == suspects.keys():
            self._reach("failure" if self.failed else "deadlock")

    def _suspects(self, others: set[int]) -> list[int]:
        """The ranks that cannot go on: after a failure all that have neither failed nor ended, if none of
        them can move; else those of a deadlock."""
        idle = {rank: told.source for rank, told in self.told.items() if self._is_idle(rank, told)}
        if self.failed:
            return sorted(others) if others <= idle.keys() else []
        return deadlocked(idle, self.ended.__contains__)

    def _is_idle(self, rank: int, told: WaitReport) -> bool:
        return told.source in self.sent and self.sent[told.source][rank] == told.received

    def _ask(self) -> None:
        for rank, number in self.asked.items():
            self.world.send(rank, ("ask", self.run, number))

    def _compare_counts(self) -> None:
        """Ask each rank that has not taken all that was sent to it to name the rest: all have ended."""
        if not self.unread:
            sent_to = {rank: [self.sent[source][rank] for source in self.ranks] for rank in self.ranks}
            self.unread = {rank: None for rank in self.ranks if sent_to[rank] != self.taken[rank]}
            for rank in self.unread:
                self.world.send(rank, ("count", self.run, sent_to[rank]))
        if None not in self.unread.values():
            self._reach("mismatch" if self.unread else "results")

    def _reach(self, verdict: str) -> None:
        self.verdict = verdict
        for rank in self.world.absent & set(self.ranks):
            self.world.send(rank, ("abandon", self.run))

    def results(self) -> list[RankResult]:
        """Return all ranks' results. Raises what the lowest rank that failed raised, DeadlockError, or
        MismatchError for messages that nobody has read."""
        if self.verdict == "failure":
            raise self.failed[min(self.failed)].error()
        if self.verdict == "deadlock":
            raise DeadlockError(report([self.answers[rank] for rank in self.asked]))
        if self.verdict == "mismatch":
            raise nobody_read(filter(None, self.unread.values()))
        return [unpickled_result(rank, self.ended[rank]) for rank in self.ranks]
