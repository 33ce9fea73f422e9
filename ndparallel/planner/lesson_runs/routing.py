"""The lessons' blocks with experts, as lists, for a router whose choices are known: every rank sends and gets
rows of its own.

Idea   The lists are those of `ndparallel.planner.lesson_runs.experts`; what is a number there is an array
       over the machine's members here. An operation is priced for all of them at once, and an all-to-all with
       uneven pieces runs on all their clocks.
Cost   A vector operation for every item of a list, and lists of their own for every layer and microbatch.

Glossary
    members    the ranks that the arrays stand for, in their order
    sent       rows by the rank that sends them and the expert they go to, (world_size, experts)
    plane      the tp * ep ranks whose tokens come to the same experts
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from gpu import Operation
from ndparallel.parallel.mesh import Mesh
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.lesson_runs.experts import ExecutedExperts
from ndparallel.planner.step.streams import Item


@dataclass(frozen=True, eq=False)
class Routes:
    """Who sends how many rows to whom, in one layer for one microbatch. The counterpart of
    ndparallel.parallel.expert.Itinerary."""

    mesh: Mesh
    members: np.ndarray
    sent: np.ndarray

    def own(self, by_axis: np.ndarray, axis: str) -> np.ndarray:
        """Of an array (members, degree of the axis, ...), each member's own place on the axis."""
        places = [self.mesh.coordinates(int(rank))[axis] for rank in self.members]
        return by_axis[np.arange(len(places)), places]

    @cached_property
    def leaving(self) -> np.ndarray:
        """By the ep rank that they go to, (members, ep)."""
        return self.sent[self.members].reshape(len(self.members), self.mesh.ep, -1).sum(axis=2)

    @cached_property
    def arriving(self) -> np.ndarray:
        """For each member's experts, by the ranks of its plane, (members, tp, ep, local experts)."""
        group = self.mesh.group
        plane = [[group("ep", peer).ranks for peer in group("tp", int(rank)).ranks] for rank in self.members]
        by_expert = self.sent[np.array(plane)]  # (members, tp, ep, experts)
        by_holder = by_expert.reshape(*by_expert.shape[:3], self.mesh.ep, -1)
        return self.own(np.moveaxis(by_holder, 3, 1), "ep")

    @cached_property
    def received(self) -> np.ndarray:
        """Those that come over ep to the member itself, by the ep rank that sends them, (members, ep)."""
        return self.own(self.arriving, "tp").sum(axis=2)

    @cached_property
    def by_tp_rank(self) -> np.ndarray:
        """Those that a member's experts work on, by the tp rank that they came to, (members, tp)."""
        return self.arriving.sum(axis=(2, 3))

    @cached_property
    def by_expert(self) -> np.ndarray:
        """(members, local experts)"""
        return self.arriving.sum(axis=(1, 2))


@dataclass(frozen=True)
class RoutedExperts(ExecutedExperts):
    """The lists of all members at once."""

    routes: Routes | None = None

    @property
    def way(self) -> Routes:
        assert self.routes
        return self.routes

    @property
    def sent(self) -> Any:
        return self.way.leaving.sum(axis=1)

    @property
    def each(self) -> list[Any]:
        return [*self.way.by_expert.T]

    def leg(self, name: str) -> CollectiveOp:
        rows = self.way.leaving if name == "to experts" else self.way.received
        return CollectiveOp(f"ep {name}", "all_to_all", "ep", self.bytes_of(rows * self.z.hidden))

    def hand_on(self) -> list[Item]:
        """To every tp rank all that came."""
        came = self.way.received.sum(axis=1, keepdims=True)
        return self.talk("all_to_all", np.repeat(came, self.tp, axis=1) * self.z.hidden)

    def sum_up(self) -> list[Item]:
        """To every tp rank what it had handed on."""
        return self.talk("all_to_all", self.way.by_tp_rank * self.z.hidden)

    def sort(self) -> list[Operation]:
        return [where(self.received, operation) for operation in super().sort()]

    def busy(self, operations: Callable[..., list[Operation]]) -> list[Operation]:
        return [where(rows, operation) for rows in self.each for operation in operations(self.z, rows)]


def where(rows: Any, operation: Operation) -> Operation:
    """The operation on those members that have rows for it; the others skip it."""
    moved: Any = np.where(rows, operation.bytes, 0)
    kernels: Any = np.where(rows, operation.kernels, 0)
    return operation._replace(bytes=moved, kernels=kernels)


def routed(lists: ExecutedExperts, routes: Routes) -> RoutedExperts:
    """The same lists for rows that go these ways."""
    return RoutedExperts(
        **{field.name: getattr(lists, field.name) for field in fields(ExecutedExperts)}, routes=routes
    )
