"""Collectives between the processes that torchrun has started: by size, inside a node and across nodes.

Idea   The ranks of a node are one group; the ranks with the same number in their nodes are another. Every
       rank measures, and the slowest counts: a collective is over when all are.
Limit  Tried with gloo on one host. All-reduces alone make the file's links; the others are written beside
       them.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from ndparallel.calibration.kernels import device_of
from ndparallel.calibration.table import FittedLink, fitted_link
from ndparallel.calibration.timing import Clock, Run, median, seconds_of

BYTES = (2**10, 2**14, 2**18, 2**22)
REPETITIONS = 5
BESIDE = 1024  # rows and columns of the matrices that are multiplied beside an all-reduce


class MeasuredTransfer(NamedTuple):
    """`kind` of collective in a group `where` (inside, across) of so many ranks, with so many bytes."""

    kind: str
    where: str
    ranks: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.kind} {self.where} of {self.bytes:,} bytes"


def launched() -> tuple[int, int]:
    """Return the processes in all, and those of a node, that torchrun has started; 1 and 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def join(torch: Any) -> None:
    torch.distributed.init_process_group("nccl" if device_of(torch) == "cuda" else "gloo")


def groups(torch: Any) -> dict[str, tuple[Any, int]]:
    """Return this rank's groups of several ranks, inside a node and across: all ranks make all groups."""
    (world, local), rank = launched(), torch.distributed.get_rank()
    inside = [range(first, first + local) for first in range(0, world, local)]
    across = [range(first, world, local) for first in range(local)]
    mine = {}
    for where, ranks_of_groups in (("inside", inside), ("across", across)):
        for ranks in ranks_of_groups:
            group = torch.distributed.new_group(list(ranks))
            if rank in ranks and len(ranks) > 1:
                mine[where] = (group, len(ranks))
    return mine


def transfers(torch: Any) -> dict[MeasuredTransfer, Run]:
    """Return the collectives to be measured; all ranks call them in this order."""
    return {
        MeasuredTransfer(kind, where, ranks, size): make(torch, group, ranks, size // 4)
        for where, (group, ranks) in groups(torch).items()
        for kind, make in MAKERS.items()
        for size in BYTES
    }


def all_reduce(torch: Any, group: Any, ranks: int, elements: int) -> Run:
    whole = torch.zeros(elements, device=device_of(torch))
    return lambda: torch.distributed.all_reduce(whole, group=group)


def all_gather(torch: Any, group: Any, ranks: int, elements: int) -> Run:
    whole, part = torch.zeros(elements, device=device_of(torch)), torch.zeros(elements // ranks)
    part = part.to(whole.device)
    whole = whole[: part.numel() * ranks]
    return lambda: torch.distributed.all_gather_single(whole, part, group=group)


def reduce_scatter(torch: Any, group: Any, ranks: int, elements: int) -> Run:
    part = torch.zeros(elements // ranks, device=device_of(torch))
    whole = torch.zeros(part.numel() * ranks, device=device_of(torch))
    return lambda: torch.distributed.reduce_scatter_single(part, whole, group=group)


def all_to_all(torch: Any, group: Any, ranks: int, elements: int) -> Run:
    leaving = torch.zeros(elements // ranks * ranks, device=device_of(torch))
    arriving = torch.empty_like(leaving)
    return lambda: torch.distributed.all_to_all_single(arriving, leaving, group=group)


def point_to_point(torch: Any, group: Any, ranks: int, elements: int) -> Run:
    """Each sends to the next of its ring, and receives from the one before."""
    dist, leaving = torch.distributed, torch.zeros(elements, device=device_of(torch))
    arriving, me = torch.empty_like(leaving), torch.distributed.get_rank(group)
    to, source = (dist.get_global_rank(group, (me + step) % ranks) for step in (1, -1))

    def pass_on() -> None:
        sending, receiving = (
            dist.P2POp(dist.isend, leaving, to, group),
            dist.P2POp(dist.irecv, arriving, source, group),
        )
        for work in dist.batch_isend_irecv([sending, receiving]):
            work.wait()

    return pass_on


def matmul(torch: Any, group: Any, ranks: int, elements: int) -> Run:
    """A product that talks to nobody, whatever the size."""
    x = torch.zeros(BESIDE, BESIDE, device=device_of(torch))
    return lambda: x @ x


def all_reduce_and_matmul(torch: Any, group: Any, ranks: int, elements: int) -> Run:
    """Both at once: beside each of them alone it says how much they slow one another."""
    whole, multiply = torch.zeros(elements, device=device_of(torch)), matmul(torch, group, ranks, elements)

    def both() -> None:
        work = torch.distributed.all_reduce(whole, group=group, async_op=True)
        multiply()
        work.wait()

    return both


MAKERS: dict[str, Callable[..., Run]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "point_to_point": point_to_point,
    "matmul": matmul,
    "all_reduce_and_matmul": all_reduce_and_matmul,
}


def measure_links(
    torch: Any, rounds: int, clock: Clock, announce: Callable[[str], None]
) -> dict[MeasuredTransfer, list[float]]:
    """Return the samples of every collective: of each round the slowest rank's."""
    runs, dist = transfers(torch), torch.distributed
    samples: dict[MeasuredTransfer, list[float]] = {transfer: [] for transfer in runs}
    for number in range(rounds + 1):
        for transfer, run in runs.items():
            announce(f"{transfer}, round {number} of {rounds}")
            dist.barrier()
            slowest = torch.tensor([seconds_of(run, REPETITIONS, clock)], device=device_of(torch))
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if number:  # the first makes connections
                samples[transfer].append(float(slowest))
    return samples


def fitted_links(samples: dict[MeasuredTransfer, list[float]]) -> dict[str, FittedLink]:
    """Return the links, inside and across, that all-reduces show."""
    found: dict[str, FittedLink] = {}
    for where in ("inside", "across"):
        mine = [one for one in samples if one.kind == "all_reduce" and one.where == where]
        if mine:
            points = [(float(one.bytes), median(samples[one])) for one in mine]
            found[where] = fitted_link(points, mine[0].ranks)
    return found
