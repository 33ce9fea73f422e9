"""3D in torch: three orders by hand with send and recv, and the schedules of torch.distributed.pipelining.

Idea   A stage is a part of the model on one rank. By hand, a rank receives, runs and sends, action by action;
       PipelineStage and a schedule do the same from a list of their own.
Limit  By hand, activations and gradients travel in two groups: NCCL keeps the messages of a pair of ranks in
       one order per group, and a schedule that alternates would wait for itself in one.

Run    torchrun --nproc-per-node 4 in_pytorch/3d_pipeline_parallel.py
"""

import installed  # noqa: F401  before torch: says in a sentence where that is missing

# isort: split
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

from model import Transformer, loss_fn
from running import Job, Outcome, Refused, main, share
from weights import draw


def naive(rank: int, ranks: int, microbatches: int) -> Iterator[tuple[str, int]]:
    for microbatch in range(microbatches):
        yield "F", microbatch
        yield "B", microbatch


def gpipe(rank: int, ranks: int, microbatches: int) -> Iterator[tuple[str, int]]:
    for microbatch in range(microbatches):
        yield "F", microbatch
    for microbatch in range(microbatches):
        yield "B", microbatch


def one_f_one_b(rank: int, ranks: int, microbatches: int) -> Iterator[tuple[str, int]]:
    ahead = min(ranks - 1 - rank, microbatches)
    for turn in range(ahead + microbatches):
        if turn < microbatches:
            yield "F", turn
        if turn >= ahead:
            yield "B", turn - ahead


class Stage:
    """This rank's part of the model: it receives, runs and sends, one action after another."""

    def __init__(self, job: Job, model: nn.Module, batches: int) -> None:
        self.job, self.model, self.microbatches = job, model, batches
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1
        self.activations, self.gradients = dist.new_group(), dist.new_group()
        self.shape = (
            share(job.batch, "sequences of a batch", batches),
            job.config.sequence,
            job.config.hidden,
        )
        self.inputs: dict[int, Tensor] = {}
        self.outputs: dict[int, Tensor] = {}
        self.sent: list[dist.Work] = []

    def step(self, order: Iterator[tuple[str, int]], tokens: Tensor, targets: Tensor) -> Tensor:
        """Take all microbatches through the stage; return the sum of what the last stage found as loss."""
        loss = torch.zeros((), device=self.job.device)
        for action, microbatch in order:
            if action == "F":
                self.forward(microbatch, tokens[microbatch])
            else:
                loss += self.backward(microbatch, targets[microbatch])
        for work in self.sent:
            work.wait()
        self.sent.clear()
        return loss

    def forward(self, microbatch: int, tokens: Tensor) -> None:
        x = tokens
        if self.rank > 0:
            x = self.receive(self.rank - 1, self.activations).requires_grad_()
        y = self.model(x)
        if self.rank < self.last:
            self.sent.append(dist.isend(y.detach(), self.rank + 1, self.activations))
        self.inputs[microbatch], self.outputs[microbatch] = x, y

    def backward(self, microbatch: int, targets: Tensor) -> Tensor | float:
        x, y, loss = self.inputs.pop(microbatch), self.outputs.pop(microbatch), 0.0
        if self.rank == self.last:
            loss = loss_fn(y, targets) / self.microbatches
            loss.backward()
            loss = loss.detach()
        else:
            y.backward(self.receive(self.rank + 1, self.gradients))
        if self.rank > 0:
            self.sent.append(dist.isend(x.grad, self.rank - 1, self.gradients))
        return loss

    def receive(self, source: int, group: dist.ProcessGroup) -> Tensor:
        x = torch.empty(self.shape, device=self.job.device)
        dist.recv(x, source, group)
        return x


def new_stage(job: Job, stage: int, stages: int) -> Transformer:
    if stages > job.config.layers:
        raise Refused(f"{job.config.layers} layers are too few for {stages} stages.")
    return draw(Transformer(job.config, stage, stages), job.config).to(job.device)


def by_hand(job: Job, order: Callable) -> Outcome:
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), job.microbatches
    model = new_stage(job, rank, ranks)
    stage, optimizer, losses = Stage(job, model, count), job.make_optimizer(model.parameters()), []
    for tokens, targets in job.batches():
        loss = stage.step(order(rank, ranks, count), tokens.chunk(count), targets.chunk(count))
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss] * (rank == ranks - 1)
    return Outcome(losses, model)


def mine(layout: str, rank: int, ranks: int) -> list[int]:
    """The stages of a rank: one; every so many, as a loop; or one going down a V and one coming up."""
    return {"one": [rank], "loop": [rank, rank + ranks], "v": [rank, 2 * ranks - 1 - rank]}[layout]


def new_schedule(schedule: type, stages: PipelineStage | list[PipelineStage], job: Job, dp: int = 1):
    """Make the schedule. Raises Refused where the microbatches are too few, or too uneven, for the
    schedule."""
    share(job.batch // dp, "sequences of a rank", job.microbatches)
    try:
        return schedule(stages, job.microbatches, loss_fn)
    except ValueError as error:
        raise Refused(f"{error}") from None


def with_schedule(job: Job, schedule: type, layout: str) -> Outcome:
    """A schedule of torch.distributed.pipelining: it receives, runs and sends."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = ranks if layout == "one" else 2 * ranks
    parts = {stage: new_stage(job, stage, count) for stage in mine(layout, rank, ranks)}
    stages = [PipelineStage(part, stage, count, job.device) for stage, part in parts.items()]
    model, losses = nn.ModuleList(parts.values()), []
    optimizer = job.make_optimizer(model.parameters())
    pipeline = new_schedule(schedule, stages[0] if layout == "one" else stages, job)
    for tokens, targets in job.batches():
        found: list[Tensor] = []
        inputs = (tokens,) if 0 in parts else ()
        pipeline.step(*inputs, target=targets, losses=found, return_outputs=False)
        losses += [torch.stack(found).mean().detach()] if found else []
        optimizer.step()
        optimizer.zero_grad()
    return Outcome(losses, model)


STRATEGIES = {
    "naive, by hand": partial(by_hand, order=naive),
    "GPipe, by hand": partial(by_hand, order=gpipe),
    "1F1B, by hand": partial(by_hand, order=one_f_one_b),
    "GPipe": partial(with_schedule, schedule=ScheduleGPipe, layout="one"),
    "1F1B": partial(with_schedule, schedule=Schedule1F1B, layout="one"),
    "looped BFS": partial(with_schedule, schedule=ScheduleLoopedBFS, layout="loop"),
    "interleaved": partial(with_schedule, schedule=ScheduleInterleaved1F1B, layout="loop"),
    "interleaved ZB": partial(with_schedule, schedule=ScheduleInterleavedZeroBubble, layout="loop"),
    "ZB-V": partial(with_schedule, schedule=ScheduleZBVZeroBubble, layout="v"),
    "DualPipeV": partial(with_schedule, schedule=ScheduleDualPipeV, layout="v"),
}

if __name__ == "__main__":
    main(__doc__, STRATEGIES, microbatches=8)
