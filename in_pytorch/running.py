"""What every script begins and ends with: options, process group and device; the table of its losses."""

import argparse
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from data import TEXT
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


@dataclass
class Outcome:
    """What a script's strategy returns: this rank's loss of every step, and what it trained."""

    losses: list[Tensor]
    model: nn.Module


Strategies = dict[str, Callable[[Job], Outcome]]


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


def main(doc: str, strategies: Strategies, **defaults: int) -> None:
    """Run strategies one after another; print the losses of each."""
    job, names = job_from(doc, strategies, defaults)
    for name in names:
        losses = mean_losses(strategies[name](job), job.device)
        if dist.get_rank() == 0:
            print(f"{name:24}", *(f"{loss:.4f}" for loss in losses))
    dist.destroy_process_group()


def job_from(doc: str, strategies: Strategies, defaults: dict[str, int]) -> tuple[Job, list[str]]:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", metavar="STRATEGY", help=f"of {', '.join(strategies)}")
    for name in ("batch", "microbatches", "steps", "epochs"):
        parser.add_argument(f"--{name}", type=int, default=defaults.get(name, getattr(Job, name)))
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default=Job.optimizer)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--text", type=Path, default=TEXT, help="a file whose bytes are the tokens")
    chosen = vars(parser.parse_args())
    names = chosen.pop("strategies") or list(strategies)
    if unknown := set(names) - set(strategies):
        parser.error(f"no strategy is called {', '.join(unknown)}; choose of {', '.join(strategies)}")
    torch.set_default_dtype(getattr(torch, chosen.pop("dtype")))
    return Job(device=start(), **chosen), names
