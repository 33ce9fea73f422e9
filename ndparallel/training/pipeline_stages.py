"""The executor's nouns: the stages that a rank holds, what comes in for an action, what it computes, what
goes out.

Idea   A schedule is a list of actions. A rank program runs any of them with three verbs: receive, run, send.
       What W computes is really computed later, and activations are kept just as long as the schedule keeps
       them.
Limit  The order is the schedule's: a rank that waits does not take the next action in the meantime. A stage
       takes what the other one sends, whatever its shape and type.

Glossary
    streams    four for every rank, so that the two messages of a fused pair leave together: send and receive,
               forward and backward
    what       ("F", stage, microbatch) names activations for a stage, ("B", stage, microbatch) gradients for
               a stage
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from collectives import Group
from gpu import GPU
from ndparallel.model.units import Unit
from ndparallel.pipeline.actions import ONWARD, Action, Schedule
from ndparallel.pipeline.catalog import build

DIRECTION = {"F": ("F", "forward"), "B": ("B", "backward"), "I": ("B", "backward")}  # of an op's message


@lru_cache(maxsize=64)
def schedule_of(name: str, ranks: int, microbatches: int, chunks: int | None) -> Schedule:
    """Build a job's schedule; each process builds it once."""
    return build(name, ranks, microbatches, chunks)


@dataclass
class Stages:
    """The stages on one rank of the pipeline group, by number, and their messages to other stages."""

    gpu: GPU
    group: Group
    schedule: Schedule
    units: dict[int, list[Unit]]
    tokens: list[np.ndarray] = field(default_factory=list)
    here: dict[tuple, Any] = field(default_factory=dict)  # what one stage of this rank hands to the next

    @property
    def rank(self) -> int:
        return self.group.index(self.gpu.rank)

    def steps(self) -> Iterator[list[Action]]:
        """Yield this rank's actions in order; a fused pair of actions comes together."""
        return iter(self.schedule.steps(self.rank))

    def receive(self, action: Action) -> Any:
        """Return the input of an action: activations of the stage before, gradients of the stage behind,
        nothing for W."""
        if action.op == "F" and action.stage == 0:
            return self.tokens[action.microbatch]
        source = action.stage - ONWARD[action.op]
        if action.op == "W" or source == self.schedule.layout.stages:
            return None
        name, direction = DIRECTION[action.op]
        what = (name, action.stage, action.microbatch)
        if what in self.here:
            return self.here.pop(what)
        return self.gpu.irecv(self.rank_of(source), what, stream=f"pp receive {direction}").wait()

    def run(
        self, action: Action, x: Any, after: Callable[[Action, Unit], None] = lambda action, unit: None
    ) -> Any:
        """Compute an action through all units of its stage, and call `after` with each unit that is done."""
        units = self.units[action.stage]
        for unit in units if action.op == "F" else reversed(units):
            match action.op:
                case "F":
                    x = unit.forward(x, action.microbatch)
                case "B":
                    x = unit.backward(x, action.microbatch)
                case "I":
                    x = unit.backward_input(x, action.microbatch)
                case "W":
                    unit.backward_weight(action.microbatch)
            after(action, unit)
        return x

    def send(self, action: Action, y: Any) -> None:
        """Send an output to the stage that needs it, on this rank or another."""
        target = action.stage + ONWARD[action.op]
        if action.op == "W" or not 0 <= target < self.schedule.layout.stages:
            return
        name, direction = DIRECTION[action.op]
        what = (name, target, action.microbatch)
        if self.rank_of(target) == self.gpu.rank:
            self.here[what] = y
        else:
            self.gpu.isend(self.rank_of(target), y, what, stream=f"pp send {direction}")

    def rank_of(self, stage: int) -> int:
        return self.group.ranks[self.schedule.layout.rank(stage)]

    def completes(self, action: Action) -> bool:
        """Return whether the gradients of the action's stage are complete after it."""
        return self.schedule.completes(action)
