"""0D in torch: one GPU, the gradients of a batch in parts, and activations that are computed twice.

Run    torchrun in_pytorch/0d_single_gpu.py
"""

import installed  # noqa: F401  before torch: says in a sentence where that is missing

# isort: split
from functools import partial

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from model import Transformer, loss_fn
from running import Job, Outcome, main, share
from weights import draw

MATMULS = {torch.ops.aten.mm.default}


def train(job: Job, model: Transformer, microbatches: int = 1) -> Outcome:
    """Forward and backward for each microbatch, and one step for all."""
    share(job.batch, "sequences of a batch", microbatches)
    optimizer, losses = job.make_optimizer(model.parameters()), []
    for tokens, targets in job.batches():
        losses.append(torch.zeros((), device=job.device))
        for microbatch in zip(tokens.chunk(microbatches), targets.chunk(microbatches)):
            loss = loss_fn(model(microbatch[0]), microbatch[1]) / microbatches
            loss.backward()
            losses[-1] += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
    return Outcome(losses, model)


def new_model(job: Job) -> Transformer:
    return draw(Transformer(job.config), job.config).to(job.device)


def single_gpu(job: Job) -> Outcome:
    return train(job, new_model(job))


def accumulation(job: Job) -> Outcome:
    """The batch in microbatches: backward() adds to the gradients that are there."""
    return train(job, new_model(job), job.microbatches)


def full_recompute(job: Job) -> Outcome:
    """Keep the input of each block, and compute the rest twice."""
    model = new_model(job)
    for layer in model.layers.values():
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return train(job, model)


def selective_recompute(job: Job) -> Outcome:
    """Keep what matmuls return, and compute the rest twice, attention too."""
    model = new_model(job)
    contexts = partial(create_selective_checkpoint_contexts, keep_matmuls)
    for layer in model.layers.values():
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, context_fn=contexts)
    return train(job, model)


def keep_matmuls(context, operation, *arguments, **options) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in MATMULS else CheckpointPolicy.PREFER_RECOMPUTE


STRATEGIES = {
    "single GPU": single_gpu,
    "microbatches": accumulation,
    "selective recompute": selective_recompute,
    "full recompute": full_recompute,
}

if __name__ == "__main__":
    main(__doc__, STRATEGIES, microbatches=Job.microbatches)
