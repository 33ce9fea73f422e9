"""What timing a step asks of a workload.

Idea   A step is put together in ndparallel.planner.step.step, the same way for every job. FrameworkWorkload
       (ndparallel.planner.step.framework) answers for a real model on a real framework, ExecutedWorkload
       (ndparallel.planner.lesson_runs.workload) for the lessons' own runs.

Glossary
    stage      a run of units; a pipeline rank has one, or several
    columns    seconds of F, I and W of every stage; what is recomputed counts as I
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.step.overlap import BucketCost
from ndparallel.planner.step.streams import Item, Machine


class StageCollective(NamedTuple):
    """A collective between pipeline `ranks`. Each begins it when it has done what `before` lists for it;
    `seconds` makes of the moments at which they begin how long each is in it. Waiting for a rank that begins
    later counts as `late`: in the lessons' runs as the collective (ndparallel.results.measure)."""

    ranks: Sequence[int]
    exchange: CollectiveOp
    seconds: Callable[[Sequence[Any]], Sequence[Any]]
    before: Callable[[int], Sequence[Item]] = lambda rank: ()
    late: str = "pp"


class Workload(Protocol):
    """What the ranks do in a step of one plan."""

    @property
    def job(self) -> TrainingJob: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def kinds(self) -> Sequence[Sequence[str]]:
        """Kinds of the units on every stage."""

    @property
    def columns(self) -> tuple[list[TimeBreakdown], list[TimeBreakdown], list[TimeBreakdown]]: ...

    @property
    def whole_backward(self) -> list[TimeBreakdown] | None:
        """Seconds of B of every stage, where it is not I and W together: where messages of the one hide
        behind the other."""

    def buckets(self, stage: int) -> list[BucketCost]:
        """Buckets of a stage, the last unit's first."""

    def messages(self) -> tuple[Any, Any]:
        """Latency and wire time, in seconds, of a microbatch's activations between stages."""

    def states(self, rank: int) -> Sequence[Item]:
        """Memory that a pipeline rank's step begins with."""

    @property
    def stage_collectives(self) -> Sequence[StageCollective]:
        """What pipeline ranks sum between them before they step, in order."""

    def optimizer(self, rank: int) -> Sequence[Item]:
        """The optimizer's step of what the rank owns."""

    def longest_tail(self, rank: int) -> float:
        """Seconds that the rank's gradients, optimizer and weights take at the most behind its last action,
        beside what it waits for others; infinite where nobody has asked."""


def buckets_by_stage(work: Workload, rank: int) -> dict[int, list[BucketCost]]:
    """The buckets of a pipeline rank, the last stage first, and of each stage the last unit's first."""
    return {stage: work.buckets(stage) for stage in reversed(work.plan.layout.stages_of(rank))}
