"""Collectives between the processes that torchrun has started: by size, inside a node and across nodes.

Idea   The ranks of a node are one group; the ranks with the same number in their nodes are another. Every
       rank measures, and the slowest counts: a collective is over when all are.
Limit  Tried with gloo on one host and on two network namespaces, never with NCCL.

Glossary
    beside    products of matrices that talk to nobody, in all longer than an all-reduce of the most bytes;
              and the same while that all-reduce is under way
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ndparallel.base.errors import UserError
from ndparallel.base.quantities import whole_number
from ndparallel.calibration.kernels import device_of
from ndparallel.calibration.table import FittedLink, Links, fitted_link
from ndparallel.calibration.timing import Budget, Clock, Run, Sampler, Windows, mean_seconds, median
from ndparallel.results.progress import Announce, ignore, progress

BYTES = (2**10, 2**14, 2**18, 2**22)
REPETITIONS = 5  # of what is timed before it is known how long it takes
BESIDE = 1024  # rows and columns of the matrices that are multiplied beside an all-reduce
LONGER = 2  # than the all-reduce are the products beside it
MOST_LOST = 0.99  # of an all-reduce's seconds: all would be compute that stands still for ever


class MeasuredTransfer(NamedTuple):
    """`kind` of collective in a group `where` (inside, across) of so many ranks, with so many bytes."""

    kind: str
    where: str
    ranks: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.kind} {self.where} of {self.bytes:,} bytes"


def launched() -> tuple[int, int]:
    """Return the processes in all, and those of a node, that torchrun has started; 1 and 1 without it.
    Raises UserError for what is no number."""
    world, local = (
        whole_number(os.environ.get(name) or "1", name) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
    )
    return world, local


def is_first() -> bool:
    """Whether this process is alone, or the first that torchrun has started: it prints."""
    return launched()[0] == 1 or os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def joined(torch: Any) -> Iterator[None]:
    """Take this process's device, and be one of the processes that torchrun has started, while it lasts."""
    if device_of(torch) == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if launched()[0] == 1:
        yield
        return
    try:
        torch.distributed.init_process_group("nccl" if device_of(torch) == "cuda" else "gloo")
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"WORLD_SIZE says that torchrun has started {launched()[0]} processes, which torch cannot join: "
            f"{error}. Start with torchrun, or unset WORLD_SIZE."
        ) from None
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def measuring(torch: Any, budget: Budget) -> Iterator[Announce]:
    """Measure beside the other processes that torchrun has started, all within one budget; yields what
    announces progress. Where measuring is refused the first process says why; the others end with it."""
    try:
        with joined(torch), progress() if is_first() else contextlib.nullcontext(ignore) as announce:
            agree(torch, budget)
            yield announce
    except UserError:
        if is_first():
            raise
        raise SystemExit(2) from None


def agree(torch: Any, budget: Budget) -> None:
    """Let a budget be over for all processes at the same moment: the first of them that finds so."""
    budget.agreed = lambda over: bool(max_over_ranks(torch, over))


def max_over_ranks(torch: Any, seconds: float) -> float:
    """Return the most that any process says."""
    if launched()[0] == 1:
        return seconds
    most = torch.tensor([seconds], dtype=torch.float64, device=device_of(torch))
    torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
    return float(most)


def refuse_together(torch: Any, check: Callable[[], None]) -> None:
    """Raise UserError on all ranks where the check of one of them does, with the first one's words."""
    refusals: list[Any] = [""]
    try:
        check()
    except UserError as error:
        refusals = [str(error)]
    if launched()[0] > 1:
        mine, refusals = refusals[0], [None] * launched()[0]
        torch.distributed.all_gather_object(refusals, mine)
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


class Together:
    """A sampler of what several processes do: in every window all begin at once, and the slowest counts."""

    def __init__(self, torch: Any, run: Run, windows: Windows, clock: Clock) -> None:
        self.torch, self.run, self.windows, self.clock, self.times = torch, run, windows, clock, 0

    def __call__(self) -> float:
        self.times = self.times or math.ceil(self.windows.seconds / self.window(REPETITIONS))
        return min(self.window(self.times) for _ in range(self.windows.number))

    def window(self, times: int) -> float:
        """Return the mean seconds of a run, which all ranks take for the same."""
        self.torch.distributed.barrier()
        return max_over_ranks(self.torch, mean_seconds(self.run, times, self.clock))


def transfers(torch: Any, windows: Windows, clock: Clock) -> dict[MeasuredTransfer, Sampler]:
    """Return the collectives to be measured, which all ranks call in this order; none on one process."""
    found: dict[MeasuredTransfer, Sampler] = {}
    for where, (group, ranks) in groups(torch).items() if launched()[0] > 1 else ():
        runs = {
            MeasuredTransfer(kind, where, ranks, size): make(torch, group, ranks, size // 4)
            for kind, make in MAKERS.items()
            for size in BYTES
        }
        most = MeasuredTransfer("all_reduce", where, ranks, BYTES[-1])
        for kind, run in beside(torch, group, runs[most], clock).items():
            runs[most._replace(kind=kind)] = run
        found |= {transfer: Together(torch, run, windows, clock) for transfer, run in runs.items()}
    return found


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
        sending = dist.P2POp(dist.isend, leaving, to, group)
        receiving = dist.P2POp(dist.irecv, arriving, source, group)
        for work in dist.batch_isend_irecv([sending, receiving]):
            work.wait()

    return pass_on


MAKERS: dict[str, Callable[..., Run]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "point_to_point": point_to_point,
}


def beside(torch: Any, group: Any, reduce: Run, clock: Clock) -> dict[str, Run]:
    """Return products that take longer than an all-reduce on every rank, alone and with it under way."""
    x = torch.zeros(BESIDE, BESIDE, device=device_of(torch))
    longest = [
        max_over_ranks(torch, mean_seconds(run, REPETITIONS, clock)) for run in (reduce, lambda: x @ x)
    ]
    number = math.ceil(LONGER * longest[0] / longest[1])
    whole = torch.zeros(BYTES[-1] // 4, device=device_of(torch))

    def multiply() -> None:
        for _ in range(number):
            x @ x

    def both() -> None:
        work = torch.distributed.all_reduce(whole, group=group, async_op=True)
        multiply()
        work.wait()

    return {"matmul": multiply, "all_reduce_and_matmul": both}


def fitted_links(samples: Mapping[MeasuredTransfer, list[float]]) -> Links:
    """Return latency and bandwidth of each collective, inside and across; none of one whose seconds are no
    line. Raises UserError where those of all-reduces are none."""
    found: dict[tuple[str, str], FittedLink] = {}
    for where, ranks in places(samples).items():
        found["all_reduce", where] = fitted_link(points(samples, "all_reduce", where, ranks), ranks)
        for kind in [one for one in MAKERS if MeasuredTransfer(one, where, ranks, BYTES[0]) in samples]:
            with contextlib.suppress(UserError):
                found[kind, where] = fitted_link(points(samples, kind, where, ranks), ranks, kind)
    return found


def slowdown(samples: Mapping[MeasuredTransfer, list[float]]) -> float | None:
    """Return how much slower compute is beside an all-reduce, inside a node where there are several ranks:
    while that is under way for c seconds, c / (1 + slowdown) of compute get done. None where none was
    measured."""
    for transfer, both in samples.items():
        if transfer.kind == "all_reduce_and_matmul":
            reduce, alone = (
                median(samples[transfer._replace(kind=kind)]) for kind in ("all_reduce", "matmul")
            )
            lost = min(MOST_LOST, max(0.0, (median(both) - alone) / reduce))
            return lost / (1 - lost)
    return None


def places(samples: Mapping[MeasuredTransfer, list[float]]) -> dict[str, int]:
    """Return where was measured, with the ranks of a group there."""
    return {transfer.where: transfer.ranks for transfer in samples}


def points(
    samples: Mapping[MeasuredTransfer, list[float]], kind: str, where: str, ranks: int
) -> list[tuple[float, float]]:
    mine = [MeasuredTransfer(kind, where, ranks, size) for size in BYTES]
    return [(float(one.bytes), median(samples[one])) for one in mine]
