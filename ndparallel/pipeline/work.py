"""What a schedule is timed on: the seconds of every stage and message; and how layers make stages.

Idea   A schedule is an order and knows no durations; they come from here, as they come from the planner or
       from a measured run.
Cost   Next to nothing.
Limit  All microbatches take the same time on a stage, and all messages between two ranks are the same size.

Glossary
    latency  seconds from the start of a message until its first byte arrives
    wire     seconds that the message then takes on its line: bytes / bandwidth
    p2p      the delay of a message between two idle ranks: latency + wire
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from heapq import heapify, heapreplace
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ndparallel.base.errors import UserError, check_whole
from ndparallel.base.sums import sum_of


class Reduction(NamedTuple):
    """One stage's gradients of one microbatch, reduced beside compute: seconds that they take on the rank's
    line; seconds from the end of the action that makes them until they are reduced, on a free line; and the
    share by which compute beside them is slower."""

    line: float
    tail: float
    slowdown: float


@dataclass(frozen=True, eq=False)
class Work:
    """Seconds of one microbatch's actions, and of its messages.

    forward, backward_input, backward_weight: seconds by stage, or one number for all stages. backward: the
    same for a full backward; None takes backward_input + backward_weight. fused: seconds of a fused pair, one
    number or by (stage of the first action, stage of the second); where none is given, the pair takes the sum
    of its two.
    latency, wire: seconds by [sending rank][receiving rank], or one number for all.
    reductions: of gradients that are reduced after every microbatch (ZeRO-2), by stage; none where they stay.
    """

    forward: ArrayLike = 1.0
    backward_input: ArrayLike = 1.0
    backward_weight: ArrayLike = 1.0
    backward: ArrayLike | None = None
    fused: float | Mapping[tuple[int, int], float] = field(default_factory=dict)
    latency: ArrayLike = 0.0
    wire: ArrayLike = 0.0
    reductions: Sequence[Reduction] = ()

    @staticmethod
    def of_whole_stages(
        chunks: int, forward=1.0, backward_input=1.0, backward_weight=1.0, p2p=0.0, fused: float | None = None
    ) -> "Work":
        """Work whose seconds are those of all of a rank's chunks together; p2p is a pure delay, the same for
        every chunk."""
        check_whole("chunks", chunks)
        times = (forward / chunks, backward_input / chunks, backward_weight / chunks)
        return Work(*times, latency=p2p, fused={} if fused is None else fused / chunks)

    def __post_init__(self) -> None:
        if pairs := list(self.fused.values()) if isinstance(self.fused, Mapping) else [self.fused]:
            checked_seconds(pairs, (len(pairs),), "seconds of a fused pair")

    @cached_property
    def links_alike(self) -> bool:
        """Whether one number stands for the messages of all ranks."""
        return np.ndim(self.latency) == np.ndim(self.wire) == 0

    @lru_cache(maxsize=8)  # noqa: B019
    def seconds_by_stage(self, stages: int) -> dict[str, list[float]]:
        """Seconds of each op on each of `stages` stages. Raise UserError for a number that is no time, or a
        wrong count of them."""
        given = {"F": self.forward, "I": self.backward_input, "W": self.backward_weight}
        seconds = {op: checked_seconds(given[op], (stages,), f"seconds of {op}") for op in given}
        both = [inputs + weights for inputs, weights in zip(seconds["I"], seconds["W"])]
        return seconds | {
            "B": both if self.backward is None else checked_seconds(self.backward, (stages,), "seconds of B")
        }

    def lost_to_reductions(self, stages: Sequence[int], seconds: float) -> float:
        """Seconds that one microbatch's work on these stages, of so many seconds, loses to what is left of
        their reductions."""
        left = [self.reductions[stage] for stage in stages] if self.reductions else []
        slowdown = max((each.slowdown for each in left), default=0.0)
        return slowdown * min(sum_of(each.tail for each in left) / (1 + slowdown), seconds)

    def fused_seconds(self, first_stage: int, second_stage: int) -> float | None:
        return self.fused.get((first_stage, second_stage)) if isinstance(self.fused, Mapping) else self.fused


def checked_seconds(given: Any, shape: tuple[int, ...], what: str) -> list:
    """`given` as nested lists of `shape`; one number stands for all. Raise UserError where that cannot be, or
    is no time."""
    if (
        isinstance(given, list)
        and shape == (len(given),)
        and {*map(type, given)} == {float}
        and min(given) >= 0
        and sum_of(given) < inf
    ):
        return given  # what the planner gives, thousands of times
    if isinstance(given, float) and 0 <= given < inf:
        return np.full(shape, given).tolist()
    array = np.asarray(given, dtype=float)
    if array.ndim and array.shape != shape:
        raise UserError(f"{what}: {array.shape} numbers were given where {shape} are needed, or one for all.")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise UserError(f"{what} must be finite and not below 0, not {array.tolist()}.")
    return np.broadcast_to(array, shape).tolist()


def spread_layers(layers: int, stages: int, embedding_cost: float = 0.0, head_cost: float = 0.0) -> list[int]:
    """Return how many of `layers` each of `stages` holds, so that the slowest stage is as fast as can be.

    embedding_cost, head_cost: what the first and the last stage do besides, in layers. Among equals a later
    stage takes one more: earlier stages keep more microbatches in memory. Raise UserError if a stage would
    have nothing to do.
    """
    if stages < 1:
        raise UserError(f"layers need at least 1 stage, not {stages}.")
    counts, besides = [0] * stages, [0.0] * stages
    besides[0] += embedding_cost
    besides[-1] += head_cost
    lightest = [(besides[stage], -stage) for stage in range(stages)]
    heapify(lightest)
    for _ in range(layers):
        stage = -lightest[0][1]
        counts[stage] += 1
        heapreplace(lightest, (besides[stage] + counts[stage], -stage))
    idle = sum(besides[stage] + counts[stage] <= 0 for stage in range(stages))
    if idle:
        most = stages - idle
        ends = "with the embedding and the head " * (most > layers)
        raise UserError(f"{layers} layers cannot fill {stages} stages: {ends}they fill at most {most}.")
    return counts
