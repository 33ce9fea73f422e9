"""Expert parallelism: every rank holds some of the experts, and tokens travel to them and back.

Idea   The ep ranks, which have different tokens, share out the experts. Each sends its rows to the ranks
       whose experts they chose, in one all-to-all with uneven pieces, and gets the experts' outputs back by
       the same way (Lepikhin et al. 2006.16668). Under tensor parallelism every tp rank routes its own part
       of the tokens. Where etp ranks hold the slices of each expert, what reached one of them is handed on to
       the others before the experts, and summed after them; with etp=1 experts are whole.
Cost   A token crosses the ep links k times each way, forward and again backward, whatever tp is; and then the
       etp links.
Limit  The rank of the most popular expert gets the most rows, computes longest, and what it receives is
       queued: all wait for it.

Glossary
    row            a token on its way to one of its k experts
    counts         rows by expert, known to the sender only, and therefore exchanged first
    dispatcher     how the rows of one microbatch travel: the same way there and back, forward and backward
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Self

import numpy as np

from collectives import Group, all_gather, all_reduce, all_to_all
from gpu import GPU, Handle, is_size_only
from ndparallel.parallel.axis import AxisOperators
from ndparallel.parallel.mesh import Mesh


@dataclass
class ExpertParallel(AxisOperators):
    """One rank's operators. `sequence` are the ranks that have the other tokens of the same sequences, and
    `etp` those that hold the slices of the same experts; `tp` ranks share the tokens of a microbatch."""

    sequence: Group
    etp: AxisOperators
    tp: int

    @classmethod
    def on(cls, gpu: GPU, mesh: Mesh, **more: Any) -> Self:
        """Make the operators of a rank of a mesh."""
        ep, sequence = mesh.group("ep", gpu.rank), mesh.group("tp_cp", gpu.rank)
        return cls(gpu, ep, sequence, AxisOperators(gpu, mesh.expert_slices(gpu.rank)), mesh.tp, **more)

    @property
    def weight(self) -> float:
        """How many microbatches an expert's gradient sums up. Rows come from ep * etp ranks, each of which
        has 1/tp of a microbatch."""
        return self.size * self.etp.size / self.tp

    def sum_over_sequence(self, counts: np.ndarray) -> Handle:
        """Sum what every rank found out about its tokens over the ranks that share their sequences."""
        return all_reduce(self.gpu, counts, self.sequence, async_op=True)

    def dispatcher(self, counts: np.ndarray) -> "TokenDispatcher":
        """Return how the rank's rows travel: `counts` (experts) of them, by the expert they go to."""
        return TokenDispatcher(self, *self.exchange_counts(counts))

    def exchange_counts(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tell the ranks how many rows are coming. Returns the rank's own (ep, local experts), and those that
        come (etp, ep, local experts)."""
        leaving = counts.reshape(self.size, -1)
        here = np.empty_like(leaving)
        all_to_all(self.gpu, here, leaving, self.group)
        everywhere = np.empty_like(here, shape=(self.etp.size, *here.shape))
        return leaving, all_gather(self.gpu, everywhere, here, self.etp.group)


class TokenDispatcher:
    """The way of one microbatch's rows. `leaving` is (ep, local experts): the rank's own rows by the expert
    they go to; `arriving` is (etp, ep, local experts): those that come, by the rank that sends them and by
    expert."""

    def __init__(self, ep: ExpertParallel, leaving: np.ndarray, arriving: np.ndarray) -> None:
        self.ep = ep
        self.sent, self.leaving = leaving.reshape(-1).tolist(), leaving.sum(axis=1).tolist()
        self.received = arriving[ep.etp.index].sum(axis=1).tolist()
        self.by_etp_rank = arriving.sum(axis=(1, 2)).tolist()
        self.by_expert = arriving.sum(axis=(0, 1)).tolist()
        self.arriving = arriving

    @cached_property
    def order(self) -> np.ndarray:
        """Where the rows that arrive stand, in the order of the experts."""
        return by_expert_first(self.arriving)

    def order_of(self, rows: np.ndarray) -> Any:
        """The `order` as an index of these rows; rows that are only sizes stand anywhere."""
        return slice(None) if is_size_only(rows) else self.order

    @property
    def needs_sorting(self) -> bool:
        """Whether rows of several senders must be brought together by expert."""
        return self.ep.size * self.ep.etp.size > 1 and any(self.by_expert)

    def busy_experts(self) -> Iterator[tuple[int, slice]]:
        """The local experts that have rows, and which ones."""
        for expert, (stop, count) in enumerate(zip(accumulate(self.by_expert), self.by_expert)):
            if count:
                yield expert, slice(stop - count, stop)

    def to_experts(self, rows: np.ndarray) -> Handle:
        """Send rows that are sorted by expert; wait for those that come to this rank's experts, sorted by
        expert too."""
        arriving = self.all_to_all(rows, self.ep.group, self.leaving, self.received)
        return arriving.then(self.gather_over_etp).then(lambda rows: rows[self.order_of(rows)])

    def from_experts(self, rows: np.ndarray) -> Handle:
        """Send the rows back to where they came from, summed over the slices of the experts."""
        as_they_came = np.empty_like(rows)
        as_they_came[self.order_of(rows)] = rows
        here = self.reduce_over_etp(as_they_came)
        return self.all_to_all(here, self.ep.group, self.received, self.leaving)

    def gather_over_etp(self, here: np.ndarray) -> np.ndarray:
        """Give what arrived here to all etp ranks, each of which has a slice of the experts."""
        etp = self.ep.etp
        if etp.size == 1:
            return here
        copies = np.concatenate([here] * etp.size)
        return self.all_to_all(copies, etp.group, [here.shape[0]] * etp.size, self.by_etp_rank).wait()

    def reduce_over_etp(self, everywhere: np.ndarray) -> np.ndarray:
        """Sum what the etp ranks' slices made of the rows that arrived here."""
        etp, mine = self.ep.etp, sum(self.received)
        if etp.size == 1:
            return everywhere
        parts = self.all_to_all(everywhere, etp.group, self.by_etp_rank, [mine] * etp.size).wait()
        return parts.reshape(etp.size, mine, everywhere.shape[1]).sum(axis=0)

    def all_to_all(self, rows: np.ndarray, group: Group, leaving: list[int], arriving: list[int]) -> Handle:
        """Send `leaving` rows to each rank of the group, and wait for `arriving` rows from each."""
        arrived = np.empty_like(rows, shape=(sum(arriving), rows.shape[1]))
        return all_to_all(self.ep.gpu, arrived, rows, group, arriving, leaving, async_op=True)


def by_expert_first(arriving: np.ndarray) -> np.ndarray:
    """Where in (etp rank, ep rank, expert) order the rows stand that come one after another in (expert, etp
    rank, ep rank) order."""
    experts = [*range(arriving.shape[2])] * (arriving.size // arriving.shape[2])
    return np.argsort(np.repeat(experts, arriving.reshape(-1)), kind="stable")
