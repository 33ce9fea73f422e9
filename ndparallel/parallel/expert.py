"""Expert parallelism: every rank holds some of the experts, and tokens travel to them and back.

Idea   The ep ranks, otherwise data-parallel, share out the experts. Each sends its rows to the ranks whose
       experts they chose, in one all-to-all with uneven pieces, and gets the experts' outputs back by the
       same way (Lepikhin et al. 2006.16668). Under tensor parallelism every tp rank routes its own part of
       the tokens and holds a slice of the same experts: what reached one tp rank is handed on to the others
       before the experts, and summed after them.
Cost   A token crosses the ep links k times each way, forward and again backward, whatever tp is; and then the
       tp links.
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
from typing import Any

import numpy as np

from collectives import Group, all_gather, all_reduce, all_to_all
from gpu import Handle, is_size_only
from ndparallel.parallel.axis import AxisOperators
from ndparallel.parallel.tensor import TensorParallel


@dataclass
class ExpertParallel(AxisOperators):
    """One rank's operators. `sequence` are the ranks that have the other tokens of the same sequences."""

    sequence: Group
    tp: TensorParallel

    def sum_over_sequence(self, counts: np.ndarray) -> Handle:
        """Sum what every rank found out about its tokens over the ranks that share their sequences."""
        return all_reduce(self.gpu, counts, self.sequence, async_op=True)

    def dispatcher(self, counts: np.ndarray) -> "TokenDispatcher":
        """Return how the rank's rows travel: `counts` (experts) of them, by the expert they go to."""
        return TokenDispatcher(self, *self.exchange_counts(counts))

    def exchange_counts(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tell the ranks how many rows are coming. Returns the rank's own (ep, local experts), and those that
        come (tp, ep, local experts)."""
        leaving = counts.reshape(self.size, -1)
        here = np.empty_like(leaving)
        all_to_all(self.gpu, here, leaving, self.group)
        everywhere = np.empty_like(here, shape=(self.tp.size, *here.shape))
        return leaving, all_gather(self.gpu, everywhere, here, self.tp.group)


class TokenDispatcher:
    """The way of one microbatch's rows. `leaving` is (ep, local experts): the rank's own rows by the expert
    they go to; `arriving` is (tp, ep, local experts): those that come, by the rank that sends them and by
    expert."""

    def __init__(self, ep: ExpertParallel, leaving: np.ndarray, arriving: np.ndarray) -> None:
        self.ep = ep
        self.sent, self.leaving = leaving.reshape(-1).tolist(), leaving.sum(axis=1).tolist()
        self.received = arriving[ep.tp.index].sum(axis=1).tolist()
        self.by_tp_rank = arriving.sum(axis=(1, 2)).tolist()
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
        return self.ep.size * self.ep.tp.size > 1 and any(self.by_expert)

    def busy_experts(self) -> Iterator[tuple[int, slice]]:
        """The local experts that have rows, and which ones."""
        for expert, (stop, count) in enumerate(zip(accumulate(self.by_expert), self.by_expert)):
            if count:
                yield expert, slice(stop - count, stop)

    def to_experts(self, rows: np.ndarray) -> Handle:
        """Send rows that are sorted by expert; wait for those that come to this rank's experts, sorted by
        expert too."""
        arriving = self.all_to_all(rows, self.ep.group, self.leaving, self.received)
        return arriving.then(self.gather_over_tp).then(lambda rows: rows[self.order_of(rows)])

    def from_experts(self, rows: np.ndarray) -> Handle:
        """Send the rows back to where they came from, summed over the tp slices of the experts."""
        as_they_came = np.empty_like(rows)
        as_they_came[self.order_of(rows)] = rows
        here = self.reduce_over_tp(as_they_came)
        return self.all_to_all(here, self.ep.group, self.received, self.leaving)

    def gather_over_tp(self, here: np.ndarray) -> np.ndarray:
        """Give what arrived here to all tp ranks, each of which has a slice of the experts."""
        tp = self.ep.tp
        if tp.size == 1:
            return here
        copies = np.concatenate([here] * tp.size)
        return self.all_to_all(copies, tp.group, [here.shape[0]] * tp.size, self.by_tp_rank).wait()

    def reduce_over_tp(self, everywhere: np.ndarray) -> np.ndarray:
        """Sum what the tp ranks' slices made of the rows that arrived here."""
        tp, mine = self.ep.tp, sum(self.received)
        if tp.size == 1:
            return everywhere
        parts = self.all_to_all(everywhere, tp.group, self.by_tp_rank, [mine] * tp.size).wait()
        return parts.reshape(tp.size, mine, everywhere.shape[1]).sum(axis=0)

    def all_to_all(self, rows: np.ndarray, group: Group, leaving: list[int], arriving: list[int]) -> Handle:
        """Send `leaving` rows to each rank of the group, and wait for `arriving` rows from each."""
        arrived = np.empty_like(rows, shape=(sum(arriving), rows.shape[1]))
        return all_to_all(self.ep.gpu, arrived, rows, group, arriving, leaving, async_op=True)


def by_expert_first(arriving: np.ndarray) -> np.ndarray:
    """Where in (tp rank, ep rank, expert) order the rows stand that come one after another in (expert, tp
    rank, ep rank) order."""
    experts = [*range(arriving.shape[2])] * (arriving.size // arriving.shape[2])
    return np.argsort(np.repeat(experts, arriving.reshape(-1)), kind="stable")
