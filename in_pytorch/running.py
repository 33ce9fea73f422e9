"""What every script begins and ends with: options, process group and device; the table of its losses."""

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from data import TEXT, loader
from model import Config

OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


@dataclass(frozen=True)
class Job:
    """A training run: the global batch, in sequences, its steps in each epoch, and where it runs."""

    config: Config = Config()
    batch: int = 8
    microbatches: int = 4
    steps: int = 3
    epochs: int = 1
    optimizer: str = "adamw"
    learning_rate: float = 3e-3
    text: Path = TEXT
    device: torch.device = torch.device("cpu")

    def make_optimizer(self, parameters) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.optimizer](parameters, lr=self.learning_rate)

    def batches(self, dp_rank: int = 0, dp: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's tokens and targets of every step, epoch after epoch."""
        share(self.batch, "sequences of a batch", dp)
        batches = loader(self.text, self.config.sequence, self.batch, dp_rank, dp)
        if not len(batches):
            raise Refused(
                f"{self.text} is too short for {self.batch} windows of {self.config.sequence} bytes."
            )
        for epoch in range(self.epochs):
            batches.sampler.set_epoch(epoch)
            for tokens, targets in islice(batches, self.steps):
                yield tokens.to(self.device), targets.to(self.device)


@dataclass
class Outcome:
    """What a script's strategy returns: this rank's loss of every step, and what it trained."""

    losses: list[Tensor]
    model: nn.Module


Strategies = Mapping[str, Callable[[Job], Outcome]]


class Refused(ValueError):
    """A strategy cannot run with these options on so many processes; all of them find the same."""


def share(whole: int, what: str, parts: int) -> int:
    """Return whole / parts. Raises Refused where that is not whole."""
    if whole % parts:
        able = ", ".join(f"{divisor}" for divisor in range(1, min(whole, 64) + 1) if whole % divisor == 0)
        raise Refused(f"{whole} {what} can be cut into {able} equal parts, and not into {parts}.")
    return whole // parts


def groups_of(size: int) -> int:
    """Return how many groups of so many processes there are. Raises Refused where one is not full."""
    if dist.get_world_size() % size:
        raise Refused(f"this takes a multiple of {size} processes, not {dist.get_world_size()}.")
    return dist.get_world_size() // size


def start() -> torch.device:
    """Join the processes that torchrun has started, and take a device: gloo on CPUs, NCCL on GPUs."""
    # of an embedding with a plan for TP; nothing here writes into what it returns
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def mean_losses(outcome: Outcome, device: torch.device) -> list[float]:
    """The losses of every step, over the ranks that have one."""
    mine = torch.stack(outcome.losses).detach() if outcome.losses else torch.empty(0, device=device)
    every: list = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine.tolist())
    return [sum(step) / len(step) for step in zip(*(losses for losses in every if losses))]


def main(doc: str, strategies: Strategies, **microbatches: int) -> None:
    """Run strategies one after another; print the losses of each, or why it cannot run. Exit with 2 where
    that is one which was asked for. `microbatches` is their number, where there are any."""
    job, names = job_from(doc, strategies, microbatches)
    refused = 0
    for name in names or strategies:
        try:
            words = " ".join(f"{loss:.4f}" for loss in mean_losses(strategies[name](job), job.device))
        except Refused as error:
            words, refused = f"cannot run: {error}", refused + 1
        if dist.get_rank() == 0:
            print(f"{name:24} {words}")
    dist.destroy_process_group()
    sys.exit(2 if refused and names else 0)


def job_from(doc: str, strategies: Strategies, microbatches: dict[str, int]) -> tuple[Job, list[str]]:
    parser = Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", metavar="STRATEGY", help=f"of {'; '.join(strategies)}")
    numbers = {"batch": Job.batch, **microbatches, "steps": Job.steps, "epochs": Job.epochs}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default=Job.optimizer)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--text", type=Path, default=TEXT, help="a file whose bytes are the tokens")
    chosen = vars(parser.parse_args())
    names = chosen.pop("strategies")
    parser.check_known(names, strategies, "strategy")
    for name in numbers:
        if chosen[name] < 1:
            parser.error(f"--{name} is {chosen[name]}; it must be at least 1.")
    if not chosen["text"].is_file():
        parser.error(f"there is no file {chosen['text']}.")
    parser.check_launch()
    torch.set_default_dtype(getattr(torch, chosen.pop("dtype")))
    return Job(device=start(), **chosen), names


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, of the first process alone."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n" if os.environ.get("RANK", "0") == "0" else None)

    def check_known(self, names: list[str], known: Collection[str], kind: str) -> None:
        """End where a name is not known."""
        if unknown := [name for name in names if name not in known]:
            self.error(f"no {kind} is called {'; '.join(unknown)}; choose from {'; '.join(known)}.")

    def check_launch(self) -> None:
        """End where torchrun has not started this, or has started more processes than there are GPUs."""
        if "RANK" not in os.environ:
            self.error(f"torchrun starts this: torchrun --nproc-per-node 4 {sys.argv[0]}")
        gpus, processes = torch.cuda.device_count(), int(os.environ["LOCAL_WORLD_SIZE"])
        if 0 < gpus < processes:
            self.error(
                f"{processes} processes have {gpus} GPUs: start as many, or CUDA_VISIBLE_DEVICES= for CPUs."
            )
