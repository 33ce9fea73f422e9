"""A pipeline schedule as data: for every rank, what it does, in order.

Idea   A schedule is lists of actions, and nothing else: no clock, no queue, no GPU inside. The checker says
       whether the lists can run, the timing says how long they take, the executor runs them with real
       numbers, the picture draws them.
Cost   A list names every action of a step: 2 to 3 per stage and microbatch.
Limit  The order on each rank is fixed before the step begins; a rank that waits does not take the next action
       in the meantime.

Glossary
    rank        one GPU of the pipeline, 0 to P-1
    microbatch  one of the M equal parts of the batch, 0 to M-1
    chunk       one of the V parts of the model that a rank holds, 0 to V-1
    stage       a chunk's place in the model, 0 (embedding) to P*V-1 (head)
    F           forward of one microbatch through one stage
    B           full backward: I and W at once
    I           the gradient of the stage's input, which the stage before waits for
    W           the gradient of the stage's weights, which nobody waits for until the step ends
    loop        layout in which stage s is on rank s mod P: the microbatch goes round and round
    v           layout in which every second chunk runs backwards through the ranks: the microbatch turns
                round at each end
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

# an op's message goes to the next stage or to the one before; W sends none
ONWARD = {"F": +1, "I": -1, "B": -1, "W": 0}


class Action(NamedTuple):
    """One thing that a rank does without a stop: `op` is one of F, B, I, W."""

    op: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.op} of microbatch {self.microbatch} on stage {self.stage}"


@dataclass(frozen=True)
class Layout:
    """Which rank holds which stage: `kind` is loop or v, for `ranks` ranks of `chunks` stages each."""

    kind: str
    ranks: int
    chunks: int = 1

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    def stage(self, rank: int, chunk: int) -> int:
        return chunk * self.ranks + self._mirrored(rank, chunk)

    def stages_of(self, rank: int) -> Sequence[int]:
        return self._stages_by_rank[rank]

    def rank(self, stage: int) -> int:
        return self._rank_by_stage[stage]

    @cached_property
    def _stages_by_rank(self) -> list[list[int]]:
        return [[self.stage(rank, chunk) for chunk in range(self.chunks)] for rank in range(self.ranks)]

    @cached_property
    def _rank_by_stage(self) -> list[int]:
        return [self._mirrored(stage % self.ranks, self.chunk(stage)) for stage in range(self.stages)]

    def other_rank(self, rank: int, stage: int) -> int | None:
        """The other rank that holds a stage; None where this one does, or none."""
        holder = self.rank(stage) if 0 <= stage < self.stages else rank
        return None if holder == rank else holder

    def chunk(self, stage: int) -> int:
        return stage // self.ranks

    def _mirrored(self, place: int, chunk: int) -> int:
        return self.ranks - 1 - place if self.kind == "v" and chunk % 2 else place


@dataclass(frozen=True)
class Schedule:
    """A whole pipeline's step: `actions[rank]` in order; `fused[rank]` are the positions whose action runs as
    one with the next."""

    name: str
    layout: Layout
    microbatches: int
    actions: list[list[Action]]
    fused: list[list[int]]

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    @property
    def chunks(self) -> int:
        return self.layout.chunks

    def completes(self, action: Action) -> bool:
        """Return whether the gradients of the action's stage are complete after it."""
        return self.completing[action.stage] == action

    @cached_property
    def completing(self) -> dict[int, Action]:
        """By stage the action that completes its gradients."""
        return {action.stage: action for rank in self.actions for action in rank if action.op in "BW"}

    def steps(self, rank: int) -> list[list[Action]]:
        """Return the steps of `rank`, each one action or a fused pair."""
        actions, pairs = self.actions[rank], set(self.fused[rank])
        if not pairs:
            return [[action] for action in actions]
        return [
            actions[i : i + 2] if i in pairs else [actions[i]]
            for i in range(len(actions))
            if i - 1 not in pairs
        ]
