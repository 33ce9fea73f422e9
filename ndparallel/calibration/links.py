"""Collectives between the processes that torchrun has started: by size, inside a node and across nodes.

Idea   The ranks of a node are one group; the ranks with the same number in their nodes are another. Every
       rank measures, and the slowest counts: a collective is over when all are.
Limit  Tried with gloo on one host and on two network namespaces, never with NCCL. All-reduces alone make the
       file's links; what the other collectives show is written beside them.

Glossary
    step      of a collective on a ring: everyone sends a part of the bytes to the next
    hidden    of the shorter of an all-reduce and the matmuls beside it: the share that takes no time of its
              own; 1 where they do not slow one another, 0 where one follows the other, less where they are
              slower than that
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ndparallel.base.errors import UserError
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


@contextlib.contextmanager
def joined(torch: Any) -> Iterator[None]:
    """Take this process's device, and be one of the processes that torchrun has started, while it lasts."""
    if device_of(torch) == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if launched()[0] == 1:
        yield
        return
    torch.distributed.init_process_group("nccl" if device_of(torch) == "cuda" else "gloo")
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def refuse_together(torch: Any, refusal: str) -> None:
    """Raise UserError on all ranks where one of them has a refusal, with the first one's words."""
    refusals: list[Any] = [refusal]
    if launched()[0] > 1:
        refusals = [None] * launched()[0]
        torch.distributed.all_gather_object(refusals, refusal)
    for rank, words in enumerate(refusals):
        if words:
            raise UserError(f"rank {rank}: {words}" if len(refusals) > 1 else words)


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
COLLECTIVES = tuple(MAKERS)[:5]


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
    return {
        where: fitted_link(points(samples, "all_reduce", where, ranks), ranks)
        for where, ranks in places(samples).items()
    }


def links_by_collective(samples: dict[MeasuredTransfer, list[float]]) -> list[dict[str, Any]]:
    """Return latency and bandwidth of a step of each collective; none of one whose seconds are no line."""
    found = []
    for where, ranks in places(samples).items():
        for kind in COLLECTIVES:
            with contextlib.suppress(UserError):
                link = fitted_link(points(samples, kind, where, ranks), ranks, kind)
                found.append({"kind": kind, "where": where, "ranks": ranks} | link._asdict())
    return found


def hidden_shares(samples: dict[MeasuredTransfer, list[float]]) -> list[dict[str, Any]]:
    """Return how much of an all-reduce and of a matmul beside it hides the other, by bytes."""
    found = []
    for transfer, both in samples.items():
        if transfer.kind == "all_reduce_and_matmul":
            alone = [median(samples[transfer._replace(kind=kind)]) for kind in ("all_reduce", "matmul")]
            share = (sum(alone) - median(both)) / min(alone)
            found.append({"where": transfer.where, "bytes": transfer.bytes, "hidden": share})
    return found


def places(samples: dict[MeasuredTransfer, list[float]]) -> dict[str, int]:
    """Return where was measured, with the ranks of a group there."""
    return {transfer.where: transfer.ranks for transfer in samples}


def points(
    samples: dict[MeasuredTransfer, list[float]], kind: str, where: str, ranks: int
) -> list[tuple[float, float]]:
    mine = [MeasuredTransfer(kind, where, ranks, size) for size in BYTES]
    return [(float(one.bytes), median(samples[one])) for one in mine]
