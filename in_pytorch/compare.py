"""Hold every script against its lesson: losses, gradients and weights, and what each of them sends.

Idea   A script and its lesson begin with the same weights and see the same batches. Two hooks of torch look
       on: one of all optimizers takes the gradients that a step is made with, and a dispatch mode counts
       collectives and messages with their bytes, in the second step. Nothing in the scripts knows of it.
Limit  Gradients are compared in float32 after plain gradient descent and in float64 after AdamW, which
       divides by a gradient's size: what is nearly zero in float32 would be compared by its rounding.

Run    torchrun --nproc-per-node 4 in_pytorch/compare.py [SCRIPT ...]     [--strategy NAME] [--json]

Glossary
    difference     max |a - b| / max |b| of one tensor; the largest over tensors and ranks
    payload        bytes of the whole array of a collective: what is reduced, what comes out of a gather
"""

import installed  # noqa: F401  before torch: says in a sentence where that is missing

# isort: split
import contextlib
import json
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from lesson_runs import TWINS, LessonRun, Twin, run_lesson
from running import Job, Parser, mean_losses, start
from weights import name_in_lessons

# all at once, before the lessons, which are modules of the same names
SCRIPTS = {twin.script: import_module(twin.script) for twin in TWINS}
STEPS = 2
# dtype: the optimizer whose weights are compared, and the largest difference that is rounding
HELD_IN = {"float32": ("sgd", 1e-5), "float64": ("adamw", 1e-11)}
NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send",
}
Arrays = dict[str, np.ndarray]
Traffic = dict[str, tuple[int, int]]  # of a step on rank 0, by collective: calls and bytes


class Count(TorchDispatchMode):
    """Counts the collectives and messages that this rank calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            return NotImplemented  # DTensor first makes it an operation on its parts, and a collective
        result = operation(*arguments, **(options or {}))
        name = NAMES.get(operation._schema.name.rpartition("::")[2])
        if name and "c10d" in operation._schema.name:
            self.calls[name] += 1
            self.bytes[name] += (
                payload(arguments[0]) if name == "all_to_all" else max(map(payload, (*arguments, result)))
            )
        return result

    def traffic(self) -> Traffic:
        return {name: (self.calls[name], self.bytes[name]) for name in sorted(self.calls)}


def payload(argument: Any) -> int:
    """The bytes of the tensors in an argument; lists are taken together."""
    if isinstance(argument, torch.Tensor):
        return argument.nbytes
    return sum(map(payload, argument)) if isinstance(argument, list | tuple) else 0


@dataclass
class Recorder:
    """What a script computes and sends, seen from outside: the gradients of its first step, and the traffic
    of its second, in which alone every operation is looked at."""

    count: Count = field(default_factory=Count)
    counting: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    gradients: dict[int, np.ndarray] = field(default_factory=dict)
    steps: int = 0
    depth: int = 0  # ZeroRedundancyOptimizer steps an optimizer inside

    def before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.depth += 1
        if self.depth == 1 and self.steps == 0:
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            self.gradients = {id(weight): whole(weight.grad) for weight in weights}

    def after(self, *_: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.steps += 1
            self.counting.close()
            if self.steps == STEPS - 1:
                self.counting.enter_context(self.count)

    @contextlib.contextmanager
    def looking_on(self) -> Iterator[None]:
        hooks = [
            register_optimizer_step_pre_hook(self.before),
            register_optimizer_step_post_hook(self.after),
        ]
        try:
            yield
        finally:
            self.counting.close()
            for hook in hooks:
                hook.remove()


@torch.no_grad()
def whole(tensor: torch.Tensor) -> np.ndarray:
    """The whole tensor, of which this rank may have a shard."""
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return tensor.detach().cpu().numpy().copy()


@dataclass
class TorchRun:
    """What a script computed: its losses, and of every rank gradients and weights by the lessons' names."""

    losses: list[float]
    gradients: list[Arrays]
    weights: list[Arrays]
    traffic: Traffic


def run_script(twin: Twin, job: Job) -> TorchRun:
    recorder = Recorder()
    with recorder.looking_on():
        outcome = SCRIPTS[twin.script].STRATEGIES[twin.strategy](job)
    named = {name_in_lessons(name): weight for name, weight in outcome.model.named_parameters()}
    gradients = {name: recorder.gradients[id(weight)] for name, weight in named.items()}
    weights = {name: whole(weight) for name, weight in named.items()}
    losses = mean_losses(outcome, job.device)
    return TorchRun(losses, gathered(gradients), gathered(weights), recorder.count.traffic())


def gathered(arrays: Arrays) -> list[Arrays]:
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, arrays)
    return every


# ----------------------------------------------------------------------------------------------- side by side


@dataclass
class Row:
    """A strategy of torch beside ours. Differences are by dtype."""

    script: str
    strategy: str
    lesson_strategy: str
    losses: dict[str, list[float]] = field(default_factory=dict)
    loss_difference: dict[str, float] = field(default_factory=dict)
    gradient_difference: dict[str, float] = field(default_factory=dict)
    weight_difference: dict[str, float] = field(default_factory=dict)
    torch_traffic: Traffic = field(default_factory=dict)
    lesson_traffic: Traffic = field(default_factory=dict)
    why: str = ""

    def add(self, dtype: str, ours: LessonRun, theirs: TorchRun) -> None:
        self.losses[dtype] = theirs.losses
        self.loss_difference[dtype] = largest(theirs.losses, ours.losses)
        self.gradient_difference[dtype] = tensor_difference(theirs.gradients, ours.gradients)
        self.weight_difference[dtype] = tensor_difference(theirs.weights, ours.weights)

    def is_equal(self) -> bool:
        differences = (self.loss_difference, self.gradient_difference, self.weight_difference)
        return all(each[dtype] <= HELD_IN[dtype][1] for each in differences for dtype in each)


def largest(a: Sequence[float], b: Sequence[float]) -> float:
    return float(np.max(np.abs(np.subtract(a, b)) / np.abs(b)))


def tensor_difference(of_ranks: list[Arrays], reference: Arrays) -> float:
    """The largest difference of any tensor on any rank. Raises ValueError where a tensor is on no rank."""
    if missing := set(reference) - set().union(*of_ranks):
        raise ValueError(f"no rank has {', '.join(sorted(missing))}")
    found = [
        np.abs(array - part_of(reference[name], array, rank)).max() / np.abs(reference[name]).max()
        for rank, arrays in enumerate(of_ranks)
        for name, array in arrays.items()
    ]
    return float(np.max(found))


def part_of(whole: np.ndarray, array: np.ndarray, rank: int) -> np.ndarray:
    """The whole tensor, or of experts those that the rank has."""
    return whole if whole.shape == array.shape else whole[rank * len(array) :][: len(array)]


def compare(twin: Twin, dtypes: Sequence[str], device: torch.device) -> Row:
    """Run both, in each dtype."""
    row = Row(twin.script, twin.strategy, twin.lesson_strategy, why=twin.why)
    for dtype in dtypes:
        torch.set_default_dtype(getattr(torch, dtype))
        optimizer = HELD_IN[dtype][0]
        job = Job(device=device, steps=STEPS, optimizer=optimizer, microbatches=twin.microbatches)
        theirs = run_script(twin, job)
        if dist.get_rank() == 0:
            ours = run_lesson(twin, dist.get_world_size(), dtype, optimizer, STEPS)
            row.add(dtype, ours, theirs)
            row.torch_traffic, row.lesson_traffic = theirs.traffic, ours.traffic
    return row


# ------------------------------------------------------------------------------------------------ the command


def table(rows: list[Row]) -> Iterator[str]:
    """Write differences and what torch sent; below it, where that is something else, what the lesson sent,
    and why."""
    yield f"{'':22} {'loss':>8} {'gradients':>10} {'weights':>8}   sent by torch"
    for row in rows:
        differences = (row.loss_difference, row.gradient_difference, row.weight_difference)
        worst = "{:8.0e} {:10.0e} {:8.0e}".format(*(max(of.values()) for of in differences))
        yield f"{row.strategy:22} {worst}   {words(row.torch_traffic)}"
        if row.torch_traffic != row.lesson_traffic:
            yield f"{'':46}lesson: {words(row.lesson_traffic)}"
            yield from textwrap.wrap(row.why, 110, initial_indent=" " * 26, subsequent_indent=" " * 26)


def words(traffic: Traffic) -> str:
    each = (f"{calls} {name} {size / 1e3:,.0f} kB" for name, (calls, size) in traffic.items())
    return ", ".join(each) or "nothing"


def main() -> int:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="1d_data_parallel and so on")
    parser.add_argument("--strategy", metavar="NAME", action="append", help="of all, this one alone")
    parser.add_argument("--dtype", choices=HELD_IN, action="append", help="of both, one alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    parser.check_known(arguments.scripts, SCRIPTS, "script")
    twins = [twin for twin in TWINS if twin.script in (arguments.scripts or SCRIPTS)]
    parser.check_known(arguments.strategy or [], [twin.strategy for twin in twins], "strategy")
    parser.check_launch()
    twins = [twin for twin in twins if twin.strategy in (arguments.strategy or [twin.strategy])]
    twins = [twin for twin in twins if twin.runs_on(int(os.environ["WORLD_SIZE"]))]
    if not twins:
        parser.error(f"on {os.environ['WORLD_SIZE']} processes nothing of this is compared: start 4, or 2.")
    device = start()
    rows = [compare(twin, arguments.dtype or list(HELD_IN), device) for twin in twins]
    unequal = []
    if dist.get_rank() == 0:
        unequal = [row.strategy for row in rows if not row.is_equal()]
        print(json.dumps([vars(row) for row in rows], indent=1) if arguments.json else "\n".join(table(rows)))
        if unequal:
            print(f"not equal: {', '.join(unequal)}", file=sys.stderr)
    dist.barrier()
    dist.destroy_process_group()
    return int(bool(unequal))


if __name__ == "__main__":
    sys.exit(main())
