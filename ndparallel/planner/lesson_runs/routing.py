"""The rows of a router whose choices are known: every rank sends and gets its own.

Idea   What is a number where experts are in balance is an array over the machine's members here. A recording
       with such arrays (ndparallel.planner.lesson_runs.record) stands for all members: an operation is priced
       for all of them at once, and an all-to-all with uneven pieces runs on all their clocks.
Cost   A vector operation for every item of a list, and a recording for every layer and microbatch.

Glossary
    members    the ranks that the arrays stand for, in their order
    sent       rows by the rank that sends them and the expert they go to, (world_size, experts)
    plane      the etp * ep ranks whose tokens come to the same experts
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ndparallel.parallel.mesh import Mesh
from ndparallel.planner.lesson_runs.record import Rows


@dataclass(frozen=True, eq=False)
class Routes:
    """Who sends how many rows to whom, in one layer for one microbatch. The counterpart of
    ndparallel.parallel.expert.TokenDispatcher."""

    mesh: Mesh
    members: np.ndarray
    sent: np.ndarray

    def own(self, by_axis: np.ndarray, axis: str) -> np.ndarray:
        """Return each member's own place on the axis, of an array (members, degree of the axis, ...)."""
        places = [self.mesh.coordinates(int(rank))[axis] for rank in self.members]
        return by_axis[np.arange(len(places)), places]

    @cached_property
    def leaving(self) -> np.ndarray:
        """Rows by the ep rank that they go to, (members, ep)."""
        return self.sent[self.members].reshape(len(self.members), self.mesh.ep, -1).sum(axis=2)

    @cached_property
    def arriving(self) -> np.ndarray:
        """Rows for each member's experts, by the ranks of its plane, (members, etp, ep, local experts)."""
        group = self.mesh.group
        plane = [[group("ep", peer).ranks for peer in group("etp", int(rank)).ranks] for rank in self.members]
        by_expert = self.sent[np.array(plane)]  # (members, etp, ep, experts)
        by_holder = by_expert.reshape(*by_expert.shape[:3], self.mesh.ep, -1)
        return self.own(np.moveaxis(by_holder, 3, 1), "ep")

    @cached_property
    def received(self) -> np.ndarray:
        """Rows that come over ep to the member itself, by the ep rank that sends them, (members, ep)."""
        return self.own(self.arriving, "etp").sum(axis=2)

    @cached_property
    def by_etp_rank(self) -> np.ndarray:
        """Rows that a member's experts work on, by the etp rank that they came to, (members, etp)."""
        return self.arriving.sum(axis=(2, 3))

    @cached_property
    def by_expert(self) -> np.ndarray:
        """Rows that each of a member's experts works on, (members, local experts)."""
        return self.arriving.sum(axis=(1, 2))

    @property
    def rows(self) -> Rows:
        return Rows([*self.leaving.T], [*self.received.T], [*self.by_etp_rank.T], [*self.by_expert.T])
